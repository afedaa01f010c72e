"""The paper's five comparison figures, drawn from the rows of `secformer-lab paper functions`: time and traffic
over sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from secformer.errors import SettingsError
from secformer_lab.paper.functions import FunctionRow

FIGURES = {
    "gelu": ("GeLU", (("gelu", "crypten"), ("gelu", "puma"), ("gelu", "secformer"), ("gelu", "exact"))),
    "layernorm": ("LayerNorm", tuple(("layernorm", suite) for suite in ("crypten", "puma", "secformer", "exact"))),
    "inverse_sqrt": (
        "Inverse square root",
        tuple(("inverse_sqrt", suite) for suite in ("crypten", "puma", "secformer", "exact")),
    ),
    "2quad": (
        "2Quad",
        (("softmax", "puma"), ("2quad", "mpcformer"), ("2quad", "secformer"), ("2quad", "fast")),
    ),
    "division": ("Division", tuple(("division", suite) for suite in ("crypten", "secformer", "exact"))),
}
"""File name → title and the (function, suite) pairs in it."""

NAMES = {"crypten": "CrypTen", "puma": "PUMA", "mpcformer": "MPCFormer", "secformer": "SecFormer"}


def draw(rows: Sequence[FunctionRow], folder: Path) -> list[Path]:
    """One PNG a figure for which rows were measured; gives back the files."""
    try:
        import matplotlib
    except ImportError:
        raise SettingsError("plots need matplotlib: run `make setup`, or pip install -e '.[bench]'") from None
    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    measured = {(row.function, row.suite) for row in rows}
    wanted = {name: figure for name, figure in FIGURES.items() if measured & set(figure[1])}
    return [_draw(rows, title, pairs, folder / f"{name}.png") for name, (title, pairs) in wanted.items()]


def _draw(rows: Sequence[FunctionRow], title: str, pairs: Sequence[tuple[str, str]], path: Path) -> Path:
    from matplotlib import pyplot

    figure, (time, traffic) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for pair in pairs:
        line = sorted((row for row in rows if (row.function, row.suite) == pair), key=lambda row: row.elements)
        if not line:
            continue
        sizes = [row.elements for row in line]
        label = NAMES.get(pair[1], f"ours ({pair[1]})")
        time.plot(sizes, [row.seconds for row in line], marker="o", label=label)
        traffic.plot(sizes, [row.online_bytes / 1e6 for row in line], marker="o", label=label)
    for axes, unit in ((time, "seconds"), (traffic, "MB online, both directions")):
        axes.set(xscale="log", yscale="log", xlabel="elements", ylabel=unit)
        axes.grid(True, alpha=0.3)
    time.legend()
    figure.suptitle(title)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return path
