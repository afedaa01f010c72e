"""Matrix products over GF(2): rows of a table, selected by bits and added by xor.

A selector holds 32 terms of a row in a word. The table has them under each other, 32 rows of a column; laid out with *those* in a
word (`_lay`), 32 terms are one `sum ^= row & column`, an instruction, and at the end a sum's parity is the bit. The products
themselves are CUDA C++ (parities.cu), where a thread keeps 8 × 8 sums in registers. Few tiles are spread over the processors by
cutting the terms; partial results are combined in memory, where the order of xor does not matter.

**Two products at once.** A lookup's (j·ê ⊕ [r]) B̂ ⊕ ê[s] ⊕ [rs] is one product over twice the terms, into memory that holds [rs]
already; of the table, which is a model's, the layout is kept.

**Trust.** No interpreter runs C++, so a device tries it before its first use against the CPU. Where a bit differs, or the
compiler or the driver refuses, one warning is logged, and a kernel in Triton that walks down the table as it lies (`_select`)
serves.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor
from torch.nn import functional

from secformer.errors import KernelError
from secformer.ring.kernels import reference
from secformer.ring.kernels.compiled import Function, available
from secformer.ring.kernels.launching import launch

_log = logging.getLogger(__name__)


def gf2_matmul(rows: Tensor, table: Tensor) -> Tensor:
    """(n, ceil(k/8)) bytes times (k, words) int64 → (n, words) int64."""
    if not rows.shape[0] or not table.numel():
        return torch.zeros((rows.shape[0], table.shape[1]), dtype=torch.int64, device=table.device)
    return (combined if trusted(table.device) else selected)(rows.contiguous(), table.contiguous())


# -- by words of 32 terms -------------------------------------------------------------------------------------------------

_CAPABILITY = (8, 0)
_ROWS, _COLUMNS, _LINES, _THREADS = 64, 128, 16, 128
"""Of parities.cu."""
_LAID = 1024
"""Columns that a program lays out."""
_BLOCKS = 2640
"""At least so many, where there are that many lines: a processor of an H200 holds four, so five rounds of them."""


class _Work(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("rows", "columns", "out")),
        *((name, ctypes.c_int) for name in ("count", "words", "height", "width")),
        *((name, ctypes.c_int) for name in ("steps", "span", "tiles_down", "tiles_across")),
    ]


def combined(rows: Tensor, table: Tensor, pieces: int | None = None) -> Tensor:
    """`pieces` of the terms, or as many as fill the device."""
    out = torch.zeros((rows.shape[0], table.shape[1]), dtype=torch.int64, device=table.device)
    _add_parities(upright(rows, table.shape[0]), laid(table), out, pieces)
    return out


def evaluate_select(gate: Any, party: int, wires: Sequence[Any], dealt: Sequence[Tensor]) -> Tensor:
    one_hot, table = wires
    if not dealt[0].numel() or not trusted(table.device):
        return gate.evaluate(party, wires, dealt)
    columns = table.cached(
        "columns", lambda: torch.cat([laid(part.contiguous()) for part in (table.public, table.mask)])
    )
    own = one_hot.mask ^ one_hot.public if party else one_hot.mask
    rows = [upright(each.to(torch.uint8), table.shape[0]) for each in (own, one_hot.public)]
    out = dealt[0].clone()  # made anew where it is laid out; here it must not be written over
    _add_parities(torch.cat(rows), columns, out)
    return out


def _add_parities(selectors: Tensor, columns: Tensor, out: Tensor, pieces: int | None = None) -> None:
    """`out` (n, words) ^= the product of selectors (lines, rows) and columns (lines, columns). Behind a table's last row columns
    have zeros, whatever a selector has there."""
    count, words = out.shape
    down, across, steps = selectors.shape[1] // _ROWS, columns.shape[1] // _COLUMNS, len(columns) // _LINES
    span = -(-steps // (pieces or max(1, _BLOCKS // (down * across))))
    work = _Work(
        selectors.data_ptr(), columns.data_ptr(), out.data_ptr(), count, words, selectors.shape[1], columns.shape[1],
        steps, span, down, across,
    )  # fmt: skip
    _parities(out.device).launch(down * across * -(-steps // span), _THREADS, work)


def upright(rows: Tensor, height: int) -> Tensor:
    """Selectors (n, bytes) as words of 32 terms, (lines, n), both padded to whole tiles."""
    lines = _lines(height)
    padded = functional.pad(rows, (0, 4 * lines - rows.shape[1], 0, -rows.shape[0] % _ROWS))
    return padded.view(torch.int32).t().contiguous()


def laid(table: Tensor) -> Tensor:
    """A table (k, words) as words of 32 terms of a column: (lines, columns), both padded to whole tiles."""
    height, halves = table.shape[0], 2 * table.shape[1]
    lines, columns = _lines(height), -(-32 * halves // _COLUMNS) * _COLUMNS
    out = torch.empty((lines, columns), dtype=torch.int32, device=table.device)
    programs = (lines, triton.cdiv(columns, _LAID))
    launch(_lay, programs, table.view(torch.int32), out, height, halves, columns, COLUMNS=_LAID)
    return out


def _lines(height: int) -> int:
    return -(-height // (32 * _LINES)) * _LINES


@triton.jit(do_not_specialize=("height", "halves", "columns"))
def _lay(table, out, height, halves, columns, COLUMNS: tl.constexpr):
    line = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    known = column < 32 * halves
    word = tl.zeros((COLUMNS,), tl.int32)
    for place in tl.static_range(32):
        row = 32 * line + place
        half = tl.load(table + row.to(tl.int64) * halves + column // 32, mask=known & (row < height), other=0)
        word |= ((half >> (column % 32)) & 1) << place
    tl.store(out + line.to(tl.int64) * columns + column, word, mask=column < columns)


@cache
def _parities(device: torch.device) -> Function:
    return Function(Path(__file__).with_name("parities.cu").read_text(), "parities", 0, device)


_tried: dict[torch.device, bool] = {}


def trusted(device: torch.device) -> bool:
    """May this device use it? It is tried first; not while work is captured, which cannot wait."""
    if device not in _tried:
        if device.type != "cuda" or torch.cuda.get_device_capability(device) < _CAPABILITY or not available():
            return False
        if torch.cuda.is_current_stream_capturing():
            return False
        _tried[device] = _gives_the_bits(device)
    return _tried[device]


def _gives_the_bits(device: torch.device) -> bool:
    try:
        right, reason = _equal(device), "its products differ from the CPU's"
    except (KernelError, RuntimeError, OSError) as error:  # the compiler, or the driver
        right, reason = False, str(error)
    if not right:
        _log.warning("products over GF(2) on %s are left to the slower kernel: %s", device, reason)
    return right


def _equal(device: torch.device) -> bool:
    """Of matrices that end inside tiles, in one piece and in several."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, 256, (_ROWS + 6, 500), dtype=torch.uint8, generator=generator)
    table = torch.randint(-(2**63), 2**63 - 1, (8 * 500, 5), generator=generator)
    expected, given = reference.gf2_matmul(rows, table), (rows.to(device), table.to(device))
    return all(torch.equal(combined(*given, pieces).cpu(), expected) for pieces in (1, 3))


# -- by rows of the table -------------------------------------------------------------------------------------------------

_SELECTED_ROWS, _SELECTED_WORDS, _PROGRAMS = 32, 64, 1056


@triton.jit(do_not_specialize=("rows", "size", "words", "height", "span"))
def _select(bits, table, out, rows, size, words, height, span, ROWS: tl.constexpr, WORDS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    inside = row < rows
    known = word < words
    first = tl.program_id(2) * span
    total = tl.zeros((ROWS, WORDS), tl.int64)
    for byte in range(first, tl.minimum(first + span, size)):
        selector = tl.load(bits + row.to(tl.int64) * size + byte, mask=inside, other=0).to(tl.int64)
        for place in tl.static_range(8):
            line = byte * 8 + place
            entry = tl.load(table + line.to(tl.int64) * words + word, mask=known & (line < height), other=0)
            total ^= entry[None, :] & -((selector >> place) & 1)[:, None]
    target = out + row.to(tl.int64)[:, None] * words + word[None, :]
    tl.atomic_xor(target, total, mask=inside[:, None] & known[None, :], sem="relaxed")


def selected(rows: Tensor, table: Tensor) -> Tensor:
    (count, size), (height, words) = rows.shape, table.shape
    out = torch.zeros((count, words), dtype=torch.int64, device=table.device)
    down, across = triton.cdiv(count, _SELECTED_ROWS), triton.cdiv(words, _SELECTED_WORDS)
    span = max(16, triton.cdiv(size, max(1, _PROGRAMS // (down * across))))
    launch(
        _select, (down, across, triton.cdiv(size, span)), rows, table, out, count, size, words, height, span,
        ROWS=_SELECTED_ROWS, WORDS=_SELECTED_WORDS,
    )  # fmt: skip
    return out
