"""`secformer plan`, and what a run cost beside what its plan declared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from secformer.cli.output import add_row, console, print_json, show, table
from secformer.engine.tracing import Plan
from secformer.estimates import MEANT, NETWORKS, speeds_here
from secformer.models.cost import client_bytes, plan_dict
from secformer.parties.caller import Result
from secformer.planning import config_named, plan_for
from secformer.settings import Settings, load_settings
from secformer.systems import suite_for


def cost_table(outcomes: Mapping[str, Result]) -> Any:
    """A line a quantity, a column a run, so that it fits any terminal."""
    made = table(
        "cost as declared by the plan; sockets counted the same unless shown", "", *outcomes, numbers=[*outcomes]
    )
    rows = {
        "rounds": lambda one: _both(one.declared.rounds, one.rounds),
        "online bytes": lambda one: _both(one.declared.online_bytes, one.online_bytes),
        "dealer bytes": lambda one: _both(one.declared.dealer_bytes, one.dealer_bytes),
        "client bytes": lambda one: f"{one.sent + one.received:,}",
        "online seconds": lambda one: f"{one.online_seconds:.2f}",
        "dealer seconds": lambda one: f"{one.dealer_seconds:.2f}",
    }
    for name, shown in rows.items():
        add_row(made, name, *(shown(outcome) for outcome in outcomes.values()))
    return made


def _both(declared: int, counted: int) -> str:
    return f"{declared:,}" if declared == counted else f"{declared:,} ≠ {counted:,}"


def plan(model: str, tokens: int, batch: int, suite: str | None, seconds: bool, as_json: bool) -> None:
    """Trace without weights and print what a query costs, and about how long it would take here."""
    suite = suite_for(config_named(model), suite).name
    traced = plan_for(model, tokens, batch, suite)
    speeds = speeds_here(suite, load_settings()) if seconds else None
    about = {network: speeds.seconds(traced.cost, network) for network in NETWORKS} if speeds else {}
    if as_json:
        print_json({**plan_dict(traced), **({"seconds": about} if about else {})})
        return
    show(plan_table(traced, f"{model}, {batch} × {tokens} tokens, suite {suite}"))
    for network, expected in about.items():
        console().print(f"about {_rounded(expected)} s, {MEANT[network]}", markup=False)


def _rounded(seconds: float) -> str:
    """Two digits: an estimate has no more."""
    return f"{float(f'{seconds:.2g}'):g}"


def beside_estimate(outcome: Result, suite: str, settings: Settings) -> str:
    """How long a run took, and how far the estimate for its cost was off."""
    expected = speeds_here(suite, settings).seconds(outcome.declared, settings.network)
    took = outcome.online_seconds
    found = f"{took:.2f} s online; the estimate for this machine is {_rounded(expected)} s, {100 * (expected / took - 1):+.0f} %"
    return (
        found if took < 2 * expected else f"{found}: servers that have just started, or share their cores, take longer"
    )


def plan_table(traced: Plan, title: str) -> Any:
    """Return a table of what a plan costs, by operation."""
    numbers = ("rounds", "online MB", "dealer MB")
    made = table(title, "operation", *numbers, numbers=numbers)
    for name, cost in plan_dict(traced)["by_operation"].items():
        megabytes = (f"{cost[part] / 1e6:,.1f}" for part in ("online_bytes", "dealer_bytes"))
        add_row(made, name, str(cost["rounds"]), *megabytes)
    total = traced.cost
    made.add_section()
    add_row(made, "total", str(total.rounds), f"{total.online_bytes / 1e6:,.1f}", f"{total.dealer_bytes / 1e6:,.1f}")
    made.caption = f"online: sent plus received by one server; the client moves {client_bytes(traced):,} bytes"
    return made
