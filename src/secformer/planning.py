"""Plans without weights: what a query would cost for a checkpoint folder or one of the presets."""

from __future__ import annotations

from pathlib import Path

from secformer.engine.tracing import Plan, trace
from secformer.errors import SettingsError
from secformer.models.config import ModelConfig
from secformer.models.config_json import load_config
from secformer.models.query import check_query
from secformer.models.shapes import PRESETS
from secformer.systems import suite_named


def plan_for(model: str, tokens: int, batch: int, suite: str) -> Plan:
    """Trace a query of a preset, or of a checkpoint folder of which only config.json is read.

    The constants are those of a preset. A model's own calibration chooses other windows, which changes the dealer's bytes
    but not the rounds.
    """
    system, config = suite_named(suite), config_named(model)
    check_query(config, batch, tokens)
    return trace(system.preset(config).query_program(batch, tokens))


def config_named(model: str) -> ModelConfig:
    """Of a preset, or of a checkpoint folder."""
    if model not in PRESETS and not Path(model).is_dir():
        raise SettingsError(f"'{model}' is neither a folder nor one of {', '.join(PRESETS)}")
    return PRESETS[model] if model in PRESETS else load_config(model)
