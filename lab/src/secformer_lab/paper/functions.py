"""`secformer-lab paper functions`: every variant of every function over a range of sizes, and the paper's five
comparisons.

Seconds are those of all three servers as threads of one process, the dealer's work included; rounds and bytes
are counted by the channels of the run. The paper's claims stand beside what this engine measures for the same
two protocols, and beside what ours does to SecFormer's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

from case import RESULT, revealing

from secformer.engine.local import Run, run_locally
from secformer.engine.program import Program
from secformer.engine.sharing import share
from secformer.engine.tracing import trace
from secformer.errors import SettingsError
from secformer_lab.paper.function_cases import Built, FunctionCase, function_cases

SIZES = (1024, 4096, 16384)
Progress = Callable[[Sequence[FunctionCase]], Iterable[FunctionCase]]


@dataclass(frozen=True)
class FunctionRow:
    """Bytes: online both ways at one server, dealer from T to S1. Errors of division and inverse_sqrt are relative."""

    function: str
    suite: str
    elements: int
    seconds: float
    rounds: int
    online_bytes: int
    dealer_bytes: int
    mean_error: float
    max_error: float


def measure_functions(
    sizes: Sequence[int] = SIZES,
    repetitions: int = 1,
    only: Sequence[str] = (),
    progress: Progress = lambda cases: cases,
) -> list[FunctionRow]:
    """A row for every variant and size; `only` restricts to some functions."""
    cases = _chosen(only)
    _check_sizes(sizes)
    rows = []
    for case in progress(cases):
        measure(case, min(sizes), 1)  # builds the tables that a process keeps
        rows += [measure(case, size, repetitions) for size in sizes]
    return rows


def _chosen(only: Sequence[str]) -> list[FunctionCase]:
    cases = function_cases()
    known = list(dict.fromkeys(case.function for case in cases))
    for name in only:
        if name not in known:
            raise SettingsError(f"no function '{name}' to measure; known are {', '.join(known)}")
    return [case for case in cases if not only or case.function in only]


def _check_sizes(sizes: Sequence[int]) -> None:
    longest = max(case.row for case in function_cases())
    for size in sizes:
        if size < longest or size % longest:
            raise SettingsError(f"sizes must be multiples of a row, {longest} elements; {size} is not")


def measure(case: FunctionCase, elements: int, repetitions: int = 1) -> FunctionRow:
    built = case.build(elements)
    best, run = float("inf"), None
    program = _program(case, built)
    plan = trace(program)
    for _ in range(max(1, repetitions)):
        sharings = {name: share(secret) for name, secret in built.inputs.items()}
        start = perf_counter()
        run = run_locally(program, sharings, plan=plan)
        best = min(best, perf_counter() - start)
    assert run is not None
    return _row(case, built, elements, run, best)


def _program(case: FunctionCase, built: Built) -> Program:
    forms = {name: secret.form for name, secret in built.inputs.items()}
    name = f"{case.function} {case.suite}"
    return revealing(name, lambda runtime, inputs: {RESULT: built.body(runtime, inputs)}, forms)


def _row(case: FunctionCase, built: Built, elements: int, run: Run, seconds: float) -> FunctionRow:
    error = (run.value(RESULT) - built.exact).abs()
    if case.relative:
        error = error / built.exact.abs()
    link = run.counters[0]
    return FunctionRow(
        function=case.function,
        suite=case.suite,
        elements=elements,
        seconds=seconds,
        rounds=link.rounds,
        online_bytes=link.payload_sent + link.payload_received,
        dealer_bytes=run.dealer.payload_sent,
        mean_error=error.mean().item(),
        max_error=error.max().item(),
    )


# -- the paper's comparisons ---------------------------------------------------------------------------------


class Claim(NamedTuple):
    """SecFormer's protocol against another's, as the paper puts it, and our variant of the same."""

    title: str
    function: str
    against: tuple[str, str]  # (function, suite)
    time: str
    traffic: str
    ours: str


CLAIMS = (
    Claim("GeLU, PUMA", "gelu", ("gelu", "puma"), "1.6", "1.6", "exact"),
    Claim("LayerNorm, CrypTen", "layernorm", ("layernorm", "crypten"), "4.5", "", "exact"),
    Claim("1/√x, CrypTen", "inverse_sqrt", ("inverse_sqrt", "crypten"), "4.2", "2.5", "exact"),
    Claim("2Quad, MPCFormer", "2quad", ("2quad", "mpcformer"), "1.26–2.09", "1.04–1.12", "fast"),
    Claim("2Quad, PUMA's Softmax", "2quad", ("softmax", "puma"), "8.24–16.8", "30.53–36.2", "fast"),
    Claim("1/x, CrypTen", "division", ("division", "crypten"), "3.2", "1.6", "exact"),
)


@dataclass(frozen=True)
class Comparison:
    """How many times SecFormer's protocol is faster and smaller: claimed, measured; and ours than SecFormer's."""

    title: str
    claimed_time: str
    time: float
    claimed_traffic: str
    traffic: float
    ours_time: float
    ours_traffic: float
    ours_rounds: str


def compare(rows: Sequence[FunctionRow]) -> list[Comparison]:
    """At the largest size measured; claims about functions that were not measured are left out."""
    largest = max(row.elements for row in rows)
    at = {(row.function, row.suite): row for row in rows if row.elements == largest}
    found = []
    for claim in CLAIMS:
        other, theirs, ours = (
            at.get(key) for key in (claim.against, (claim.function, "secformer"), (claim.function, claim.ours))
        )
        if other and theirs and ours:
            found.append(_comparison(claim, other, theirs, ours))
    return found


def _comparison(claim: Claim, other: FunctionRow, theirs: FunctionRow, ours: FunctionRow) -> Comparison:
    return Comparison(
        title=claim.title,
        claimed_time=claim.time,
        time=other.seconds / theirs.seconds,
        claimed_traffic=claim.traffic,
        traffic=other.online_bytes / theirs.online_bytes,
        ours_time=theirs.seconds / ours.seconds,
        ours_traffic=theirs.online_bytes / ours.online_bytes,
        ours_rounds=f"{theirs.rounds} → {ours.rounds}",
    )


# -- output --------------------------------------------------------------------------------------------------


def row_table(rows: Sequence[FunctionRow]) -> Any:
    from rich.table import Table

    shown = Table(title="Every variant of every function, on real shares")
    for heading in ("function", "suite"):
        shown.add_column(heading)
    for heading in ("elements", "ms", "rounds", "online kB", "dealer kB", "mean error", "max error"):
        shown.add_column(heading, justify="right")
    for row in rows:
        shown.add_row(
            row.function,
            row.suite,
            f"{row.elements:,}",
            f"{1e3 * row.seconds:.0f}",
            str(row.rounds),
            f"{row.online_bytes / 1e3:,.0f}",
            f"{row.dealer_bytes / 1e3:,.0f}",
            f"{row.mean_error:.1e}",
            f"{row.max_error:.1e}",
        )
    return shown


def comparison_table(comparisons: Sequence[Comparison]) -> Any:
    from rich.table import Table

    shown = Table(title="How many times SecFormer's protocol beats another's, and ours beats SecFormer's")
    shown.add_column("SecFormer against")
    for heading in ("time, paper", "time", "traffic, paper", "traffic", "ours: time", "ours: traffic", "ours: rounds"):
        shown.add_column(heading, justify="right")
    for line in comparisons:
        numbers = (f"{line.time:.2f}", line.claimed_traffic, f"{line.traffic:.2f}")
        ours = (f"{line.ours_time:.2f}", f"{line.ours_traffic:.1f}", line.ours_rounds)
        shown.add_row(line.title, line.claimed_time, *numbers, *ours)
    shown.caption = "time: three servers on this machine without a network, where rounds cost nothing"
    return shown
