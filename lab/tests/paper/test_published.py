"""Traffic as the paper's public scripts count it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from secformer.models.cost import by_operation
from secformer.models.shapes import PRESETS
from secformer.systems import suite_named
from secformer_lab.cli.main import app

GB = 1e9


@pytest.mark.parametrize("suite", ["secformer", "puma", "mpcformer"])
def test_others_as_published(suite):
    """Table 3, Others: everything that is not GeLU, Softmax or LayerNorm."""
    operations = by_operation(suite_named(suite).published_plan(PRESETS["bert-base"], 1, 512))
    others = operations["embedding"] + operations["linear"]
    assert others.online_bytes == pytest.approx(3.463 * GB, rel=1e-3)
    layer = 14_942_208  # openings of a layer, errata
    assert others.online_bytes == 16 * (12 * layer + 512 * 28_996 + 28_996 * 768)
    assert operations["other"].online_bytes == 0


def test_the_command_counts_the_same_and_refuses_our_own_suites():
    told = CliRunner().invoke(app, ["paper", "plan", "--suite", "puma", "--json"])
    assert told.exit_code == 0
    plan = suite_named("puma").published_plan(PRESETS["bert-base"], 1, 512)
    assert json.loads(told.stdout)["online_bytes"] == plan.cost.online_bytes
    refused = CliRunner().invoke(app, ["paper", "plan", "--suite", "exact"])
    assert "suite exact was not published" in str(refused.exception)
