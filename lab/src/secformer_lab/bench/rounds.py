"""Where the time of a recorded query goes, round by round: waiting for the device, exchanging, and what the host does besides.

    python -m secformer_lab.bench.rounds bert-base --suite exact --tokens 512 --connections 5

Servers as in `secformer-lab bench model`, on a GPU that records plans (engine/replaying.py); NVIDIA's MPS, if it runs, lets them
share it. Prints JSON: S0's fastest run in milliseconds, summed up and by operation and size of the frame. The servers run this
module too: theirs is a recorded plan with a clock.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from torch import Tensor

from secformer.engine import recording
from secformer.engine.places import Feed, NoFeed
from secformer.engine.tracing import Plan
from secformer.models.shapes import PRESETS
from secformer.parties import serve
from secformer.ring.devices import device_named
from secformer.roles import SERVERS
from secformer_lab.bench.model import Arrangement, Subject, measure

FILE = "ROUNDS_FILE"
"""The environment variable that tells the servers where S0 writes what its clock says, a line of JSON for a run. Without the
prefix of settings: servers are started without those (parties/launch.py), and refuse one that nobody knows."""
_MODULE = "secformer_lab.bench.rounds"


# -- at a server --------------------------------------------------------------------------------------------------------------


@dataclass
class Clock:
    """Seconds of one run: of all of it, and of each round the waiting and the exchange."""

    begun: float = field(default_factory=perf_counter)
    waited: list[float] = field(default_factory=list)
    exchanged: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    @contextmanager
    def adding(self, times: list[float]) -> Iterator[None]:
        started = perf_counter()
        yield
        times.append(perf_counter() - started)

    def rows(self, plan: Plan) -> list[dict[str, Any]]:
        """A row for each round; what is neither waiting nor exchange is the host's own."""
        starts = [self.begun, *self.ends]
        rounds = zip(starts, self.ends, self.waited, self.exchanged, _rounds(plan), strict=False)
        return [
            {
                **told,
                "gpu_ms": 1e3 * waited,
                "exchange_ms": 1e3 * exchanged,
                "host_ms": 1e3 * (end - start - waited - exchanged),
            }
            for start, end, waited, exchanged, told in rounds
        ]


def _rounds(plan: Plan) -> list[dict[str, Any]]:
    """Operation and bytes each way of every round; the first opening names it."""
    found: dict[int, dict[str, Any]] = {}
    for opening in plan.tape.openings:
        told = found.setdefault(opening.round, {"operation": opening.scope.rpartition("/")[2], "bytes": 0})
        told["bytes"] += opening.form.packed_bytes
    return [found[number] for number in sorted(found)]


class ClockedChannel:
    def __init__(self, channel: Any, clock: Clock) -> None:
        self._channel, self._clock = channel, clock
        self.land, self.flush = channel.land, channel.flush

    def exchange(self, *given: Any, **how: Any) -> Tensor:
        with self._clock.adding(self._clock.exchanged):
            received = self._channel.exchange(*given, **how)
        self._clock.ends.append(perf_counter())
        return received


class ClockedGraphs:
    """All that graphs are, and their marks with a clock."""

    def __init__(self, graphs: Any, clock: Clock) -> None:
        self._graphs, self._clock = graphs, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graphs, name)

    def mark(self) -> Any:
        return ClockedMark(self._graphs.mark(), self._clock)


class ClockedMark:
    def __init__(self, mark: Any, clock: Clock) -> None:
        self._mark, self._clock = mark, clock

    def wait(self) -> None:
        with self._clock.adding(self._clock.waited):
            self._mark.wait()


class Clocked(recording.Recorded):
    """A recorded plan that tells of every run at S0."""

    def run(self, channel: Any, feed: Feed | NoFeed, tell: Callable[[Sequence[str]], None]) -> None:
        graphs, clock = self.graphs, Clock()
        self.graphs = ClockedGraphs(graphs, clock)
        try:
            super().run(ClockedChannel(channel, clock), feed, tell)  # type: ignore[arg-type]
        finally:
            self.graphs = graphs
        total = 1e3 * (perf_counter() - clock.begun)
        if self.party == 0 and (target := os.environ.get(FILE)):
            with Path(target).open("a") as file:
                print(json.dumps({"total_ms": total, "rounds": clock.rows(self.plan)}), file=file)


# -- the measurement ----------------------------------------------------------------------------------------------------------


def measured(model: str, suite: str, tokens: int, arrangement: Arrangement) -> dict[str, Any]:
    device_named(arrangement.device)
    subject = Subject(PRESETS[model], [tokens], suite)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "rounds.jsonl")
        with _told_in_environment(target):
            (row,) = measure(subject, [arrangement], lambda step: None, _MODULE)
        lines = target.read_text().splitlines() if target.exists() else []
    runs = [json.loads(line) for line in lines]
    told = {"model": model, "suite": suite, "tokens": tokens, "device": arrangement.device, "error": row["max_error"]}
    return told | (summed_up(min(runs, key=lambda run: run["total_ms"])) if runs else {"rounds": []})


@contextmanager
def _told_in_environment(target: Path) -> Iterator[None]:
    before = os.environ.get(FILE)
    os.environ[FILE] = str(target)
    try:
        yield
    finally:
        if before is None:
            del os.environ[FILE]
        else:
            os.environ[FILE] = before


def summed_up(run: dict[str, Any]) -> dict[str, Any]:
    """One run: sums over all rounds, and means of those alike."""
    names, rounds = ("gpu_ms", "exchange_ms", "host_ms"), run["rounds"]
    kinds: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for each in rounds:
        kinds.setdefault((each["operation"], each["bytes"]), []).append(each)
    return {
        "total_ms": run["total_ms"],
        "graphs": len(rounds) + 1,
        "bytes_each_way": sum(each["bytes"] for each in rounds),
        **{name: sum(each[name] for each in rounds) for name in names},
        "rounds": [
            {"operation": operation, "bytes": size, "count": len(alike), **{name: _mean(alike, name) for name in names}}
            for (operation, size), alike in kinds.items()
        ],
    }


def _mean(rounds: Sequence[dict[str, Any]], name: str) -> float:
    return sum(each[name] for each in rounds) / len(rounds)


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] and arguments[0] in SERVERS:
        recording.Recorded = Clocked
        serve.main(arguments)
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="bert-base", choices=sorted(PRESETS))
    parser.add_argument("--suite", default="exact")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--connections", type=int, default=5)
    parser.add_argument("--runs", type=int, default=8)
    given = parser.parse_args(arguments)
    arrangement = Arrangement(given.device, connections=given.connections, runs=given.runs)
    print(json.dumps(measured(given.model, given.suite, given.tokens, arrangement)))


if __name__ == "__main__":
    main(sys.argv[1:])
