"""The weights of an encoder under our own names, whatever family they come from.

A linear map is stored as (inputs, outputs), so that `x @ weight + bias` applies it. Every tensor has a flat
name (`layers.3.query.weight`), in one fixed order: `assemble` asks a source for the tensors by name and
shape, so the same code builds weights from a checkpoint, from meta tensors for a trace, or from anything a
benchmark likes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from secformer.models.config import ModelConfig

Source = Callable[[str, tuple[int, ...]], Tensor]


@dataclass(frozen=True, repr=False)
class Linear:
    weight: Tensor  # (inputs, outputs)
    bias: Tensor  # (outputs,)

    def __call__(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


@dataclass(frozen=True, repr=False)
class Norm:
    gain: Tensor  # γ, (hidden,)
    bias: Tensor  # β, (hidden,)


@dataclass(frozen=True, repr=False)
class LayerWeights:
    query: Linear
    key: Linear
    value: Linear
    output: Linear
    attention_norm: Norm
    up: Linear
    down: Linear
    output_norm: Norm


@dataclass(frozen=True, repr=False)
class Weights:
    word: Tensor  # (vocabulary, hidden)
    position: Tensor  # (positions, hidden); row 0 belongs to the first token
    token_type: Tensor | None  # (token_types, hidden)
    embedding_norm: Norm
    layers: tuple[LayerWeights, ...]
    pooler: Linear | None
    classifier: Linear | None
    digest: str = ""  # of the values, see `digest_of`

    def __repr__(self) -> str:  # weights are the provider's secret
        return f"Weights({len(self.layers)} layers, digest {self.digest[:12]}…)"

    def named(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor with its flat name, in the order of `assemble`."""
        yield "word", self.word
        yield "position", self.position
        if self.token_type is not None:
            yield "token_type", self.token_type
        yield from _parts("embedding_norm", self.embedding_norm)
        for index, layer in enumerate(self.layers):
            for field in fields(layer):
                yield from _parts(f"layers.{index}.{field.name}", getattr(layer, field.name))
        if self.pooler is not None:
            yield from _parts("pooler", self.pooler)
        if self.classifier is not None:
            yield from _parts("classifier", self.classifier)


def assemble(config: ModelConfig, source: Source) -> Weights:
    """Weights of the shapes `config` asks for, every tensor from `source(name, shape)`; without a digest."""

    def linear(name: str, inputs: int, outputs: int) -> Linear:
        return Linear(source(f"{name}.weight", (inputs, outputs)), source(f"{name}.bias", (outputs,)))

    def norm(name: str) -> Norm:
        return Norm(source(f"{name}.gain", (hidden,)), source(f"{name}.bias", (hidden,)))

    def layer(name: str) -> LayerWeights:
        return LayerWeights(
            query=linear(f"{name}.query", hidden, hidden),
            key=linear(f"{name}.key", hidden, hidden),
            value=linear(f"{name}.value", hidden, hidden),
            output=linear(f"{name}.output", hidden, hidden),
            attention_norm=norm(f"{name}.attention_norm"),
            up=linear(f"{name}.up", hidden, config.intermediate),
            down=linear(f"{name}.down", config.intermediate, hidden),
            output_norm=norm(f"{name}.output_norm"),
        )

    hidden, types = config.hidden, config.token_types
    return Weights(
        word=source("word", (config.vocabulary, hidden)),
        position=source("position", (config.positions, hidden)),
        token_type=source("token_type", (types, hidden)) if types else None,
        embedding_norm=norm("embedding_norm"),
        layers=tuple(layer(f"layers.{index}") for index in range(config.layers)),
        pooler=linear("pooler", hidden, hidden) if config.has_pooler else None,
        classifier=linear("classifier", hidden, len(config.labels)) if config.labels else None,
    )


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Flat name and shape of every tensor of such a model."""
    seen: dict[str, tuple[int, ...]] = {}

    def remember(name: str, shape: tuple[int, ...]) -> Tensor:
        seen[name] = shape
        return torch.empty(shape, device="meta")

    assemble(config, remember)
    return seen


def digest_of(weights: Weights) -> str:
    """SHA-256 over names, shapes and float32 values: equal for a float16 checkpoint and its float32 copy."""
    digest = hashlib.sha256()
    for name, tensor in weights.named():
        digest.update(f"{name} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().data)
    return digest.hexdigest()


def _parts(name: str, module: Linear | Norm) -> Iterator[tuple[str, Tensor]]:
    for field in fields(module):
        yield f"{name}.{field.name}", getattr(module, field.name)
