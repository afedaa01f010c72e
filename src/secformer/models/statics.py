"""The tensors a provider uploads: one table says what each is called, what form it has and how it is made.

Planning reads the forms, folding makes the tensors, the program takes its wires by the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from secformer.engine.form import Form
from secformer.engine.sharing import Encoded
from secformer.models.weights import Weights
from secformer.ring.fixed_point import encode


class Source(NamedTuple):
    """What a provider folds from: the weights, and what its calibration keeps secret, if anything."""

    weights: Weights
    layout: Any = None
    embedding_factor: float = 1.0
    """What the embedding's tables are scaled by."""


class Static(NamedTuple):
    """`make` gives real numbers, for a table of bits the words themselves."""

    form: Form
    make: Callable[[Source], Tensor]

    def fold(self, source: Source) -> Encoded:
        made = self.make(source)
        return Encoded(self.form, made if self.form.boolean else encode(made.double(), self.form.scale))


def forms_of(table: Mapping[str, Static]) -> dict[str, Form]:
    return {name: static.form for name, static in table.items()}


def fold(table: Mapping[str, Static], source: Source) -> dict[str, Encoded]:
    """Every tensor of the table, ready to be shared."""
    return {name: static.fold(source) for name, static in table.items()}
