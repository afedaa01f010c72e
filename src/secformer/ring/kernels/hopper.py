"""Products of digits on an H100 or H200, where plain Triton leaves the tensor cores waiting for the second-level cache.

A block computes a tile of 64 rows. Its two groups of warps share the sums i + j = s of digits between them, so that both have
the same number of products and every sum stays in registers; a third group fetches. All digits of 32 terms are loaded once and
serve all pairs: 36 products out of 16 tiles at 64 bits. At the end each group hands half of its sums to the other, and both
store a half. Two blocks that lie above each other fetch the right operand together, each a half for both (a cluster).

Few tiles are spread over the processors by cutting the inner dimension: partial sums are added in memory, which the pass that
cuts the left operand clears on its way.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from secformer.ring.kernels.compiled import Function, available
from secformer.ring.kernels.digits import ALONE, CHUNK, EXACT, STEP, Combination

_CAPABILITY = (9, 0)
_ROWS, _THREADS = 64, 384
_CUT_ROWS, _CUT_CHUNKS = 32, 4
_COLUMNS = (64, 96, 128, 192, 256)
_SHARED_BYTES = 232_448 - 1024
"""Shared memory of a block, less what barriers take."""
_REGISTERS = 192
"""For sums, in a thread."""
_MOST_STAGES = 5


class Digits(NamedTuple):
    """How many the operands have, and how many of the product's are wanted."""

    left: int
    right: int
    limbs: int

    @property
    def pairs(self) -> list[int]:
        """Of each sum."""
        return [sum(0 <= s - i < self.right for i in range(self.left)) for s in range(self.limbs)]


class Tile(NamedTuple):
    columns: int
    stages: int
    cluster: int


class Plan(NamedTuple):
    tile: Tile
    pieces: int


class _Cutting(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("first", "second", "out", "clear")),
        ("first_strides", ctypes.c_int64 * 3),
        ("second_strides", ctypes.c_int64 * 3),
        ("factors", ctypes.c_int64 * 4),
        ("cleared", ctypes.c_int64),
        *((name, ctypes.c_int) for name in ("rows", "inner", "parts", "chunks", "limbs")),
    ]


class _Multiplying(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("left", "right", "extra", "out")),
        *((name, ctypes.c_int) for name in ("rows", "columns", "chunks", "left_stored", "right_stored")),
        *((name, ctypes.c_int) for name in ("tiles_down", "tiles_across", "pieces", "span", "items", "one_right")),
    ]


@cache
def serves(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == _CAPABILITY and available()


# -- digits ---------------------------------------------------------------------------------------------------------------


def cut(
    first: Tensor,
    limbs: int,
    second: Tensor | None = None,
    parts: Sequence[Combination] = ALONE,
    clear: Tensor | None = None,
) -> Tensor:
    """As in digits.py; `clear` is filled with zeros on the way."""
    batch, rows, inner = first.shape
    chunks = -(-len(parts) * inner // STEP) * (STEP // CHUNK)
    out = torch.empty((batch, limbs, chunks, rows, CHUNK), dtype=torch.int8, device=first.device)
    other = first if second is None else second
    work = _Cutting(
        first.data_ptr(), None if second is None else second.data_ptr(), out.data_ptr(),
        None if clear is None else clear.data_ptr(), tuple(first.stride()), tuple(other.stride()),
        tuple(factor for part in (*parts, *parts)[:2] for factor in part), 0 if clear is None else clear.numel(),
        rows, inner, len(parts), chunks, limbs,
    )  # fmt: skip
    grid = (-(-chunks // _CUT_CHUNKS), -(-rows // _CUT_ROWS), batch)
    _cutting(first.device).launch(grid, 32 * _CUT_CHUNKS, work)
    return out


@cache
def _cutting(device: torch.device) -> Function:
    return Function(_text("hopper_digits.cu"), "digits", 0, device)


# -- products -------------------------------------------------------------------------------------------------------------


def multiply(a: Tensor, b: Tensor, limbs: int, out: Tensor, extra: Tensor | None, plan: Plan) -> None:
    """Σ a_i b_j 2^(8(i+j)) over i + j < limbs, plus `extra`, into `out`, which must be zero if there are several pieces."""
    (batch, left, chunks, rows, _), (batches, right, _, columns, _) = a.shape, b.shape
    steps = chunks * CHUNK // STEP
    span = -(-steps // plan.pieces)
    pieces, tile = -(-steps // span), plan.tile
    down, across = -(-rows // (_ROWS * tile.cluster)), -(-columns // tile.columns)
    items = down * across * pieces * batch
    work = _Multiplying(
        a.data_ptr(), b.data_ptr(), None if extra is None else extra.data_ptr(), out.data_ptr(), rows, columns, chunks,
        left, right, down, across, pieces, span, items, int(batches == 1),
    )  # fmt: skip
    clusters = min(items, processors(a.device) // tile.cluster)
    kernel = _multiplying(needed(left, right, limbs), tile, a.device)
    kernel.launch((clusters * tile.cluster, 1, 1), _THREADS, work)


def needed(left: int, right: int, limbs: int) -> Digits:
    limbs = min(limbs, left + right - 1)
    return Digits(min(left, limbs), min(right, limbs), limbs)


@cache
def _multiplying(digits: Digits, tile: Tile, device: torch.device) -> Function:
    return Function(source(digits, tile), "products", shared_bytes(digits, tile), device)


@cache
def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def source(digits: Digits, tile: Tile) -> str:
    """The CUDA text with its constants."""
    count = tile.columns // 2
    sums = ", ".join(f"%{number}" for number in range(count))
    outputs = ", ".join(f'"+r"(sum[{number}])' for number in range(count))
    instruction = (
        '{ asm volatile("{ .reg .pred add; setp.ne.b32 add, 1, 0; '
        f"wgmma.mma_async.sync.aligned.m64n{tile.columns}k32.s32.s8.s8 {{{sums}}}, %{count}, %{count + 1}, add; }}"
        f'" : {outputs} : "l"(left), "l"(right)); }}'
    )
    first, second = halves(digits)
    constants = {
        "LEFT": digits.left, "RIGHT": digits.right, "LIMBS": digits.limbs, "COLUMNS": tile.columns, "STAGES": tile.stages,
        "CLUSTER": tile.cluster, "FIRST": first, "SECOND": second, "MULTIPLY": instruction,
    }  # fmt: skip
    return "".join(f"#define {name} {value}\n" for name, value in constants.items()) + _text("hopper_products.cu")


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text()


@cache
def halves(digits: Digits) -> tuple[int, int]:
    """The sums of each group of warps, as bits: as many products for both as can be, then as few sums."""

    def cost(first: int) -> tuple[int, int]:
        mine = [count for s, count in enumerate(digits.pairs) if first >> s & 1]
        return max(sum(mine), sum(digits.pairs) - sum(mine)), max(len(mine), digits.limbs - len(mine))

    first = min(range(1 << digits.limbs), key=cost)
    return first, (1 << digits.limbs) - 1 - first


def shared_bytes(digits: Digits, tile: Tile) -> int:
    return tile.stages * _stage_bytes(digits, tile.columns) + _exchanged_bytes(tile.columns)


def _stage_bytes(digits: Digits, columns: int) -> int:
    return (digits.left * _ROWS + digits.right * columns) * STEP


def _exchanged_bytes(columns: int) -> int:
    return _ROWS * columns * 8


def tiles(digits: Digits, cluster: int) -> list[Tile]:
    """Those that fit registers and shared memory."""
    sums = max(half.bit_count() for half in halves(digits))
    found = []
    for columns in _COLUMNS:
        stages = (_SHARED_BYTES - _exchanged_bytes(columns)) // _stage_bytes(digits, columns)
        if sums * columns // 2 <= _REGISTERS and stages >= 3:
            found.append(Tile(columns, min(stages, _MOST_STAGES), cluster))
    return found


# -- plans ----------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def plan(digits: Digits, batch: int, rows: int, columns: int, chunks: int, processors: int) -> Plan:
    """The tile and the number of pieces that should take the fewest cycles."""
    steps = chunks * CHUNK // STEP
    longest = EXACT // (digits.limbs * STEP)
    fewest = -(-steps // longest)
    cluster = 2 if rows > _ROWS else 1
    candidates = [
        Plan(tile, pieces)
        for tile in tiles(digits, cluster)
        for pieces in range(fewest, max(fewest, min(steps, processors)) + 1)
    ]
    return min(candidates, key=lambda each: cycles(each, digits, batch, rows, columns, steps, processors))


def cycles(plan: Plan, digits: Digits, batch: int, rows: int, columns: int, steps: int, processors: int) -> float:
    """Rounds of tiles, one to a processor. A step is as long as the tensor cores work, or shared memory, of 128 bytes a cycle,
    which they read for every product and which is filled meanwhile; what a tile takes at its end was measured on an H200."""
    tile, span, pairs = plan.tile, -(-steps // plan.pieces), sum(digits.pairs)
    items = -(-rows // (_ROWS * tile.cluster)) * -(-columns // tile.columns) * plan.pieces * batch
    rounds = -(-items // (processors // tile.cluster))
    moved = (pairs * (_ROWS + tile.columns) * STEP + _stage_bytes(digits, tile.columns)) / 128
    ending = 1500 + 30 * tile.columns
    cleared = 0 if plan.pieces == 1 else 1000 + batch * rows * columns / 400
    return rounds * (span * max(pairs * tile.columns / 2, moved) + ending) + cleared
