"""Receive buffers that are used again.

Fresh memory is slow: the kernel clears it page by page on first touch, up to 50 ms for 64 MiB in a virtual
machine, which is a third of what TLS needs to fill it. So a large buffer comes back here when the last tensor
that looks at it is gone, and the next frame of about its size is read into it.

A tensor made from an array keeps the array alive, so the array's end is the buffer's release. Releases happen
wherever the last reference dies, the garbage collector included; a deque takes them without a lock.
"""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np
import torch
from torch import Tensor

_POOLED_FROM = 1 << 20  # below, the allocator itself reuses memory
_PINNED_FROM = 1 << 16  # where a GPU is in use: below, a copy to pinned memory costs nothing
_GRAIN = 1 << 16


class BufferPool:
    """Keeps up to `capacity` bytes of unused buffers."""

    def __init__(self, capacity: int = 256 << 20) -> None:
        self._capacity = capacity
        self._free: deque[np.ndarray] = deque()

    def take(self, size: int) -> Tensor:
        """A uint8 tensor of undefined content, nobody else's."""
        if size < (_PINNED_FROM if torch.cuda.is_initialized() else _POOLED_FROM):
            return torch.empty(size, dtype=torch.uint8)
        whole = self._reuse(size)
        if whole is None:
            whole = _fresh(-(-size // _GRAIN) * _GRAIN)
        part = whole[:size]
        weakref.finalize(part, self._release, whole).atexit = False
        return torch.from_numpy(part)

    def close(self) -> None:
        """Keep nothing from now on: neither what is free nor what still comes back."""
        self._capacity = 0
        self._free.clear()

    def _reuse(self, size: int) -> np.ndarray | None:
        for _ in range(len(self._free)):
            whole = self._free.popleft()
            if size <= whole.size <= 2 * size:
                return whole
            self._free.append(whole)
        return None

    def _release(self, whole: np.ndarray) -> None:
        kept = sum(buffer.size for buffer in tuple(self._free))
        if whole.size <= self._capacity:
            while self._free and kept + whole.size > self._capacity:
                kept -= self._free.popleft().size  # the one unused for longest
            self._free.append(whole)


def _fresh(size: int) -> np.ndarray:
    """New memory; pinned where a GPU is in use, which fetches from it several times as fast."""
    if torch.cuda.is_initialized():
        return torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
    return np.empty(size, dtype=np.uint8)
