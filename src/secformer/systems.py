"""Every suite by name: ours, and the paper's. The only place that knows them all.

    suite        system      what for
    exact        wires       any unmodified checkpoint, true Softmax
    fast         wires       models distilled for 2Quad
    secformer    baselines   the paper's own
    mpcformer    baselines   \\
    puma         baselines    > what it compares itself with
    crypten      baselines   /

A suite of one's own is an instance of a `System` (models/system.py) given to `add_suite`.
"""

from __future__ import annotations

import json
from difflib import get_close_matches
from typing import Any

from secformer.baselines.suites import CRYPTEN, MPCFORMER, PUMA, SECFORMER
from secformer.errors import CalibrationError, ModelError, SettingsError
from secformer.models.config import ModelConfig
from secformer.models.system import Card, System
from secformer.wires.suites import EXACT, FAST

_SUITES: dict[str, System] = {}


def add_suite(system: System) -> None:
    """Make a suite known by its name."""
    if system.name in _SUITES:
        raise SettingsError(f"there is a suite {system.name!r} already: give yours another name")
    _SUITES[system.name] = system


for _system in (CRYPTEN, PUMA, MPCFORMER, SECFORMER, FAST, EXACT):
    add_suite(_system)


def suite_names() -> tuple[str, ...]:
    return tuple(_SUITES)


def suite_named(name: str) -> System:
    if name not in _SUITES:
        close = get_close_matches(name, _SUITES, n=1)
        advice = f"did you mean {close[0]}?" if close else f"known are {', '.join(suite_names())}"
        raise SettingsError(f"unknown suite '{name}': {advice}")
    return _SUITES[name]


def suite_for(config: ModelConfig, name: str | None = None) -> System:
    """The one of that name; without one, `exact`, or `fast` for a student that was distilled for 2Quad."""
    usual = "fast" if config.softmax == "2quad" else "exact"
    return suite_named(usual if name is None else name)


def card_from_json(text: str) -> Card:
    """A model's card, whoever sent it."""
    try:
        data: Any = json.loads(text)
        config = ModelConfig.from_data(data["config"])
        return suite_named(str(data["suite"])).read_card(config, data["constants"], bool(data["private_table"]))
    except (CalibrationError, ModelError):
        raise
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise SettingsError(f"this is no description of a model ({type(error).__name__})") from None
