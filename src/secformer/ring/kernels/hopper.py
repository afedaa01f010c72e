"""Products of digits on an H100 or H200, where plain Triton leaves the tensor cores waiting for the second-level cache.

A block computes a tile of 64 rows. Its two groups of warps share the sums i + j = s of digits between them, so that both have
the same number of products and every sum stays in registers; a third group fetches. All digits of 32 terms are loaded once and
serve all pairs: 36 products out of 16 tiles at 64 bits. At the end each group hands half of its sums to the other, and both
store a half. Two blocks that lie above each other fetch the right operand together, each a half for both (a cluster).

Few tiles are spread over the processors by cutting the inner dimension: partial sums are added in memory, which whoever cuts the
left operand clears on the way.

**Trust.** No interpreter runs this kernel, so each of its forms is tried on the device before its first use: odd shapes, extreme
words, one piece and two, against products of the CPU. If one bit differs, or the compiler or the driver refuses, one warning is
logged and that device takes Triton's kernel (int8.py) from then on.
"""

from __future__ import annotations

import ctypes
import logging
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from secformer.errors import KernelError
from secformer.ring.kernels.compiled import Function, available
from secformer.ring.kernels.digits import CHUNK, EXACT, STEP, cut

_log = logging.getLogger(__name__)

_CAPABILITY = (9, 0)
_ROWS, _THREADS = 64, 384
_COLUMNS = (64, 96, 128)
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


class _Work(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("left", "right", "extra", "out")),
        *((name, ctypes.c_int) for name in ("rows", "columns", "chunks", "tiles_down", "tiles_across", "pieces")),
        *((name, ctypes.c_int) for name in ("span", "items", "one_right")),
    ]


# -- products -------------------------------------------------------------------------------------------------------------


def multiply(a: Tensor, b: Tensor, limbs: int, out: Tensor, extra: Tensor | None, plan: Plan) -> None:
    """Σ a_i b_j 2^(8(i+j)) over i + j < limbs, plus `extra`, into `out`, which must be zero if there are several pieces."""
    (batch, left, chunks, rows, _), (batches, right, _, columns, _) = a.shape, b.shape
    steps = chunks * CHUNK // STEP
    span = -(-steps // plan.pieces)
    pieces, tile = -(-steps // span), plan.tile
    down, across = -(-rows // (_ROWS * tile.cluster)), -(-columns // tile.columns)
    items = down * across * pieces * batch
    work = _Work(
        a.data_ptr(), b.data_ptr(), None if extra is None else extra.data_ptr(), out.data_ptr(), rows, columns, chunks,
        down, across, pieces, span, items, int(batches == 1),
    )  # fmt: skip
    clusters = min(items, processors(a.device) // tile.cluster)
    kernel = _multiplying(needed(left, right, limbs), tile, a.device)
    kernel.launch(clusters * tile.cluster, _THREADS, work)


def needed(left: int, right: int, limbs: int) -> Digits:
    """Operands as they are stored; above their highest sum there is nothing."""
    return Digits(left, right, min(limbs, left + right - 1))


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
    text = Path(__file__).with_name("hopper.cu").read_text()
    return "".join(f"#define {name} {value}\n" for name, value in constants.items()) + text


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


# -- trust ----------------------------------------------------------------------------------------------------------------

_tried: dict[torch.device, dict[tuple[Digits, Tile], bool]] = {}
"""Forms of the kernel that were tried on each device; one that failed speaks for all."""


@cache
def present(device: torch.device) -> bool:
    """Is this the machine the kernel is made for, and the compiler there?"""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == _CAPABILITY and available()


def trusted(digits: Digits, tile: Tile, device: torch.device) -> bool:
    """May this form of the kernel be used on this device? It is tried first; not while work is captured, which cannot wait."""
    if not present(device):
        return False
    tried = _tried.setdefault(device, {})
    if not all(tried.values()):
        return False
    if (digits, tile) not in tried:
        if torch.cuda.is_current_stream_capturing():
            return False
        tried[digits, tile] = _gives_the_bits(digits, tile, device)
    return tried[digits, tile]


def _gives_the_bits(digits: Digits, tile: Tile, device: torch.device) -> bool:
    try:
        right = all(_differences(digits, Plan(tile, pieces), device) == 0 for pieces in (1, 2))
        reason = "its products differ from the CPU's"
    except (KernelError, RuntimeError, OSError) as error:  # the compiler, or the driver
        right, reason = False, str(error)
    if not right:
        _log.warning("products on %s are left to the slower kernel: %s, %s: %s", device, digits, tile, reason)
    return right


def _differences(digits: Digits, plan: Plan, device: torch.device) -> int:
    """Products that are wrong, of matrices that end inside tiles, with the words that have the largest digits."""
    a, b = _trial(digits.left, 2, _ROWS + 6, 100), _trial(digits.right, 2, plan.tile.columns + 3, 100)
    out = torch.zeros((2, a.shape[1], b.shape[1]), dtype=torch.int64, device=device)
    left, right = cut(a.to(device), digits.left), cut(b.to(device), digits.right)
    multiply(left, right, digits.limbs, out, out.new_ones(out.shape), plan)
    # sums that are left out lie above these bits; where there are none, every bit counts
    above = 0 if digits.limbs == digits.left + digits.right - 1 else 64 - 8 * digits.limbs
    return int(((out.cpu() - (a @ b.transpose(1, 2) + 1)) << above).count_nonzero())


def _trial(count: int, *shape: int) -> Tensor:
    """Words of so many digits."""
    half = 2 ** (63 if count == 8 else 8 * count - 2)
    generator = torch.Generator().manual_seed(count)
    words = torch.randint(-half, half - 1, shape, generator=generator)
    words[0, 0], words[0, 1], words[0, 2], words[0, 3] = -half, half - 1, -128 % half, -0x7F7F7F7F7F7F7F80 % half
    return words
