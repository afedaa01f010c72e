"""A plan that T deals for again and again on one GPU: recorded once, then replayed (repertoire.py says when).

What is dealt depends on the masks alone, so all of it is known kernels on known shapes, from the first draw to the last
correction. It is captured in parts, each of which leaves its corrections in one of two buffers of the CPU's memory:

    the GPU     part 0 | part 1 | part 2 | ...
    the link             part 0 | part 1 | ...      the buffer of part n is free for part n + 2 when part n has left

New in a session are the keys of its streams; the places where they lie are wiped when the run has ended, and so are the buffers,
unless it failed: then the link may still be reading there, and nobody uses them again. Byte for byte S1 is sent the same as by
dealing.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from secformer.crypto.prg import SEED_BYTES, Seed
from secformer.engine.dealing import Dealing, Draws
from secformer.engine.program import Inputs, Outputs
from secformer.engine.repertoire import Known, Repertoire
from secformer.engine.tracing import Plan
from secformer.ring.resident import noting
from secformer.transport.channel import Channel, FrameType
from secformer.transport.frame import SESSION_BYTES

PART_BYTES = 64 << 20
"""Of corrections, in one part; a larger correction is a part by itself."""


class Frame(NamedTuple):
    """A correction, where the part's graph leaves it."""

    packed: Tensor
    shape: tuple[int, ...]
    width: int

    def __repr__(self) -> str:
        return f"Frame({self.shape}, {self.width} bits)"


class Part(NamedTuple):
    graph: Any
    frames: tuple[Frame, ...]


@dataclass(repr=False)
class RecordedDealing:
    """A plan's parts in their order, and the places that they read and write."""

    graphs: Any
    keys: tuple[Tensor, ...]
    buffers: tuple[Tensor, Tensor]
    parts: list[Part] = field(default_factory=list)
    kept: list[object] = field(default_factory=list)
    """Tables the graphs read."""

    def run(self, channel: Channel, keys: Sequence[Tensor]) -> None:
        with self.graphs.stream():
            try:
                for place, key in zip(self.keys, keys, strict=True):
                    place.copy_(key)
                for part in self.parts:
                    part.graph.replay()
                    self.graphs.wait()
                    channel.flush()  # the part before this one has left
                    for frame in part.frames:
                        channel.lend(FrameType.MATERIAL, *frame)
                channel.flush()
                self._wipe(*self.buffers)
            finally:
                self._wipe(*self.keys)

    def _wipe(self, *places: Tensor) -> None:
        for place in places:
            place.zero_()
        self.graphs.wait()


class Dealings(Repertoire[RecordedDealing]):
    """The plans that T has dealt for, and how it deals for them next."""

    def deal(
        self, plan: Plan, wires: Inputs, channel: Channel, seeds: tuple[Seed, Seed], streams: bytes | None = None
    ) -> Outputs:
        """Deal for one run; `seeds` are fresh ones, `streams` names what is drawn where it is dealt ahead of a session.
        A replay gives no outputs: results for a caller, of which T has none."""
        draws = Draws.of(seeds, streams or channel.session, self._device)
        known = self._claim(plan, wires)
        if known is None:
            return Dealing(plan, channel, draws).run(wires)
        try:
            recorded = self._recording(known)
            if recorded is None:
                with known.rehearsal():
                    return Dealing(plan, channel, draws).run(wires)
            with known.replay(recorded):
                recorded.run(channel, draws.keys)
            return {}
        finally:
            known.busy = False

    def _room(self, plan: Plan) -> int:
        """What is dealt leaves the device at once; of what graphs hold between their steps the plan does not tell. Where there is
        no room for it, recording fails, and T goes on step by step."""
        return 0

    def _record(self, known: Known[RecordedDealing], graphs: Any) -> RecordedDealing:
        return _Recording(known.plan, graphs).record(known.wires)


class _Recording:
    """A plan, captured part by part: nothing is done and nothing is sent."""

    def __init__(self, plan: Plan, graphs: Any) -> None:
        sizes = [entry.form.packed_bytes for entry in plan.tape.dealt]
        size = max(min(PART_BYTES, sum(sizes)), *sizes, 0)
        nobody = Seed(bytes(SEED_BYTES))
        self._plan, self._draws = plan, Draws.of((nobody, nobody), bytes(SESSION_BYTES), graphs.device)
        self._recorded = RecordedDealing(graphs, self._draws.keys, (graphs.host(size), graphs.host(size)))
        self._frames: list[Frame] = []
        self._used = 0

    def record(self, wires: Mapping[str, Any]) -> RecordedDealing:
        recorded, graphs = self._recorded, self._recorded.graphs
        with graphs.stream(), noting(recorded.kept.append):
            try:
                graphs.begin()
                Dealing(self._plan, _Seam(self._place), self._draws).run(wires)
                self._end()
            except BaseException:
                graphs.drop()
                raise
        return recorded

    def _place(self, kind: FrameType, packed: Tensor, shape: tuple[int, ...], width: int) -> None:
        """The next correction goes into the buffer of this part, or begins another."""
        size = packed.numel()
        if self._frames and self._used + size > PART_BYTES:
            self._end()
            self._recorded.graphs.begin()
        buffer = self._recorded.buffers[len(self._recorded.parts) % 2]
        place = buffer[self._used : self._used + size]
        place.copy_(packed, non_blocking=True)
        self._frames.append(Frame(place, shape, width))
        self._used += size

    def _end(self) -> None:
        self._recorded.parts.append(Part(self._recorded.graphs.end(), tuple(self._frames)))
        self._frames, self._used = [], 0


class _Seam:
    """T's link while a plan is recorded."""

    def __init__(self, send: Callable[..., None]) -> None:
        self.send = send
