"""The weights of a model under our own names, whatever family they come from.

One table, `shapes`, lists every tensor of a configuration. Names are flat (`layers.3.query.weight`), a linear map is stored
as (inputs, outputs), so that `x @ weight + bias` applies it, and a LayerNorm has a `gain` (γ) and a `bias` (β).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from secformer.models.config import ModelConfig

Source = Callable[[str, tuple[int, ...]], Tensor]


class Linear(NamedTuple):
    weight: Tensor  # (inputs, outputs)
    bias: Tensor  # (outputs,)

    def __call__(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias

    def __repr__(self) -> str:
        return f"Linear(shape={tuple(self.weight.shape)}, hidden)"


class Norm(NamedTuple):
    gain: Tensor  # γ, (hidden,)
    bias: Tensor  # β, (hidden,)

    def __repr__(self) -> str:
        return f"Norm(shape={tuple(self.gain.shape)}, hidden)"


@dataclass(frozen=True, repr=False)
class Weights:
    tensors: Mapping[str, Tensor]

    def __repr__(self) -> str:  # weights are the provider's secret
        return f"Weights({len(self.tensors)} tensors, hidden)"

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def linear(self, name: str) -> Linear:
        return Linear(self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"])

    def norm(self, name: str) -> Norm:
        return Norm(self.tensors[f"{name}.gain"], self.tensors[f"{name}.bias"])

    def to(self, target: torch.dtype | torch.device) -> Weights:
        """The same weights in another precision or place. A digest is of float32 values, so it stays."""
        found = Weights({name: tensor.to(target) for name, tensor in self.tensors.items()})
        found.__dict__.update({name: value for name, value in self.__dict__.items() if name == "digest"})
        return found

    @cached_property
    def digest(self) -> str:
        """SHA-256 over names, shapes and float32 values: equal for a float16 checkpoint and its float32 copy."""
        digest = hashlib.sha256()
        for name, tensor in self.tensors.items():
            digest.update(f"{name} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().data)
        return digest.hexdigest()


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of such a model, in the order of their use."""
    hidden, inner, row = config.hidden, config.intermediate, config.table_size
    found: dict[str, tuple[int, ...]] = {}
    if config.image_size:
        found |= _linear("patch", config.patch_numbers, hidden)
        found |= {name: (1, hidden) for name in ("first", "second")[: config.first_rows]}
    else:
        found["word"] = (config.vocabulary, row)
    if config.position_rows:
        found["position"] = (config.positions, row)  # row 0 belongs to the first token
    if config.token_types:
        found["token_type"] = (config.token_types, row)
    found |= _norm("embedding_norm", row)
    if config.embedding_size:
        found |= _linear("projection", row, hidden)
    if config.relative_buckets:
        found["relative"] = (config.relative_buckets, config.heads)
    if config.distance_span:
        found["distance"] = (2 * config.distance_span, hidden)
    if config.distance_norm:
        found |= _norm("distance_norm", hidden)
    for index in range(config.own_layers):
        name = f"layers.{index}"
        for part in ("query", "key", "value", "output"):
            found |= _linear(f"{name}.{part}", hidden, hidden)
        found |= _norm(f"{name}.attention_norm", hidden)
        found |= _linear(f"{name}.up", hidden, inner)
        if config.gated:
            found |= _linear(f"{name}.gate", hidden, inner)
        found |= _linear(f"{name}.down", inner, hidden)
        found |= _norm(config.output_norm(index) if config.norm_first else f"{name}.output_norm", hidden)
    if config.pooler:
        found |= _linear("pooler", hidden, hidden)
    if config.transform:
        found |= _linear("transform", hidden, config.transform_size)
        found |= _norm("transform_norm", config.transform_size)
    if config.outputs:
        found |= _linear("classifier", config.transform_size or hidden, config.outputs)
    if config.dense_size:
        found |= _linear("dense", hidden, config.dense_size)
    return found


def _linear(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (inputs, outputs), f"{name}.bias": (outputs,)}


def _norm(name: str, size: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.gain": (size,), f"{name}.bias": (size,)}


def assemble(config: ModelConfig, source: Source) -> Weights:
    """Weights of the shapes `config` asks for, every tensor from `source(name, shape)`."""
    return Weights({name: source(name, shape) for name, shape in shapes(config).items()})
