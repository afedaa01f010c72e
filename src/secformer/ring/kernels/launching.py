"""How a Triton kernel is launched.

Triton compiles a kernel anew for every property of an integer argument that it may exploit (equal to one, divisible by
sixteen). Widths, counts and key words change from call to call and nothing is gained by knowing them, so kernels list them
under `do_not_specialize`; what is worth knowing is a `tl.constexpr`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def launch(kernel: Any, programs: int | tuple[int, ...], first: Tensor, *arguments: Any, **constants: Any) -> None:
    """`programs` programs of a kernel, on the device of its first argument and that device's current stream."""
    grid = (programs,) if isinstance(programs, int) else programs
    if first.is_cuda and first.device.index != torch.cuda.current_device():
        with torch.cuda.device(first.device):
            kernel[grid](first, *arguments, **constants)
    else:
        kernel[grid](first, *arguments, **constants)
