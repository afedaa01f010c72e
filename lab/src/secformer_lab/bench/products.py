"""Ring products on one device against float64 limbs, in the same run and by the same clock.

    python -m secformer_lab.bench.products --device cuda

Weights are prepared, activations cut in the time given. Several weights take turns, as the layers of a model do, so that none
is found in a cache by luck. On a GPU a series of products is captured and replayed: what the interpreter takes to begin them
is not in it. Every product is compared with the other's, bit for bit. Prints JSON, a line for each shape and width.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

from secformer.errors import KernelError
from secformer.ring.fixed_point import reduce
from secformer.ring.kernels import float64, step
from secformer.ring.limbs import Prepared
from secformer.ring.matmul import prepare

BERT = (
    (512, 768, 3072), (512, 3072, 768), (512, 768, 768), (128, 768, 3072), (128, 3072, 768), (128, 768, 768),
    (512, 1024, 4096), (512, 4096, 1024), (12, 512, 64, 512), (12, 512, 512, 64), (12, 128, 64, 128),
)  # fmt: skip
"""Rows, inner dimension, columns; before them, in attention, a batch of heads, whose right operand is cut each time too."""
WIDTHS = (64, 35)
WEIGHTS = 4
_REPLAYS = 9

Product = Callable[[], Tensor]


def measure(shape: Sequence[int], width: int, device: torch.device) -> dict[str, Any]:
    *batch, rows, inner, columns = shape
    pairs = [
        (_words(width, device, *batch, rows, inner), _words(width, device, *batch, inner, columns))
        for _ in range(WEIGHTS)
    ]
    series = {name: _series(function, pairs, width) for name, function in _functions(device).items()}
    for ours, theirs in zip(series["int8"], series["float64"], strict=True):
        if not torch.equal(reduce(ours(), width), reduce(theirs(), width)):
            raise KernelError(f"two ways to {shape} modulo 2^{width} gave different products")
    times = {f"{name}_ms": _milliseconds(calls, device) for name, calls in series.items()}
    return {
        "batch": batch[0] if batch else 1,
        "rows": rows,
        "inner": inner,
        "columns": columns,
        "width": width,
        **times,
    }


def _functions(device: torch.device) -> dict[str, Callable[..., Tensor]]:
    return {"int8": step("matmul", device), "float64": float64.matmul}


def _words(width: int, device: torch.device, *shape: int) -> Tensor:
    return reduce(torch.randint(-(2**63), 2**63 - 1, shape, device=device), width)


def _series(function: Callable[..., Tensor], pairs: Sequence[tuple[Tensor, Tensor]], width: int) -> list[Product]:
    return [_product(function, left, right, width) for left, right in pairs]


def _product(function: Callable[..., Tensor], left: Tensor, right: Tensor, width: int) -> Product:
    weight = prepare(right, width) if right.dim() == 2 else None
    return lambda: function(left, weight or Prepared(right, width, width), width, width)


def _milliseconds(calls: Sequence[Product], device: torch.device) -> float:
    """The median of several series, for one product."""
    for call in calls:
        call()
    return median(_replayed(calls, device) if device.type == "cuda" else _called(calls))


def _called(calls: Sequence[Product]) -> list[float]:
    times = []
    for _ in range(_REPLAYS):
        started = time.perf_counter()
        for call in calls:
            call()
        times.append(1e3 * (time.perf_counter() - started) / len(calls))
    return times


def _replayed(calls: Sequence[Product], device: torch.device) -> list[float]:
    graph, times = torch.cuda.CUDAGraph(), []
    torch.cuda.synchronize(device)
    with torch.cuda.graph(graph):
        for call in (*calls, *calls):
            call()
    for _ in range(_REPLAYS):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        graph.replay()
        after.record()
        torch.cuda.synchronize(device)
        times.append(before.elapsed_time(after) / (2 * len(calls)))
    return times


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    device = torch.device(parser.parse_args(arguments).device)
    for shape in BERT:
        for width in WIDTHS:
            print(json.dumps(measure(shape, width, device)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
