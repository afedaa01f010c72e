import json

import pytest

from secformer.errors import ModelError
from secformer.models.config_json import from_settings, load_config
from secformer.models.shapes import PRESETS

BERT = dict(model_type="bert", architectures=["BertModel"], num_hidden_layers=3, num_attention_heads=2,
            hidden_size=40, intermediate_size=56, vocab_size=99, max_position_embeddings=64)  # fmt: skip


def sentence_folder(folder, pooling, modules=("Transformer", "Pooling", "Normalize"), **settings):
    (folder / "config.json").write_text(json.dumps(BERT | settings))
    listed = [dict(idx=i, path=f"{i}_{m}" if i else "", type=f"sentence_transformers.models.{m}")
              for i, m in enumerate(modules)]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def test_bert_settings_are_read():
    config = from_settings(BERT | dict(hidden_act="swish", layer_norm_eps=1e-5))
    assert (config.layers, config.heads, config.hidden, config.intermediate) == (3, 2, 40, 56)
    assert (config.vocabulary, config.positions, config.token_types, config.position_offset) == (99, 64, 2, 0)
    assert (config.activation, config.layer_norm_eps, config.head, config.labels) == (
        "silu",
        1e-5,
        "embedding",
        (),
    )
    assert (config.pooling, config.normalise, config.softmax, config.head_size) == (
        "mean",
        False,
        "exact",
        20,
    )


def test_roberta_positions_start_behind_the_padding():
    config = from_settings(
        BERT | dict(model_type="roberta", architectures=["RobertaModel"], max_position_embeddings=514)
    )
    assert (config.positions, config.position_offset, config.pad_token) == (512, 2, 1)


def test_presets_have_the_true_shapes():
    base, large = PRESETS["bert-base"], PRESETS["bert-large"]
    assert (base.layers, base.heads, base.hidden, base.intermediate) == (12, 12, 768, 3072)
    assert (large.layers, large.heads, large.hidden, large.intermediate) == (24, 16, 1024, 4096)
    assert base.vocabulary == large.vocabulary == 30522 and base.positions == large.positions == 512


@pytest.mark.parametrize(
    ("changes", "head", "labels"),
    [
        (dict(id2label={"1": "good", "0": "bad"}), "classification", ("bad", "good")),
        (dict(), "classification", ("LABEL_0", "LABEL_1")),
        (dict(id2label={"0": "score"}), "regression", ("score",)),
        (dict(problem_type="regression"), "regression", ("LABEL_0", "LABEL_1")),
        (dict(architectures=["BertForTokenClassification"], num_labels=1), "tokens", ("LABEL_0",)),
    ],
)
def test_heads_and_labels(changes, head, labels):
    config = from_settings(BERT | dict(architectures=["BertForSequenceClassification"]) | changes)
    assert (config.head, config.labels) == (head, labels)


def test_a_student_carries_2quad_and_its_shift():
    config = from_settings(BERT | dict(softmax="2quad", quad_shift=5))
    assert (config.softmax, config.quad_shift) == ("2quad", 5.0)
    with pytest.raises(ModelError, match="quad_shift"):
        from_settings(BERT | dict(softmax="2quad"))


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        (dict(model_type="deberta-v2"), "deberta-v2"),
        (dict(model_type=None), "model type"),
        (dict(model_type=["bert"]), "model type"),
        (dict(architectures="BertModel"), "architecture"),
        (dict(architectures={"a": 1}), "architecture"),
        (dict(softmax=["exact"]), "softmax"),
        (dict(architectures=["BertForPreTraining"]), "BertForPreTraining"),
        (dict(architectures=["BertForNextSentencePrediction"]), "BertForNextSentencePrediction"),
        (
            dict(model_type="albert", architectures=["AlbertModel"], embedding_size=8, inner_group_num=2),
            "inner_group_num",
        ),
        (
            dict(model_type="electra", architectures=["ElectraForPreTraining"], embedding_size=8),
            "ElectraForPreTraining",
        ),
        (
            dict(model_type="electra", architectures=["ElectraForMultipleChoice"], summary_type="last"),
            "summary_type 'last'",
        ),
        (
            dict(model_type="mpnet", architectures=["MPNetModel"], relative_attention_num_buckets=16),
            "relative_attention_num_buckets",
        ),
        (dict(architectures=["RobertaModel"]), "RobertaModel"),
        (dict(architectures=None), "architecture"),
        (dict(hidden_act="mish"), "activation 'mish'"),
        (dict(hidden_act=["gelu"]), "activation"),
        (dict(position_embedding_type="relative_key"), "relative_key"),
        (dict(is_decoder=True), "decoder"),
        (dict(add_cross_attention=True), "cross attention"),
        (dict(pruned_heads={"0": [1]}), "pruned"),
        (dict(quantization_config={"bits": 8}), "quantised"),
        (dict(auto_map={"AutoModel": "own.Model"}), "auto_map"),
        (dict(softmax="2relu"), "2relu"),
        (dict(num_attention_heads=3), "multiple"),
        (dict(num_hidden_layers=0), "layers"),
        (dict(hidden_size="40"), "hidden_size"),
        (dict(hidden_size=True), "hidden_size"),
        (dict(vocab_size=None), "vocab_size"),
        (dict(pad_token_id=99), "padding token"),
        (dict(layer_norm_eps=0), "layer_norm_eps"),
        (dict(layer_norm_eps="small"), "layer_norm_eps"),
        (dict(architectures=["BertForTokenClassification"], id2label={"0": "a", "2": "b"}), "id2label"),
        (dict(architectures=["BertForTokenClassification"], id2label=["a", "b"]), "id2label"),
    ],
)
def test_what_is_unsupported_is_named(changes, part):
    with pytest.raises(ModelError, match=part):
        from_settings(BERT | changes)


DEBERTA = dict(model_type="deberta-v2", architectures=["DebertaV2Model"], relative_attention=True, position_buckets=8,
               position_biased_input=False, share_att_key=True, pos_att_type="p2c|c2p", type_vocab_size=0)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        (dict(relative_attention=False), "relative_attention"),
        (dict(position_biased_input=True), "position_biased_input"),
        (dict(share_att_key=False), "share_att_key"),
        (dict(pos_att_type="c2p"), "pos_att_type"),
        (dict(norm_rel_ebd="batch_norm"), "norm_rel_ebd"),
        (dict(embedding_size=20), "embedding_size"),
        (dict(conv_kernel_size=3), "conv_kernel_size"),
    ],
)
def test_other_kinds_of_disentangled_attention_are_refused(changes, part):
    config = from_settings(BERT | DEBERTA)
    assert (config.distance_span, config.distance_buckets, config.distance_limit) == (8, 8, 64)
    with pytest.raises(ModelError, match=part):
        from_settings(BERT | DEBERTA | changes)


MODERN = dict(model_type="modernbert", architectures=["ModernBertModel"], pad_token_id=0)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        (dict(rope_parameters={"full_attention": {"rope_type": "yarn"}}), "rope_type"),
        (dict(rope_scaling={"factor": 2.0}), "rope_scaling"),
        (dict(layer_types=["full_attention"]), "layer_types"),
        (dict(layer_types=["full_attention", "chunked_attention", "full_attention"]), "layer_types"),
        (dict(classifier_pooling="max"), "classifier_pooling"),
        (dict(hidden_activation="relu"), "gated"),
        (dict(hidden_size=42), "even"),
    ],
)
def test_other_kinds_of_modernbert_are_refused(changes, part):
    config = from_settings(BERT | MODERN | dict(num_hidden_layers=5, max_position_embeddings=8192))
    assert (config.local_layers, config.local_reach, config.positions) == ((1, 2, 4), 64, 512)
    assert (config.rotary_base, config.local_rotary_base) == (160_000.0, 10_000.0)
    with pytest.raises(ModelError, match=part):
        from_settings(BERT | MODERN | changes)


@pytest.mark.parametrize("settings", [dict(), dict(architectures=["BertForMaskedLM"])])
def test_sentence_transformers_modules(tmp_path, settings):
    folder = sentence_folder(tmp_path, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, **settings)
    (folder / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    config = load_config(folder)
    assert (config.head, config.pooling, config.normalise, config.lower_case) == (
        "embedding",
        "cls",
        True,
        True,
    )


@pytest.mark.parametrize(
    "pooling",
    [
        {"pooling_mode_max_tokens": True},
        {"pooling_mode": "lasttoken"},
        {},
        {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
    ],
)
def test_other_poolings_are_refused(tmp_path, pooling):
    with pytest.raises(ModelError, match="pooling"):
        load_config(sentence_folder(tmp_path, pooling))


def test_other_sentence_modules_are_refused(tmp_path):
    folder = sentence_folder(tmp_path, {"pooling_mode": "mean"}, ("Transformer", "Pooling", "LSTM"))
    with pytest.raises(ModelError, match="LSTM"):
        load_config(folder)


@pytest.mark.parametrize(
    ("modules", "activation", "complaint"),
    [
        (("Transformer", "Pooling", "Dense"), "ReLU", "activation 'ReLU'"),
        (("Transformer", "Pooling", "Normalize", "Dense"), "Tanh", "order"),
        (("Transformer", "Pooling", "Dense", "Dense"), "Tanh", "order"),
    ],
)
def test_other_maps_behind_the_pooling_are_refused(tmp_path, modules, activation, complaint):
    folder = sentence_folder(tmp_path, {"pooling_mode": "mean"}, modules)
    settings = dict(out_features=5, activation_function=f"torch.nn.modules.activation.{activation}")
    for number, module in enumerate(modules):
        if module == "Dense":
            (folder / f"{number}_Dense").mkdir()
            (folder / f"{number}_Dense" / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError, match=complaint):
        load_config(folder)


@pytest.mark.parametrize(
    ("family", "classes", "head", "pooler"),
    [
        ("xlm-roberta", "XLMRoberta", "classification", "tanh"),
        ("electra", "Electra", "classification", "gelu"),
        ("distilbert", "DistilBert", "choice", "relu"),
        ("albert", "Albert", "question", ""),
    ],
)
def test_heads_of_every_family(family, classes, head, pooler):
    ending = {"classification": "SequenceClassification", "choice": "MultipleChoice", "question": "QuestionAnswering"}
    config = from_settings(BERT | dict(model_type=family, architectures=[f"{classes}For{ending[head]}"]))
    assert (config.head, config.pooler) == (head, pooler)


def test_a_layer_that_is_used_again_and_an_embedding_of_its_own_size():
    albert = BERT | dict(model_type="albert", architectures=["AlbertModel"], embedding_size=8, num_hidden_layers=5)
    config = from_settings(albert | dict(num_hidden_groups=2))
    assert (config.embedding_size, config.table_size, config.own_layers) == (8, 8, 2)
    assert [config.own_layer(index) for index in range(5)] == [0, 0, 0, 1, 1]
    assert [config.layer_before(index) for index in range(5)] == [None, 0, 0, 0, 1]
    same = BERT | dict(model_type="electra", architectures=["ElectraModel"], embedding_size=40)
    assert from_settings(same).embedding_size == 0  # no map: the sizes are one
    assert from_settings(same | dict(model_type="albert", architectures=["AlbertModel"])).embedding_size == 40


@pytest.mark.parametrize("contents", ["{", "[1]", '"bert"', ""])
def test_a_malformed_config_file(tmp_path, contents):
    (tmp_path / "config.json").write_text(contents)
    with pytest.raises(ModelError, match=r"config\.json"):
        load_config(tmp_path)


def test_a_missing_folder_or_file(tmp_path):
    with pytest.raises(ModelError, match="not a folder"):
        load_config(tmp_path / "nowhere")
    with pytest.raises(ModelError, match="is missing"):
        load_config(tmp_path)
    (tmp_path / "config.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(ModelError, match="cannot be read"):
        load_config(tmp_path)
