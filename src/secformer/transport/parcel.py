"""A payload that is still being written when it is sent.

A server copies what it opens from its device, and knows when that is done. A carrier may announce a payload before it is there,
so that the peer's threads are awake when it comes.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from torch import Tensor


class Parcel:
    def __init__(self, content: Tensor, wait: Callable[[], None]) -> None:
        """`wait` returns when `content` (uint8, 1-D, CPU) is there."""
        self._content, self._wait = content, wait
        self.since: float | None = None
        """When it was there (time.perf_counter)."""

    def __repr__(self) -> str:
        return f"Parcel({self.numel()} bytes, hidden)"

    def numel(self) -> int:
        return self._content.numel()

    def content(self) -> Tensor:
        """When it is there."""
        if self.since is None:
            self._wait()
            self.since = perf_counter()
        return self._content
