"""Keep freed memory in the process.

A server allocates and frees the same large tensors query after query. By default glibc gives such memory back to the
system at once, and the system clears every page again at the next allocation: more time than the arithmetic itself
(50 ms for 64 MiB, against 5 ms when it is kept). Where there is no glibc nothing happens.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8  # of malloc.h
_KEPT = 2**31 - 1


def keep_freed_memory() -> bool:
    """Tell the allocator; True if it listened. Call before the first large allocation, in a process of its own."""
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    wishes = ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, _KEPT), (_TOP_PAD, 64 << 20))
    return all(mallopt(wish, value) == 1 for wish, value in wishes)
