"""The model provider: brings the weights once, in shares; they stay with the servers as wires."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from secformer.parties.client import Client, Result
from secformer.parties.messages import Job
from secformer.parties.sharing import Ring
from secformer.settings import Settings

Serves = Mapping[str, Mapping[str, Any]]
"""Programs that may use a model, each with the parameters it must be given (messages.Job.serves)."""


class Weight(NamedTuple):
    """Real numbers to be encoded at `scale` fraction bits modulo 2^width, or int64 ring elements that are encoded
    already; with kind "bits", words of `width` bits."""

    numbers: Tensor
    scale: int = 12
    width: int = 54
    kind: str = "shared"

    def __repr__(self) -> str:
        return f"Weight(shape={tuple(self.numbers.shape)}, scale={self.scale}, width={self.width}, kind={self.kind!r})"


class Provider(Client):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, "provider")

    def upload(self, model: str, weights: Mapping[str, Weight], serves: Serves) -> Result:
        """Share the weights and leave them with the servers under the name `model`, for these uses and no others:
        {"encoder": {"card": ...}} lets everybody query this very card, with a batch and length of their own."""
        inputs = {name: _as_input(weight) for name, weight in weights.items()}
        return self.run(self._job(model, weights, serves), inputs)

    def _job(self, model: str, weights: Mapping[str, Weight], serves: Serves) -> Job:
        forms = {
            name: {
                "shape": list(weight.numbers.shape),
                "scale": weight.scale,
                "width": weight.width,
                "kind": weight.kind,
            }
            for name, weight in weights.items()
        }
        allowed = {program: dict(fixed) for program, fixed in serves.items()}
        return Job("upload", {"tensors": forms}, stores=model, serves=allowed)


def _as_input(weight: Weight) -> Tensor | Ring:
    encoded = weight.kind == "shared" and not weight.numbers.is_floating_point()
    return Ring(weight.numbers) if encoded else weight.numbers
