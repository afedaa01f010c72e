"""The model provider: brings the weights once, in shares; they stay with the servers as wires."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from secformer.parties.client import Client, Result
from secformer.parties.messages import Job
from secformer.parties.sharing import Ring
from secformer.settings import Settings


class Weight(NamedTuple):
    """Real numbers to be encoded at `scale` fraction bits modulo 2^width, or int64 ring elements that are encoded
    already; with kind "bits", words of `width` bits."""

    numbers: Tensor
    scale: int = 12
    width: int = 54
    kind: str = "shared"


class Provider(Client):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, "provider")

    def upload(self, model: str, weights: Mapping[str, Weight]) -> Result:
        """Share the weights and leave them with the servers under the name `model`."""
        inputs = {name: _as_input(weight) for name, weight in weights.items()}
        return self.run(self._job(model, weights), inputs)

    def _job(self, model: str, weights: Mapping[str, Weight]) -> Job:
        forms = {
            name: {
                "shape": list(weight.numbers.shape),
                "scale": weight.scale,
                "width": weight.width,
                "kind": weight.kind,
            }
            for name, weight in weights.items()
        }
        return Job("upload", {"tensors": forms}, stores=model)


def _as_input(weight: Weight) -> Tensor | Ring:
    encoded = weight.kind == "shared" and not weight.numbers.is_floating_point()
    return Ring(weight.numbers) if encoded else weight.numbers
