"""Whole steps, each by the device's own implementation: the one place that knows which serves which.

A device is one file here, named as torch names it (cpu.py, cuda.py), with functions named after the steps:

    matmul(a, right, width, a_bits)               a @ right modulo 2^width; `right` is Prepared
    gf2_matmul(rows, table)                       packed bits times words over GF(2)
    draw(keystream, shape, width, device, dtype, out)   uniform residues of one draw; of which type, and (with graphs) where
    close(share, closing, keystream)              an opening's first half: drop, draw the mask, add, pack
    reveal(closed, received, closing)             its second half: unpack, add
    correct(value, width, boolean, keystream)     T: draw the pad, subtract, pack
    pack(x, width)                                residues, as packing.py lays them out
    unpack(buffer, count, width, dtype, out)
    lifted_public(public, width)                  the public part of a lifted wire (protocols/lift.py); not every device
    to_host(tensor)                               a copy on the CPU, to be sent
    graphs(device)                                captures work that is done again and again (graphs.py); not every device
    evaluate_GATE, deal_GATE                      what a gate of class GATE does at S_j, and at T

What a device's file lacks, reference.py has, in plain torch operations; for gates their own methods are the reference. A
file is imported when its device is first used, so a compiler or driver is needed only there. `register` adds
implementations from outside the package, before those of the file.
"""

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

_registered: dict[str, list[Any]] = {}


def register(device_type: str, source: Any) -> None:
    """Take the steps that `source` has (a module, or any object with functions of these names) on such devices."""
    _registered.setdefault(device_type, []).insert(0, source)
    find.cache_clear()


def unregister(device_type: str, source: Any) -> None:
    _registered[device_type].remove(source)
    find.cache_clear()


def step(name: str, device: torch.device) -> Callable[..., Any]:
    """The implementation of a step for tensors on this device."""
    found = find(name, device.type)
    return found if found is not None else getattr(_module("reference"), name)


@lru_cache(maxsize=1024)
def find(name: str, device_type: str) -> Callable[..., Any] | None:
    """The device's own implementation, if it has one."""
    for source in (*_registered.get(device_type, ()), _module(device_type)):
        function = getattr(source, name, None)
        if function is not None:
            return function
    return None


@lru_cache(maxsize=16)
def _module(name: str) -> Any:
    place = f"{__name__}.{name}"
    return import_module(place) if name.isidentifier() and find_spec(place) else None
