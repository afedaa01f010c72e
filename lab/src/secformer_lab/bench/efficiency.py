"""Whole inferences beside what others have published: a document out of measured JSON and cited figures.

python -m secformer_lab.bench.efficiency docs/results/h200.json docs/results/published.json     writes efficiency.md and its plot
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from secformer.transport.shaped import PROFILES
from secformer_lab.bench.measured import SIDE_BY_SIDE, Row, here
from secformer_lab.bench.roofline import table

HEAD = """# Whole inferences

Rendered by `python -m secformer_lab.bench.efficiency {measured} {published}`.

Ours: {machine}.
Three processes on one GPU over loopback TLS, random weights of the true shapes, private embedding, masks and head included, the
result compared with the model in plaintext. NVIDIA's Multi-Process Service lets the kernels of both servers run side by side,
unless a row says that they took turns. The dealer's material is on the machine before the clock starts, unless a row says
otherwise. Online seconds are the best of the runs, by the slower server's clock; dealing is with the way to S1, and a session is
all that the client waits for: connections, dealing, online. Traffic is what both servers send
together, as the plan counts it and the sockets counted it.

Of one run on one machine are `exact`, `fast` and `crypten` at both lengths, with the material in every place and over the LAN,
and right after them BERT-large. Machines of this kind differ by a tenth, in exchanges of large frames by a third: on the two
machines before, with the code before, `exact` was 14.8 and 13.4 times as fast as `crypten` at 128 tokens, 19.9 and 25.7 times at
512, `fast` 14.8 and 15.8, 21.8 and 30 times. Rows of earlier states of the code have a †.

At either length one of four runs of `crypten` had an error of 4e5 to 6e5, warm-up included, and at 512 tokens some on the
machines before: its products are truncated locally, which goes wrong by chance (docs/protocols.md, exact drop). That changes
no time.

Theirs are cited, not measured here: other machines, other trust, artifacts without embedding, head or mask. The ratio tells
orders of magnitude, no more. The paper counts what one party sends and receives, which is what both send."""

OLD = "†: of an earlier state of the code."
OPERATIONS = ("embedding", "gelu", "softmax", "layernorm")
CRYPTEN_LAYER = {128: 0.67, 512: 1.66}
"""Seconds of one BERT-base layer in CrypTen itself, on a GPU of this kind."""
LAYERS = 12


class Goal(NamedTuple):
    model: str
    suite: str
    tokens: int
    seconds: float


GOALS = (
    Goal("bert-base", "exact", 128, 0.2),
    Goal("bert-base", "fast", 128, 0.15),
    Goal("bert-base", "exact", 512, 0.6),
    Goal("bert-base", "fast", 512, 0.4),
    Goal("bert-large", "exact", 512, 1.5),
)
SPEED_UP = {128: 12, 512: 20}
DEALING_GOAL = 1.5
WRONG = 100
"""A run whose error is so many times that of others went wrong."""


def title(row: Row) -> str:
    return f"{row['model']}, {row['suite']}, {row['tokens']}"


def measured(rows: Iterable[Row]) -> str:
    head = (
        "online s",
        "median",
        "runs",
        "dealing s",
        "session s",
        "rounds",
        "online GB",
        "dealer GB",
        "error",
        "connections",
        "kernels",
    )
    return table(
        ("model", "suite", "tokens", *head),
        (
            (
                row["model"],
                row["suite"],
                row["tokens"],
                row["online_seconds"],
                row["median_online_seconds"],
                row.get("runs", ""),
                row["dealer_seconds"],
                row.get("session_seconds", ""),
                row["plan"]["rounds"],
                f"{row['plan']['online_bytes'] / 1e9:.3f}",
                f"{row['plan']['dealer_bytes'] / 1e9:.2f}",
                _error(row),
                row.get("connections", ""),
                "side by side" if row.get("variant") == SIDE_BY_SIDE else "in turns",
            )
            for row in rows
        ),
    )


def _error(row: Row) -> str:
    """The largest of all runs; and that in the middle, where one run went wrong."""
    largest, middle = row["max_error"], row.get("median_error", row["max_error"])
    return f"{largest:.1e}" + f", median {middle:.1e}" * (largest > WRONG * middle)


def remarks(rows: Iterable[Row]) -> str:
    """Where a row is not what the text above says, or not of the code as it stands."""
    told = [(title(row), row["state"], row.get("note", "")) for row in rows if "state" in row]
    return table(("row", "measured in this state", "remark"), told) if told else ""


def goals(rows: Sequence[Row], dealing: Iterable[Row]) -> str:
    """What was asked for, and whether it was reached."""
    found = {key(row): row["online_seconds"] for row in rows}
    shown = {key(row): _dated(row) for row in rows}
    lines = [
        (f"{goal.model}, {goal.suite}, {goal.tokens} tokens", f"≤ {goal.seconds} s", shown[goal[:3]], _met(goal, found))
        for goal in GOALS
        if goal[:3] in found
    ]
    for tokens, times in SPEED_UP.items():
        slow = crypten(rows, tokens)
        for suite in ("exact", "fast"):
            ours = found.get(("bert-base", suite, tokens))
            if ours is not None:
                what = f"{suite}, {tokens} tokens, against CrypTen's {slow:.3g} s"
                ratio = f"{slow / ours:.3g} times{' †' * ('†' in shown['bert-base', suite, tokens])}"
                lines.append((what, f"≥ {times} times", ratio, _said(slow / ours >= times)))
    for row in dealing:
        if (row["model"], row["suite"], row["tokens"]) == ("bert-base", "exact", 512):
            reached = _said(row["seconds"] <= DEALING_GOAL)
            lines.append(
                (
                    "dealing, transport aside, bert-base, exact, 512 tokens",
                    f"≤ {DEALING_GOAL} s",
                    row["seconds"],
                    reached,
                )
            )
    old = any("†" in str(line[2]) for line in lines)
    return table(("what", "goal", "measured", "met"), lines) + ("\n\n" + OLD) * old


def _met(goal: Goal, found: dict[tuple[str, str, int], float]) -> str:
    return _said(found[goal[:3]] <= goal.seconds)


def _said(reached: bool) -> str:
    return "yes" if reached else "no"


def crypten(rows: Iterable[Row], tokens: int) -> float:
    """Seconds of BERT-base: the faster of our `crypten` suite, where it was measured, and CrypTen's own layers."""
    suite = [row["online_seconds"] for row in rows if (row["suite"], row["tokens"]) == ("crypten", tokens)]
    return min([LAYERS * CRYPTEN_LAYER[tokens], *suite])


def by_operation(rows: Iterable[Row]) -> str:
    """Milliseconds at S0 in its fastest run, and MB with rounds."""
    lines = []
    for row in rows:
        costs = row["plan"]["by_operation"]
        times = grouped({name: 1e3 * seconds for name, seconds in row.get("operation_seconds", {}).items()})
        sizes = grouped({name: cost["online_bytes"] / 1e6 for name, cost in costs.items()})
        rounds = grouped({name: cost["rounds"] for name, cost in costs.items()})
        cells = [f"{times[name]:.1f} ms, " if times else "" for name in sizes]
        lines.append(
            (
                title(row),
                *(f"{cell}{sizes[name]:.1f} MB ({rounds[name]})" for cell, name in zip(cells, sizes, strict=True)),
            )
        )
    return table(("", *OPERATIONS, "others"), lines)


def grouped(amounts: dict[str, float]) -> dict[str, float]:
    """As the paper's Table 3 has them, and the embedding; empty if nothing was measured."""
    if not amounts:
        return {}
    known = {name: amounts.get(name, 0) for name in OPERATIONS}
    return {**known, "others": sum(amounts.values()) - sum(known.values())}


def beside(rows: Sequence[Row], name: str, values: Sequence[str], titles: Sequence[str] = ()) -> str:
    """Online seconds under several networks, or with the material in several places."""
    found = {value: {key(row): _dated(row) for row in here(rows, **{name: value})} for value in values}
    keys = dict.fromkeys(each for value in values[1:] for each in found[value])
    lines = [(", ".join(map(str, each)), *(found[value].get(each, "") for value in values)) for each in keys]
    if not lines:
        return "Not measured."
    old = any("†" in cell for line in lines for cell in line)
    return table(("", *(titles or values)), lines) + ("\n\n" + OLD) * old


def _dated(row: Row) -> str:
    return f"{row['online_seconds']}{' †' if 'state' in row else ''}"


def key(row: Row) -> tuple[str, str, int]:
    return row["model"], row["suite"], row["tokens"]


def over_wan(rows: Sequence[Row], plans: Iterable[Row]) -> str:
    """Ours as measured; the paper's suites as planned: bytes one way over the line, and the rounds' delays."""
    line = PROFILES["wan"]
    lines = [
        (
            title(row),
            row["plan"]["rounds"],
            row["online_seconds"],
            ", ".join(filter(None, ("measured", row.get("note")))),
        )
        for row in here(rows, network="wan")
    ]
    for row in plans:
        seconds = row["rounds"] * line.round_trip / 2 + row["online_bytes"] / 2 * 8 / line.bandwidth
        lines.append(
            (title(row), row["rounds"], f"{seconds:.0f}", "planned: delays and bytes alone, without the embedding")
        )
    return table(("", "rounds", "online s", ""), lines)


def compared(rows: Sequence[dict[str, Any]], published: Iterable[dict[str, Any]]) -> str:
    lines = []
    for each in published:
        for row in rows:
            if (row["model"], row["tokens"]) == (each["model"], each["tokens"]):
                ratio = each["online_seconds"] / row["online_seconds"]
                traffic = each.get("online_gigabytes")
                lines.append(
                    (
                        each["system"],
                        each["source"],
                        each["tokens"],
                        each["online_seconds"],
                        "" if traffic is None else traffic,
                        f"{row['suite']}: {row['online_seconds']} s, {row['plan']['online_bytes'] / 1e9:.2f} GB",
                        f"{ratio:.0f}",
                    )
                )
    return table(("system", "source", "tokens", "online s", "GB", "ours", "times"), lines)


def render(measured_from: str, published_from: str, data: dict[str, Any], published: Sequence[Row]) -> str:
    everything = data["models"]
    rows = here(everything)
    parts = [
        HEAD.format(measured=measured_from, published=published_from, machine=data["machine"]),
        "## Goals",
        goals(rows, data["dealing"]),
        "## Measured",
        measured(rows),
        remarks(rows),
        f"![seconds by operation, and beside published figures]({PLOT})",
        "## By operation",
        "Milliseconds at S0 in its fastest run, a round counted where it is opened; online MB, and rounds in brackets.",
        by_operation(rows),
        "## Where the material is, online s",
        beside(everything, "material", ("device", "host", "streamed")),
        "## Both servers on one GPU, online s",
        MPS,
        beside(everything, "variant", ("", SIDE_BY_SIDE), ("in turns", "side by side")),
        "## Networks, online s",
        f"Imitated: {networks()}.",
        beside(everything, "network", ("none", "lan", "wan")),
        "## Over a WAN",
        over_wan(everything, data.get("planned", ())),
        "## Beside CrypTen",
        beside_crypten(rows),
        "## Beside published figures, BERT-base, one text",
        compared([row for row in rows if row["suite"] in OURS], published),
        missing(everything),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


MPS = """Without NVIDIA's Multi-Process Service the kernels of two processes take turns on a GPU; with it
(`nvidia-cuda-mps-control -d` before the servers) they run side by side. Servers of separate organisations have a GPU each and
nothing to share. BERT-base was measured in turns on another machine, after the service had been stopped there."""
OURS = ("exact", "fast")
PLOT = "efficiency.svg"


def networks() -> str:
    return ", ".join(
        f"{name} {line.bandwidth / 1e9:g} Gb/s each way with {1e3 * line.round_trip:g} ms there and back"
        for name, line in PROFILES.items()
    )


def beside_crypten(rows: Sequence[Row]) -> str:
    """Our `crypten` suite must not be a slow imitation: at most 1.5 times CrypTen's own time."""
    suite = {row["tokens"]: row["online_seconds"] for row in rows if row["suite"] == "crypten"}
    lines = [
        (
            tokens,
            f"{LAYERS * layer:.3g}",
            suite.get(tokens, "not measured"),
            *(f"{crypten(rows, tokens) / row['online_seconds']:.3g}" for row in _ours_at(rows, tokens)),
        )
        for tokens, layer in CRYPTEN_LAYER.items()
        if len(_ours_at(rows, tokens)) == len(OURS)
    ]
    note = (
        f"CrypTen's own is {LAYERS} times its layer of {', '.join(f'{s} s ({t})' for t, s in CRYPTEN_LAYER.items())}."
    )
    head = ("tokens", "CrypTen s", "our suite `crypten` s", *(f"`{suite}` is faster, times" for suite in OURS))
    return f"{note} Times are against the faster of the two.\n\n{table(head, lines)}"


def _ours_at(rows: Iterable[Row], tokens: int) -> list[Row]:
    chosen = {row["suite"]: row for row in rows if (row["model"], row["tokens"]) == ("bert-base", tokens)}
    return [chosen[suite] for suite in OURS if suite in chosen]


def missing(rows: Sequence[Row]) -> str:
    """What was asked for and is not in the tables."""
    there = {wanted: {key(row) for row in here(rows, **{wanted[0]: wanted[1]})} for wanted in WANTED}
    ours = [key(row) for row in here(rows) if row["suite"] in OURS and row["model"] == "bert-base"]
    gaps = [
        f"{', '.join(map(str, each))} with {name} {value}"
        for (name, value), found in there.items()
        for each in ours
        if each not in found
    ]
    found = {row["suite"] for row in here(rows)}
    gaps += [f"the suite `{suite}` on this GPU" for suite in ("crypten",) if suite not in found]
    gaps += [f"times by operation of {title(row)}" for row in here(rows) if "operation_seconds" not in row]
    gaps += [f"ten runs of {title(row)}" for row in here(rows) if row["suite"] in OURS and row.get("runs", 0) < 10]
    return "## What is missing\n\n" + "\n".join(f"* {gap}" for gap in gaps) if gaps else ""


WANTED = (("material", "host"), ("material", "streamed"), ("network", "lan"), ("network", "wan"))


def draw(rows: Sequence[Row], published: Sequence[Row], path: Path) -> None:
    """Seconds by operation, and all systems side by side."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "efficiency"
    from matplotlib import pyplot

    figure, (parts, systems) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    _draw_operations(parts, [row for row in rows if "operation_seconds" in row and row["suite"] in OURS])
    _draw_systems(systems, [row for row in rows if row["model"] == "bert-base"], published)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _draw_operations(axes: Any, rows: Sequence[Row]) -> None:
    below = [0.0] * len(rows)
    for name in (*OPERATIONS, "others"):
        times = [1e3 * grouped(row["operation_seconds"])[name] for row in rows]
        axes.bar([title(row).replace(", ", "\n") for row in rows], times, bottom=below, label=name)
        below = [low + time for low, time in zip(below, times, strict=True)]
    axes.set(title="online by operation", ylabel="ms")
    if rows:
        axes.legend()


def _draw_systems(axes: Any, rows: Sequence[Row], published: Sequence[Row]) -> None:
    bars = {f"{each['system']}, {each['tokens']}": each["online_seconds"] for each in published}
    bars |= {f"ours, {row['suite']}, {row['tokens']}": row["online_seconds"] for row in rows}
    axes.barh(list(bars), list(bars.values()))
    axes.set(title="BERT-base, one text", xlabel="online seconds", xscale="log")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="Renders efficiency.md and its plot beside the measured rows.")
    parser.add_argument("measured", help="such as docs/results/h200.json")
    parser.add_argument("published", help="such as docs/results/published.json")
    given = parser.parse_args(arguments)
    measured_from, published_from = given.measured, given.published
    data, published = (json.loads(Path(name).read_text()) for name in (measured_from, published_from))
    target = Path(measured_from).with_name("efficiency.md")
    target.write_text(render(measured_from, published_from, data, published))
    draw(here(data["models"]), published, target.with_name(PLOT))


if __name__ == "__main__":
    main(sys.argv[1:])
