"""`secformer-lab paper …`: the paper's comparisons, with ours in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from secformer.cli.costs import plan_table
from secformer.cli.output import console, print_json, progressing, show
from secformer.errors import SettingsError
from secformer.models.cost import plan_dict
from secformer.planning import config_named
from secformer.systems import suite_named
from secformer_lab.paper import functions as bench
from secformer_lab.paper import tables as paper
from secformer_lab.paper.suites import Baseline


def functions(
    as_json: bool,
    plot: Path | None,
    sizes: Sequence[int] | None,
    only: Sequence[str] | None,
    repetitions: int,
) -> None:
    rows = bench.measure_functions(
        sizes or bench.SIZES,
        repetitions,
        only or (),
        lambda cases: progressing(cases, lambda case: f"{case.function} {case.suite}"),
    )
    drawn = _draw(rows, plot)
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    show(bench.row_table(rows))
    comparisons = bench.compare(rows)
    if comparisons:
        show(bench.comparison_table(comparisons))
    for path in drawn:
        console().print(f"drawn: {path}")


def tables(as_json: bool) -> None:
    """Print the paper's accuracy table and its traffic, counted again."""
    accuracy, cells = paper.gelu_accuracy(), paper.traffic_table()
    if as_json:
        print_json(paper.as_dict(accuracy, cells))
        return
    show(paper.accuracy_table(accuracy))
    show(paper.cell_table(cells))


def plan_as_published(model: str, tokens: int, suite: str, as_json: bool) -> None:
    """Print what the paper's public scripts would send for one query. Raise SettingsError for a suite of ours."""
    system = suite_named(suite)
    if not isinstance(system, Baseline):
        raise SettingsError(f"suite {suite} was not published with the paper")
    traced = system.published_plan(config_named(model), 1, tokens)
    if as_json:
        print_json(plan_dict(traced))
    else:
        show(plan_table(traced, f"{model}, {tokens} tokens, suite {suite} as published"))


def _draw(rows: Sequence[bench.FunctionRow], folder: Path | None) -> list[Path]:
    if folder is None:
        return []
    from secformer_lab.paper.figures import draw

    return draw(rows, folder)
