"""The steps on an NVIDIA GPU. Torch has no int64 product there; float64 digits are exact everywhere."""

import torch
from torch import Tensor

from secformer.ring.kernels import float64, reference
from secformer.ring.keystream import Keystream, native_elements, stream_bytes

matmul = float64.matmul

# Up to here the CPU's cipher and a copy serve the GPU, the same stream: the torch cipher is ~550 launches, 6 ms on an H200
# for any draw up to 32 MiB, where the CPU makes 4 MiB in 1 ms.
_COPY_LIMIT_BYTES = 1 << 22


def draw(keystream: Keystream, shape: tuple[int, ...], width: int, device: torch.device) -> Tensor:
    count = torch.Size(shape).numel()
    if keystream.cipher is None or stream_bytes(count, width) > _COPY_LIMIT_BYTES:
        return reference.draw(keystream, shape, width, device)
    return torch.from_numpy(native_elements(keystream, count, width).reshape(shape)).to(device)
