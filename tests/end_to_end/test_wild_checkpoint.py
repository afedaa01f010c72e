"""A checkpoint, shaped like BERT-base or smaller, in which one neuron reaches 40 and one head's scores span 300 octaves.

Such models exist, and few texts to calibrate on are what users have.
"""

from __future__ import annotations

import math
from random import Random

import pytest
import torch
from checkpoints import WORDS, build_checkpoint
from secure import ask_texts, load

from secformer.models import plain
from secformer.secure_model import SecureModel

NEURON_REACHES, OCTAVES = 40.0, 300.0
LAYER, HEAD, NEURON = 1, 3, 7
LOG2_E = math.log2(math.e)


def sentences(count: int) -> list[str]:
    random, whole = Random(4), [word for word in WORDS if not word.startswith("#")]
    return [" ".join(random.choices(whole, k=random.randint(4, 14))) for _ in range(count)]


def seen(model: SecureModel, texts: list[str], name: str, part: int) -> torch.Tensor:
    """What a neuron's input, or a head's scores, were in all texts."""
    found = []

    def observe(what: str, layer: int, tensor: torch.Tensor, mask: torch.Tensor) -> None:
        if (what, layer) == (name, LAYER):
            place = (slice(None), part) if name == "scores" else (..., part)
            found.append(tensor[place][mask.expand_as(tensor)[place]])

    for start in range(0, len(texts), 16):
        plain.forward(model.weights, model.config, model._batch(texts[start : start + 16], None), observe)
    return torch.cat(found)


def make_wild(model: SecureModel, texts: list[str]) -> None:
    size, own = model.config.head_size, model.config.own_layer(LAYER)
    scores = seen(model, texts, "scores", HEAD)
    span = float(scores.max() - scores.min()) * LOG2_E
    for end in ("weight", "bias"):
        model.weights[f"layers.{own}.query.{end}"][..., HEAD * size : (HEAD + 1) * size] *= OCTAVES / span
    reached = float(seen(model, texts, "preactivation", NEURON).abs().max())
    for end in ("weight", "bias"):
        model.weights[f"layers.{own}.up.{end}"][..., NEURON] *= NEURON_REACHES / reached


SMALL = dict(layers=2, hidden=192, heads=12, intermediate=768, positions=128)
BASE = dict(layers=12, hidden=768, heads=12, intermediate=3072, positions=512)


CASES = [
    pytest.param("bert", SMALL, id="small"),
    pytest.param("bert", BASE, id="base"),
    pytest.param("electra", dict(SMALL, embedding_size=64), id="electra"),
    pytest.param("albert", dict(SMALL, embedding_size=64), id="albert"),
    pytest.param("mpnet", SMALL, id="mpnet"),
    pytest.param("deberta-v2", dict(SMALL, position_buckets=16), id="deberta-v2"),
    pytest.param("modernbert", dict(SMALL, local_attention=8), id="modernbert"),
]


@pytest.mark.long
@pytest.mark.parametrize(("family", "sizes"), CASES)
def test_it_calibrates_on_80_texts_and_runs_right(tmp_path, family, sizes):
    build_checkpoint(tmp_path / "model", family, "classification", **sizes)
    model = load(tmp_path / "model", tmp_path / "cache")
    texts = sentences(90)
    make_wild(model, texts[:80])
    model.calibrate(texts[:80])
    constants = model.card.public.layers[model.config.own_layer(LAYER)]
    assert "vast" in dict(constants.classes) and max(dict(constants.windows)) >= 9
    expected = model.predict(texts[80:], mode="plain").result
    simulated = model.predict(texts[80:], mode="simulate", strict=True)
    assert simulated.marked == [False] * 10
    result, run = ask_texts(model, texts[80:82])
    assert not run.value("evidence").any()
    bound = 5e-3 * float(expected.abs().max())
    for found in (simulated.result, result):
        assert float((found - expected[: len(found)]).abs().max()) <= bound
    assert torch.equal(simulated.result.argmax(-1), expected.argmax(-1))
