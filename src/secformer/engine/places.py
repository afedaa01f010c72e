"""Places that stay, in which a recorded plan finds what is new in a session.

    keys          of its streams
    inputs        the caller's shares; the model's wires lie where they lie
    corrections   T's (S1), put here by a thread of their own as they arrive, ahead of the program
    received      what the other server sent

On the GPU there is room for all corrections, or the plan is not recorded. When a run has ended, well or not, that thread is
stopped and the places are wiped.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Condition, Lock, Thread
from typing import Any

import torch
from torch import Tensor

from secformer.engine.computing import Corrections
from secformer.engine.program import Inputs
from secformer.engine.tracing import Plan
from secformer.engine.values import Masked, MaskedBits, Value, share_of
from secformer.errors import TapeError

_ALIGNED = 256


class Places:
    """Where a recording's work reads and writes what is a session's own."""

    def __init__(self, party: int, plan: Plan, graphs: Any) -> None:
        size = _largest_round(plan)
        self.inputs: dict[str, Value] = {}
        self.keys: tuple[Tensor, ...] = ()
        self.material = torch.zeros(max(1, room(plan)) if party else 0, dtype=torch.uint8, device=graphs.device)
        self.corrections = _correction_places(plan, self.material) if party else []
        self.received = torch.zeros(size, dtype=torch.uint8, device=graphs.device)
        self.landing = (graphs.host(size), graphs.host(size))
        self.outgoing = (graphs.host(size), graphs.host(size))

    def put(self, keys: Sequence[Tensor], inputs: Inputs) -> None:
        """What a session draws from, and what its caller brings."""
        for place, key in zip(self.keys, keys, strict=True):
            place.copy_(key)
        for name, place in self.inputs.items():
            given = inputs[name]
            if _is_wire(place):
                if given is not place:
                    raise TapeError(f"the wire {name!r} is not the one that the plan was recorded with")
            else:
                _tensor(place).copy_(_tensor(given))

    def wipe(self) -> None:
        """Nothing of a session stays: keys, shares, corrections, what arrived. (What was sent last may still be on its way, and
        the peer has it anyway.)"""
        shares = [_tensor(value) for value in self.inputs.values() if not _is_wire(value)]
        for place in (*self.keys, *shares, self.material, self.received, *self.landing):
            place.zero_()


def empty_inputs(plan: Plan, device: torch.device) -> dict[str, Any]:
    """Places of what a caller brings; the model's wires lie where they lie."""
    forms = {name: form for name, form in plan.program.inputs.items() if not form.is_wire}
    return {
        name: share_of(form, torch.zeros(form.shape, dtype=torch.int64, device=device)) for name, form in forms.items()
    }


def _is_wire(value: Value) -> bool:
    return isinstance(value, Masked | MaskedBits)


def _tensor(value: Any) -> Tensor:
    return value.share


def room(plan: Plan) -> int:
    """Bytes of all corrections."""
    return sum(_rounded(entry.form.packed_bytes) for entry in plan.tape.dealt)


def _rounded(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _largest_round(plan: Plan) -> int:
    sizes: dict[int, int] = {}
    for opening in plan.tape.openings:
        sizes[opening.round] = sizes.get(opening.round, 0) + opening.form.packed_bytes
    return max(sizes.values())


def _correction_places(plan: Plan, whole: Tensor) -> list[Tensor]:
    places, start = [], 0
    for entry in plan.tape.dealt:
        places.append(whole[start : start + entry.form.packed_bytes])
        start += _rounded(entry.form.packed_bytes)
    return places


class Feed:
    """Puts T's corrections in their places as they arrive."""

    def __init__(self, plan: Plan, corrections: Corrections, places: Sequence[Tensor], courier: Any) -> None:
        self._entries, self._corrections, self._places, self._courier = plan.tape.dealt, corrections, places, courier
        self._arrived = 0
        self._stopped, self._placing = False, Lock()
        self._error: BaseException | None = None
        self._changed = Condition()
        self._thread = Thread(target=self._receive, name="corrections", daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        try:
            for entry, place in zip(self._entries, self._places, strict=True):
                packed = self._corrections(entry)
                with self._placing:
                    if self._stopped:
                        return
                    self._courier.bring(place, packed)
                with self._changed:
                    self._arrived += 1
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def stop(self) -> None:
        """From now on nothing is written. A thread that still waits for T's next word ends with that word, or with the link."""
        with self._placing:
            self._stopped = True

    def has(self, count: int) -> bool:
        """Whether so many corrections are there."""
        return self._arrived >= count

    def wait(self, count: int) -> None:
        """Until so many corrections are there."""
        if self._arrived < count:
            with self._changed:
                self._changed.wait_for(lambda: self._error is not None or self._arrived >= count)
        if self._arrived < count and self._error is not None:
            raise self._error.with_traceback(None)


class NoFeed:
    """S0 draws its halves itself."""

    def has(self, count: int) -> bool:
        return True

    def wait(self, count: int) -> None:
        pass

    def stop(self) -> None:
        pass
