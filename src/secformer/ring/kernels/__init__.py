"""The one place that knows which implementation serves which device.

A kernel is a function with the name of the operation in one of the modules below; it is imported when it is
first asked for, so a device's compiler or driver is needed only where that device is used.

    matmul(a: Tensor, b: Prepared, width: int, a_bits: int) -> Tensor
        arguments are checked; a_bits <= width; any representative modulo 2^width may be returned
"""

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch

_ANY = "any"

_MODULES = {
    ("matmul", "cpu"): "cpu",
    ("matmul", "meta"): "reference",
    # Torch has no int64 matmul on CUDA; float64 is exact everywhere.
    ("matmul", _ANY): "float64",
}


def kernel(name: str, device: torch.device) -> Callable[..., Any]:
    """The implementation of an operation for tensors on this device."""
    return _load(name, device.type)


@lru_cache(maxsize=64)
def _load(name: str, device_type: str) -> Callable[..., Any]:
    module = _MODULES.get((name, device_type)) or _MODULES[(name, _ANY)]
    return getattr(import_module(f"{__name__}.{module}"), name)
