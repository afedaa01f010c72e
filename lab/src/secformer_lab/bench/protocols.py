"""Every protocol measured: rounds, bits, time and error, ours beside the paper's.

Rounds and bits are counted by the channels of the run, not taken from the plan. `seconds` is the best of a few runs of
all three servers as threads of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from case import RESULT, Case

from secformer.engine.local import Run
from secformer.engine.tracing import trace
from secformer_lab.bench.cases import COUNTERPARTS, catalogue

SEED = 2024
Progress = Callable[[Sequence[Case]], Iterable[Case]]


@dataclass(frozen=True)
class Row:
    """One protocol. Bits are an element: both directions online, T to S1 for the dealer."""

    protocol: str
    flavour: str
    rounds: int
    online_bits: float
    dealer_bits: float
    seconds: float
    max_error: float
    relative_error: bool
    elements: int
    paper_rounds: int | None = None
    paper_bits: int | None = None


def measure_protocols(
    rows: int = 64, columns: int = 64, repetitions: int = 3, progress: Progress = lambda cases: cases
) -> list[Row]:
    """A row for every case on matrices of this size; `progress` may wrap the sequence to show how far it is."""
    return [measure(case, repetitions) for case in progress(catalogue(rows, columns))]


def measure(case: Case, repetitions: int = 3) -> Row:
    secrets = case.inputs(SEED)
    sharings, plan = case.share(secrets), trace(case.program)
    best, run = float("inf"), None
    for _ in range(max(1, repetitions)):
        start = perf_counter()
        run = case.run(sharings, plan)
        best = min(best, perf_counter() - start)
    assert run is not None
    return _row(case, run, best, case.error(run.value(RESULT), case.exact(secrets)))


def _row(case: Case, run: Run, seconds: float, error: float) -> Row:
    """Bits come from the tape, which the byte counters confirm up to the padding of each packed tensor."""
    cost, link = run.plan.cost, run.counters[0]
    assert (link.payload_sent, run.dealer.payload_sent) == (cost.opened_bytes, cost.dealer_bytes)
    return Row(
        protocol=case.protocol,
        flavour=case.flavour,
        rounds=link.rounds,
        online_bits=_short(cost.online_bits / case.elements),
        dealer_bits=_short(cost.dealer_bits / case.elements),
        seconds=seconds,
        max_error=error,
        relative_error=case.relative,
        elements=case.elements,
        paper_rounds=case.paper.rounds if case.paper else None,
        paper_bits=case.paper.bits if case.paper else None,
    )


def _short(number: float) -> float | int:
    return int(number) if number == int(number) else round(number, 3)


HEADINGS = ("rounds", "bits", "dealer", "ms", "error")


def table(rows: Sequence[Row]) -> Any:
    """A rich table: each protocol on wires, below it Table 1's as we run it, and what the paper prints."""
    from rich.table import Table

    shown = Table("protocol", "whose", title="Protocols, ours beside the paper's", title_justify="left")
    for heading in HEADINGS:
        shown.add_column(heading, justify="right")
    theirs = {row.protocol: row for row in rows if row.flavour == "table1"}
    for row in rows:
        if row.flavour != "wire":
            continue
        shown.add_row(row.protocol, "on wires", *_cells(row))
        other = theirs.get(COUNTERPARTS.get(row.protocol, ""))
        if other is not None:
            shown.add_row("", "Table 1", *_cells(other))
            if other.paper_rounds is not None:
                shown.add_row("", "its print", str(other.paper_rounds), f"{other.paper_bits:,}", "", "", "")
    shown.caption = "bits an element, online both ways; error: largest, % = relative; openings of inputs included"
    return shown


def _cells(row: Row) -> list[str]:
    error = f"{100 * row.max_error:.2g} %" if row.relative_error else f"{row.max_error:.2g}"
    return [str(row.rounds), f"{row.online_bits:,}", f"{row.dealer_bits:,}", f"{1e3 * row.seconds:.1f}", error]
