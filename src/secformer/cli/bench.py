"""`secformer bench …`: measurements as a table on stdout, or as JSON; progress on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar, get_args

from rich.console import Console

from secformer.bench.bandwidth import REQUIRED_SHARE, Bandwidth, measure_bandwidth
from secformer.bench.opening import ALLOWED_HANDOFFS, SmallOpening, measure_small_opening
from secformer.bench.protocols import measure_protocols, table
from secformer.errors import SettingsError
from secformer.settings import NetworkProfile, Settings

_WIDTH_OF_A_FILE = 170
Item = TypeVar("Item")


def protocols(as_json: bool, rows: int, columns: int, repetitions: int) -> None:
    measured = measure_protocols(
        rows, columns, repetitions, lambda cases: progressing(cases, lambda case: f"{case.flavour} {case.protocol}")
    )
    if as_json:
        print_json([asdict(row) for row in measured])
    else:
        console().print(table(measured))


def layer(as_json: bool, tokens: int, suite: str, repetitions: int) -> None:
    from rich.table import Table

    from secformer.bench.layer import measure_layer
    from secformer.cli.model import steps

    with steps(Console(stderr=True)) as progress:
        measured = asdict(measure_layer(tokens, suite, repetitions, progress))
    if as_json:
        print_json(measured)
        return
    table = Table(
        "quantity", "value", title=f"one BERT-base layer, {tokens} tokens, suite {suite}", title_justify="left"
    )
    for name, value in measured.items():
        shown = f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
        table.add_row(name.replace("_", " "), shown)
    console().print(table)


def model(
    as_json: bool, name: str, lengths: str, suite: str, device: str, networks: str, connections: int | None, runs: int
) -> None:
    from rich.table import Table

    from secformer.bench.model import Arrangement, measure_model
    from secformer.cli.model import steps

    chosen: list[Any] = networks.split(",")
    if not set(chosen) <= set(get_args(NetworkProfile)):
        raise SettingsError(f"networks are {', '.join(get_args(NetworkProfile))}, not {networks!r}")
    arrangements = [Arrangement(device, each, connections or Settings().connections, runs) for each in chosen]

    try:
        tokens = [int(length) for length in lengths.split(",")]
    except ValueError:
        raise SettingsError(f"lengths are numbers with commas between them, not {lengths!r}") from None
    with steps(Console(stderr=True)) as progress:
        measured = measure_model(name, tokens, suite, arrangements, progress)
    if as_json:
        print_json(measured)
        return
    columns = ("online_seconds", "median_online_seconds", "dealer_seconds", "session_seconds", "max_error")
    table = Table("tokens", "network", *columns, title=f"{name}, suite {suite}, device {device}", title_justify="left")
    for row in measured:
        table.add_row(str(row["tokens"]), row["network"], *(f"{row[column]:.4g}" for column in columns))
    console().print(table)


def ranges(folders: list[Path], data: Path, texts: int, documents: int, secure: int, as_json: bool) -> None:
    from secformer.bench import ranges as bench
    from secformer.cli.model import steps

    with steps(Console(stderr=True)) as progress:
        measured = [
            bench.measure_ranges(folder, data, texts, documents, secure, progress)
            for folder in folders or bench.default_models(data)
        ]
    if as_json:
        print_json([asdict(row) for row in measured])
    else:
        console().print(bench.table(measured))


def opening(as_json: bool, connections: int, mebibytes: int) -> None:
    if connections < 1 or mebibytes < 1:
        raise SettingsError("the large opening needs at least one connection and one MiB")
    small = measure_small_opening()
    large = measure_bandwidth(mebibytes << 20, connections)
    if as_json:
        print_json(_opening_dict(small, large))
    else:
        console().print(_opening_table(small, large))


def _opening_dict(small: SmallOpening, large: Bandwidth) -> dict[str, Any]:
    memory = {
        "handoffs": small.handoffs,
        "simple_handoffs": small.simple_handoffs,
        "allowed_handoffs": ALLOWED_HANDOFFS,
    }
    tls = {"share": large.share, "required_share": REQUIRED_SHARE}
    return {"memory": {**asdict(small), **memory}, "tls": {**asdict(large), **tls}}


def _opening_table(small: SmallOpening, large: Bandwidth) -> Any:
    from rich.table import Table

    shown = Table(title="What an opening costs beside the bare means")
    for heading in ("opening", "measured", "bare", "ratio", "limit"):
        shown.add_column(heading, justify="left" if heading == "opening" else "right")
    took, bare = f"{1e6 * small.opening_seconds:.1f} µs", f"{1e6 * small.handoff_seconds:.1f} µs a hand-off"
    shown.add_row("one element, in memory", took, bare, f"{small.handoffs:.1f}", f"≤ {ALLOWED_HANDOFFS:g}")
    bare = f"{1e6 * small.simple_handoff_seconds:.1f} µs a hand-off"
    shown.add_row("  against queue.SimpleQueue", "", bare, f"{small.simple_handoffs:.1f}", "")
    what = f"{large.size >> 20} MiB, TLS, {large.connections} connections each way"
    speeds = (f"{speed / 1e6:.0f} MB/s" for speed in (large.channel, large.bare))
    shown.add_row(what, *speeds, f"{large.share:.2f}", f"≥ {REQUIRED_SHARE:g}")
    return shown


def progressing(cases: Sequence[Item], name: Callable[[Item], str]) -> Iterator[Item]:
    """The cases one by one, with a bar on stderr, if somebody watches."""
    from rich.progress import Progress

    stderr = Console(stderr=True)
    with Progress(console=stderr, transient=True, disable=not stderr.is_terminal) as progress:
        task = progress.add_task("measuring", total=len(cases))
        for case in cases:
            progress.update(task, description=name(case))
            yield case
            progress.advance(task)


def console() -> Any:
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH_OF_A_FILE)


def print_json(content: Any) -> None:
    sys.stdout.write(json.dumps(content, indent=2) + "\n")
