"""`secformer bench …`: measurements as a table on stdout, or as JSON; progress on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from secformer.bench.bandwidth import REQUIRED_SHARE, Bandwidth, measure_bandwidth
from secformer.bench.case import Case
from secformer.bench.opening import ALLOWED_HANDOFFS, SmallOpening, measure_small_opening
from secformer.bench.protocols import measure_protocols, table
from secformer.errors import SettingsError

_WIDTH_OF_A_FILE = 170


def protocols(as_json: bool, rows: int, columns: int, repetitions: int) -> None:
    measured = measure_protocols(rows, columns, repetitions, _progress)
    if as_json:
        print_json([row.as_dict() for row in measured])
    else:
        console().print(table(measured))


def layer(as_json: bool, tokens: int, suite: str, repetitions: int) -> None:
    from rich.console import Console
    from rich.table import Table

    from secformer.bench.layer import measure_layer
    from secformer.cli.model import steps

    with steps(Console(stderr=True)) as progress:
        measured = measure_layer(tokens, suite, repetitions, progress).as_dict()
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
    return {
        "memory": {
            "opening_seconds": small.opening_seconds,
            "handoff_seconds": small.handoff_seconds,
            "simple_handoff_seconds": small.simple_handoff_seconds,
            "handoffs": small.handoffs,
            "simple_handoffs": small.simple_handoffs,
            "allowed_handoffs": ALLOWED_HANDOFFS,
        },
        "tls": {
            "bytes": large.size,
            "connections": large.connections,
            "channel_bytes_per_second": large.channel,
            "bare_bytes_per_second": large.bare,
            "share": large.share,
            "required_share": REQUIRED_SHARE,
        },
    }


def _opening_table(small: SmallOpening, large: Bandwidth) -> Any:
    from rich.table import Table

    shown = Table(title="What an opening costs beside the bare means")
    for heading in ("opening", "measured", "bare", "ratio", "limit"):
        shown.add_column(heading, justify="left" if heading == "opening" else "right")
    shown.add_row(
        "one element, in memory",
        f"{1e6 * small.opening_seconds:.1f} µs",
        f"{1e6 * small.handoff_seconds:.1f} µs a hand-off",
        f"{small.handoffs:.1f}",
        f"≤ {ALLOWED_HANDOFFS:g}",
    )
    shown.add_row(
        "  against queue.SimpleQueue",
        "",
        f"{1e6 * small.simple_handoff_seconds:.1f} µs a hand-off",
        f"{small.simple_handoffs:.1f}",
        "",
    )
    shown.add_row(
        f"{large.size >> 20} MiB, TLS, {large.connections} connections each way",
        f"{large.channel / 1e6:.0f} MB/s",
        f"{large.bare / 1e6:.0f} MB/s",
        f"{large.share:.2f}",
        f"≥ {REQUIRED_SHARE:g}",
    )
    return shown


def _progress(cases: Sequence[Case]) -> Iterator[Case]:
    """A bar on stderr, if somebody watches."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("protocols", total=len(cases))
        for case in cases:
            progress.update(task, description=f"{case.flavour} {case.protocol}")
            yield case
            progress.advance(task)


def console() -> Any:
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH_OF_A_FILE)


def print_json(content: Any) -> None:
    sys.stdout.write(json.dumps(content, indent=2) + "\n")
