"""Commands as processes that begin with everything imported: one process imports and is forked for each of them.

A table is made by dozens of commands, and on a machine with a GPU each of them would import for longer than much of what it does
takes. Whoever imports never touches the GPU, which nobody could use after a fork. (Should a library have done so all the same,
the command starts as any other does.)
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing import process as processes
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from runpy import run_module
from typing import Protocol

IMPORTED = (
    "secformer.cli.main", "secformer.cli.glue", "secformer.cli.training", "secformer.parties.prediction",
    "transformers.models.auto.tokenization_auto", "pydantic_settings",
)  # fmt: skip
"""What `glue train` and `eval` would import on their way."""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Child(Protocol):
    """What is needed of a process: as `subprocess.Popen` has it."""

    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


def start(arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> Child:
    """`secformer` with these arguments, what it says at the end of a log. The first call waits for the imports."""
    context = get_context("forkserver")
    context.set_forkserver_preload(list(IMPORTED))
    process = context.Process(target=_run, args=(list(arguments), str(log), dict(environment)))
    with _alone():
        process.start()
    return Forked(process)


@contextmanager
def _alone() -> Iterator[None]:
    """Whoever imports does so in an environment in which numpy begins no threads: a fork would lack them, and every command would
    have as many again."""
    own = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in own.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class Forked:
    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return self._process.exitcode

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        """Nobody waits for it any more, not even this process at its end, as it would for its other children."""
        self._process.kill()
        vars(processes)["_children"].discard(self._process)


def _run(arguments: list[str], log: str, environment: dict[str, str]) -> None:
    """In the new process."""
    _follow(environment)
    said = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for number in (1, 2):
        os.dup2(said, number)
    if not _usable(arguments):
        os.execv(sys.executable, [sys.executable, "-m", "secformer", *arguments])
    sys.argv = ["secformer", *arguments]
    run_module("secformer", run_name="__main__")


def _follow(environment: Mapping[str, str]) -> None:
    """What is imported already does not read it any more."""
    os.environ.clear()
    os.environ.update(environment)
    if "OMP_NUM_THREADS" in environment:
        import torch

        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))


def _usable(arguments: Sequence[str]) -> bool:
    """Whether the device that the command names, if it is a GPU, can be used from here."""
    names = [value for flag, value in pairwise(arguments) if flag == "--device"]
    if not any(name.startswith("cuda") for name in names):
        return True
    import torch

    try:
        torch.zeros(1, device=names[-1])
    except (RuntimeError, AssertionError):
        return False
    return True
