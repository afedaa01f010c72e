"""Small random checkpoints of every supported class, saved as transformers saves them, tokenizer included.

Freshly initialised weights (standard deviation 0.02) would make attention uniform and keep every activation
near 0; here they are scaled so that scores, GeLU inputs and variances have the spread of a trained encoder.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "dog",
    "ran",
    "home",
    "it",
    "was",
    "good",
    "bad",
    "film",
    "##s",
    "##ing",
]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
TEXTS = ["the cat sat on a mat", "dogs", "it was a good film, running the dog home on bad mats", "a cat"]
CLASSES = {"bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert"}
MORE_CLASSES = {
    "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert",
    "electra": "Electra",
    "albert": "Albert",
    "mpnet": "MPNet",
    "deberta-v2": "DebertaV2",
    "modernbert": "ModernBert",
}
HEADS = {
    "embedding": "Model",
    "classification": "ForSequenceClassification",
    "regression": "ForSequenceClassification",
    "tokens": "ForTokenClassification",
}
MORE_HEADS = {"question": "ForQuestionAnswering", "choice": "ForMultipleChoice", "masked": "ForMaskedLM"}
BEHIND_PADDING = ("roberta", "xlm-roberta", "camembert", "mpnet")
"""Families whose positions start behind the padding token's number, 1."""


def build_checkpoint(
    folder: str | Path,
    family: str = "bert",
    head: str = "embedding",
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    layers: int = 2,
    heads: int = 3,
    hidden: int = 24,
    intermediate: int = 40,
    vocabulary: int | None = None,
    positions: int = 64,
    activation: str = "gelu",
    labels: int = 3,
    max_shard_size: str = "1GB",
    **settings: Any,
) -> Any:
    """Save a checkpoint into `folder` and give transformers' own model of it, evaluating in float64.

    The stored weights are rounded to `dtype` and the model given back holds exactly these.
    """
    import transformers

    classes = {**CLASSES, **MORE_CLASSES}
    vocabulary = vocabulary or (301 if family == "roberta" else 99)
    sizes: dict[str, Any] = dict(vocab_size=vocabulary, **settings)
    if family == "distilbert":
        sizes |= dict(n_layers=layers, n_heads=heads, dim=hidden)
        sizes |= dict(hidden_dim=intermediate, activation=activation)
    elif family == "modernbert":
        sizes |= dict(num_hidden_layers=layers, num_attention_heads=heads, hidden_size=hidden)
        sizes |= dict(intermediate_size=intermediate, hidden_activation=activation, pad_token_id=0)
        sizes |= dict(bos_token_id=2, eos_token_id=3, cls_token_id=2, sep_token_id=3)
    else:
        sizes |= dict(num_hidden_layers=layers, num_attention_heads=heads, hidden_size=hidden)
        sizes |= dict(intermediate_size=intermediate, hidden_act=activation)
        if family == "deberta-v2":
            sizes |= dict(type_vocab_size=0, relative_attention=True, position_biased_input=False, share_att_key=True)
            sizes |= dict(pos_att_type="p2c|c2p", norm_rel_ebd="layer_norm", pooler_hidden_size=hidden)
        elif family != "mpnet":
            sizes["type_vocab_size"] = 1 if family in BEHIND_PADDING else 2
    sizes["max_position_embeddings"] = positions + (2 if family in BEHIND_PADDING else 0)
    if family in BEHIND_PADDING:
        sizes["pad_token_id"] = 1
    if head in ("classification", "regression", "tokens"):
        sizes["num_labels"] = 1 if head == "regression" else labels
    config = getattr(transformers, classes[family] + "Config")(**sizes, attn_implementation="eager")
    model = getattr(transformers, classes[family] + {**HEADS, **MORE_HEADS}[head])(config)
    scale_weights(model, seed)
    model.to(dtype).save_pretrained(str(folder), max_shard_size=max_shard_size)
    save_tokenizer(folder, family)
    if family == "modernbert":  # in float64 its eager attention gives NaN for padding that sees no token
        return model.float().eval()
    return model.double().eval()


@torch.no_grad()
def scale_weights(model: torch.nn.Module, seed: int) -> None:
    """Scores of standard deviation about 2.5, activation inputs about 2, LayerNorm gains 0.6 to 1.4."""
    generator = torch.Generator().manual_seed(seed)

    def normal(shape: torch.Size) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    for name, parameter in model.named_parameters():
        if name.endswith("Wqkv.weight"):  # queries and keys as others have them, then values
            parts = parameter.shape[0] // 3
            gains = torch.tensor([1.6, 1.6, 1.0]).repeat_interleave(parts)[:, None]
            parameter.copy_(normal(parameter.shape) * gains / math.sqrt(parameter.shape[1]))
        elif parameter.ndim == 2 and ("embeddings." in name or "rel" in name):
            parameter.copy_(0.5 * normal(parameter.shape))
        elif parameter.ndim == 2:
            parameter.copy_(normal(parameter.shape) * _gain(name) / math.sqrt(parameter.shape[1]))
        elif name.endswith("weight"):
            parameter.copy_(0.6 + 0.8 * torch.rand(parameter.shape, generator=generator))
        else:
            parameter.copy_(0.1 * normal(parameter.shape))


def _gain(name: str) -> float:
    parts = set(name.split("."))
    if parts & {"query", "key", "q_lin", "k_lin", "q", "k", "query_proj", "key_proj"}:
        return 1.6
    return 2.0 if parts & {"intermediate", "lin1", "ffn", "Wi", "classifier"} else 1.0


def save_tokenizer(folder: str | Path, family: str) -> None:
    from transformers import (
        AlbertTokenizer,
        BertTokenizer,
        CamembertTokenizer,
        MPNetTokenizer,
        RobertaTokenizer,
        XLMRobertaTokenizer,
    )

    if family == "roberta":
        vocabulary, merges = byte_pair_vocabulary()
        tokenizer = RobertaTokenizer(vocab=vocabulary, merges=merges)
    elif family == "xlm-roberta":
        tokenizer = XLMRobertaTokenizer(vocab=sentence_piece_vocabulary("<s>", "<pad>", "</s>", "<unk>", "<mask>"))
    elif family == "camembert":
        special = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED")
        tokenizer = CamembertTokenizer(vocab=sentence_piece_vocabulary(*special))
    elif family == "albert":
        tokenizer = AlbertTokenizer(vocab=sentence_piece_vocabulary("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"))
    elif family == "mpnet":
        pieces = [piece for piece in word_piece_vocabulary() if not piece.startswith("[")]
        pieces = ["<s>", "<pad>", "</s>", "<unk>", *pieces, "[UNK]", "<mask>"]
        tokenizer = MPNetTokenizer(vocab={piece: index for index, piece in enumerate(pieces)})
    else:
        tokenizer = BertTokenizer(vocab=word_piece_vocabulary())
    tokenizer.save_pretrained(str(folder))


def word_piece_vocabulary() -> dict[str, int]:
    """73 pieces."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*special, *LETTERS, *(f"##{letter}" for letter in LETTERS), ".", ",", *WORDS]
    return {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}


def sentence_piece_vocabulary(*special: str) -> list[tuple[str, float]]:
    """Letters, few words, and special tokens first."""
    words = [word for word in WORDS if not word.startswith("#")]
    pieces = dict.fromkeys([*special, "▁", *LETTERS, ",", *(f"▁{word}" for word in words), "s", "ing"])
    return [(piece, -float(index)) for index, piece in enumerate(pieces)]


def byte_pair_vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """RoBERTa's special tokens, the 256 bytes and a few merges: 268 pieces."""
    from tokenizers.pre_tokenizers import ByteLevel

    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("a", "t"), ("Ġ", "a"), ("i", "n"), ("in", "g")]
    merged = [left + right for left, right in merges]
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *sorted(ByteLevel.alphabet()), *merged, "<mask>"]
    return {piece: index for index, piece in enumerate(pieces)}, merges
