"""Shapes as they were published, for plans without a checkpoint.

Each is written in the keys of a config.json, and read like one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from secformer.models.config import ModelConfig
from secformer.models.config_json import from_settings
from secformer.models.sentences import SentenceSettings


def _published(model_type: str, classes: str, layers: int, hidden: int, **settings: Any) -> ModelConfig:
    """A published shape, classifying into two labels unless it says more."""
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": hidden // 64}
    kind = {"architectures": [f"{classes}ForSequenceClassification"], "model_type": model_type}
    return from_settings({"intermediate_size": 4 * hidden, **sizes, **kind, **settings})


def _texts(vocabulary: int, positions: int = 512, types: int = 2) -> dict[str, int]:
    return {"vocab_size": vocabulary, "max_position_embeddings": positions, "type_vocab_size": types}


PRESETS: Mapping[str, ModelConfig] = {
    "bert-base": _published("bert", "Bert", 12, 768, **_texts(30522)),
    "bert-large": _published("bert", "Bert", 24, 1024, **_texts(30522)),
    "xlm-roberta-base": _published("xlm-roberta", "XLMRoberta", 12, 768, layer_norm_eps=1e-5, **_texts(250002, 514, 1)),
    "electra-base": _published("electra", "Electra", 12, 768, embedding_size=768, **_texts(30522)),
    "albert-base-v2": _published(
        "albert", "Albert", 12, 768, embedding_size=128, hidden_act="gelu_new", **_texts(30000)
    ),
    "all-mpnet-base-v2": from_settings(
        {
            "model_type": "mpnet",
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "hidden_size": 768,
            "intermediate_size": 3072,
            "vocab_size": 30527,
            "max_position_embeddings": 514,
            "layer_norm_eps": 1e-5,
        },
        SentenceSettings(pooling="mean", normalise=True, strip=True, max_tokens=384),
    ),
    "deberta-v3-base": _published(
        "deberta-v2",
        "DebertaV2",
        12,
        768,
        layer_norm_eps=1e-7,
        relative_attention=True,
        position_biased_input=False,
        share_att_key=True,
        pos_att_type="p2c|c2p",
        position_buckets=256,
        norm_rel_ebd="layer_norm",
        **_texts(128100, 512, 0),
    ),
    "ModernBERT-base": _published(
        "modernbert", "ModernBert", 22, 768, intermediate_size=1152, **_texts(50368, 8192, 0)
    ),
    "vit-base-patch16-224": _published(
        "vit", "ViT", 12, 768, architectures=["ViTForImageClassification"], num_labels=1000
    ),
}
