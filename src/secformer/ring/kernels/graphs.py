"""Work on a GPU, captured once and done again without the interpreter: CUDA graphs.

    begin()     what is done on this device from now on, in this thread, is written down and not done
    end()       gives a graph of it; `replay` does it

Graphs of one `Graphs` share their memory and must be replayed in the order in which they were captured. A graph reads and writes
the very memory it was captured with: whoever replays keeps that alive (ring/resident.py), and puts new content there first.
Whatever would wait for the device, or copy from the interpreter's memory, cannot be captured and raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor


class Graphs:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._current: torch.cuda.CUDAGraph | None = None

    @staticmethod
    def fits(size: int, device: torch.device) -> bool:
        """May this many bytes lie on the device for good? A quarter of what is free."""
        return 4 * size <= torch.cuda.mem_get_info(device)[0]

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Where all of it happens; what was begun elsewhere before is awaited."""
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.current_stream(self.device).wait_stream(self._stream)

    def begin(self) -> None:
        self._current = torch.cuda.CUDAGraph()
        # other threads receive meanwhile, and may pin memory
        self._current.capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def end(self) -> torch.cuda.CUDAGraph:
        assert self._current is not None
        graph, self._current = self._current, None
        graph.capture_end()
        return graph

    def drop(self) -> None:
        """Give up what was begun, after an error, of which ending would complain again."""
        if self._current is not None:
            with suppress(RuntimeError):
                self.end()

    def host(self, size: int) -> Tensor:
        """Memory of the CPU that the device reaches by itself."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def wait(self) -> None:
        """Until everything is done that was begun in this thread's stream."""
        torch.cuda.current_stream(self.device).synchronize()

    def mark(self) -> Mark:
        """What was begun in this thread's stream so far, to wait for that alone."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return Mark(event)

    def aside(self) -> Courier:
        return Courier(self.device)


class Mark:
    def __init__(self, event: torch.cuda.Event) -> None:
        self.wait = event.synchronize


class Courier:
    """Copies beside the work: a stream of its own for another thread."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def bring(self, target: Tensor, source: Tensor) -> None:
        """Copy, and return when it is done."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            self._stream.synchronize()
