"""Images: patches in shares, what transformers gives out, and what is no image refused."""

from __future__ import annotations

import pytest
import torch
from checkpoints import scale_weights
from secure import ask, assert_cost_as_declared, load, relative_error, upload

from secformer.errors import InputError, ModelError, SettingsError

TOLERANCE = 1e-2
SIZES = dict(hidden_size=24, num_attention_heads=3, intermediate_size=31, image_size=12, patch_size=4, num_labels=5)


def build(folder, family, layers):
    import transformers

    names = {"vit": "ViT", "deit": "DeiT"}
    config = getattr(transformers, names[family] + "Config")(num_hidden_layers=layers, **SIZES)
    config._attn_implementation = "eager"
    model = getattr(transformers, names[family] + "ForImageClassification")(config)
    scale_weights(model, seed=5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim in (3, 4):  # rows and the map of patches
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name))))
    model.save_pretrained(str(folder))
    size = dict(height=12, width=12)
    transformers.ViTImageProcessorPil(size=size, image_mean=[0.5] * 3, image_std=[0.5] * 3).save_pretrained(str(folder))
    return model.double().eval()


def images(count, seed=1):
    """Of different sizes, smooth as photographs are."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for number in range(count):
        coarse = torch.rand(1, 3, 4, 4, generator=generator)
        shape = (20 + number, 30 - number % 5)
        whole = torch.nn.functional.interpolate(coarse, shape, mode="bilinear")[0].permute(1, 2, 0)
        found.append((255 * whole).to(torch.uint8).numpy())
    return found


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
