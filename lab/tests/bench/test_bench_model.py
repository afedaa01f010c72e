"""A whole inference and a layer on a device, measured on the smallest models of their kind."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from secformer.errors import CalibrationError, SettingsError
from secformer.models.shapes import PRESETS
from secformer.ring import kernels
from secformer.ring.kernels import cpu
from secformer_lab.bench import device as layers
from secformer_lab.bench import layer as one_layer
from secformer_lab.bench.efficiency import draw
from secformer_lab.bench.efficiency import render as render_efficiency
from secformer_lab.bench.measured import add, here, key_of, planned
from secformer_lab.bench.model import Arrangement, Subject, measure, measure_model
from secformer_lab.bench.roofline import render

ROOT = Path(__file__).parents[3]


def test_a_paper_suite_is_measured_where_its_approximations_converge(monkeypatch):
    monkeypatch.setattr(one_layer, "CALIBRATION_BATCHES", 2)
    subject = one_layer.Subject("crypten", 512)
    assert subject.expected.isfinite().all()
    with pytest.raises(CalibrationError, match="not finite"):
        monkeypatch.setattr(one_layer, "Baseline", int)  # as if it were one of ours
        one_layer.Subject("crypten", 512)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_whole_inference_is_measured():
    small = replace(PRESETS["bert-base"], layers=1, heads=2, hidden=128, intermediate=256, vocabulary=64)
    places = [Arrangement(network="lan", runs=1), Arrangement(material="streamed", runs=1)]
    rows = list(measure(Subject(small, [8, 12], "exact"), places, lambda step: None))
    kinds = [(row["tokens"], row["network"], row["material"]) for row in rows]
    assert kinds == [(8, "lan", "device"), (12, "lan", "device"), (8, "none", "streamed"), (12, "none", "streamed")]
    for found in rows:
        assert found["max_error"] < 2e-2
    for found in rows[:2]:
        assert found["counted"]["rounds"] == found["plan"]["rounds"]
        assert found["counted"]["online_bytes"] == found["plan"]["online_bytes"]
        assert found["plan"]["rounds"] * 0.2e-3 < found["online_seconds"] <= found["session_seconds"]
        assert {"embedding", "gelu", "softmax", "layernorm"} <= found["operation_seconds"].keys()
        assert 0 < sum(found["operation_seconds"].values()) <= found["online_seconds"] * 1.001
        assert 0 < found["exchange_seconds"] < found["online_seconds"]
        assert found["max_error"] < 2e-2


def test_an_unknown_model_is_refused():
    with pytest.raises(SettingsError, match="bert-base"):
        list(measure_model("bert-tiny", [8], "exact", [Arrangement()]))


def test_plain_operations_take_the_place_of_kernels_for_a_while():
    device = torch.device("cpu")
    with layers.plain_operations(device):
        assert kernels.step("close", device) is not cpu.close
        gate = kernels.find("evaluate_MatMul", "cpu")
        assert gate is not None
    assert kernels.step("close", device) is cpu.close
    assert kernels.find("evaluate_MatMul", "cpu") is None


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_layer_is_measured_before_and_after():
    found = layers.measure("fast", 8, torch.device("cpu"), 1)
    assert found["before"]["max_error"] < 2e-2 and found["after"]["max_error"] < 2e-2
    assert sum(found["operations"].values()) > 0
    assert {"softmax", "gelu", "layernorm"} <= found["operations"].keys()


def test_the_roofline_is_what_its_figures_say():
    source = "docs/results/h200.json"
    assert render(source, json.loads((ROOT / source).read_text())) == (ROOT / "docs/results/roofline.md").read_text()


def test_rows_that_were_measured_take_the_place_of_earlier_ones():
    data = json.loads((ROOT / "docs/results/h200.json").read_text())
    old, others = here(data["models"])[1], len(data["models"])
    times = dict.fromkeys(("total_ms", "launch_ms", "gpu_ms", "exchange_ms", "fetch_ms"), 7.77777)
    replay = {"rounds": 3, **times, "operations_ms": {"gelu": 1.0}, "sizes": {}}
    add(
        data,
        [
            {
                **old,
                "material": "device",
                "online_seconds": 0.123456,
                "fastest_replay": [replay, None],
                "session_all": [1.0],
            }
        ],
    )
    found = data["models"][-1]
    assert found["online_seconds"] == 0.1235 and len(data["models"]) == others
    assert [each for each in data["models"] if key_of(each) == key_of(old)] == [found]
    assert found["replay"] == {"rounds": 3, **dict.fromkeys(times, 7.778), "operations_ms": {"gelu": 1.0}}
    rows = len(data["exchanges"])
    add(data, [{"connections": 77, "milliseconds": {"1": 0.5}}, {**old, "network": "wan"}])
    assert len(data["exchanges"]) == rows + 1 and data["models"][-1]["network"] == "wan"
    assert "measured |" in render_efficiency("a", "b", data, []) and "77" in render("a", data)


@pytest.mark.long
def test_a_paper_suite_is_planned():
    row = planned("bert-base", "mpcformer", 8)
    assert row["rounds"] > 1000 and row["online_bytes"] > 1e6


@pytest.mark.long
def test_the_comparison_is_drawn(tmp_path):
    data, published = (json.loads((ROOT / f"docs/results/{name}.json").read_text()) for name in ("h200", "published"))
    draw(here(data["models"]), published, tmp_path / "plot.svg")
    assert "ours, exact, 128" in (tmp_path / "plot.svg").read_text()


def test_the_comparison_is_what_its_figures_say():
    names = ("docs/results/h200.json", "docs/results/published.json")
    data, published = (json.loads((ROOT / name).read_text()) for name in names)
    assert render_efficiency(*names, data, published) == (ROOT / "docs/results/efficiency.md").read_text()
