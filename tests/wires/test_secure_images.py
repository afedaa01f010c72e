"""Images: patches in shares, what transformers gives out, and what is no image refused."""

from __future__ import annotations

import traceback

import numpy as np
import pytest
import torch
from secure import ask, assert_cost_as_declared, load, relative_error, upload
from vit import build, images

from secformer.errors import InputError, ModelError, SettingsError

TOLERANCE = 1e-2


@pytest.mark.parametrize(
    ("suite", "family", "layers"),
    [("exact", "vit", 2), ("exact", "deit", 1), pytest.param("fast", "vit", 1, marks=pytest.mark.long)],
)
def test_images_give_what_transformers_gives(tmp_path, suite, family, layers):
    reference = build(tmp_path / "model", family, layers)
    model = load(tmp_path / "model", tmp_path / "cache", suite)
    given = images(4)
    model.calibrate(images(12, seed=7), few=True)
    batch = model._batch(given, None)
    plain = model.predict(given, mode="plain")
    if suite == "exact":
        pixels = model.tokenizer(images=given, return_tensors="pt")["pixel_values"].double()
        with torch.no_grad():
            assert relative_error(plain.result, reference(pixel_values=pixels).logits) <= 1e-6
    secure, run = ask(model, upload(model), batch)
    assert relative_error(secure, plain.result) <= TOLERANCE
    simulated = model.predict(given, mode="simulate")
    assert relative_error(simulated.result, plain.result) <= TOLERANCE and simulated.labels == plain.labels
    assert not any(simulated.marked) and int(run.value("evidence").abs().sum()) == 0
    assert_cost_as_declared(run)
    assert "word" not in run.plan.program.inputs and "pixels" in run.plan.program.inputs


def test_what_is_no_image_is_refused(tmp_path):
    build(tmp_path / "model", "vit", 1)
    model = load(tmp_path / "model", tmp_path / "cache")
    for given in (["a cat"], "a cat", []):
        with pytest.raises(InputError, match="takes images"):
            model.predict(given, mode="plain")
    pixels = np.full((40, 30, 3), 77, np.uint8)
    for given in (
        pixels,
        [pixels[0, 0]],
        [{"image": pixels}],
        [pixels.astype(str)],
    ):
        with pytest.raises(InputError, match=r"an image cannot be read .*give a list") as caught:
            model.predict(given, mode="plain")
        assert "77" not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(InputError, match="no images"):
        model.calibrate()
    model.calibrate(images(6), few=True)
    with pytest.raises(SettingsError, match="an image has 10 rows"):
        model.plan(7)
    with pytest.raises(ModelError, match="computes layers as BERT has them"):
        load(tmp_path / "model", tmp_path / "cache", "secformer")
    (tmp_path / "model" / "preprocessor_config.json").unlink()
    with pytest.raises(ModelError, match=r"preprocessor_config\.json"):
        load(tmp_path / "model", tmp_path / "cache")


def test_a_private_image_through_three_servers(tmp_path):
    build(tmp_path / "model", "vit", 1)
    model = load(tmp_path / "model", tmp_path / "cache", servers="threads")
    model.calibrate(images(12, seed=7), few=True)
    given = images(2)
    with model:
        secure = model.predict(given)
    plain = model.predict(given, mode="plain")
    assert relative_error(secure.result, plain.result) <= TOLERANCE and secure.labels == plain.labels
