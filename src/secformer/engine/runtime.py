"""What a protocol may call. One program is written against `Runtime` and read four ways:

    tracing.py      on meta tensors: gives the tape (what T must deal) and the ledger (what it costs)
    computing.py    at S0 and S1, on shares
    dealing.py      at T, on masks: streams the corrections
    simulating.py   on plain numbers, same fixed point, ranges checked

Only `open` talks to the other server, and only `disclose` makes a result that a caller gets; everything else is local.
`open` is variadic: values opened together share a round. A grep for `.open(` lists every disclosure between servers, one
for `.disclose(` everything that leaves. A runtime holds neither channel nor stream: a body has nothing else to send with.

A protocol of several rounds may be written as *steps*, a generator that yields what it opens and is sent the wires. Steps
run at once, or *ride*: what they open joins the rounds that the program makes anyway, so that they cost none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar, overload

import torch
from torch import Tensor

from secformer.engine.gate import Gate, Result
from secformer.engine.values import (
    Bits,
    Disclosed,
    Masked,
    MaskedBits,
    Public,
    Rounded,
    Share,
    Shared,
    Wire,
    joined,
)
from secformer.errors import DtypeError, ShapeError, TapeError, WidthError
from secformer.ring.fixed_point import check_width, encode
from secformer.ring.resident import placed

Openable = Shared | Rounded | Bits
Outcome = TypeVar("Outcome")
Steps = Generator[tuple[Openable, ...], tuple[Any, ...], Outcome]
"""A protocol that yields what it opens and is sent the wires."""


@dataclass
class _Rider:
    """Steps that wait for the next round, and the scope they are charged to."""

    steps: Steps[None]
    scopes: list[str]
    waiting: tuple[Openable, ...] = ()


class Runtime(ABC):
    """`party` is the j of the formulas. Readings that see whole values (not shares) read as party 1."""

    party: int = 1
    device: torch.device = torch.device("cpu")

    def __init__(self) -> None:
        self._scopes: list[str] = []
        self._riders: list[_Rider] = []
        self.watcher: Callable[[str], None] | None = None
        """Told the name of every outermost scope as it begins: progress for a person who waits."""

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Charge what happens inside to `name` ("layer 3", "gelu") in the ledger and in error messages."""
        self._scopes.append(name)
        if self.watcher is not None and len(self._scopes) == 1:
            self.watcher(name)
        try:
            yield
        finally:
            self._scopes.pop()

    @property
    def where(self) -> str:
        return "/".join(self._scopes)

    # -- talking ------------------------------------------------------------------------------------------------

    @overload
    def open(self, *values: Shared | Rounded) -> tuple[Masked, ...]: ...

    @overload
    def open(self, *values: Bits) -> tuple[MaskedBits, ...]: ...

    @overload
    def open(self, *values: Openable) -> tuple[Masked | MaskedBits, ...]: ...

    def open(self, *values: Any) -> tuple[Any, ...]:
        """Turn shares into wires: one round for all of them, `width` bits an element each way."""
        for value in values:
            self._check_openable(value)
        return self._open_with_riders(values) if self._riders else self._open(values, ())

    def _open_with_riders(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        riders, self._riders = self._riders, []
        guests = tuple(value for rider in riders for value in rider.waiting)
        for value in guests:
            self._check_openable(value)
        scopes = ["/".join(rider.scopes) for rider in riders for _ in rider.waiting]
        wires = self._open((*values, *guests), scopes)
        arrived = iter(wires[len(values) :])
        for rider in riders:
            self._advance(rider, tuple(islice(arrived, len(rider.waiting))))
        return wires[: len(values)]

    def at_once(self, steps: Steps[Outcome]) -> Outcome:
        """Run steps in rounds of their own."""
        try:
            values = next(steps)
            while True:
                values = steps.send(self.open(*values))
        except StopIteration as end:
            return end.value

    def ride(self, steps: Steps[None], name: str) -> None:
        """Run steps in the rounds to come, charged to `name` beside the present operation."""
        self._advance(_Rider(steps, [*self._scopes[:-1], name]), None)

    def _advance(self, rider: _Rider, wires: tuple[Any, ...] | None) -> None:
        scopes, self._scopes = self._scopes, rider.scopes
        try:
            rider.waiting = next(rider.steps) if wires is None else rider.steps.send(wires)
            self._riders.append(rider)
        except StopIteration:
            pass
        finally:
            self._scopes = scopes

    def check_arrived(self) -> None:
        """Raise TapeError if steps still wait for a round when the program has ended."""
        if self._riders:
            names = ", ".join("/".join(rider.scopes) for rider in self._riders)
            raise TapeError(f"{names}: steps wait for a round that never comes")

    def _check_openable(self, value: Any) -> None:
        if not isinstance(value, Openable):
            raise TapeError(
                f"{self.where}: a {type(value).__name__} cannot be opened: only shares can, each once masked"
            )
        tensor = value.value.share if isinstance(value, Rounded) else value.share
        if tensor.dtype != torch.int64:
            raise DtypeError(f"only int64 ring elements can be opened, not {tensor.dtype}: encode first")
        if tensor.numel() == 0:
            raise ShapeError(f"an empty tensor of shape {tuple(tensor.shape)} cannot be opened")
        check_width(value.width)

    @abstractmethod
    def _open(self, values: Sequence[Openable], guests: Sequence[str]) -> tuple[Masked | MaskedBits, ...]:
        """One round. The last of the values are guests, each charged to a scope of its own."""

    def disclose(self, value: Share, scale: int | None = None, width: int | None = None) -> Disclosed:
        """A result for the caller: dropped to `scale`, known modulo 2^width and no further, its shares made anew."""
        if isinstance(value, Bits):
            return self._disclose(value)
        if not isinstance(value, Shared):
            raise TapeError(f"{self.where}: a {type(value).__name__} cannot be disclosed: only shares can")
        return self._disclose(self.drop_to(value, value.scale if scale is None else scale, width))

    @abstractmethod
    def _disclose(self, value: Share) -> Disclosed: ...

    # -- local, with dealt material -------------------------------------------------------------------------------

    def apply(self, gate: Gate[Result], *wires: Wire) -> Result:
        """Wires to a share, with material from T."""
        gate.check(wires)
        return self._apply(gate, wires)  # type: ignore[return-value]

    @abstractmethod
    def _apply(self, gate: Gate[Any], wires: Sequence[Any]) -> Share: ...

    def apply_by_rows(self, gate: Gate[Shared], size: int, *wires: Masked | MaskedBits) -> Shared:
        """A gate that treats the rows (the first dimension) of its wires alike and is dealt one value, dealt `size` rows at a
        time. A server may evaluate several such blocks at once (computing.py): the tape does not tell."""
        gate.check(wires)
        if len({tuple(wire.shape[:1]) for wire in wires}) != 1:
            shapes = ", ".join(str(tuple(wire.shape)) for wire in wires)
            raise TapeError(f"{self.where}: {gate.describe()} is given wires of {shapes}: they have not the same rows")
        starts = range(0, wires[0].shape[0], size)
        return self._apply_by_rows(gate, [[wire[start : start + size] for wire in wires] for start in starts], wires)

    def _apply_by_rows(self, gate: Gate[Shared], blocks: Sequence[Sequence[Any]], wires: Sequence[Any]) -> Shared:
        """`wires` are what the blocks are parts of."""
        return joined([self._apply(gate, block) for block in blocks], 0)  # type: ignore[arg-type]

    # -- local ----------------------------------------------------------------------------------------------------

    def constant(self, public: Public, width: int = 64) -> Shared:
        """A sharing of a public value: S1 holds it, S0 holds zero."""
        value = placed(public.value, self.device)
        return Shared(value if self.party == 1 else torch.zeros_like(value), width, public.scale)

    def add(self, value: Shared, real: Tensor | float) -> Shared:
        """value + a public real number (or tensor of them), rounded to the value's scale."""
        number = torch.as_tensor(real, dtype=torch.float64)
        public = Public(encode(number.reshape(number.shape or (1,)), value.scale), value.scale)
        return value + self.constant(public, value.width)

    def drop(self, value: Shared, bits: int) -> Shared:
        """Exact truncation: shares of value/2^bits modulo 2^(width-bits), rounded down or up.

        [z']_0 = [z]_0 >> g, [z']_1 = ([z]_1 + 2^g - 1) >> g with logical shifts of the w-bit residues: S0 rounds its share
        down, S1 up. So z' is off by less than one, and exact where 2^g divides z; s_0, the low part of [z]_0, is uniform, so
        the rounding has no bias at all. (With + 2^g, rounding down and adding one, it has one of 2^-g: half a unit where a
        single bit is dropped.)
        """
        if bits == 0:
            return value
        if not 0 < bits < value.width:
            raise WidthError(
                f"{self.where}: cannot drop {bits} of {value.width} bits: the value's ring is exhausted, open it wider"
            )
        return Shared(self._drop(value.share, bits, value.width), value.width - bits, value.scale - bits)

    def drop_to(self, value: Shared, scale: int, width: int | None = None) -> Shared:
        """Drop to `scale` and forget the bits above `width`. (A value that is opened next: `value.at(scale, width)`.)"""
        dropped = self.drop(value, value.scale - scale)
        return dropped if width is None else dropped.narrow(width)

    def expect(  # noqa: B027
        self, value: Shared | Masked, low: float, high: float, where: Shared | None = None, unit: float = 1.0
    ) -> None:
        """State the range a value has by calibration (where `where` is not zero: padding may hold anything).

        The value may be held in other units than its range is stated in: `unit` of those make one of it.

        Simulation checks it and names the layer and operation. A secure run cannot check without leaking.
        """

    @abstractmethod
    def _drop(self, share: Tensor, bits: int, width: int) -> Tensor: ...
