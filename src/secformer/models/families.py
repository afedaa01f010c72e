"""Families of checkpoints, each a description: how its config.json and its tensors are named, and what sets it apart.

Planning, folding, calibration, the plaintext model and the secure program read a `ModelConfig` (config.py) and know no
family; a new one is a `Family` given to `add_family`. What of its shape is not said here, config_json.py reads from config.json.

    family        embedding                    head on the first token         its layers
    bert          word + position + type       tanh(W x + b), classifier       one after the other
    roberta       the same                     the same, under other names     positions start at pad + 1
    xlm-roberta   roberta's                    roberta's                       roberta's
    camembert     roberta's                    roberta's                       roberta's
    distilbert    word + position              relu(W x + b), classifier       bert's
    electra       narrower than the layers     gelu(W x + b), classifier       bert's
    albert        narrower than the layers     tanh(W x + b), classifier       the same one again and again
    mpnet         word + position              tanh(W x + b), classifier       a bias of scores by distance, one for all
    deberta-v2    word                         gelu(W x + b), classifier       scores of content and distance, apart
    modernbert    word                         N(gelu(W x + b)), classifier    norm first, gated, turned by position, some local
    vit, deit     patches of an image          classifier                      norm first
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from secformer.errors import ModelError

LAYER = "layers.{}."
"""How our names of a layer's tensors begin; {} is the layer's number, here and in the stored names."""

Stored = str | tuple[str, ...]
"""Where a tensor lies in a checkpoint; several places, the likeliest first."""
Kind = Literal["classification", "tokens", "question", "choice", "masked"]
Projection = Literal["", "where sizes differ", "always"]


@dataclass(frozen=True)
class HeadNames:
    """A head as a family has it."""

    ending: str
    """Of the class in transformers, behind the family's own name."""
    tensors: Mapping[str, Stored]
    pooler: str = ""
    """The activation of a first map, on the first token; none without one."""
    transform: str = ""
    """The same of a first map with a LayerNorm behind it, on every row that is classified; or the key of config.json with it."""
    requires: Mapping[str, Any] = field(default_factory=dict)
    """Keys of config.json that must have one value: with another the model would compute something else."""


@dataclass(frozen=True)
class Family:
    """`tensors` maps our names (weights.py) to the checkpoint's, without `.weight`, `.bias` or `.gain` unless ours has it."""

    name: str
    """`model_type` in config.json."""
    classes: str
    """What transformers' class names begin with."""
    tensors: Mapping[str, Stored]
    heads: Mapping[str, HeadNames]
    prefix: str = ""
    """What tensors of the encoder begin with where a head model was saved; the family's name unless said."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Keys of config.json that are called otherwise here: ours (BERT's) to theirs."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What transformers takes where config.json says nothing, for the keys this family always or by default fixes."""
    requires: Mapping[str, Any] = field(default_factory=dict)
    """As a head's."""
    positions_follow_padding: bool = False
    """Whether the position table begins with rows for padding, up to and including the padding token's number."""
    projection: Projection = ""
    """Whether the embedding has a size of its own, and a map to the layers'."""
    relative_buckets: int = 0
    """Classes of distances that scores have a bias for, one table for all layers; 0: none."""
    norm_first: bool = False
    """Whether a LayerNorm stands before attention and feed-forward block, and the sum goes on as it is. `output_norm` is then
    that before the next layer's attention, and `final_norm` the one behind the last layer."""
    gated: bool = False
    """Whether the activation is multiplied by a second map, `gate`."""
    rotary: bool = False
    """Whether queries and keys are turned by their position, some layers see near tokens only, and no table has positions."""
    first_rows: int = 0
    """Of an image's family: rows before those of its patches."""
    disentangled: bool = False
    """Whether scores are made of content and distance apart, from a table of distances."""
    slices: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Maps that are stored together: which of how many parts of the stored one's outputs is ours."""
    biases: bool = True
    """Whether every map and LayerNorm has a bias; otherwise one that is not stored is zero."""

    @property
    def pooler(self) -> str:
        """The activation of a sentence head's first map."""
        return self.heads["classification"].pooler

    def stored_names(self, name: str, head: str = "classification") -> list[str]:
        """The names a tensor of ours may have in a checkpoint, the likeliest first."""
        found: list[str] = []
        for stem, leaves in self._places(name, head):
            found += [prefix + stem + leaf for leaf in leaves for prefix in (f"{self.prefix or self.name}.", "")]
        return found

    def _places(self, name: str, head: str) -> list[tuple[str, tuple[str, ...]]]:
        """('encoder.layer.3.output.dense', ('.weight',)) for `layers.3.down.weight`."""
        known = {**self.tensors, **(self.heads[head].tensors if head in self.heads else {})}
        ours, number = _general(name)
        if ours in known:
            return [(_numbered(stem, number), ("",)) for stem in _several(known[ours])]
        part, leaf = ours.rsplit(".", 1)
        return [(_numbered(stem, number), _leaves(part, leaf)) for stem in _several(known[part])]

    def slice_of(self, name: str) -> tuple[int, int]:
        """Which part of how many of the stored tensor is ours."""
        return self.slices.get(_general(name)[0].rsplit(".", 1)[0], (0, 1))


def _general(name: str) -> tuple[str, str]:
    """`layers.3.up.bias` as `layers.{}.up.bias` and 3."""
    if not name.startswith("layers."):
        return name, ""
    _, number, part = name.split(".", 2)
    return LAYER + part, number


def _numbered(stem: str, number: str) -> str:
    return stem.format(number, next=int(number) + 1) if number else stem


def _leaves(part: str, leaf: str) -> tuple[str, ...]:
    """LayerNorm's gain and bias are also called gamma and beta."""
    if leaf == "gain":
        return ".weight", ".gamma"
    return (".bias", ".beta") if leaf == "bias" and "norm" in part else (f".{leaf}",)


def _several(stored: Stored) -> tuple[str, ...]:
    return (stored,) if isinstance(stored, str) else stored


# -- BERT and what is built like it ---------------------------------------------------------------------------------------

_TABLES: Mapping[str, Stored] = {
    "word": "embeddings.word_embeddings.weight",
    "position": "embeddings.position_embeddings.weight",
    "token_type": "embeddings.token_type_embeddings.weight",
    "embedding_norm": "embeddings.LayerNorm",
}
_BERT_TENSORS: Mapping[str, Stored] = {
    **_TABLES,
    LAYER + "query": "encoder.layer.{}.attention.self.query",
    LAYER + "key": "encoder.layer.{}.attention.self.key",
    LAYER + "value": "encoder.layer.{}.attention.self.value",
    LAYER + "output": "encoder.layer.{}.attention.output.dense",
    LAYER + "attention_norm": "encoder.layer.{}.attention.output.LayerNorm",
    LAYER + "up": "encoder.layer.{}.intermediate.dense",
    LAYER + "down": "encoder.layer.{}.output.dense",
    LAYER + "output_norm": "encoder.layer.{}.output.LayerNorm",
}


def _sentence(pooler: str, classifier: str, activation: str = "tanh") -> HeadNames:
    return HeadNames("ForSequenceClassification", {"pooler": pooler, "classifier": classifier}, activation)


def _choice(pooler: str, activation: str = "tanh", **requires: Any) -> HeadNames:
    names = {"pooler": pooler, "classifier": "classifier"}
    return HeadNames("ForMultipleChoice", names, activation, requires=requires)


def _masked(
    dense: str, norm: str, decoder: str, biases: tuple[str, ...], activation: str = "hidden_act", **requires: Any
) -> HeadNames:
    """The decoder's matrix is the word table again, unless it is stored."""
    tensors = {"transform": dense, "transform_norm": norm, "classifier.bias": biases}
    return HeadNames(
        "ForMaskedLM",
        {**tensors, "classifier.weight": (f"{decoder}.weight", _TABLES["word"])},  # type: ignore[dict-item]
        transform=activation,
        requires=requires,
    )


def _predictions(**requires: Any) -> HeadNames:
    """BERT's own language head."""
    stem = "cls.predictions."
    biases = (stem + "decoder.bias", stem + "bias")
    return _masked(stem + "transform.dense", stem + "transform.LayerNorm", stem + "decoder", biases, **requires)


_TOKENS = HeadNames("ForTokenClassification", {"classifier": "classifier"})
_QUESTION = HeadNames("ForQuestionAnswering", {"classifier": "qa_outputs"})
_LANGUAGE = _masked(
    "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", ("lm_head.decoder.bias", "lm_head.bias"), "gelu"
)

BERT = Family(
    "bert",
    "Bert",
    _BERT_TENSORS,
    {
        "classification": _sentence("pooler.dense", "classifier"),
        "tokens": _TOKENS,
        "question": _QUESTION,
        "choice": _choice("pooler.dense"),
        "masked": _predictions(),
    },
)
ROBERTA = Family(
    "roberta",
    "Roberta",
    _BERT_TENSORS,
    {
        "classification": _sentence("classifier.dense", "classifier.out_proj"),
        "tokens": _TOKENS,
        "question": _QUESTION,
        "choice": _choice("pooler.dense"),
        "masked": _LANGUAGE,
    },
    defaults={"pad_token_id": 1},
    positions_follow_padding=True,
)
XLM_ROBERTA = replace(ROBERTA, name="xlm-roberta", classes="XLMRoberta", prefix="roberta")
CAMEMBERT = replace(ROBERTA, name="camembert", classes="Camembert", prefix="roberta")
ELECTRA = Family(
    "electra",
    "Electra",
    {**_BERT_TENSORS, "projection": "embeddings_project"},
    {
        "classification": _sentence("classifier.dense", "classifier.out_proj", "gelu"),
        "tokens": _TOKENS,
        "question": _QUESTION,
        "choice": _choice(
            "sequence_summary.summary", "gelu", summary_type="first", summary_activation="gelu", summary_use_proj=True
        ),
        "masked": _masked(
            "generator_predictions.dense",
            "generator_predictions.LayerNorm",
            "generator_lm_head",
            ("generator_lm_head.bias",),
            "gelu",
        ),
    },
    defaults={"embedding_size": 128},
    projection="where sizes differ",
)

# -- those with layers of their own names ----------------------------------------------------------------------------------

DISTILBERT = Family(
    "distilbert",
    "DistilBert",
    {
        **_TABLES,
        LAYER + "query": "transformer.layer.{}.attention.q_lin",
        LAYER + "key": "transformer.layer.{}.attention.k_lin",
        LAYER + "value": "transformer.layer.{}.attention.v_lin",
        LAYER + "output": "transformer.layer.{}.attention.out_lin",
        LAYER + "attention_norm": "transformer.layer.{}.sa_layer_norm",
        LAYER + "up": "transformer.layer.{}.ffn.lin1",
        LAYER + "down": "transformer.layer.{}.ffn.lin2",
        LAYER + "output_norm": "transformer.layer.{}.output_layer_norm",
    },
    {
        "classification": _sentence("pre_classifier", "classifier", "relu"),
        "tokens": _TOKENS,
        "question": _QUESTION,
        "choice": _choice("pre_classifier", "relu"),
        "masked": _masked("vocab_transform", "vocab_layer_norm", "vocab_projector", ("vocab_projector.bias",)),
    },
    settings={
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "hidden_size": "dim",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "type_vocab_size": "",
        "layer_norm_eps": "",
    },
    defaults={"type_vocab_size": 0, "layer_norm_eps": 1e-12},
)
_ALBERT_LAYER = "encoder.albert_layer_groups.{}.albert_layers.0."
ALBERT = Family(
    "albert",
    "Albert",
    {
        **_TABLES,
        "projection": "encoder.embedding_hidden_mapping_in",
        LAYER + "query": _ALBERT_LAYER + "attention.query",
        LAYER + "key": _ALBERT_LAYER + "attention.key",
        LAYER + "value": _ALBERT_LAYER + "attention.value",
        LAYER + "output": _ALBERT_LAYER + "attention.dense",
        LAYER + "attention_norm": _ALBERT_LAYER + "attention.LayerNorm",
        LAYER + "up": _ALBERT_LAYER + "ffn",
        LAYER + "down": _ALBERT_LAYER + "ffn_output",
        LAYER + "output_norm": _ALBERT_LAYER + "full_layer_layer_norm",
    },
    {
        "classification": _sentence("pooler", "classifier"),
        "tokens": _TOKENS,
        "question": _QUESTION,
        "choice": _choice("pooler"),
        "masked": _masked(
            "predictions.dense",
            "predictions.LayerNorm",
            "predictions.decoder",
            ("predictions.decoder.bias", "predictions.bias"),
        ),
    },
    defaults={"embedding_size": 128, "hidden_act": "gelu_new", "num_hidden_groups": 1},
    requires={"inner_group_num": 1},
    projection="always",
)
MPNET = Family(
    "mpnet",
    "MPNet",
    {
        **_TABLES,
        "relative": "encoder.relative_attention_bias.weight",
        LAYER + "query": "encoder.layer.{}.attention.attn.q",
        LAYER + "key": "encoder.layer.{}.attention.attn.k",
        LAYER + "value": "encoder.layer.{}.attention.attn.v",
        LAYER + "output": "encoder.layer.{}.attention.attn.o",
        LAYER + "attention_norm": "encoder.layer.{}.attention.LayerNorm",
        LAYER + "up": "encoder.layer.{}.intermediate.dense",
        LAYER + "down": "encoder.layer.{}.output.dense",
        LAYER + "output_norm": "encoder.layer.{}.output.LayerNorm",
    },
    {
        "classification": _sentence("classifier.dense", "classifier.out_proj"),
        "tokens": _TOKENS,
        "question": _QUESTION,
        "choice": _choice("pooler.dense"),
        "masked": _LANGUAGE,
    },
    settings={"type_vocab_size": ""},
    defaults={"pad_token_id": 1, "type_vocab_size": 0},
    requires={"relative_attention_num_buckets": 32},
    relative_buckets=32,
    positions_follow_padding=True,
)
_MODERN = {"transform": "head.dense", "transform_norm": "head.norm"}
_MODERN_BERT_HEAD = {**_MODERN, "classifier": "classifier"}
MODERN_BERT = Family(
    "modernbert",
    "ModernBert",
    {
        "word": "embeddings.tok_embeddings.weight",
        "embedding_norm": "embeddings.norm",
        LAYER + "query": "layers.{}.attn.Wqkv",
        LAYER + "key": "layers.{}.attn.Wqkv",
        LAYER + "value": "layers.{}.attn.Wqkv",
        LAYER + "output": "layers.{}.attn.Wo",
        LAYER + "attention_norm": "layers.{}.mlp_norm",
        LAYER + "up": "layers.{}.mlp.Wi",
        LAYER + "gate": "layers.{}.mlp.Wi",
        LAYER + "down": "layers.{}.mlp.Wo",
        LAYER + "output_norm": "layers.{next}.attn_norm",
        "final_norm": "final_norm",
    },
    {
        "classification": HeadNames("ForSequenceClassification", _MODERN_BERT_HEAD, transform="classifier_activation"),
        "tokens": HeadNames("ForTokenClassification", _MODERN_BERT_HEAD, transform="classifier_activation"),
        "question": HeadNames("ForQuestionAnswering", _MODERN_BERT_HEAD, transform="classifier_activation"),
        "masked": HeadNames(
            "ForMaskedLM",
            {
                **_MODERN,
                "classifier.weight": ("decoder.weight", "embeddings.tok_embeddings.weight"),
                "classifier.bias": "decoder.bias",
            },
            transform="classifier_activation",
        ),
    },
    prefix="model",
    settings={"hidden_act": "hidden_activation", "layer_norm_eps": "norm_eps", "type_vocab_size": ""},
    defaults={
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-5,
        "hidden_act": "gelu",
        "pad_token_id": 50283,
        "classifier_activation": "gelu",
        "global_rope_theta": 160_000.0,
        "local_rope_theta": 10_000.0,
        "local_attention": 128,
        "global_attn_every_n_layers": 3,
    },
    norm_first=True,
    gated=True,
    rotary=True,
    slices={
        LAYER + "query": (0, 3),
        LAYER + "key": (1, 3),
        LAYER + "value": (2, 3),
        LAYER + "up": (0, 2),
        LAYER + "gate": (1, 2),
    },
    biases=False,
)
DEBERTA_V2 = Family(
    "deberta-v2",
    "DebertaV2",
    {
        **_BERT_TENSORS,
        "distance": "encoder.rel_embeddings.weight",
        "distance_norm": "encoder.LayerNorm",
        LAYER + "query": "encoder.layer.{}.attention.self.query_proj",
        LAYER + "key": "encoder.layer.{}.attention.self.key_proj",
        LAYER + "value": "encoder.layer.{}.attention.self.value_proj",
    },
    {
        "classification": _sentence("pooler.dense", "classifier", "gelu"),
        "tokens": _TOKENS,
        "question": _QUESTION,
        "choice": _choice("pooler.dense", "gelu"),
        "masked": _predictions(legacy=True),
    },
    prefix="deberta",
    defaults={"type_vocab_size": 0, "layer_norm_eps": 1e-7},
    requires={"conv_kernel_size": 0, "pooler_hidden_act": "gelu"},
    disentangled=True,
)
VIT = Family(
    "vit",
    "ViT",
    {
        "first": "embeddings.cls_token",
        "position": "embeddings.position_embeddings",
        "patch": "embeddings.patch_embeddings.projection",
        "embedding_norm": "encoder.layer.0.layernorm_before",
        LAYER + "query": "encoder.layer.{}.attention.attention.query",
        LAYER + "key": "encoder.layer.{}.attention.attention.key",
        LAYER + "value": "encoder.layer.{}.attention.attention.value",
        LAYER + "output": "encoder.layer.{}.attention.output.dense",
        LAYER + "attention_norm": "encoder.layer.{}.layernorm_after",
        LAYER + "up": "encoder.layer.{}.intermediate.dense",
        LAYER + "down": "encoder.layer.{}.output.dense",
        LAYER + "output_norm": "encoder.layer.{next}.layernorm_before",
        "final_norm": "layernorm",
    },
    {"classification": HeadNames("ForImageClassification", {"classifier": "classifier"})},
    defaults={
        "vocab_size": 0,
        "type_vocab_size": 0,
        "pad_token_id": 0,
        "max_position_embeddings": 0,
        "image_size": 224,
        "patch_size": 16,
        "num_channels": 3,
    },
    norm_first=True,
    first_rows=1,
    biases=False,
)
DEIT = replace(
    VIT,
    name="deit",
    classes="DeiT",
    tensors={**VIT.tensors, "second": "embeddings.distillation_token"},
    first_rows=2,
)

_FAMILIES: dict[str, Family] = {}


def add_family(family: Family) -> None:
    _FAMILIES[family.name] = family


def family_named(name: Any) -> Family:
    if not isinstance(name, str) or name not in _FAMILIES:
        raise ModelError(f"model type '{name}' is not supported; supported: {', '.join(_FAMILIES)}")
    return _FAMILIES[name]


for _family in (
    BERT,
    ROBERTA,
    XLM_ROBERTA,
    CAMEMBERT,
    DISTILBERT,
    ELECTRA,
    ALBERT,
    MPNET,
    DEBERTA_V2,
    MODERN_BERT,
    VIT,
    DEIT,
):
    add_family(_family)
