"""Work on large tensors in blocks of rows, so that the dealt values of one block stay small."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from secformer.engine.gate import Gate
from secformer.engine.runtime import Runtime
from secformer.engine.values import Masked, MaskedBits, Shared

BLOCK_VALUES = 1 << 22
"""Dealt values per block: the amount that T, and a server on the CPU, handle at once. (A server on a GPU joins blocks, up to
JOINED_BYTES of engine/computing.py.)"""

CACHED_VALUES = 1 << 17
"""Values of 64 bits that fit in a core's cache together with the values computed from them."""


def blockwise(runtime: Runtime, gate: Gate[Shared], values_a_row: int, *rows: Masked | MaskedBits) -> Shared:
    """Apply a gate that treats the rows of its wires (the first dimension) independently, dealt block by block."""
    return runtime.apply_by_rows(gate, max(1, BLOCK_VALUES // values_a_row), *rows)


def in_cache(action: Callable[..., Tensor], values_a_row: int, *rows: Tensor) -> Tensor:
    """Apply a function that treats rows (the first dimension) independently; on the CPU, a few rows at a time.

    Each step then finds the output of the step before in the cache. All rows at once would go through memory, and touching
    memory that was just taken from the system costs more than computing on it: a histogram took eight times as long.
    """
    count, size = len(rows[0]), max(1, CACHED_VALUES // values_a_row)
    if count <= size or rows[0].device.type != "cpu":
        return action(*rows)
    first = action(*(part[:size] for part in rows))
    out = first.new_empty((count, *first.shape[1:]))
    out[:size] = first
    for start in range(size, count, size):
        out[start : start + size] = action(*(part[start : start + size] for part in rows))
    return out


def elementwise(action: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Apply a function of single elements, to tensors of one shape, in cache-sized pieces."""
    return in_cache(action, len(tensors), *(tensor.reshape(-1) for tensor in tensors)).reshape(tensors[0].shape)
