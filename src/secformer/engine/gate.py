"""A gate: one local step that needs dealt randomness.

A gate takes wires and gives a share, without talking to the other server. What makes that possible is material that T
computes from the masks alone and shares between the servers. All a gate is, is written in one place:

    materials   how many values T must share, of what shape and width (fixed by shapes: nothing depends on secrets)
    deal        T: those values, as a function of the wires' masks
    evaluate    S_j: the output share, from the public parts, the mask shares and the shared material
    plain       simulation: the same result on plain numbers, with its range checks

`evaluate` must be linear in (j, mask shares, material shares), so that the two servers' results add up.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from torch import Tensor

from secformer.engine.values import Share, Wire
from secformer.ring.packing import packed_bytes


class Material(NamedTuple):
    """One tensor that T shares: additively modulo 2^width, or bit by bit when `boolean`."""

    shape: tuple[int, ...]
    width: int
    boolean: bool = False

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bits(self) -> int:
        return self.elements * self.width

    @property
    def packed_bytes(self) -> int:
        return packed_bytes(self.elements, self.width)


class Gate(ABC):
    """See the module docstring. Concrete gates are frozen dataclasses; their fields go on the tape."""

    @abstractmethod
    def materials(self, *wires: Wire) -> tuple[Material, ...]: ...

    @abstractmethod
    def deal(self, *wires: Wire) -> Sequence[Tensor]: ...

    @abstractmethod
    def evaluate(self, party: int, wires: Sequence[Wire], dealt: Sequence[Tensor]) -> Share: ...

    @abstractmethod
    def plain(self, *wires: Wire) -> Share: ...

    def describe(self) -> str:
        """The gate and its parameters, for the tape. Override where a field is large."""
        return repr(self)
