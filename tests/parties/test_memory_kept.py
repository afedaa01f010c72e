"""Memory that was freed is kept between sessions, and given back when none comes, or now and then where they never cease."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from secformer.parties import memory
from secformer.parties.memory import Memory


class Counted:
    def __init__(self, **how: float) -> None:
        self.times: list[float] = []
        self.memory = Memory(lambda: self.times.append(time.monotonic()), **how)


def test_it_is_given_back_once_when_no_session_has_ended_for_a_while():
    counted = Counted(idle=0.3, longest=60.0)
    for _ in range(4):
        counted.memory.session_ended()
        time.sleep(0.15)  # never idle for so long
    last = time.monotonic() - 0.15
    assert counted.times == []
    time.sleep(0.6)
    (given,) = counted.times
    assert given - last >= 0.29
    time.sleep(0.4)
    assert len(counted.times) == 1  # nothing has been freed since
    counted.memory.session_ended()
    time.sleep(0.5)
    assert len(counted.times) == 2


def test_where_sessions_never_cease_it_is_given_back_now_and_then():
    counted = Counted(idle=60.0, longest=0.3)
    started = time.monotonic()
    while time.monotonic() - started < 1.0:
        counted.memory.session_ended()
        time.sleep(0.01)
    counted.memory.close()
    assert 2 <= len(counted.times) <= 3
    assert all(later - earlier >= 0.29 for earlier, later in zip(counted.times, counted.times[1:]))


def test_nothing_is_given_back_after_the_server_was_stopped():
    counted = Counted(idle=0.1, longest=60.0)
    counted.memory.session_ended()
    counted.memory.close()
    time.sleep(0.3)
    assert counted.times == []


_FAULTS = """
import resource
import torch
from secformer.parties.memory import give_back, keep_freed_memory

torch.set_num_threads(1)
if {keep}:
    keep_freed_memory()

def faults(rounds):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        large = torch.ones(5 << 20, dtype=torch.int64)  # 40 MiB
        large + large
        del large
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults(20)  # holes left by alignment are used after a few rounds
kept = faults(5)
give_back()
print(kept, faults(1))
"""


@pytest.mark.skipif(memory._library() is None, reason="the C library is not glibc")
def test_a_process_that_keeps_freed_memory_touches_no_new_pages():
    """Until it gives that back."""

    def told(keep: bool) -> list[int]:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
        program = [sys.executable, "-c", _FAULTS.format(keep=keep)]
        return [int(word) for word in subprocess.check_output(program, env=plain, text=True).split()]

    (anywhere, _), (kept, anew) = told(False), told(True)
    assert anywhere > 50_000 and kept < 1_000 and anew > 10_000
