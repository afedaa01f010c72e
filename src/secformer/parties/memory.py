"""What a server's process does with memory that it has freed.

A session makes and frees hundreds of large tensors. glibc hands each back to the system and takes it again, cleared page by
page. So a server tells it to keep what was freed (`keep_freed_memory`, for its whole process), and hands all of it back itself
when no session runs and none has ended for a while, or now and then where they never cease: queries of many shapes leave holes
of many sizes, and without that a server would hold on to what it once needed.

TUNABLES are for the environment of its process: glibc reads them once, at the start.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from functools import cache
from threading import Lock, Timer
from time import monotonic
from typing import Any

IDLE = 10.0
"""Seconds after the last session for which freed memory is kept."""
LONGEST = 60.0
"""Seconds for which it is kept where sessions never cease."""

TUNABLES = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
"""Nothing small is put aside: torch aligns its tensors, and the bits before and behind them, put aside, would keep apart what was
freed around them. (Huge pages, glibc.malloc.hugetlb=1, made a server's first query twice as slow, others hardly faster.)"""

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8  # glibc's malloc.h
_MOST, _STEP = (1 << 31) - 1, 64 << 20


@cache
def _library() -> Any:
    """The C library, where it is glibc."""
    try:
        library = ctypes.CDLL(None)
        return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
    except OSError:
        return None


def keep_freed_memory() -> None:
    """One heap for all threads, which grows in large steps and does not shrink by itself, for tensors of less than a GiB."""
    library = _library()
    if library is not None:
        library.mallopt(_ARENA_MAX, 1)
        library.mallopt(_TRIM_THRESHOLD, _MOST)
        library.mallopt(_TOP_PAD, _STEP)
        if not library.mallopt(_MMAP_THRESHOLD, 1 << 30):
            library.mallopt(_MMAP_THRESHOLD, 1 << 25)  # older versions take no more


def give_back() -> None:
    """What ended sessions left in circles is freed first."""
    gc.collect()
    library = _library()
    if library is not None:
        library.malloc_trim(0)


class Memory:
    """Sees to it that freed memory is given back, for one server."""

    def __init__(self, give_back: Callable[[], None] = give_back, idle: float = IDLE, longest: float = LONGEST) -> None:
        self._give_back, self._idle, self._longest = give_back, idle, longest
        self._lock = Lock()
        """Held while memory is given back, too: whoever allocates waits for that anyway, and nothing follows `close`."""
        self._running = 0
        self._first: float | None = None
        """When the first session ended since memory was given back."""
        self._last = 0.0
        """When the last session ended."""
        self._timer: Timer | None = None
        self._closed = False

    def session_begun(self) -> None:
        with self._lock:
            self._running += 1

    def session_ended(self) -> None:
        with self._lock:
            self._running -= 1
            if self._closed:
                return
            self._last = monotonic()
            if self._first is None:
                self._first = self._last
            if self._last - self._first >= self._longest:
                self._give()
            elif self._timer is None:
                self._wait(self._idle)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()

    # Under the lock

    def _wait(self, seconds: float) -> None:
        self._timer = Timer(seconds, self._look)
        self._timer.daemon = True
        self._timer.start()

    def _give(self) -> None:
        self._first = None
        self._give_back()

    # The timer

    def _look(self) -> None:
        """Nothing has ended for as long: give back. Otherwise look again; where a session runs, after it has ended."""
        with self._lock:
            self._timer = None
            if self._closed or self._running or self._first is None:
                return
            left = self._last + self._idle - monotonic()
            if left > 0:
                self._wait(left)
            else:
                self._give()
