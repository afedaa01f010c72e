"""Suites by name: our own two, and those that installed packages bring.

    suite    system   what for
    exact    wires    any unmodified checkpoint, true Softmax
    fast     wires    models distilled for 2Quad

A package brings suites by entry points of the group `secformer.suites`; the lab brings the paper's four that way. A program
adds one of its own with `add_suite`. A suite is an instance of a `System` (models/system.py).
"""

from __future__ import annotations

import json
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Any

from secformer.errors import CalibrationError, ModelError, SettingsError
from secformer.models.config import ModelConfig
from secformer.models.system import Card, System
from secformer.wires.suites import EXACT, FAST

GROUP = "secformer.suites"
"""The group of entry points in which a package names its suites."""

_SUITES: dict[str, System] = {system.name: system for system in (EXACT, FAST)}


def add_suite(system: System) -> None:
    """Make a suite known by its name."""
    if system.name in suite_names():
        raise SettingsError(f"there is a suite {system.name!r} already: give yours another name")
    _SUITES[system.name] = system


def suite_names() -> tuple[str, ...]:
    """Return the names of all suites, our own first."""
    return tuple(dict.fromkeys((*_SUITES, *sorted(entry_points(group=GROUP).names))))


def suite_named(name: str) -> System:
    """Return the suite of this name. Raise SettingsError if no installed package brings it."""
    if name in _SUITES:
        return _SUITES[name]
    for entry in entry_points(group=GROUP, name=name):
        return entry.load()
    close = get_close_matches(name, suite_names(), n=1)
    advice = f"did you mean {close[0]}?" if close else f"known are {', '.join(suite_names())}"
    raise SettingsError(f"unknown suite '{name}': {advice}")


def suite_for(config: ModelConfig, name: str | None = None) -> System:
    """Return the suite of this name; without a name, `exact`, or `fast` for a student that was distilled for 2Quad."""
    usual = "fast" if config.softmax == "2quad" else "exact"
    return suite_named(usual if name is None else name)


def card_from_json(text: str, suites: tuple[str, ...] | None = None) -> Card:
    """Read a model's card, whoever sent it. Raise SettingsError if it is none, or its suite is not among `suites`."""
    try:
        data: Any = json.loads(text)
        config, suite = ModelConfig.from_data(data["config"]), str(data["suite"])
        if suites is not None and suite not in suites:
            raise SettingsError(
                f"this server does not accept suite '{suite}', only {', '.join(suites)} (setting suites)"
            )
        return suite_named(suite).read_card(config, data["constants"], bool(data["private_table"]))
    except (CalibrationError, ModelError, SettingsError):
        raise
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise SettingsError(f"this is no description of a model ({type(error).__name__})") from None
