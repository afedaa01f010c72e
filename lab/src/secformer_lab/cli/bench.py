"""`secformer-lab bench …`: measurements as a table on stdout, or as JSON; progress on stderr."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from secformer.cli.output import notes, print_json, progressing, show, steps
from secformer.errors import SettingsError
from secformer.settings import NetworkProfile, Settings
from secformer_lab.bench.bandwidth import REQUIRED_SHARE, Bandwidth, measure_bandwidth
from secformer_lab.bench.opening import ALLOWED_HANDOFFS, SmallOpening, measure_small_opening
from secformer_lab.bench.protocols import measure_protocols, table

if TYPE_CHECKING:
    from secformer_lab.bench.model import Arrangement


def protocols(as_json: bool, rows: int, columns: int, repetitions: int) -> None:
    measured = measure_protocols(
        rows, columns, repetitions, lambda cases: progressing(cases, lambda case: f"{case.flavour} {case.protocol}")
    )
    if as_json:
        print_json([asdict(row) for row in measured])
    else:
        show(table(measured))


def layer(as_json: bool, tokens: int, suite: str, repetitions: int) -> None:
    from rich.table import Table

    from secformer_lab.bench.layer import measure_layer

    with steps(notes()) as progress:
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
    show(table)


class Where(NamedTuple):
    """The flags that say where a model is measured; several networks and places of material have commas between them."""

    device: str
    networks: str
    materials: str
    connections: int | None
    runs: int

    def arrangements(self) -> list[Arrangement]:
        from secformer_lab.bench.model import Arrangement, Place

        connections = self.connections or Settings().connections
        networks = _chosen("networks", self.networks, get_args(NetworkProfile))
        places = _chosen("places of material", self.materials, get_args(Place))
        return [
            Arrangement(self.device, network, place, connections, self.runs) for place in places for network in networks
        ]


def _chosen(what: str, given: str, known: Sequence[str]) -> list[Any]:
    found = given.split(",")
    if not set(found) <= set(known):
        raise SettingsError(f"{what} are {', '.join(known)}, not {given!r}")
    return found


def model(as_json: bool, name: str, lengths: str, suites: str, where: Where, out: Path | None) -> None:
    import json

    from rich.table import Table

    from secformer_lab.bench.model import measure_model

    arrangements = where.arrangements()
    try:
        tokens = [int(length) for length in lengths.split(",")]
    except ValueError:
        raise SettingsError(f"lengths are numbers with commas between them, not {lengths!r}") from None
    measured = []
    with steps(notes()) as progress:
        for suite in suites.split(","):
            for row in measure_model(name, tokens, suite, arrangements, progress):
                measured.append(row)
                if out is not None:
                    with out.open("a") as file:
                        file.write(json.dumps(row) + "\n")
    if as_json:
        print_json(measured)
        return
    columns = ("online_seconds", "median_online_seconds", "dealer_seconds", "session_seconds", "max_error")
    what = ("suite", "tokens", "network", "material")
    table = Table(*what, *columns, title=f"{name}, device {where.device}", title_justify="left")
    for row in measured:
        table.add_row(*(str(row[column]) for column in what), *(f"{row[column]:.4g}" for column in columns))
    show(table)


def ranges(folders: list[Path], data: Path, texts: int, documents: int, secure: int, as_json: bool) -> None:
    from secformer_lab.bench import ranges as bench

    with steps(notes()) as progress:
        measured = [
            bench.measure_ranges(folder, data, texts, documents, secure, progress)
            for folder in folders or bench.default_models(data)
        ]
    if as_json:
        print_json([asdict(row) for row in measured])
    else:
        show(bench.table(measured))


def opening(as_json: bool, connections: int, mebibytes: int) -> None:
    if connections < 1 or mebibytes < 1:
        raise SettingsError("the large opening needs at least one connection and one MiB")
    small = measure_small_opening()
    large = measure_bandwidth(mebibytes << 20, connections)
    if as_json:
        print_json(_opening_dict(small, large))
    else:
        show(_opening_table(small, large))


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
