"""Families of checkpoints, each a description: how its config.json and its tensors are named, and what sets it apart.

Planning, folding, calibration, the plaintext model and the secure program read a `ModelConfig` (config.py) and know no
family; a new one is a `Family` given to `add_family`.

    family      embedding rows added         sentence head, on the first token
    bert        word + position + type       tanh(W x + b), then the classifier
    roberta     word + position + type       the same, under other names; positions start at pad + 1
    distilbert  word + position              relu(W x + b), then the classifier
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from secformer.errors import ModelError

LAYER = "layers.{}."
"""How our names of a layer's tensors begin; {} is the layer's number, here and in the stored names."""


@dataclass(frozen=True)
class Family:
    """`tensors` maps our names (weights.py), without `.weight`, `.bias` or `.gain`, to the checkpoint's."""

    name: str
    """`model_type` in config.json; also the prefix of the tensors where a head model was saved."""
    classes: str
    """What transformers' class names begin with."""
    tensors: Mapping[str, str]
    head_tensors: Mapping[str, str]
    """The same for the maps of a sentence head."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Keys of config.json that are called otherwise here: ours (BERT's) to theirs."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What transformers takes where config.json says nothing, for the keys this family always or by default fixes."""
    pooler: str = "tanh"
    """The activation of a sentence head's first map."""
    positions_follow_padding: bool = False
    """Whether the position table begins with rows for padding, up to and including the padding token's number."""

    def stored_names(self, name: str, head_of_tokens: bool = False) -> list[str]:
        """The names a tensor of ours may have in a checkpoint, the likeliest first."""
        stem, leaf = self._stem(name, head_of_tokens)
        leaves = {"": [""], "weight": [".weight"], "bias": [".bias"], "gain": [".weight", ".gamma"]}[leaf]
        if leaf == "bias" and "norm" in name:
            leaves = [".bias", ".beta"]
        return [prefix + stem + ending for ending in leaves for prefix in (f"{self.name}.", "")]

    def _stem(self, name: str, head_of_tokens: bool) -> tuple[str, str]:
        """('encoder.layer.3.output.dense', 'weight') for `layers.3.down.weight`; a table's leaf is empty."""
        ours, leaf = (name, "") if "." not in name else name.rsplit(".", 1)
        if ours.startswith("layers."):
            _, number, part = ours.split(".")
            return self.tensors[LAYER + part].format(number), leaf
        if ours == "classifier" and head_of_tokens:
            return "classifier", leaf
        return {**self.tensors, **self.head_tensors}[ours], leaf


_EMBEDDING = {
    "word": "embeddings.word_embeddings.weight",
    "position": "embeddings.position_embeddings.weight",
    "token_type": "embeddings.token_type_embeddings.weight",
    "embedding_norm": "embeddings.LayerNorm",
}
_BERT_TENSORS = {
    **_EMBEDDING,
    LAYER + "query": "encoder.layer.{}.attention.self.query",
    LAYER + "key": "encoder.layer.{}.attention.self.key",
    LAYER + "value": "encoder.layer.{}.attention.self.value",
    LAYER + "output": "encoder.layer.{}.attention.output.dense",
    LAYER + "attention_norm": "encoder.layer.{}.attention.output.LayerNorm",
    LAYER + "up": "encoder.layer.{}.intermediate.dense",
    LAYER + "down": "encoder.layer.{}.output.dense",
    LAYER + "output_norm": "encoder.layer.{}.output.LayerNorm",
}
BERT = Family("bert", "Bert", _BERT_TENSORS, {"pooler": "pooler.dense", "classifier": "classifier"})
ROBERTA = Family(
    "roberta",
    "Roberta",
    _BERT_TENSORS,
    {"pooler": "classifier.dense", "classifier": "classifier.out_proj"},
    defaults={"pad_token_id": 1},
    positions_follow_padding=True,
)
DISTILBERT = Family(
    "distilbert",
    "DistilBert",
    {
        **_EMBEDDING,
        LAYER + "query": "transformer.layer.{}.attention.q_lin",
        LAYER + "key": "transformer.layer.{}.attention.k_lin",
        LAYER + "value": "transformer.layer.{}.attention.v_lin",
        LAYER + "output": "transformer.layer.{}.attention.out_lin",
        LAYER + "attention_norm": "transformer.layer.{}.sa_layer_norm",
        LAYER + "up": "transformer.layer.{}.ffn.lin1",
        LAYER + "down": "transformer.layer.{}.ffn.lin2",
        LAYER + "output_norm": "transformer.layer.{}.output_layer_norm",
    },
    {"pooler": "pre_classifier", "classifier": "classifier"},
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
    pooler="relu",
)

_FAMILIES: dict[str, Family] = {}


def add_family(family: Family) -> None:
    _FAMILIES[family.name] = family


def family_named(name: Any) -> Family:
    if not isinstance(name, str) or name not in _FAMILIES:
        raise ModelError(f"model type '{name}' is not supported; supported: {', '.join(_FAMILIES)}")
    return _FAMILIES[name]


for _family in (BERT, ROBERTA, DISTILBERT):
    add_family(_family)
