"""Tables and constants that are made once and stay on their device.

Work that was recorded on a GPU (kernels/graphs.py) reads them where they lay when it was captured, so a recording has to keep
what was used: within `noting`, every table that is asked for is handed to whoever records.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

Parameters = ParamSpec("Parameters")
Table = TypeVar("Table")

_KEPT = 256
_listening = threading.local()


def resident(make: Callable[Parameters, Table], kept: int = _KEPT) -> Callable[Parameters, Table]:
    """Remember the last results of a function; its arguments say on which device they are."""
    remembered = lru_cache(maxsize=kept)(make)

    @wraps(make)
    def ask(*arguments: Parameters.args, **named: Parameters.kwargs) -> Table:
        table = remembered(*arguments, **named)
        note = getattr(_listening, "note", None)
        if note is not None:
            note(table)
        return table

    return ask


@contextmanager
def noting(note: Callable[[object], None]) -> Iterator[None]:
    """Tell `note` of every table that this thread asks for."""
    _listening.note = note
    try:
        yield
    finally:
        _listening.note = None


@resident
def numbers(values: tuple[int, ...], device: torch.device) -> Tensor:
    """A few public integers as a tensor on a device."""
    return torch.tensor(values, dtype=torch.int64, device=device)


def placed(tensor: Tensor, device: torch.device) -> Tensor:
    """A small public tensor of the CPU on a device."""
    if tensor.device == device or device.type in ("cpu", "meta") or not tensor.is_cpu:
        return tensor.to(device)
    return numbers(tuple(tensor.flatten().tolist()), device).view(tensor.shape)


def entries(table: Tensor, index: Tensor) -> Tensor:
    """table[index] of a table in one dimension; on a CPU torch selects faster than it indexes."""
    return table.index_select(0, index.reshape(-1)).view(index.shape)
