"""`secformer bench functions` and `secformer bench paper`: the paper's comparisons, with ours in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from secformer.bench import functions as bench
from secformer.bench import paper as tables
from secformer.cli.output import console, print_json, progressing, show


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


def paper(as_json: bool) -> None:
    accuracy, cells = tables.gelu_accuracy(), tables.traffic_table()
    if as_json:
        print_json(tables.as_dict(accuracy, cells))
        return
    show(tables.accuracy_table(accuracy))
    show(tables.cell_table(cells))


def _draw(rows: Sequence[bench.FunctionRow], folder: Path | None) -> list[Path]:
    if folder is None:
        return []
    from secformer.bench.figures import draw

    return draw(rows, folder)
