"""A text that leaves the calibrated ranges is marked, by simulation and by three servers alike; others beside it are not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from checkpoints import TEXTS, build_checkpoint
from commands import command
from secure import load

from secformer.errors import RangeError
from secformer.models import plain
from secformer.models.evidence import ADVICE
from secformer.secure_model import SecureModel

TAME = [*(text for text in TEXTS if "film" not in text), "the dog ran home", "it was bad", "cats on mats"]
ASKED = ["the cat sat on a mat", "a good film film"]
SCALED: dict[str, list[tuple[str, Any, float]]] = {
    "scores": [("query", 0, 8), ("key", 0, 8)],
    "scores, below": [("query", 0, 8), ("key", 0, -8)],
    "values": [("value", 0, 8)],
    "attention norm": [("value", (slice(1, None), 0), 0), ("value", (0, 0), 60), ("output", 0, 20)],
    "activation": [("up", (slice(1, None), 5), 0.3), ("up", (0, 5), 150)],
    "output norm": [("up", (slice(1, None), 5), 0), ("up", (0, 5), 20), ("down", 5, 20)],
}
"""Parts of layer 0's matrices, and by what they are multiplied; by kind of range and, if that is not above, the side."""

STEPS = {"scores": "softmax", "values": "softmax", "activation": "gelu"}


def hide(model: SecureModel, kind: str) -> None:
    """A direction that no word but "film" has, and that layer 0 reads, or what one value or neuron found there, writes many
    times as strongly as all others: texts without the word do not show it."""
    weights = model.weights
    for name in ("word", "position", "token_type"):
        weights[name][:, 0] = 0
    row = weights["word"][model.tokenizer.convert_tokens_to_ids("film")]
    row[0] = 4 * row.norm()
    row *= weights["word"].norm(dim=1).mean() / row.norm()
    weights["embedding_norm.bias"][0] = weights["layers.0.attention_norm.bias"][0] = 0
    weights["layers.0.output.weight"][:, 0] = weights["layers.0.output.bias"][0] = 0
    weights["layers.0.value.bias"][0] = 0
    for part, place, factor in SCALED[kind]:
        weights[f"layers.0.{part}.weight"][place] *= factor


def cancel(model: SecureModel) -> None:
    """What layer 0 adds to every token is what "film" has, with the other sign: nothing is left of that word to normalise."""
    weights, found = model.weights, []
    for name in ("position", "token_type", "layers.0.output.weight"):
        weights[name].zero_()

    def observe(name, layer, tensor, mask) -> None:
        if (name, layer) == ("input", 0):
            found.append(tensor[0, 1])

    plain.forward(weights, model.config, model._batch(["film"], None), observe)
    weights["layers.0.output.bias"].copy_(-found[0])


BELOW = "attention norm, below"


@pytest.mark.parametrize(("suite", "kind"), [*(("exact", kind) for kind in (*SCALED, BELOW)), ("fast", "scores")])
def test_an_adversarial_text_is_marked(tmp_path, suite, kind):
    build_checkpoint(tmp_path / "model", "bert", "classification", seed=1)
    with load(tmp_path / "model", tmp_path / "cache", suite, servers="threads") as model:
        cancel(model) if kind == BELOW else hide(model, kind)
        kind, _, side = kind.partition(", ")
        model.calibrate(TAME, few=True)
        simulated, secure = (model.predict(ASKED, mode=mode) for mode in ("simulate", "secure"))
        expected = model.predict(ASKED, mode="plain").result
    for prediction in (simulated, secure):
        assert prediction.marked == [False, True]
        assert prediction.evidence is not None and f"layer 0, {kind}" in prediction.evidence.of(1)
        assert float((prediction.result - expected)[0].abs().max()) < 2e-2  # the neighbour is none the worse
    step = f"layer 0/{STEPS.get(kind, 'layernorm')}"
    assert secure.departures == () and simulated.departures[0].place == step
    first = simulated.departures[0]
    assert first.lowest < first.low if side == "below" else first.highest > first.high
    with pytest.raises(RangeError, match=rf"{step}: .* calibrate on data like this"):
        model.predict(ASKED, mode="simulate", strict=True)
    model.predict(ASKED[:1], mode="simulate", strict=True)


def test_adding_the_text_unmarks_it(tmp_path):
    """What the mark advises."""
    build_checkpoint(tmp_path / "model", "bert", "classification", seed=1)
    model = load(tmp_path / "model", tmp_path / "cache")
    hide(model, "scores")
    model.calibrate(TAME, few=True)
    assert model.predict(ASKED, mode="simulate").marked == [False, True]
    model.calibrate(ASKED[1:], add=True, few=True)
    assert model.predict(ASKED, mode="simulate", strict=True).marked == [False, False]


def test_run_says_so(monkeypatch, capfd, tmp_path):
    """A line for the text that is marked, and none for the other; in JSON, both keys."""
    build_checkpoint(tmp_path / "model", "bert", "classification", seed=1)
    record, loaded = tmp_path / "record.json", SecureModel.from_pretrained.__func__

    def hidden(cls, *given, **options):
        model = loaded(cls, *given, **{**options, "calibration": None, "uncalibrated": True, "servers": "threads"})
        hide(model, "scores")
        model.calibrate(TAME, few=True, out=record)
        return model

    monkeypatch.setattr(SecureModel, "from_pretrained", classmethod(hidden))
    arguments = ("run", tmp_path / "model", "--text", ASKED[0], "--text", ASKED[1])
    outcome = command(monkeypatch, capfd, *arguments)
    assert outcome.code == 0 and outcome.out.count("marked: may be wrong") == 1
    (said,) = [line for line in outcome.err.splitlines() if line.startswith("note: ")]
    assert said.startswith("note: text 2: ranges were left (layer 0, scores: ") and ADVICE in said
    content = json.loads(command(monkeypatch, capfd, *arguments, "--json").out)
    assert content["marked"] == [False, True]
    assert content["evidence"][0] == {} and content["evidence"][1]["layer 0, scores"] > 0
