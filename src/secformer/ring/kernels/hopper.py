"""Products of digits on an H100 or H200, where plain Triton leaves the tensor cores waiting for the second-level cache.

A block computes a tile of 64 rows. Its two groups of warps share the sums i + j = s of digits between them, so that both have
the same number of products and every sum stays in registers; a third group fetches. All digits of 32 terms are loaded once and
serve all pairs: 36 products out of 16 tiles at 64 bits. At the end each group hands half of its sums to the other, and both
store a half. Two blocks that lie above each other fetch the right operand together, each a half for both (a cluster).

Few tiles are spread over the processors by cutting the inner dimension: partial sums are added in memory.
"""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.resources import files
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from secformer.ring.kernels.compiled import Function

ROWS, STEP, CHUNK, THREADS = 64, 32, 16, 384
_SHARED = 232_448 - 1024
"""Bytes of shared memory a block may have, less what barriers take."""
_REGISTERS = 192
"""For sums, in a thread."""
_STAGES = 5


class Digits(NamedTuple):
    """How many the operands have, and how many of the product's are wanted."""

    left: int
    right: int
    limbs: int

    @property
    def counts(self) -> list[int]:
        """Pairs of each sum."""
        return [sum(0 <= s - i < self.right for i in range(self.left)) for s in range(self.limbs)]


class Tile(NamedTuple):
    columns: int
    stages: int
    cluster: int


class Work(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("left", "right", "extra", "out")),
        *((name, ctypes.c_int) for name in ("rows", "columns", "chunks", "tiles_down", "tiles_across", "pieces", "span")),
        *((name, ctypes.c_int) for name in ("items", "one_right")),
    ]


def halves(digits: Digits) -> tuple[int, int]:
    """The sums of each group of warps, as bits: as many products for both as can be, then as few sums."""

    def cost(first: int) -> tuple[int, int]:
        mine = [count for s, count in enumerate(digits.counts) if first >> s & 1]
        return max(sum(mine), sum(digits.counts) - sum(mine)), max(len(mine), digits.limbs - len(mine))

    first = min(range(1 << digits.limbs), key=cost)
    return first, (1 << digits.limbs) - 1 - first


def source(digits: Digits, tile: Tile) -> str:
    """The CUDA text with its constants."""
    count = tile.columns // 2
    sums = ", ".join(f"%{number}" for number in range(count))
    outputs = ", ".join(f'"+r"(sum[{number}])' for number in range(count))
    multiply = (
        '{ asm volatile("{ .reg .pred add; setp.ne.b32 add, 1, 0; '
        f"wgmma.mma_async.sync.aligned.m64n{tile.columns}k32.s32.s8.s8 {{{sums}}}, %{count}, %{count + 1}, add; }}"
        f'" : {outputs} : "l"(left), "l"(right)); }}'
    )
    first, second = halves(digits)
    constants = {
        "LEFT": digits.left, "RIGHT": digits.right, "LIMBS": digits.limbs, "COLUMNS": tile.columns, "STAGES": tile.stages,
        "CLUSTER": tile.cluster, "FIRST": first, "SECOND": second, "MULTIPLY": multiply,
    }  # fmt: skip
    text = files(__package__).joinpath("hopper.cu").read_text()
    return "".join(f"#define {name} {value}\n" for name, value in constants.items()) + text


def shared_bytes(digits: Digits, tile: Tile) -> int:
    stage = (digits.left * ROWS + digits.right * tile.columns) * STEP
    return tile.stages * stage + ROWS * tile.columns * 8


@cache
def function(digits: Digits, tile: Tile, device: torch.device) -> Function:
    return Function(source(digits, tile), "products", shared_bytes(digits, tile), device)


def tiles(digits: Digits, columns: int, cluster: int) -> list[Tile]:
    """Tiles that fit registers and shared memory."""
    most = max(bin(half).count("1") for half in halves(digits))
    found = []
    for size in (64, 96, 128, 192, 256):
        if most * size // 2 <= _REGISTERS:
            stages = (_SHARED - ROWS * size * 8) // ((digits.left * ROWS + digits.right * size) * STEP)
            if stages >= 3:
                found.append(Tile(size, min(stages, _STAGES), cluster))
    return found


def multiply(left: Tensor, right: Tensor, limbs: int, out: Tensor, extra: Tensor | None, tile: Tile, pieces: int) -> None:
    """Σ a_i b_j 2^(8(i+j)) over i + j < limbs, plus `extra`; with several pieces added to `out`."""
    (batch, left_digits, chunks, rows, _), (batches, right_digits, _, columns, _) = left.shape, right.shape
    digits = Digits(left_digits, right_digits, limbs)
    kernel = function(digits, tile, left.device)
    steps = chunks * CHUNK // STEP
    span = -(-steps // pieces)
    down, across = -(-rows // (ROWS * tile.cluster)), -(-columns // tile.columns)
    items = down * across * pieces * batch
    work = Work(
        left.data_ptr(), right.data_ptr(), None if extra is None else extra.data_ptr(), out.data_ptr(), rows, columns,
        chunks, down, across, pieces, span, items, int(batches == 1),
    )  # fmt: skip
    processors = torch.cuda.get_device_properties(left.device).multi_processor_count
    clusters = min(items, processors // tile.cluster)
    kernel.launch(clusters * tile.cluster, THREADS, work, left.device)
