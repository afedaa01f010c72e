"""Two local operations on shares that only the paper's systems need, in each of the engine's four readings.

`truncate_locally` is the truncation of CrypTen. It keeps the width and fails by 2^(64-bits), with probability
|value| * 2^-(63-bits) for each element. Our own protocols use the exact `drop` of the runtime instead.

`split` returns the two summands [x]_0 and [x]_1 as XOR-shared words, each known to its owner: the input of an adder.
"""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch

import torch

from secformer.engine.computing import Computing
from secformer.engine.masks import OnMasks
from secformer.engine.runtime import Runtime
from secformer.engine.simulating import Simulating
from secformer.engine.tracing import Tracing
from secformer.engine.values import Bits, Shared


@singledispatch
def truncate_locally(runtime: Runtime, value: Shared, bits: int) -> Shared:
    """Divide by 2^bits, each server its own share; wrong with the probability stated above."""
    raise TypeError(f"a runtime of type {type(runtime).__name__} does not truncate locally")


@truncate_locally.register(Tracing)
@truncate_locally.register(OnMasks)
def _(runtime: Runtime, value: Shared, bits: int) -> Shared:
    return replace(value, scale=value.scale - bits)


@truncate_locally.register
def _(runtime: Simulating, value: Shared, bits: int) -> Shared:
    return replace(value, share=value.share >> bits, scale=value.scale - bits)


@truncate_locally.register
def _(runtime: Computing, value: Shared, bits: int) -> Shared:
    sign = 1 if runtime.party == 0 else -1
    share = sign * torch.div(sign * value.share, 1 << bits, rounding_mode="floor")
    return replace(value, share=share, scale=value.scale - bits)


@singledispatch
def split(runtime: Runtime, value: Shared) -> tuple[Bits, Bits]:
    """Return both summands of a shared value as XOR shares."""
    raise TypeError(f"a runtime of type {type(runtime).__name__} does not split shares")


@split.register(Tracing)
@split.register(OnMasks)
def _(runtime: Runtime, value: Shared) -> tuple[Bits, Bits]:
    return Bits(value.share, value.width), Bits(value.share, value.width)


@split.register
def _(runtime: Simulating, value: Shared) -> tuple[Bits, Bits]:
    return Bits(value.share, value.width), Bits(torch.zeros_like(value.share), value.width)


@split.register
def _(runtime: Computing, value: Shared) -> tuple[Bits, Bits]:
    own, nothing = Bits(value.share, value.width), Bits(torch.zeros_like(value.share), value.width)
    return (own, nothing) if runtime.party == 0 else (nothing, own)
