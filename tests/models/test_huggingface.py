import json
import shutil

import pytest
import torch
from checkpoints import CLASSES, build_checkpoint
from safetensors.torch import load_file, save_file

from secformer.errors import ModelError
from secformer.models.config_json import load_config
from secformer.models.huggingface import load_weights
from secformer.models.shapes import PRESETS
from secformer.models.weights import Weights, assemble, shapes


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original")
    build_checkpoint(folder, "bert", "classification")
    return folder


@pytest.fixture
def folder(original, tmp_path):
    return shutil.copytree(original, tmp_path / "copy")


def load(folder):
    return load_weights(folder, load_config(folder))


def change(folder, **changes):
    """Rewrite the stored tensors; None removes one."""
    tensors = load_file(folder / "model.safetensors")
    tensors = {name: tensor for name, tensor in (tensors | changes).items() if tensor is not None}
    save_file(tensors, folder / "model.safetensors")
    return tensors


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_every_float_type_is_read_exactly(tmp_path, dtype):
    model = build_checkpoint(tmp_path, "bert", "classification", dtype=dtype)
    assert load_file(tmp_path / "model.safetensors")["classifier.weight"].dtype == dtype
    weights = load(tmp_path)
    assert torch.equal(weights["layers.1.up.weight"], model.bert.encoder.layer[1].intermediate.dense.weight.T)
    assert torch.equal(weights["word"], model.bert.embeddings.word_embeddings.weight)
    assert weights["word"].dtype == torch.float64


def test_another_precision_has_the_same_digest(original):
    weights = load(original)
    single = weights.to(torch.float32)
    assert all(tensor.dtype == torch.float32 for tensor in single.tensors.values())
    assert torch.equal(single["word"].double(), weights["word"]) and weights["word"].dtype == torch.float64
    assert single.digest == weights.digest == Weights(single.tensors).digest


def test_the_digest_is_of_the_values(tmp_path):
    build_checkpoint(tmp_path / "half", dtype=torch.float16)
    weights = load(tmp_path / "half")
    shutil.copytree(tmp_path / "half", tmp_path / "single")
    tensors = {name: tensor.float() for name, tensor in load_file(tmp_path / "half" / "model.safetensors").items()}
    save_file(tensors, tmp_path / "single" / "model.safetensors")
    assert load(tmp_path / "single").digest == weights.digest == Weights(weights.tensors).digest
    config = load_config(tmp_path / "half")
    assert load_weights(tmp_path / "half", config, torch.float32).digest == weights.digest
    tensors["embeddings.word_embeddings.weight"][7, 3] += 0.01
    save_file(tensors, tmp_path / "single" / "model.safetensors")
    assert load(tmp_path / "single").digest != weights.digest


def test_a_sharded_checkpoint(tmp_path):
    build_checkpoint(tmp_path / "whole")
    build_checkpoint(tmp_path / "shards", max_shard_size="8KB")
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 2
    assert load(tmp_path / "shards").digest == load(tmp_path / "whole").digest


@pytest.mark.parametrize("family", CLASSES)
def test_with_and_without_the_prefix(tmp_path, family):
    build_checkpoint(tmp_path, family)
    digest = load(tmp_path).digest
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({f"{family}.{name}": tensor for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    assert load(tmp_path).digest == digest


def test_layer_norms_named_gamma_and_beta(folder):
    digest = load(folder).digest
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    assert "bert.embeddings.LayerNorm.gamma" in renamed
    save_file(renamed, folder / "model.safetensors")
    assert load(folder).digest == digest


def test_weights_are_contiguous_and_have_the_declared_shapes(folder):
    config, weights = load_config(folder), load(folder)
    assert {name: tuple(tensor.shape) for name, tensor in weights.tensors.items()} == shapes(config)
    assert all(tensor.is_contiguous() for tensor in weights.tensors.values())


def test_preset_shapes_count_the_parameters_as_published():
    """Of the encoder with its pooler or head's first map, and a classifier for two labels (of 1,000 for images)."""
    sizes = {name: sum(torch.Size(shape).numel() for shape in shapes(PRESETS[name]).values()) for name in PRESETS}
    two = 2 * 768 + 2
    absent = 22 * (7 * 768 + 2 * 1152) + 3 * 768  # biases that ModernBERT has not: zeros here
    assert sizes == {
        "bert-base": 109_482_240 + two,
        "bert-large": 335_141_888 + 2 * 1024 + 2,
        "xlm-roberta-base": 278_043_648 - 768 * 2 + two,  # without the two rows of positions for padding
        "electra-base": 108_891_648 + 768 * 768 + 768 + two,
        "albert-base-v2": 11_683_584 + two,
        "all-mpnet-base-v2": 109_486_464 - (768 * 768 + 768) - 768 * 2,
        "deberta-v3-base": 183_831_552 + 768 * 768 + 768 + two,
        "ModernBERT-base": 149_014_272 + 768 * 768 + 768 + two + absent,  # and the head's LayerNorm
        "vit-base-patch16-224": 86_567_656,
    }


def test_weights_on_the_meta_device_for_a_trace():
    weights = assemble(PRESETS["bert-large"], lambda name, shape: torch.empty(shape, device="meta"))
    assert weights["layers.23.down.weight"].shape == (4096, 1024) and weights["word"].is_meta


def test_printing_weights_prints_no_weight(folder):
    weights = load(folder)
    shown = (weights, weights.linear("layers.0.up"), weights.norm("embedding_norm"), weights.linear("pooler"))
    assert "tensor(" not in f"{shown}" and "tensors, hidden" in f"{weights}"


NAME = "bert.encoder.layer.1.output.dense.weight"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite(folder, value):
    tensor = load_file(folder / "model.safetensors")[NAME]
    tensor[3, 5] = value
    change(folder, **{NAME: tensor})
    with pytest.raises(ModelError, match=f"{NAME}.*NaN or infinite"):
        load(folder)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (None, "no tensor .*incomplete"),
        (torch.zeros(24, 41), r"shape \(24, 41\).*\(24, 40\)"),
        (torch.zeros(40, 24), r"shape \(40, 24\)"),
        (torch.zeros(24, 40, dtype=torch.int8), "int8"),
    ],
)
def test_wrong_tensors(folder, tensor, message):
    change(folder, **{NAME: tensor})
    with pytest.raises(ModelError, match=message):
        load(folder)


@pytest.mark.parametrize("setting", [dict(vocab_size=100), dict(max_position_embeddings=63), dict(num_hidden_layers=3)])
def test_a_config_of_another_model(folder, setting):
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | setting))
    with pytest.raises(ModelError, match="tensor"):
        load(folder)


@pytest.mark.parametrize("keep", [0, 4, 100, 0.5, 0.99])
def test_a_truncated_file(folder, keep):
    path = folder / "model.safetensors"
    contents = path.read_bytes()
    path.write_bytes(contents[: keep if isinstance(keep, int) else int(len(contents) * keep)])
    with pytest.raises(ModelError, match="corrupt"):
        load(folder)


def test_garbage_instead_of_weights(folder):
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 40)
    with pytest.raises(ModelError, match="corrupt"):
        load(folder)


@pytest.mark.parametrize(("file", "kind"), [("pytorch_model.bin", "pickled"), ("model.onnx", "ONNX")])
def test_other_formats_say_how_to_convert(folder, file, kind):
    (folder / "model.safetensors").rename(folder / file)
    with pytest.raises(ModelError, match=f"{kind}.*save_pretrained"):
        load(folder)


def test_no_weights_at_all(folder):
    config = load_config(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no weights"):
        load(folder)
    with pytest.raises(ModelError, match="not a folder"):
        load_weights(folder / "nowhere", config)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({}, "weight_map"),
        ({"weight_map": {NAME: "../model.safetensors"}}, "not a file beside"),
        ({"weight_map": {NAME: 3}}, "not a file beside it"),
        ({"weight_map": {"bert.embeddings.word_embeddings.weight": "gone.safetensors"}}, "is missing"),
        ({"weight_map": {"bert.embeddings.word_embeddings.weight": "part.safetensors"}}, "cannot be read"),
    ],
)
def test_a_damaged_index(folder, index, message):
    (folder / "model.safetensors").unlink()
    save_file({"other": torch.zeros(2)}, folder / "part.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=message):
        load(folder)
