"""A payload that is still being written when it is sent: its parts are there one after the other.

A server copies what it opens from its device, and knows when each part has come. A carrier that cuts payloads says in which
parts it needs them (`Channel.parts`), announces the whole at once, so that the peer's threads are awake when it comes, and
sends each part as soon as it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

from torch import Tensor


class Parcel:
    def __init__(self, content: Tensor, wait: Callable[[slice], None]) -> None:
        """`wait` returns when these bytes of `content` (uint8, 1-D, CPU) are there; it may be called by several threads."""
        self._content, self._wait = content, wait
        self.since: float | None = None
        """When the first part was there (time.perf_counter)."""

    def __repr__(self) -> str:
        return f"Parcel({self.numel()} bytes, hidden)"

    def numel(self) -> int:
        return self._content.numel()

    def part(self, part: slice) -> memoryview:
        """These bytes, when they are there."""
        self._wait(part)
        if self.since is None:
            self.since = perf_counter()
        return self._content.numpy().data[part]

    def whole(self) -> Tensor:
        self.part(slice(0, self.numel()))
        return self._content


def covering(parts: Sequence[slice], part: slice) -> list[int]:
    """The numbers of the parts that have bytes of this one."""
    return [number for number, each in enumerate(parts) if each.start < part.stop and part.start < each.stop]
