"""Large tensors in blocks of rows, so that what is dealt for a block stays small."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from secformer.engine.gate import Gate
from secformer.engine.runtime import Runtime
from secformer.engine.values import Masked, MaskedBits, Shared

BLOCK_VALUES = 1 << 22
"""Dealt values of a block: what T, and a server on the CPU, handle at once. (A server on a GPU joins blocks, up to
JOINED_BYTES of engine/computing.py.)"""

CACHED_VALUES = 1 << 17
"""Values of 64 bits that a core keeps in its cache, beside what is made of them."""


def blockwise(runtime: Runtime, gate: Gate[Shared], values_a_row: int, *rows: Masked | MaskedBits) -> Shared:
    """A gate that treats the rows of its wires (the first dimension) alike, dealt block by block."""
    return runtime.apply_by_rows(gate, max(1, BLOCK_VALUES // values_a_row), *rows)


def in_cache(action: Callable[..., Tensor], values_a_row: int, *rows: Tensor) -> Tensor:
    """A function that treats rows alike (the first dimension), on the CPU a few at a time.

    What a step leaves in the cache the next one finds there. All rows at once go through memory, and memory that was
    just taken from the system costs more to touch than to compute on: eight times as slow for a histogram.
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
    """The same for a function of single elements, of tensors of one shape."""
    return in_cache(action, len(tensors), *(tensor.reshape(-1) for tensor in tensors)).reshape(tensors[0].shape)
