"""Ring operations as the formula says them: int64 arithmetic, which wraps modulo 2^64 by itself.

Every other kernel is tested against these. Torch runs them on the CPU (one core) and on meta tensors.
"""

import torch
from torch import Tensor

from secformer.ring.limbs import Prepared

# Beyond this many elements b leaves the cache between rows of a; blocks of columns stay in it (measured:
# 20 % at 512 x 768 x 3072).
_CACHED = 1 << 20
_BLOCK = 384


def matmul(a: Tensor, b: Prepared, width: int, a_bits: int) -> Tensor:
    """a @ b in int64; exact modulo 2^64, hence modulo every smaller power of two."""
    right = b.tensor
    if right.dim() > 2 or right.numel() <= _CACHED or right.shape[1] <= _BLOCK or a.is_meta:
        return a @ right
    rows = a.reshape(-1, a.shape[-1])
    out = torch.empty(rows.shape[0], right.shape[1], dtype=a.dtype, device=a.device)
    for start in range(0, right.shape[1], _BLOCK):
        torch.mm(rows, right[:, start : start + _BLOCK], out=out[:, start : start + _BLOCK])
    return out.view(*a.shape[:-1], right.shape[1])
