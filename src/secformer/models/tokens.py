"""From text to padded token ids: all of it happens at the client.

The tokenizer is the checkpoint's own, through `AutoTokenizer`: building `BertTokenizerFast(vocab_file=…)`
by hand gives wrong ids without an error in some versions of transformers. Padding is ours, always on the
right, so that row i of the position table belongs to token i.

The shape of a query is public, so a query is padded on to one of few lengths (16, 24, 32, 48, 64, ...): the length of
its longest text stays secret within a factor of 1.5.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

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

    def to(self, device: torch.device) -> Batch:
        return Batch(self.ids.to(device), self.mask.to(device), self.token_types.to(device))


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


class Tokens(NamedTuple):
    """One text, or pair of texts, as the tokenizer gives it. Secret."""

    ids: list[int]
    types: list[int] | None

    def __repr__(self) -> str:
        return f"Tokens({len(self.ids)}, hidden)"


def encode(
    tokenizer: Any,
    config: ModelConfig,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    max_length: int | None = None,
    cut: bool = False,
    prompts: Sequence[str | None] = (None,),
) -> list[Tokens]:
    """Texts, or pairs of texts, each by itself, prepared as the model's author does: a prompt before it (`prompts` of the
    model by name, in turn; the first of a pair has it), stripped, lowered, cut at `max_tokens`.

    A text longer than `max_length` (by default what the model's position table allows) is an error, unless it may be
    `cut`.
    """
    check_texts(texts, pairs)
    before, limit = [config.prompt(name) for name in prompts], _limit(config, max_length)
    cut_at = min(limit, config.max_tokens or limit) if cut else config.max_tokens
    found, shortened = [], 0
    for index, text in enumerate(texts):
        given = [_prepared(config, before[index % len(before)] + text)]
        given += [_prepared(config, pairs[index])] if pairs is not None else []
        tokens = _encoded(tokenizer, config, index, given)
        if cut_at and len(tokens.ids) > cut_at:
            tokens, shortened = _encoded(tokenizer, config, index, given, cut_at), shortened + 1
        if len(tokens.ids) > limit:
            raise InputError(f"text {index + 1} has {len(tokens.ids)} tokens, {limit} are allowed; shorten or split it")
        found.append(tokens)
    if shortened and not cut:
        _warn_of_cuts(shortened, len(texts), cut_at)
    return found


def _encoded(
    tokenizer: Any, config: ModelConfig, index: int, given: Sequence[str], cut_at: int | None = None
) -> Tokens:
    options = dict(truncation=True, max_length=cut_at) if cut_at else dict(truncation=False)
    encoded = tokenizer(*given, padding=False, verbose=False, return_special_tokens_mask=True, **options)
    if all(encoded["special_tokens_mask"]):
        raise InputError(f"text {index + 1} is empty: the tokenizer finds no token in it")
    return Tokens(encoded["input_ids"], encoded.get("token_type_ids") if config.token_types > 1 else None)


def _warn_of_cuts(count: int, texts: int, length: int) -> None:
    """On this side only: how long a text is stays its owner's secret."""
    warnings.warn(
        f"{count} of {texts} texts are longer than the {length} tokens this model is made for: they are cut there, as "
        "sentence-transformers does",
        stacklevel=4,
    )


def _prepared(config: ModelConfig, text: str) -> str:
    text = text.strip() if config.strip else text
    return text.lower() if config.lower_case else text


def tokenise(
    tokenizer: Any,
    config: ModelConfig,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    max_length: int | None = None,
    pad_to: int | None = None,
    cut: bool = False,
    prompt: str | None = None,
) -> Batch:
    """`encode`d texts as one batch, padded to its longest or to `pad_to`, which none may exceed."""
    limit = _limit(config, max_length, pad_to)
    return pad(encode(tokenizer, config, texts, pairs, max_length=limit, cut=cut, prompts=(prompt,)), config, pad_to)


def pad(rows: Sequence[Tokens], config: ModelConfig, length: int | None = None) -> Batch:
    """Encoded texts side by side, padded on the right."""
    shape = (len(rows), length or max(len(row.ids) for row in rows))
    ids = torch.full(shape, config.pad_token, dtype=torch.int64)
    mask = torch.zeros(shape, dtype=torch.bool)
    token_types = torch.zeros(shape, dtype=torch.int64)
    for index, row in enumerate(rows):
        size = len(row.ids)
        ids[index, :size], mask[index, :size] = torch.tensor(row.ids), True
        if row.types is not None:
            token_types[index, :size] = torch.tensor(row.types)
    if int(token_types.max()) >= max(config.token_types, 1):
        raise ModelError(f"the tokenizer uses token types the model's {config.token_types} rows do not have")
    return Batch(ids, mask, token_types)


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
    longer = torch.nn.functional.pad
    ids = longer(batch.ids, more, value=config.pad_token)
    return Batch(ids, longer(batch.mask, more), longer(batch.token_types, more))


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
