"""A smaller model from a larger one: fewer layers, and only the words that training texts use.

A word that is left out is read as its pieces: every piece of one letter stays. Only word-piece tokenizers (BERT's kind) are
trimmed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from secformer.errors import ModelError
from secformer.models.families import family_named
from secformer.models.huggingface import WEIGHTS_FILE, Checkpoint
from secformer.models.json_files import read_json
from secformer.models.tokens import load_tokenizer
from secformer.models.weights import Weights
from secformer.training.batches import Rows
from secformer.training.folders import Folder, copy_tokenizer, prepare, read_settings, setting_key
from secformer.training.losses import layer_pairs
from secformer.training.network import Network

PIECE = "##"
LANGUAGE_MODEL = ("cls.", "lm_head.", "vocab_")
"""How the names of such tensors begin."""
COUNTED = "position_ids"
"""How the name of a tensor ends that some checkpoints have and nobody reads: 0, 1, 2, …"""


def fewer_layers(network: Network, layers: int) -> Network:
    """Evenly spaced layers of the model, the last one among them."""
    kept = layer_pairs(layers, network.config.layers)
    tensors: dict[str, Tensor] = {}
    for name, tensor in network.weights.tensors.items():
        if not name.startswith("layers."):
            tensors[name] = tensor
            continue
        _, number, part = name.split(".", 2)
        tensors |= {f"layers.{new}.{part}": tensor for new, old in enumerate(kept) if old == int(number)}
    return replace(network, weights=Weights(tensors), config=replace(network.config, layers=layers))


@dataclass(frozen=True, repr=False)
class Vocabulary:
    """The words that stay: row i of the new table is row `kept[i]` of the old one."""

    kept: Sequence[int]

    def network(self, network: Network) -> Network:
        words = network.weights["word"][list(self.kept)].clone()
        config = replace(network.config, vocabulary=len(self.kept), pad_token=self.kept.index(network.config.pad_token))
        return replace(network, weights=Weights({**network.weights.tensors, "word": words}), config=config)

    def save_tokenizer(self, folder: Path) -> None:
        """Rewrite the tokenizer files that lie in `folder`."""
        content = read_json(folder / "tokenizer.json")
        new = {old: index for index, old in enumerate(self.kept)}
        words: dict[str, int] = content["model"]["vocab"]
        left = {word: new[old] for word, old in words.items() if old in new}
        content["model"]["vocab"] = dict(sorted(left.items(), key=lambda item: item[1]))
        for token in content.get("added_tokens", ()):
            token["id"] = new[token["id"]]
        _renumber_processor(content.get("post_processor"), left)
        (folder / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
        if (folder / "vocab.txt").is_file():
            listed = "".join(f"{word}\n" for word in content["model"]["vocab"])
            (folder / "vocab.txt").write_text(listed, encoding="utf-8")


def _renumber_processor(processor: Any, words: dict[str, int]) -> None:
    """[CLS] and [SEP] stand in the post-processor by number too."""
    if not isinstance(processor, dict):
        return
    if processor.get("type") == "TemplateProcessing":
        for name, token in processor["special_tokens"].items():
            token["ids"] = [words[name]]
    elif processor.get("type") == "BertProcessing":
        for part in ("sep", "cls"):
            processor[part][1] = words[processor[part][0]]
    else:
        raise ModelError(f"a tokenizer with a post-processor {processor.get('type')} cannot be trimmed")


def used_words(folder: Path, rows: Rows, size: int) -> Vocabulary:
    """Special tokens, single letters, and of the rest the words these rows use most, `size` in all."""
    path = folder / "tokenizer.json"
    content = read_json(path) if path.is_file() else {}
    if content.get("model", {}).get("type") != "WordPiece":
        raise ModelError(f"'{folder}' has no word-piece tokenizer: its vocabulary cannot be trimmed")
    words: dict[str, int] = content["model"]["vocab"]
    special = {token["id"] for token in content.get("added_tokens", ())}
    letters = {number for word, number in words.items() if len(word.removeprefix(PIECE)) == 1 and word.isascii()}
    lists = zip(rows.ids.tolist(), rows.lengths.tolist(), strict=True)
    counted = Counter(token for row, length in lists for token in row[:length])
    needed = special | letters
    if size < len(needed):
        raise ModelError(f"a vocabulary of {size} words is too small: {len(needed)} are special tokens and letters")
    ordered = [*sorted(needed), *(token for token, _ in counted.most_common())]
    return Vocabulary(sorted(list(dict.fromkeys(ordered))[:size]))


def trim_encoder(source: Path, out: Path, rows: Rows, words: int | None, half: bool) -> int:
    """A checkpoint with the words of these rows alone, or the `words` most used of them; gives how many. What a language model
    has behind its encoder, a number for every word, is left out."""
    from safetensors.torch import save_file

    settings, config, _ = read_settings(source)
    vocabulary, checkpoint = used_words(source, rows, words or config.vocabulary), Checkpoint(source)
    names = [name for name in checkpoint.names if not (name.startswith(LANGUAGE_MODEL) or name.endswith(COUNTED))]
    tensors = {name: checkpoint.read(name) for name in names}
    table = checkpoint.find(family_named(config.family).stored_names("word"))
    tensors[table] = tensors[table][list(vocabulary.kept)]
    prepare(out)
    copy_tokenizer(source, out)
    vocabulary.save_tokenizer(out)
    stored = {name: (each.half() if half and each.is_floating_point() else each) for name, each in tensors.items()}
    save_file({name: each.contiguous() for name, each in stored.items()}, out / WEIGHTS_FILE, metadata={"format": "pt"})
    sizes = {"vocab_size": len(vocabulary.kept), "pad_token_id": vocabulary.kept.index(config.pad_token)}
    found = {**settings, **{setting_key(settings, key): size for key, size in sizes.items()}}
    (out / "config.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return len(vocabulary.kept)


def trimmed(source: Folder, vocabulary: Vocabulary, out: Path) -> Folder:
    """The model with a smaller table, its tokenizer written to `out`."""
    copy_tokenizer(source.path, out)
    vocabulary.save_tokenizer(out)
    network = vocabulary.network(source.network)
    return Folder(out, source.settings, network, load_tokenizer(out, network.config))
