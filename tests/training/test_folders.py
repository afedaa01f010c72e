"""Model folders that training writes load everywhere: by transformers, by us, by every suite."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from checkpoints import TEXTS, build_checkpoint
from transformers import AutoModelForSequenceClassification

from secformer.errors import ModelError, SettingsError
from secformer.models.config_json import load_config
from secformer.models.huggingface import load_weights
from secformer.models.tokens import tokenise
from secformer.training.folders import check_task, prepare, read_base, read_folder, save_folder
from secformer.training.network import Swaps
from secformer.training.tasks import of_another, task_named


def saved(tmp_path, family, swaps=None, task="sst2", head="embedding"):
    build_checkpoint(tmp_path / "base", family, head)
    source = read_base(tmp_path / "base", task_named(task), 0, 2.5)
    network = replace(source.network, swaps=swaps or Swaps(), config=(swaps or Swaps()).config(source.network.config))
    prepare(tmp_path / "out")
    save_folder(tmp_path / "out", source, network)
    return source, network


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
@pytest.mark.parametrize("head", ["embedding", "classification"])
def test_transformers_loads_what_was_saved(tmp_path, family, head):
    source, network = saved(tmp_path, family, head=head)
    model, report = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"] and not report["mismatched_keys"]
    batch = tokenise(source.tokenizer, network.config, TEXTS)
    types = {"token_type_ids": batch.token_types} if family == "bert" else {}
    with torch.no_grad():
        expected = model.eval()(input_ids=batch.ids, attention_mask=batch.mask.long(), **types).logits
    assert torch.allclose(network.infer(batch).result, expected, atol=1e-4)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_a_student_is_read_as_one(tmp_path, family):
    _, network = saved(tmp_path, family, Swaps("2quad", 4.0))
    config = load_config(tmp_path / "out")
    assert (config.softmax, config.quad_shift, config.labels) == ("2quad", 4.0, ("negative", "positive"))
    assert load_weights(tmp_path / "out", config).digest == network.weights.digest
    again = read_folder(tmp_path / "out")
    assert again.network.swaps == Swaps("2quad", 4.0)


def test_a_quadratic_gelu_is_refused_by_those_who_do_not_know_it(tmp_path):
    saved(tmp_path, "bert", Swaps("2quad", 5.0, "quad"))
    assert read_folder(tmp_path / "out").network.swaps.gelu == "quad"
    with pytest.raises(ModelError, match="activation 'quad' is not supported"):
        load_config(tmp_path / "out")


def test_a_score_starts_at_the_mean(tmp_path):
    _, network = saved(tmp_path, "bert", task="stsb")
    assert network.weights["classifier.bias"].tolist() == [2.5]
    assert load_config(tmp_path / "out").head == "regression"


def test_a_folder_with_a_model_is_not_overwritten(tmp_path):
    saved(tmp_path, "bert")
    with pytest.raises(SettingsError, match="holds a model already"):
        prepare(tmp_path / "out")


def test_a_model_of_another_task_is_refused(tmp_path):
    saved(tmp_path, "bert")
    model = read_folder(tmp_path / "out")
    check_task(model, task_named("sst2"))
    for other in ("stsb", "mrpc"):
        with pytest.raises(SettingsError, match=f"no model of task {other}"):
            check_task(model, task_named(other))


@pytest.mark.parametrize(
    ("labels", "other"),
    [
        (("negative", "positive"), False),
        (("NEGATIVE", "POSITIVE"), False),
        (("LABEL_0", "LABEL_1"), False),
        (("positive", "negative"), True),
        (("unacceptable", "acceptable"), True),
    ],
)
def test_labels_tell_whose_they_are(labels, other):
    assert of_another(task_named("sst2"), labels) is other
