"""A gate: one local step that needs dealt randomness.

A gate takes wires and gives a share, without talking to the other server. What makes that possible is material that T
computes from the masks alone and shares between the servers. All a gate is, is written in one place:

    takes       the kinds of wire it works on; any other is refused when the program is traced
    result      the form of what comes out: tracing and dealing need no more than that
    materials   the forms of the values T must share, if any (fixed by forms: nothing depends on secrets)
    deal        T: those values, as a function of the wires' masks
    evaluate    S_j: the output share, from the public parts, the mask shares and the shared material
    ahead       S_j: a part of that which needs no public part
    plain       simulation: the same result on plain numbers, with its range checks

`evaluate` must be linear in (j, mask shares, material shares), so that the two servers' results add up. A device may
bring its own `evaluate` and `deal` (ring/kernels); these are the reference.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from secformer.engine.form import Form
from secformer.engine.values import Masked, Share, Wire
from secformer.errors import TapeError
from secformer.ring import kernels

Result = TypeVar("Result", bound=Share)
Kinds = type | tuple[type, ...]


class Gate(ABC, Generic[Result]):
    """A local step with dealt randomness: what it takes and gives, what T deals, what each reading does with it. Concrete gates
    are frozen dataclasses; their fields go on the tape."""

    takes: ClassVar[tuple[Kinds, ...]] = (Masked,)

    @abstractmethod
    def result(self, *wires: Any) -> Form: ...

    def materials(self, *wires: Any) -> tuple[Form, ...]:
        return ()

    def deal(self, *wires: Any) -> Sequence[Tensor]:
        return ()

    def ahead(self, *wires: Any) -> Tensor | None:
        """S_j: what its masks alone decide, if that is worth computing before the public parts are there (ahead.py).
        `evaluate` then gets it after the material."""
        return None

    def work(self, *wires: Any) -> tuple[int, int]:
        """Products of matrix entries, and words of secret tables that are combined, where they are what takes the time."""
        return 0, 0

    @abstractmethod
    def evaluate(self, party: int, wires: Sequence[Any], dealt: Sequence[Tensor]) -> Tensor: ...

    @abstractmethod
    def plain(self, *wires: Any) -> Tensor: ...

    def describe(self) -> str:
        """The gate and its parameters, for the tape. Override where a field is large."""
        return repr(self)

    def check(self, wires: Sequence[Wire]) -> None:
        """Refuse kinds of wire for which the formulas do not hold."""
        if len(wires) != len(self.takes) or not all(map(isinstance, wires, self.takes)):
            given = ", ".join(type(wire).__name__ for wire in wires)
            raise TapeError(f"{type(self).__name__} does not take ({given}): for these wires it would be wrong")

    def on(self, device: torch.device, name: str) -> Callable[..., Any]:
        """`evaluate` or `deal` as this device does it."""
        own = kernels.find(f"{name}_{type(self).__name__}", device.type)
        return getattr(self, name) if own is None else partial(own, self)
