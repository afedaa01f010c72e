"""Figure 1(b) of the paper with our figures: what replacing GeLU costs against what replacing Softmax costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from secformer.errors import SettingsError
from secformer.training.results import TASKS, Cell, Row, cell

BARS = {
    "plain": "plain text",
    "quad_bare": "GeLU replaced",
    "secformer_bare": "Softmax replaced",
    "mpcformer_bare": "both replaced",
}
DISTILLED = {
    "plain": "plain text",
    "quad": "GeLU replaced",
    "secformer": "Softmax replaced",
    "mpcformer": "both replaced",
}
HALVES = (("fine-tuned without distillation", BARS), ("distilled", DISTILLED))


def draw(rows: Sequence[Row], folder: Path) -> list[str]:
    """A PNG a base model, each half from the tasks that have every bar of it, where there are any; gives the file names."""
    try:
        import matplotlib
    except ImportError:
        raise SettingsError("plots need matplotlib: run `make setup`, or pip install -e '.[bench]'") from None
    matplotlib.use("Agg")
    drawn = []
    for base in sorted({row["base"] for row in rows}):
        if any(_tasks(rows, base, bars) for _, bars in HALVES):
            drawn.append(_draw(rows, base, folder))
    return drawn


def plot_name(base: str) -> str:
    return f"glue-figure-1b-{base}.png"


def _tasks(rows: Sequence[Row], base: str, bars: Iterable[str]) -> list[str]:
    return [task for task in TASKS if all(_cell(rows, base, task, bar).values for bar in bars)]


def _cell(rows: Sequence[Row], base: str, task: str, method: str) -> Cell:
    return cell(rows, base, task, method, "plain")


def _draw(rows: Sequence[Row], base: str, folder: Path) -> str:
    from matplotlib import pyplot

    halves = [half for half in HALVES if _tasks(rows, base, half[1])]
    figure, grid = pyplot.subplots(
        1, len(halves), figsize=(5 * len(halves), 3.6), layout="constrained", sharey=True, squeeze=False
    )
    for axes, (title, bars) in zip(grid[0], halves, strict=True):
        tasks = _tasks(rows, base, bars)
        for place, (method, label) in enumerate(bars.items()):
            cells = [_cell(rows, base, task, method) for task in tasks]
            where = [index + (place - 1.5) * 0.2 for index in range(len(tasks))]
            axes.bar(where, [found.mean for found in cells], 0.2, label=label)
        axes.set_xticks(range(len(tasks)), tasks)
        axes.set(title=title, ylabel="metric × 100")
        axes.grid(True, axis="y", alpha=0.3)
    figure.legend(
        *grid[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2 * len(halves), fontsize=8
    )
    figure.suptitle(f"What replacing GeLU and Softmax costs: {base}")
    name = plot_name(base)
    figure.savefig(folder / name, dpi=150)
    pyplot.close(figure)
    return name
