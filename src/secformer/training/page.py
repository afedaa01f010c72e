"""docs/results/glue.md from the rows that were measured: nothing is shown that is not in a file."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from secformer.training.plots import plot_name
from secformer.training.remarks import BASES, FAILURES, MEANINGS, PAPER, RECIPES
from secformer.training.results import TASKS, Cell, Loss, Row, cell, loss, lost, mark, tenths

METHODS: Mapping[str, tuple[str, str, str]] = {
    "plain": ("plain text", "exact", "exact"),
    "puma": ("PUMA", "exact", "exact"),
    "mpcformer_swapped": ("MPCFormer, swapped only", "2Quad", "Quad"),
    "mpcformer_bare": ("MPCFormer without distillation", "2Quad", "Quad"),
    "mpcformer": ("MPCFormer", "2Quad", "Quad"),
    "secformer_swapped": ("SecFormer, swapped only", "2Quad", "exact"),
    "secformer_bare": ("SecFormer without distillation", "2Quad", "exact"),
    "secformer": ("SecFormer", "2Quad", "exact"),
    "exact": ("ours, `exact`, no retraining", "exact", "exact"),
    "fast": ("ours, `fast`, distilled", "2Quad", "exact"),
    "quad_swapped": ("Quad alone, swapped only", "exact", "Quad"),
    "quad_bare": ("Quad alone without distillation", "exact", "Quad"),
    "quad": ("Quad alone, distilled", "exact", "Quad"),
}
"""Row → its name, Softmax and GeLU."""
MEASURED: Mapping[str, Sequence[str]] = {
    "plain": ("plain",),
    "puma": ("twin",),
    "exact": ("simulate",),
    "fast": ("plain", "simulate"),
}
"""Row → how it is shown; others as trained and, where a suite runs them, by its twin."""
MODES: Mapping[str, str] = {"plain": "as trained", "twin": "twin", "simulate": "fixed point"}
MARKS: Mapping[str, str] = {
    "copied": "Rows marked † were copied into the files by hand from the output of a run; all others were written by the run.",
    "other_run": "Rows marked ‡ are of another run than their neighbours; where they have a teacher, their loss is against its.",
}
"""What a row may say of itself → what the page says of it."""
SECURE_TEXT = (
    "`secure`: two servers and a dealer as processes of their own, the first examples of dev. Labels: how many are those of",
    "the model in the clear on the same examples.",
)
RUNS_TEXT = (
    "One run a line. Labels: how many are those of the model in the clear on the same examples; a score has none. Fewer",
    "examples than the dev set has are its first, and have no loss.",
)
SHORT = (
    ("exact", "simulate"),
    ("fast", "simulate"),
    ("puma", "twin"),
    ("secformer", "plain"),
    ("mpcformer", "plain"),
    ("secformer_bare", "plain"),
    ("mpcformer_bare", "plain"),
)
"""What the page begins with: row and mode."""
ABLATED = (
    "hidden", "scores", "penalty 0.01", "penalty 0.1", "c 2.5", "c 10", "stage one alone", "stage two alone", "rate 0.0001",
)  # fmt: skip
"""In this order; others behind."""
FAST_GOAL, EXACT_GOAL = 0.5, 0.1


def document(rows: Sequence[Row], plots: Sequence[str]) -> str:
    """docs/results/glue.md."""
    lines = [
        "# GLUE: what private inference costs in accuracy",
        "",
        "Made by `secformer glue report` from the JSON files in `glue/`. Dev sets; all rows of a task and seed have the same",
        "teacher; mean ± standard deviation over seeds where there were several. Metrics: CoLA Matthews, MRPC F1, STS-B mean of",
        "Pearson and Spearman, else accuracy. QNLI is trained on a sample: 20,484 of 104,743 examples. Settings were chosen on a",
        "tenth of train, never on dev.",
        *(text for kind, text in MARKS.items() if any(row.get(kind) for row in rows)),
        "",
    ]
    lines += [*_short(rows), *_paper()]
    for base in _ordered({row["base"] for row in rows}):
        lines += [f"## {base}", ""]
        lines += [BASES[base], ""] if base in BASES else []
        lines += _accuracy(rows, base)
        lines += _losses(rows, base)
        lines += _goals(rows, base)
        lines += _figure(rows, base, plots)
        lines += _secure(rows, base)
        lines += _recipes(rows, base)
        lines += _ablation(rows, base)
    return "\n".join([*lines, *_every_run(rows)])


def _ordered(names: Iterable[str], known: Sequence[str] = tuple(BASES)) -> list[str]:
    """Those that are known in that order, then the others."""
    return sorted(names, key=lambda name: (known.index(name) if name in known else len(known), name))


def _short(rows: Sequence[Row]) -> list[str]:
    """The means of what every row loses, a base a line, and the paper's."""
    bases = [base for base in _ordered({row["base"] for row in rows}) if base in MEANINGS]
    if not bases:
        return []
    lines = [
        "## In short",
        "",
        "Points lost against plain text, mean over the tasks. `exact` and `fast` are in fixed point on whole dev sets, PUMA is",
        "by its twin, the others are as trained. In brackets: the tasks that have a number, where not all six have, and how many",
        "fail; why is said below.",
        "",
        _line(("model", *(METHODS[method][0] for method, _ in SHORT))),
        "|---" * (1 + len(SHORT)) + "|",
    ]
    for base in bases:
        lines.append(_line((base, *(_mean_lost(loss(rows, base, method, mode)) for method, mode in SHORT))))
    paper = [f"{_paper_lost(method):.1f} (5)" if method in PAPER else "" for method, _ in SHORT]
    return [*lines, _line(("BERT-base, in the paper", *paper)), ""]


def _mean_lost(found: Loss) -> str:
    if not found.counted:
        return "fails" if found.failed else ""
    few = [str(found.counted)] if found.counted < len(TASKS) else []
    few += [f"{len(found.failed)} fail"] if found.failed else []
    return f"{found.mean} ({', '.join(few)})" if few else str(found.mean)


def _paper_lost(method: str) -> float:
    return statistics.fmean(PAPER["plain"][task] - PAPER[method][task] for task in TASKS[:-1])


def _shown(method: str) -> Sequence[str]:
    return MEASURED.get(method, ("plain", "twin"))


def _accuracy(rows: Sequence[Row], base: str) -> list[str]:
    lines = [
        "### Metrics on whole dev sets",
        "",
        "As trained: in the clear, in float32. Twin: the suite's approximations in float64, its constants from training texts.",
        "Fixed point: as the servers compute it (`simulate`), the weights kept in float16; flagged results count as wrong.",
        "",
        _line(("row", "Softmax", "GeLU", "measured", *TASKS)),
        "|---" * (4 + len(TASKS)) + "|",
    ]
    for method, (name, softmax, gelu) in METHODS.items():
        for mode in _shown(method):
            cells = [str(cell(rows, base, task, method, mode)) for task in TASKS]
            if any(cells):
                lines.append(_line((name, softmax, gelu, MODES[mode], *cells)))
    seeds = {task: len(cell(rows, base, task, "plain", "plain").values) for task in TASKS}
    counted = ", ".join(f"{task} {count}" for task, count in seeds.items() if count)
    return [*lines, "", f"Seeds: {counted}.", ""]


def _losses(rows: Sequence[Row], base: str) -> list[str]:
    """What each row loses against plain text, on the tasks it has, on average."""
    lines = [
        "### Points lost against plain text",
        "",
        "Seed by seed, over the seeds both have; a negative loss is a gain. The mean is over the tasks that have a number.",
        "",
        _line(("row", "measured", *TASKS, "mean", "tasks")),
        "|---" * (4 + len(TASKS)) + "|",
    ]
    for method, (name, _, _) in METHODS.items():
        for mode in _shown(method) if method != "plain" else ():
            found = loss(rows, base, method, mode)
            if found.counted:
                cells = [str(found.tasks[task]) for task in TASKS]
                lines.append(_line((name, MODES[mode], *cells, found.mean, found.counted)))
    return [*lines, ""]


def _goals(rows: Sequence[Row], base: str) -> list[str]:
    """The figures beside what was aimed at; only of a base that has all of them."""
    fast, exact = loss(rows, base, "fast", "simulate"), loss(rows, base, "exact", "simulate")
    if base not in MEANINGS or fast.counted < 2 or not exact.counted:
        return []
    paper = _paper_lost("secformer")
    by_task = {task: found.mean for task, found in fast.tasks.items() if found.values}
    worst = max(by_task, key=lambda task: by_task[task])
    others = statistics.fmean(by_task[task] for task in by_task if task != worst)
    lines = [
        "### Against the goals",
        "",
        f"* `fast`, distilled, at most {FAST_GOAL} points lost on average (the paper's SecFormer: {paper:.1f}):",
        f"  {_verdict(fast, FAST_GOAL)}. {worst} decides: it loses {by_task[worst]:.1f}, the others",
        f"  {others:.2f} on average.",
        f"* `exact`, without retraining, at most {EXACT_GOAL}: {_verdict(exact, EXACT_GOAL)}.",
        "* MPCFormer below SecFormer, as in the paper: on average they lose",
        f"  {_both(rows, base, '', 'plain')} distilled, as trained; {_both(rows, base, '', 'twin')} by their twins;",
        f"  {_both(rows, base, '_bare', 'plain')} without distillation; {_both(rows, base, '_swapped', 'plain')} only swapped.",
        "",
        MEANINGS[base],
        "",
    ]
    return lines


def _verdict(found: Loss, goal: float) -> str:
    """Met only where no task is without a number."""
    values, mean = found.mean.values, found.mean.mean
    spread = f" ± {statistics.stdev(values):.1f} over seeds" if len(values) > 1 else ""
    tasks = f", {found.counted} tasks" if found.counted < len(TASKS) else ""
    tasks += f"; {', '.join(found.failed)}: no number" if found.failed else ""
    met = mean <= goal and not found.failed
    return f"**{'met' if met else 'missed'}**, {round(mean, 2) + 0.0:.2f}{spread} in fixed point{tasks}"


def _both(rows: Sequence[Row], base: str, ending: str, mode: str) -> str:
    """What the two lose on average over the tasks on which both have a number; else each over those it has."""
    two = [loss(rows, base, f"{method}{ending}", mode).tasks for method in ("mpcformer", "secformer")]
    shared = [task for task in TASKS if all(tasks[task].values for tasks in two)]
    if not shared:
        return " and ".join(_alone(tasks) for tasks in two)
    means = [statistics.fmean(tasks[task].mean for task in shared) for tasks in two]
    return f"{tenths(means[0])} and {tenths(means[1])} ({len(shared)} tasks)"


def _alone(tasks: Mapping[str, Cell]) -> str:
    found = [each for each in tasks.values() if each.values]
    if found:
        return f"{tenths(statistics.fmean(each.mean for each in found))} ({len(found)} tasks)"
    failed = len(Loss(tasks).failed)
    return f"nothing that is a number ({failed} tasks)" if failed else "(not measured)"


def _figure(rows: Sequence[Row], base: str, plots: Sequence[str]) -> list[str]:
    """Figure 1(b), and its bars in a sentence."""
    name = plot_name(base)
    if name not in plots:
        return []
    halves = [_replaced(rows, base, "_bare", "without distillation"), _replaced(rows, base, "", "distilled")]
    return [
        "### What replacing GeLU costs against replacing Softmax",
        "",
        "Lost on average: " + "; ".join(half for half in halves if half) + ".",
        "The bars are means over the seeds that a row has: of Quad alone one.",
        "",
        f"![{name}]({name})",
        "",
    ]


def _replaced(rows: Sequence[Row], base: str, ending: str, how: str) -> str:
    """Over the tasks that have all three bars, if any has."""
    three = [loss(rows, base, f"{method}{ending}", "plain").tasks for method in ("quad", "secformer", "mpcformer")]
    shared = [task for task in TASKS if all(tasks[task].values for tasks in three)]
    if not shared:
        return ""
    gelu, softmax, both = (tenths(statistics.fmean(tasks[task].mean for task in shared)) for tasks in three)
    return f"GeLU {gelu}, Softmax {softmax}, both {both} ({len(shared)} tasks) {how}"


def _secure(rows: Sequence[Row], base: str) -> list[str]:
    found = [row for row in _of_modes(rows, base) if row["mode"] == "secure"]
    return ["### Between three servers", "", *SECURE_TEXT, "", *_runs(rows, found)] if found else []


def _every_run(rows: Sequence[Row]) -> list[str]:
    """Twins and simulations, each with its own number of examples."""
    lines = ["## Every run by twin and in fixed point", "", *RUNS_TEXT, ""]
    for base in _ordered({row["base"] for row in rows}):
        found = [row for row in _of_modes(rows, base) if row["mode"] != "secure"]
        lines += [f"### {base}", "", *_runs(rows, found), *_failures(found, base)] if found else []
    return lines


def _of_modes(rows: Sequence[Row], base: str) -> list[Row]:
    """All but plain ones, in the order of the methods."""
    order = {method: place for place, method in enumerate(METHODS)}
    found = [row for row in rows if row["base"] == base and row["part"] == "dev" and row["mode"] != "plain"]
    key = lambda row: (row["task"], order.get(row["row"], 99), row["mode"], row.get("suite", ""), row["seed"])  # noqa: E731
    return sorted(found, key=key)


def _runs(rows: Sequence[Row], found: Sequence[Row]) -> list[str]:
    heads = ("task", "row", "suite", "mode", "seed", "examples", "value", "lost", "labels", "flagged")
    lines = [_line(heads), "|---" * len(heads) + "|"]
    for row in found:
        value = ("fails" if row["value"] is None else f"{row['value']:.1f}") + mark(row)
        counts = ["" if row.get(key) is None else str(row[key]) for key in ("agreeing", "flagged")]
        what = (row["task"], row["row"], row.get("suite", ""), row["mode"], row["seed"], row["examples"])
        less = lost(rows, row)
        lines.append(_line((*what, value, "" if less is None else tenths(less), *counts)))
    return [*lines, ""]


def _failures(found: Sequence[Row], base: str) -> list[str]:
    if all(row["value"] is not None for row in found):
        return []
    why = "Fails: the approximation diverges, or values are not finite where its constants are measured."
    return [why, *FAILURES.get(base, ()), ""]


def _recipes(rows: Sequence[Row], base: str) -> list[str]:
    """What the recipe of `fast` was chosen from."""
    found = [row for row in rows if row["base"] == base and row["part"] == "recipe"]
    if not found:
        return []
    lines = [
        "### Choice of the recipe of `fast`",
        "",
        "On a tenth of train that neither teacher nor student saw. The smallest distance, KL(teacher ‖ student), decided.",
        "",
        _line(("task", "recipe", "penalty", "value", "distance", "labels as the teacher's", "row sums, largest ratio")),
        "|---" * 7 + "|",
    ]
    lines += [_recipe(row) for row in sorted(found, key=lambda row: (mark(row), row["settings"]["distance"]))]
    return [*lines, "", *RECIPES.get(base, ())]


def _recipe(row: Row) -> str:
    settings = row["settings"]
    near = (f"{settings['distance']:.4f}", f"{100 * settings['labels_of_teacher']:.1f} %")
    ratio = settings["row_sums_largest_ratio"] if "row_sums_largest_ratio" in settings else _largest_ratio(row)
    penalty = settings["weighting"]["penalty"]
    return _line((row["task"], row["row"], penalty, f"{row['value']:.1f}{mark(row)}", *near, f"{ratio:.0f}"))


def _ablation(rows: Sequence[Row], base: str) -> list[str]:
    found = [row for row in rows if row["base"] == base and row["part"] == "ablation"]
    if not found:
        return []
    tasks = [task for task in TASKS if any(row["task"] == task for row in found)]
    names = _ordered({row["row"] for row in found}, ABLATED)
    heads = [part for task in tasks for part in (task, "distance", "row sums", "largest score")]
    lines = [
        "### Ablation of the distillation",
        "",
        "On a tenth of train that neither teacher nor student saw. `hidden` matches hidden states alone, `scores` attention",
        "scores too; the others change one thing in `hidden`: the penalty on scores, c, which is 5 where nothing else is said, a",
        "stage that is left out, the learning rate of stage one. Distance: KL(teacher ‖ student), by which a recipe is chosen",
        "where it was measured. Row sums: the ratio of the largest to the smallest Σ (S + c)² of a layer, which a reciprocal has",
        "to span.",
        "",
        _line(("recipe", *heads)),
        "|---" * (1 + len(heads)) + "|",
    ]
    for name in names:
        cells: list[str] = []
        for task in tasks:
            row = next((row for row in found if (row["row"], row["task"]) == (name, task)), None)
            cells += _ablated(row) if row else [""] * 4
        lines.append(_line((name, *cells)))
    return [*lines, ""]


def _ablated(row: Row) -> list[str]:
    largest = max(abs(end) for pair in row["settings"]["ranges"]["scores"] for end in pair)
    far = row["settings"].get("distance")
    return [
        f"{row['value']:.1f}{mark(row)}",
        "" if far is None else f"{far:.4f}",
        f"{_largest_ratio(row):.0f}",
        f"{largest:.0f}",
    ]


def _largest_ratio(row: Row) -> float:
    return max(high / low for low, high in row["settings"]["ranges"]["row_sums"])


def _paper() -> list[str]:
    lines = ["## The paper's figures, for BERT-base", "", _line(("row", *TASKS[:-1])), "|---" * len(TASKS) + "|"]
    for method, values in PAPER.items():
        lines.append(_line((METHODS[method][0], *(f"{values[task]:.1f}" for task in TASKS[:-1]))))
    return [*lines, ""]


def _line(cells: Iterable[Any]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"
