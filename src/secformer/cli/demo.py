"""`secformer demo`: a private layer from end to end, in processes of its own.

A provider uploads weights once. A client then asks twice: GeLU of its numbers times the provider's matrix, and a
Softmax over the provider's table. Results stand beside the same computation in the clear.
"""

from __future__ import annotations

import math

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from secformer.parties.client import Client, Result
from secformer.parties.launch import launch
from secformer.parties.messages import Job
from secformer.parties.provider import Provider, Weight
from secformer.protocols.functions import gelu

ROWS, FEATURES, NEURONS, ENTRIES, COLUMNS = 4, 32, 48, 12, 6
SEEN = {
    "client": "its input; the two shares of each result, hence the results",
    "provider": "its weights",
    "server0, server1": "shares and masked values, each uniform to it; which program ran, and its shapes",
    "assistant": "masks it drew itself; which program ran, and its shapes; no share, no opening",
    "the network": "TLS 1.3 records: who talks to whom, when, and how much",
}


def demo() -> None:
    console = Console()
    weight, keys, values, x = _example()
    console.print("Starting T, S0 and S1 as three processes that talk TLS 1.3 ...")
    with launch() as servers:
        provider, client = Provider(servers.settings), Client(servers.settings)
        weights = {"weight": Weight(weight), "keys": Weight(keys), "values": Weight(values, scale=10, width=35)}
        runs = {"upload (once)": provider.upload("demo", weights)}
        runs["GeLU(x·W)"] = client.run(Job("dense", {"rows": ROWS}, uses="demo"), {"x": x})
        runs["Softmax(x·K)·V"] = client.run(Job("attention", {"rows": ROWS}, uses="demo"), {"x": x})
        runs["the same again"] = client.run(Job("attention", {"rows": ROWS}, uses="demo"), {"x": x})
    plain = {
        "GeLU(x·W)": gelu(x @ weight),
        "Softmax(x·K)·V": torch.softmax(x @ keys * math.log(2), -1) @ values,
    }
    for name, expected in plain.items():
        console.print(_comparison(name, runs[name].outputs["y"], expected))
    console.print(_costs(runs))
    console.print(_seen())


def _example() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Numbers without randomness, so that every demonstration is the same."""
    weight = _waves(FEATURES, NEURONS, 0.7) * 0.4
    keys = _waves(FEATURES, ENTRIES, 1.3) * 0.5
    values = _waves(ENTRIES, COLUMNS, 2.1)
    return weight, keys, values, _waves(ROWS, FEATURES, 0.3) * 2


def _waves(rows: int, columns: int, pace: float) -> Tensor:
    place = torch.arange(rows * columns, dtype=torch.float64).reshape(rows, columns)
    return torch.sin(pace * place + 0.1 * place.sqrt() * place)


def _comparison(name: str, secure: Tensor, plain: Tensor) -> Table:
    error = (secure - plain).abs().max().item()
    table = Table(title=f"{name}: largest error {error:.1e}", title_justify="left")
    for column in ("row", "secure", "plaintext"):
        table.add_column(column)
    for row in range(min(len(plain), 3)):
        numbers = ["  ".join(f"{number:+.4f}" for number in part[row, :6].tolist()) for part in (secure, plain)]
        table.add_row(str(row), *numbers)
    return table


def _costs(runs: dict[str, Result]) -> Table:
    table = Table(title="cost: declared by the plan = counted at the sockets", title_justify="left")
    table.add_column("run")
    for column in ("rounds", "online bytes", "dealer bytes", "client bytes", "online s", "dealer s", "in all s"):
        table.add_column(column, justify="right")
    for name, run in runs.items():
        table.add_row(
            name,
            f"{run.declared.rounds} = {run.rounds}",
            f"{run.declared.online_bytes:,} = {run.online_bytes:,}",
            f"{run.declared.dealer_bytes:,} = {run.dealer_bytes:,}",
            f"{run.sent + run.received:,}",
            f"{run.online_seconds:.3f}",
            f"{run.dealer_seconds:.3f}",
            f"{run.seconds:.3f}",
        )
    return table


def _seen() -> Table:
    table = Table(title="what each party saw", title_justify="left", show_header=False)
    for party, content in SEEN.items():
        table.add_row(party, content)
    return table
