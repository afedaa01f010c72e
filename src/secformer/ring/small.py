"""A few residues as one Python integer: what an opening of a handful of elements is made of.

For a small tensor the number of calls is all that counts, and every torch call also hands the interpreter to the
other thread. One long integer with a field of 64 bits an element replaces them: arithmetic on all fields at once, and
packing as in packing.py's plain stream of bits, by log2(count) steps that squeeze (spread) pairs of fields,

    low + high * 2^field   <->   low + high * 2^used.

A tenth of a microsecond a step up to `LIMIT` elements; above, NumPy and torch are faster.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

LIMIT = 64
"""Elements up to which one long integer beats NumPy (measured); not part of any format."""

_FIELD = 64


class Layout(NamedTuple):
    """`every`: the used bits of every field; `steps`: (mask of the low fields, field, used) of every squeeze."""

    count: int
    width: int
    every: int
    steps: tuple[tuple[int, int, int], ...]
    packed_bytes: int


@lru_cache(maxsize=4096)
def layout(count: int, width: int) -> Layout:
    steps, field, used, fields = [], _FIELD, width, count
    while fields > 1 and used < field:
        fields = (fields + 1) // 2
        steps.append((_repeated(used, 2 * field, fields), field, used))
        field, used = 2 * field, 2 * used
    return Layout(count, width, _repeated(width, _FIELD, count), tuple(steps), (count * width + 7) >> 3)


def _repeated(bits: int, period: int, count: int) -> int:
    """`count` runs of `bits` ones, one every `period` bits."""
    return sum(((1 << bits) - 1) << (period * number) for number in range(count))


def join(elements: np.ndarray, form: Layout) -> int:
    """The residues of int64 elements, one a field."""
    return int.from_bytes(elements.tobytes(), "little") & form.every


def split(fields: int, form: Layout) -> np.ndarray:
    """int64 (count,), writable."""
    return np.frombuffer(bytearray(fields.to_bytes(8 * form.count, "little")), np.int64)


def tensor(fields: int, form: Layout, shape: tuple[int, ...]) -> Tensor:
    """The same as a tensor of this shape; torch's own way is the shorter one where nothing is reshaped."""
    if len(shape) == 1:
        return torch.frombuffer(bytearray(fields.to_bytes(8 * form.count, "little")), dtype=torch.int64)
    return torch.from_numpy(split(fields, form).reshape(shape))


def squeeze(fields: int, form: Layout) -> bytes:
    """Packed: element i in bits [i * width, (i + 1) * width)."""
    for mask, field, used in form.steps:
        fields = (fields & mask) | ((fields >> field & mask) << used)
    return fields.to_bytes(form.packed_bytes, "little")


def spread(packed: bytes, form: Layout) -> int:
    """The inverse of squeezing; bits beyond the last element are ignored."""
    fields = int.from_bytes(packed, "little")
    for mask, field, used in reversed(form.steps):
        fields = (fields & mask) | ((fields >> used & mask) << field)
    return fields & form.every


def add(left: int, right: int, form: Layout) -> int:
    """Sums modulo 2^width, field by field."""
    if form.width < _FIELD:
        return (left + right) & form.every
    tops = _repeated_tops(form.count)  # added without carry, so that no field disturbs the next
    return ((left & ~tops) + (right & ~tops)) ^ ((left ^ right) & tops)


def xor(left: int, right: int, form: Layout) -> int:
    return left ^ right


@lru_cache(maxsize=LIMIT)
def _repeated_tops(count: int) -> int:
    return _repeated(1, _FIELD, count) << (_FIELD - 1)
