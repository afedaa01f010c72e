"""The exact functions of one variable that the servers approximate, in float64.

Each is written so that its *relative* accuracy survives where the textbook form cancels: GeLU's left tail through erfc
(1 + erf(x/√2) has no correct digit left below x = -8), SiLU and sigmoid through torch's stable logistic.
They are references and targets of fits; nothing secret passes through them.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

Function = Callable[[Tensor], Tensor]


def gelu(x: Tensor) -> Tensor:
    """x·Φ(x), the GeLU of BERT."""
    return 0.5 * x * torch.special.erfc(x * -math.sqrt(0.5))


def gelu_new(x: Tensor) -> Tensor:
    """GPT-2's tanh form of GeLU, 0.5·x·(1 + tanh u) with u = √(2/π)·(x + 0.044715·x³), written as x·sigmoid(2u)."""
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return x * torch.sigmoid(2 * inner)


def silu(x: Tensor) -> Tensor:
    """x·sigmoid(x)."""
    return x * torch.sigmoid(x)


def reciprocal(v: Tensor) -> Tensor:
    """1/v."""
    return 1 / v


def inverse_sqrt(v: Tensor) -> Tensor:
    """1/√v."""
    return 1 / torch.sqrt(v)


FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        "gelu": gelu,
        "gelu_new": gelu_new,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "silu": silu,
        "exp": torch.exp,
        "exp2": torch.exp2,
        "reciprocal": reciprocal,
        "inverse_sqrt": inverse_sqrt,
    }
)
