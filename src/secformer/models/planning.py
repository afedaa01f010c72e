"""Plans without weights: what a query would cost for a checkpoint folder or one of the presets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from secformer.engine.tracing import Plan, trace
from secformer.errors import SettingsError
from secformer.models.baseline import Baseline
from secformer.models.config import PRESETS, ModelConfig
from secformer.models.job import Card, ModelCard, check_query
from secformer.models.paper_job import PaperCard
from secformer.models.presets import preset_calibration
from secformer.protocols.suites import Suite, suite_named

PUBLISHED_VOCABULARY = 28996
"""The paper's scripts embed by a one-hot product with this vocabulary (errata, Table 3)."""

PUBLISHED_INTERMEDIATE = 3072
"""And run BERT-LARGE with the feed-forward size of BERT-base."""


def plan_for(model: str, tokens: int, batch: int, suite_name: str, published: bool = False) -> Plan:
    """`model` is a preset's name or a checkpoint folder (only its config.json is read)."""
    suite = suite_named(suite_name)
    config = PRESETS[model] if model in PRESETS else ModelConfig.from_folder(_folder(model))
    check_query(config, batch, tokens)
    if published:
        return _published_plan(config, tokens, batch, suite)
    return trace(_card(config, suite).query_program(batch, tokens))


def _folder(model: str) -> Path:
    if not Path(model).is_dir():
        raise SettingsError(f"'{model}' is neither a folder nor one of {', '.join(PRESETS)}")
    return Path(model)


def _card(config: ModelConfig, suite: Suite) -> Card:
    """With the ranges of a preset: costs hardly depend on a model's own."""
    if not suite.ours:
        return PaperCard(config, suite.name)
    if config.softmax != suite.softmax_kind:
        shift = suite.shift if suite.softmax_kind == "2quad" else 0.0
        config = replace(config, softmax=suite.softmax_kind, quad_shift=shift)
    return ModelCard(config, preset_calibration(config))


def _published_plan(config: ModelConfig, tokens: int, batch: int, suite: Suite) -> Plan:
    """As the paper's public scripts count."""
    if suite.ours:
        raise SettingsError(
            f"suite {suite.name} was not published with the paper: --as-published is for its own suites"
        )
    config = replace(config, vocabulary=PUBLISHED_VOCABULARY, intermediate=PUBLISHED_INTERMEDIATE)
    return trace(Baseline(config, suite, batch, tokens, one_hot=True, count_as_published=True).program())
