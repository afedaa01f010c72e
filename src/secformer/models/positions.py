"""Where tokens are: what a model makes of the distance between two of them. All of it is public.

A bias of scores by distance (MPNet, as T5 has it) knows few classes: half of them for either direction, of these the first half
one distance each, the others distances that grow in equal ratios up to `FARTHEST`, beyond which all are alike.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from secformer.models.config import ModelConfig

FARTHEST = 128


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
