"""A training step as a CUDA graph: one launch instead of a thousand, where small models spend most of their time.

A step takes the places of its batch (batches.py) and nothing else from the host. The first step of a length runs as it is
written, the second is recorded, and from then on the record is replayed.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from secformer.training.batches import Places

Step = Callable[[Places], None]


class Graphed:
    """A step recorded once for every length. `generators` are those it draws from.

    The step comes with every call and is not kept: it belongs to whoever keeps this, and the two would hold each other, and the
    GPU's memory, until somebody collects garbage.
    """

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        self._generators = generators
        self._seen: set[int] = set()
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Step, places: Places) -> None:
        if places.length not in self._seen:
            self._seen.add(places.length)
            step(places)
            return
        if places.length not in self._graphs:
            self._graphs[places.length] = self._record(step, places)
        graph, rows = self._graphs[places.length]
        rows.copy_(places.rows)
        graph.replay()

    def _record(self, step: Step, places: Places) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        graph, rows = torch.cuda.CUDAGraph(), places.rows.clone()
        for generator in self._generators:
            graph.register_generator_state(generator)
        current = torch.cuda.current_stream()
        # Recorded on the stream it is replayed on: cuBLAS has a workspace for every stream, and graphs that were recorded
        # on one stream and are replayed on several at a time would share it. The default stream cannot record.
        stream = torch.cuda.Stream() if current == torch.cuda.default_stream() else current
        stream.wait_stream(current)
        torch.cuda.empty_cache()  # as torch.cuda.graph does: what the written step took goes to the record, or to other processes
        with torch.cuda.stream(stream), _undisturbed():
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                step(Places(rows, places.length))
            except BaseException:
                with suppress(RuntimeError):  # or the stream would go on recording whoever uses it next
                    graph.capture_end()
                raise
            graph.capture_end()
        current.wait_stream(stream)
        return graph, rows


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No garbage is collected meanwhile: an old graph that is freed in the middle of a recording breaks it."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
