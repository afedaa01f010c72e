"""The model provider: brings the weights once, in shares; they stay with the servers as wires."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from secformer.parties.client import Client, Result
from secformer.parties.messages import Job
from secformer.settings import Settings


class Weight(NamedTuple):
    """Numbers at `scale` fraction bits modulo 2^width; with kind "bits", words of `width` bits."""

    numbers: Tensor
    scale: int = 12
    width: int = 54
    kind: str = "shared"


class Provider(Client):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, "provider")

    def upload(self, model: str, weights: Mapping[str, Weight]) -> Result:
        """Share the weights and leave them with the servers under the name `model`."""
        forms = {
            name: {
                "shape": list(weight.numbers.shape),
                "scale": weight.scale,
                "width": weight.width,
                "kind": weight.kind,
            }
            for name, weight in weights.items()
        }
        job = Job("upload", {"tensors": forms}, stores=model)
        return self.run(job, {name: weight.numbers for name, weight in weights.items()})
