"""Large tensors in blocks of rows, so that what is dealt for a block stays small."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from secformer.engine.gate import Gate
from secformer.engine.runtime import Runtime
from secformer.engine.values import Masked, Shared

BLOCK_VALUES = 1 << 22
"""Dealt values handled at once: bounds the working set of both servers and of T."""


def blockwise(runtime: Runtime, gate: Gate[Shared], rows: Masked, values_a_row: int) -> Shared:
    """A gate that treats the rows of its wire (the first dimension) alike, block by block."""
    size = max(1, BLOCK_VALUES // values_a_row)
    return joined([runtime.apply(gate, rows[start : start + size]) for start in range(0, rows.shape[0], size)], 0)


def joined(parts: Sequence[Shared], dimension: int) -> Shared:
    """Shares of one form, one after the other along a dimension."""
    if len(parts) == 1:
        return parts[0]
    return parts[0].map(lambda _: torch.cat([part.share for part in parts], dimension))
