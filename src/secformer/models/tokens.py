"""From text to padded token ids: all of it happens at the client.

The tokenizer is the checkpoint's own, through `AutoTokenizer`: building `BertTokenizerFast(vocab_file=…)`
by hand gives wrong ids without an error in some versions of transformers. Padding is ours, always on the
right, so that row i of the position table belongs to token i.

The shape of a query is public, so a query is padded on to one of few lengths (16, 24, 32, 48, 64, ...): the length of
its longest text stays secret within a factor of 1.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from secformer.errors import InputError, ModelError
from secformer.models.config import ModelConfig

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json")


@dataclass(frozen=True, repr=False)
class Batch:
    """Token ids padded to one length. Secret, all but its shape."""

    ids: Tensor  # (sentences, length) int64
    mask: Tensor  # (sentences, length) bool, True for a token, False for padding
    token_types: Tensor  # (sentences, length) int64

    def __repr__(self) -> str:
        return f"Batch({self.ids.shape[0]} sentences of up to {self.ids.shape[1]} tokens)"

    @property
    def lengths(self) -> Tensor:
        return self.mask.sum(-1)


def load_tokenizer(folder: str | Path, config: ModelConfig) -> Any:
    """The checkpoint's tokenizer, refused where it knows tokens the embedding table has no row for."""
    folder = Path(folder)
    if not any((folder / file).is_file() for file in TOKENIZER_FILES):
        raise ModelError(f"'{folder}' has no tokenizer: none of {', '.join(TOKENIZER_FILES)} is there")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a library that raises anything, from KeyError to Rust's own
        raise ModelError(f"the tokenizer in '{folder}' cannot be read: {error}") from None
    rows = max(tokenizer.get_vocab().values(), default=-1) + 1
    if rows <= len(tokenizer.all_special_ids):  # transformers makes up such a tokenizer when it finds half the files
        raise ModelError(f"the tokenizer in '{folder}' is incomplete: it has no words, only special tokens")
    if rows > config.vocabulary:
        raise ModelError(
            f"the tokenizer in '{folder}' has {rows} tokens, the model's table only {config.vocabulary} "
            "rows; it belongs to another model"
        )
    return tokenizer


def tokenise(
    tokenizer: Any,
    config: ModelConfig,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    max_length: int | None = None,
    pad_to: int | None = None,
    cut: bool = False,
) -> Batch:
    """Texts, or pairs of texts, as one batch padded to its longest sentence or to `pad_to`.

    A text longer than `max_length` (by default what the model's position table allows) is an error, unless it may be
    `cut`.
    """
    check_texts(texts, pairs)
    limit = _limit(config, max_length, pad_to)
    lower = str.lower if config.lower_case else str
    options = dict(padding=False, verbose=False, return_special_tokens_mask=True)
    options |= dict(truncation=True, max_length=limit) if cut else dict(truncation=False)
    rows, types = [], []
    for index, text in enumerate(texts):
        pair = lower(pairs[index]) if pairs is not None else None
        encoded = tokenizer(lower(text), pair, **options)
        _check_encoded(index, encoded, limit)
        rows.append(encoded["input_ids"])
        types.append(encoded.get("token_type_ids") if config.token_types > 1 else None)
    return _pad(rows, types, config, pad_to or max(map(len, rows)))


SHORTEST_CLASS = 16


def length_class(length: int, longest: int) -> int:
    """The smallest of 16, 24, 32, 48, 64, 96, ... that holds `length`, but not above `longest`."""
    size = SHORTEST_CLASS
    while size < length:
        size += size // 2 if size & (size - 1) == 0 else size // 3
    return min(size, longest)


def for_query(batch: Batch, config: ModelConfig) -> Batch:
    """The batch as the servers may see its shape: padded on to a class of lengths."""
    length = batch.ids.shape[1]
    more = (0, length_class(length, config.positions) - length)
    pad = torch.nn.functional.pad
    return Batch(pad(batch.ids, more, value=config.pad_token), pad(batch.mask, more), pad(batch.token_types, more))


def _limit(config: ModelConfig, *lengths: int | None) -> int:
    """The longest text allowed: the smallest of the lengths given and the model's own."""
    given = [length for length in lengths if length is not None]
    for length in given:
        if not 1 <= length <= config.positions:
            raise InputError(f"a length of {length} tokens was asked for; the model takes 1 to {config.positions}")
    return min([config.positions, *given])


def check_texts(texts: Sequence[str], pairs: Sequence[str] | None) -> None:
    """Raise InputError unless these are texts, or pairs of texts, with something in each."""
    if isinstance(texts, str) or isinstance(pairs, str):
        raise InputError("texts must be a list of texts, not one text; write [text]")
    if len(texts) == 0:
        raise InputError("no text was given")
    if pairs is not None and len(pairs) != len(texts):
        raise InputError(f"{len(texts)} texts and {len(pairs)} second texts do not go together")
    for what, group in (("text", texts), ("second text", pairs or ())):
        for index, text in enumerate(group):
            _check_text(f"{what} {index + 1}", text)


def _check_text(what: str, text: str) -> None:
    if not isinstance(text, str):
        raise InputError(f"{what} is a {type(text).__name__}, not a string")
    if not text.strip():
        raise InputError(f"{what} is empty")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{what} is not valid Unicode; was it read with the wrong encoding?") from None


def _check_encoded(index: int, encoded: Any, limit: int) -> None:
    length = len(encoded["input_ids"])
    if all(encoded["special_tokens_mask"]):
        raise InputError(f"text {index + 1} is empty: the tokenizer finds no token in it")
    if length > limit:
        raise InputError(f"text {index + 1} has {length} tokens, {limit} are allowed; shorten or split it")


def _pad(rows: list[list[int]], types: list[list[int] | None], config: ModelConfig, length: int) -> Batch:
    shape = (len(rows), length)
    ids = torch.full(shape, config.pad_token, dtype=torch.int64)
    mask = torch.zeros(shape, dtype=torch.bool)
    token_types = torch.zeros(shape, dtype=torch.int64)
    for index, (row, kinds) in enumerate(zip(rows, types, strict=True)):
        ids[index, : len(row)] = torch.tensor(row)
        mask[index, : len(row)] = True
        if kinds is not None:
            token_types[index, : len(row)] = torch.tensor(kinds)
    if int(token_types.max()) >= max(config.token_types, 1):
        raise ModelError(f"the tokenizer uses token types the model's {config.token_types} rows do not have")
    return Batch(ids, mask, token_types)
