"""Many training runs on one device at a time: each gives control back after every step, and on a GPU has a stream of its own.

A small model leaves most of a GPU idle; several at once fill it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from secformer.errors import InputError

OUT_OF_MEMORY = ("out of memory", "alloc_failed")
"""How CUDA, and how its libraries say it."""


@dataclass(frozen=True)
class Job:
    """`run` is started when everything in `needs` is done; it yields after every step."""

    name: str
    run: Callable[[], Iterator[Any]]
    needs: tuple[str, ...] = ()


@dataclass
class _Slot:
    name: str
    steps: Iterator[Any]
    stream: torch.cuda.Stream | None

    def turn(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self.stream) if self.stream is not None else nullcontext()


def run_jobs(
    jobs: Sequence[Job],
    device: torch.device,
    slots: int,
    deadline: float | None = None,
    report: Callable[[str], None] = lambda line: None,
    began: float | None = None,
) -> set[str]:
    """Work through the jobs, the first of the list first; gives the names of those that were finished.

    Seconds in reports count from `began` (of time.monotonic), else from this call.

    At the deadline (of time.monotonic) what is unfinished is dropped. A run that fails, or for which a GPU has no memory left, is
    reported, and what needs it is not begun; the others go on.
    """
    waiting, running, done = list(jobs), list[_Slot](), set[str]()
    streams = [torch.cuda.Stream() if device.type == "cuda" else None for _ in range(slots)]
    began, failed = time.monotonic() if began is None else began, False
    while waiting or running:
        if deadline is not None and time.monotonic() > deadline:
            report(f"out of time: {len(running)} unfinished, {len(waiting)} not begun")
            break
        running += _start(waiting, done, streams)
        if not running:
            missing = f"none of these jobs can begin: {', '.join(job.name for job in waiting)}"
            if not failed:
                raise ValueError(missing)
            report(missing)
            break
        for slot in tuple(running):
            error = ""
            with slot.turn():
                try:
                    if next(slot.steps, slot) is not slot:
                        continue
                except (InputError, RuntimeError) as found:
                    error, failed = (
                        _reason(found),
                        True,
                    )  # its words alone: the error itself holds all that the run held
            running.remove(slot)
            if not error:
                done.add(slot.name)
            if slot.stream is not None:
                slot.stream.synchronize()
            streams.append(slot.stream)
            _free(device)
            report(f"{time.monotonic() - began:6.1f} s  {slot.name}{f' failed: {error}' if error else ''}")
    return done


def _reason(error: InputError | RuntimeError) -> str:
    """Why a run ended that others need not end for; what else went wrong is raised."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, torch.OutOfMemoryError) or any(words in str(error).lower() for words in OUT_OF_MEMORY):
        return "out of memory"
    raise error


def _free(device: torch.device) -> None:
    """Give back what the graphs of a finished run held, to other processes too."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def _start(waiting: list[Job], done: set[str], streams: list[torch.cuda.Stream | None]) -> list[_Slot]:
    """Begin as many jobs as there are streams free, and take these."""
    ready = [job for job in waiting if set(job.needs) <= done][: len(streams)]
    for job in ready:
        waiting.remove(job)
    return [_Slot(job.name, job.run(), streams.pop()) for job in ready]
