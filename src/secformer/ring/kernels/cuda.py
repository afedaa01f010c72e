"""The steps on an NVIDIA GPU, by Triton, which comes with torch's builds for CUDA; without it by torch operations.

What is sent is copied to pinned memory. What arrives is fetched by a copy that has ended when the step goes on: its buffer may
be filled again as soon as nobody looks at it (transport/buffers.py), and at that moment the stream has nothing else to do.
"""

from importlib.util import find_spec

import torch
from torch import Tensor

from secformer.ring.kernels import float64, reference
from secformer.ring.kernels.steps import Closed, Closing, put
from secformer.ring.keystream import Keystream, native_elements, stream_bytes

# Up to here the CPU's cipher and a copy serve the GPU, the same stream: the torch cipher is ~550 launches, 6 ms on an H200
# for any draw up to 32 MiB, where the CPU makes 4 MiB in 1 ms.
_COPY_LIMIT_BYTES = 1 << 22


def draw_plainly(
    keystream: Keystream,
    shape: tuple[int, ...],
    width: int,
    device: torch.device,
    dtype: torch.dtype = torch.int64,
    out: Tensor | None = None,
) -> Tensor:
    """Without a kernel: by the CPU's cipher, or by torch operations."""
    count = torch.Size(shape).numel()
    if keystream.cipher is None or stream_bytes(count, width) > _COPY_LIMIT_BYTES:
        return reference.draw(keystream, shape, width, device, dtype, out)
    return put(torch.from_numpy(native_elements(keystream, count, width).reshape(shape)).to(device, dtype), out)


if find_spec("triton"):
    from secformer.ring.kernels import bit_planes, cipher, covering, lifted, products, series, tables, wires, words
    from secformer.ring.kernels import graphs as captured

    matmul, gf2_matmul = products.matmul, bit_planes.gf2_matmul
    evaluate_MatMul, evaluate_SelectRows = products.evaluate_matmul, bit_planes.evaluate_select
    evaluate_Fourier, evaluate_GatedFourier = series.evaluate_fourier, series.evaluate_gated
    evaluate_Carry, evaluate_SquareLifted = lifted.evaluate_carry, lifted.evaluate_square
    evaluate_MultiplyLifted, evaluate_UnmaskLifted = lifted.evaluate_multiply, lifted.evaluate_unmask
    lifted_public = lifted.lifted_public
    evaluate_Multiply, evaluate_Square = wires.evaluate_multiply, wires.evaluate_square
    evaluate_DisjointSum = evaluate_SignedSum = tables.evaluate_rows
    deal_Fourier = deal_DisjointSum = deal_BitPolynomials = tables.deal_rows
    evaluate_BlockPower, deal_BlockPower = tables.evaluate_power, tables.deal_power
    evaluate_Histogram, deal_Histogram = tables.evaluate_histogram, tables.deal_histogram
    evaluate_Outside, evaluate_DigitTables = words.evaluate_outside, words.evaluate_digits
    evaluate_SignedWords = words.evaluate_signed
    draw, close = cipher.draw, covering.close
    pack, unpack = covering.pack, covering.unpack
    graphs = captured.Graphs
    correct, _reveal = covering.correct, covering.reveal
else:
    matmul = float64.matmul
    draw, close = draw_plainly, reference.close
    correct, _reveal = reference.correct, reference.reveal


def reveal(closed: Closed, received: Tensor, closing: Closing) -> Tensor:
    return _reveal(closed, received.to(closed.mask.device), closing)


def to_host(tensor: Tensor) -> Tensor:
    """A copy in pinned memory, complete: the bus takes it at its own speed, without a detour."""
    copy = tensor.to("cpu", non_blocking=True)
    torch.cuda.current_stream(tensor.device).synchronize()
    return copy
