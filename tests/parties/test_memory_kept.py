"""Memory that was freed is kept between sessions, and given back when none comes, or now and then where they never cease."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from itertools import pairwise

import pytest
from servers import PROMPT, QUERY, X, in_one_process, query_works, settings_in, trio, weights

from secformer.errors import PeerTimeoutError, SecFormerError
from secformer.parties import memory, serve, server
from secformer.parties.caller import Caller
from secformer.parties.memory import TUNABLES, Memory
from secformer.parties.messages import Job
from secformer.roles import SERVERS
from secformer.settings import Settings


class Counted:
    """When memory was given back."""

    def __init__(self, **how: float) -> None:
        self.times: list[float] = []
        self.memory = Memory(lambda: self.times.append(time.monotonic()), **how)

    def session(self, seconds: float = 0.0) -> float:
        """When it ended."""
        self.memory.session_begun()
        time.sleep(seconds)
        ended = time.monotonic()
        self.memory.session_ended()
        return ended


def until(holds) -> None:
    deadline = time.monotonic() + PROMPT
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert holds()


def test_it_is_given_back_once_when_no_session_has_ended_for_a_while():
    counted, last = Counted(idle=0.5, longest=60.0), 0.0
    for _ in range(6):
        last = counted.session()
        time.sleep(0.1)  # never idle for so long
    assert counted.times == []
    until(lambda: counted.times)
    assert counted.times[0] - last >= 0.5
    time.sleep(0.7)
    assert len(counted.times) == 1  # nothing has been freed since
    counted.session()
    until(lambda: len(counted.times) == 2)


def test_it_is_not_given_back_while_a_session_runs():
    """Nor at its end, but when nothing has followed for a while."""
    counted = Counted(idle=0.3, longest=60.0)
    counted.session()
    ended = counted.session(0.8)
    until(lambda: counted.times)
    assert counted.times[0] - ended >= 0.3


def test_it_is_not_given_back_while_the_first_of_two_sessions_runs():
    counted = Counted(idle=0.2, longest=60.0)
    counted.memory.session_begun()
    counted.session()
    time.sleep(0.5)
    assert counted.times == []
    counted.memory.session_ended()
    until(lambda: counted.times)


def test_where_sessions_never_cease_it_is_given_back_now_and_then():
    counted = Counted(idle=60.0, longest=0.3)
    counted.memory.session_begun()  # another runs all the time
    times = [time.monotonic()]
    while len(counted.times) < 3:
        counted.session(0.01)
    counted.memory.close()
    times += counted.times
    assert all(later - earlier >= 0.3 for earlier, later in pairwise(times))


def test_time_without_sessions_does_not_count_as_time_that_memory_was_kept():
    counted = Counted(idle=0.3, longest=0.5)
    time.sleep(0.6)
    counted.session()
    assert counted.times == []
    until(lambda: counted.times)  # it was idle
    time.sleep(0.6)
    counted.session()
    assert len(counted.times) == 1
    counted.memory.close()


def test_nothing_is_given_back_after_the_server_was_stopped():
    counted = Counted(idle=0.1, longest=60.0)
    counted.session()
    counted.memory.close()
    time.sleep(0.3)
    assert counted.times == []


@pytest.mark.parametrize("longest", [0.0, 60.0])
def test_a_session_that_ends_after_the_server_was_stopped_changes_nothing(longest):
    counted = Counted(idle=0.0, longest=longest)
    counted.memory.close()
    counted.session()
    assert counted.times == [] and counted.memory._timer is None


def test_a_timer_that_fires_as_the_server_is_stopped_gives_nothing_back():
    counted = Counted(idle=0.1, longest=60.0)
    counted.session()
    counted.memory.close()
    counted.memory._look()  # too late to be cancelled
    assert counted.memory._timer is None
    time.sleep(0.15)
    counted.memory._look()
    assert counted.times == []


def test_a_server_that_is_stopped_waits_for_what_is_being_given_back():
    begun, done = threading.Event(), []

    def slowly() -> None:
        begun.set()
        time.sleep(0.2)
        done.append("given back")

    kept = Memory(slowly, idle=0.0)
    kept.session_begun()
    kept.session_ended()
    assert begun.wait(PROMPT)
    kept.close()
    assert done == ["given back"]


# What a server tells


class Told(Counter):
    """Stands for the memory of one server."""

    def session_begun(self) -> None:
        self["begun"] += 1

    def session_ended(self) -> None:
        self["ended"] += 1

    def close(self) -> None:
        self["closed"] += 1


class Leaving(Caller):
    """Is asked for its inputs, and goes."""

    def _share(self, links, inputs, ready):
        raise PeerTimeoutError("enough")


@pytest.fixture
def servers(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "Memory", Told)
    with trio(settings_in(tmp_path / "identity"), networks=in_one_process()) as running:
        yield running


def told(running) -> dict[str, Told]:
    return {role: running.servers[role]._memory for role in SERVERS}


def test_a_server_tells_of_each_session_once_and_of_its_end(servers):
    """An upload, a query, and one that fails."""
    servers.upload(weights())
    assert query_works(servers.client)
    with pytest.raises(PeerTimeoutError):
        servers.caller(Leaving).run(QUERY, {"x": X})
    until(lambda: all(one == {"begun": 3, "ended": 3} for one in told(servers).values()))
    for one in servers.servers.values():
        one.stop()
    assert all(one == {"begun": 3, "ended": 3, "closed": 1} for one in told(servers).values())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_session_that_ends_a_lane_has_ended(servers, monkeypatch):
    def breaks(links, arrival):
        links.fail(PeerTimeoutError("enough"))
        raise RuntimeError

    monkeypatch.setattr(servers.servers["server0"], "_serve_one", breaks)
    with pytest.raises(SecFormerError):
        servers.client.run(Job("activation", {"shape": [3, 16]}), {"x": X})
    until(lambda: told(servers)["server0"] == {"begun": 1, "ended": 1})


def test_a_server_process_keeps_freed_memory(monkeypatch):
    """From before it serves."""

    class Kept(Exception):
        pass

    def keep() -> None:
        raise Kept

    monkeypatch.setattr(serve, "set_up", lambda settings: None)
    monkeypatch.setattr(serve, "keep_freed_memory", keep)
    with pytest.raises(Kept):
        serve.serve("nobody", Settings())


# What the system sees


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

faults({before})
kept = faults(5)
give_back()
print(kept, faults(1))
"""


@pytest.mark.skipif(memory._library() is None, reason="the C library is not glibc")
def test_a_process_that_keeps_freed_memory_touches_no_new_pages():
    """Until it gives that back."""
    (anywhere, _), (kept, anew) = (
        faults(keep=False),
        faults(keep=True),
    )  # holes left by alignment are used after a few rounds
    assert anywhere > 50_000 and kept < 1_000 and anew > 10_000


@pytest.mark.skipif(memory._library() is None, reason="the C library is not glibc")
def test_with_its_tunables_a_heap_has_its_size_from_the_first_session_on():
    """No holes, and given back what there is."""
    kept, anew = faults(keep=True, before=1, **TUNABLES)
    assert kept < 100 and anew > 10_000


def faults(keep: bool, before: int = 20, **environment: str) -> list[int]:
    """In five rounds after so many, and in one after memory was given back."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    program = [sys.executable, "-c", _FAULTS.format(keep=keep, before=before)]
    told = subprocess.check_output(program, env=plain | environment, text=True)
    return [int(word) for word in told.split()]
