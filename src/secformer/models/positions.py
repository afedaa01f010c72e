"""Where tokens are: what a model makes of the distance between two of them. All of it is public.

A bias of scores by distance (MPNet, as T5 has it) knows few classes: half of them for either direction, of these the first half
one distance each, the others distances that grow in equal ratios up to `FARTHEST`, beyond which all are alike.

Rows of distances (DeBERTa) are one for each distance near by, and one for several further away, likewise.

Rotary positions (ModernBERT) turn a query and a key, as pairs of numbers i and i + d/2, by angles that grow with their place, so
that a score knows the distance. Local layers look at near keys only.

Programs take these tables from where they stay (ring/resident.py): few of them, since they grow with the square of the length.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from secformer.models.config import ModelConfig
from secformer.ring.fixed_point import encode
from secformer.ring.resident import resident

FARTHEST = 128

_few = partial(resident, kept=4)


def buckets(config: ModelConfig, tokens: int) -> Tensor:
    """The class of the distance between a query and a key: (n, n), of queries by keys."""
    places = torch.arange(tokens)
    distance = places[:, None] - places[None, :]
    half = config.relative_buckets // 2
    near = half // 2
    size = distance.abs()
    growth = torch.log(size.clamp(min=1).float() / near) / math.log(FARTHEST / near)
    far = (near + (growth * (half - near)).to(torch.int64)).clamp(max=half - 1)
    return torch.where(size < near, size, far) + half * (distance < 0)


def is_local(config: ModelConfig, layer: int) -> bool:
    return layer in config.local_layers


def rotation(config: ModelConfig, layer: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every place's angles (n, d), in float32 as transformers takes them."""
    base = config.local_rotary_base if is_local(config, layer) else config.rotary_base
    steps = torch.arange(0, config.head_size, 2, dtype=torch.int64).float() / config.head_size
    angles = torch.arange(tokens).float()[:, None] * (1.0 / base**steps)
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()


def half_turned(x: Tensor) -> Tensor:
    """(−x₂, x₁) for the two halves of the last dimension: a turn by a right angle."""
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def band(config: ModelConfig, layer: int, tokens: int) -> Tensor | None:
    """Which keys a query of a local layer looks at (n, n); None where it is all."""
    if not is_local(config, layer):
        return None
    places = torch.arange(tokens)
    return (places[:, None] - places[None, :]).abs() <= config.local_reach


def distances(config: ModelConfig, tokens: int) -> Tensor:
    """The row of the table of distances for a query and a key (n, n)."""
    places = torch.arange(tokens)
    distance, middle = places[:, None] - places[None, :], config.distance_buckets // 2
    if middle:
        size = distance.abs().clamp(min=middle)
        ratio = torch.log(size / middle) / torch.log(torch.tensor((config.distance_limit - 1) / middle))
        far = (torch.ceil(ratio * (middle - 1)) + middle) * torch.sign(distance)
        distance = torch.where(distance.abs() <= middle, distance, far.to(torch.int64))
    return (distance + config.distance_span).clamp(0, 2 * config.distance_span - 1)


# -- on a device ------------------------------------------------------------------------------------------------------


@_few
def bias_classes(config: ModelConfig, tokens: int, device: torch.device) -> Tensor:
    return buckets(config, tokens).to(device)


@_few
def distance_classes(config: ModelConfig, tokens: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows of the table of distances that are used, and for a query and a key the place among them (n, n)."""
    used, places = distances(config, tokens).unique(return_inverse=True)
    return used.to(device), places.to(device)


@_few
def near_keys(config: ModelConfig, tokens: int, device: torch.device) -> Tensor:
    """What `band` says of local layers, as numbers."""
    near = band(config, config.local_layers[0], tokens)
    assert near is not None
    return near.to(device, torch.int64)


def turns(config: ModelConfig, layer: int, tokens: int, scale: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """What `rotation` says of a layer, in fixed point."""
    alike = next(each for each in range(config.layers) if is_local(config, each) == is_local(config, layer))
    return _turns(config, alike, tokens, scale, device)


@_few
def _turns(config: ModelConfig, layer: int, tokens: int, scale: int, device: torch.device) -> tuple[Tensor, Tensor]:
    cosine, sine = (encode(turn.double(), scale).to(device) for turn in rotation(config, layer, tokens))
    return cosine, sine
