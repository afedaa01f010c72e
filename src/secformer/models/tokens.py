"""From text to padded token ids: all of it happens at the client.

The tokenizer is the checkpoint's own, through `AutoTokenizer`: building `BertTokenizerFast(vocab_file=…)`
by hand gives wrong ids without an error in some versions of transformers. Padding is ours, always on the
right, so that row i of the position table belongs to token i.

The shape of a query is public, so a query is padded on to one of few lengths (16, 24, 32, 48, 64, ...): the length of
its longest text stays secret within a factor of 1.5.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from secformer.errors import InputError, ModelError
from secformer.models.config import ModelConfig

Pairs = Sequence[str] | Sequence[Sequence[str]]
"""A second text for each; for a model that chooses, several."""

IMAGE_FILE = "preprocessor_config.json"
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json")


class Context(NamedTuple):
    """A text that answers are taken from. Secret."""

    text: str
    places: list[tuple[int, int] | None]
    """By token: its first character and the one behind its last; None outside the text."""

    def __repr__(self) -> str:
        return "Context(hidden)"


class Piece(NamedTuple):
    """A token that stands for a part of the text. Secret."""

    index: int  # among the tokens of its row
    word: str
    start: int
    end: int
    second: bool  # of the second text of a pair

    def __repr__(self) -> str:
        return f"Piece({self.index}, hidden)"


class Pieces(NamedTuple):
    """The tokens of a row that are no special ones, and how to make a word of several."""

    of: tuple[Piece, ...]
    join: Callable[[list[str]], str]

    def __repr__(self) -> str:
        return f"Pieces({len(self.of)}, hidden)"


@dataclass(frozen=True, repr=False)
class Batch:
    """Token ids padded to one length. Secret, all but its shape."""

    ids: Tensor  # (sentences, length) int64
    mask: Tensor  # (sentences, length) bool, True for a token, False for padding
    token_types: Tensor  # (sentences, length) int64
    pieces: tuple[Pieces, ...] = ()  # by row, for a token classifier
    places: Tensor | None = None  # (sentences, number) int64: the tokens that a language model is asked for
    contexts: tuple[Context, ...] = ()  # where the answers to questions may lie
    choices: int = 0  # of every question: rows that belong together
    patches: Tensor | None = None  # (images, patches, numbers), where there are images and no ids

    def __repr__(self) -> str:
        return f"Batch({self.ids.shape[0]} sentences of up to {self.ids.shape[1]} tokens)"

    @property
    def lengths(self) -> Tensor:
        return self.mask.sum(-1)

    @property
    def shape(self) -> tuple[int, int, int]:
        """What is public: sentences, their padded length, and how many tokens of each a language model is asked for."""
        sentences, length = self.ids.shape
        return sentences, length, 1 if self.places is None else self.places.shape[1]

    def to(self, device: torch.device) -> Batch:
        ids, mask, token_types = self.ids.to(device), self.mask.to(device), self.token_types.to(device)
        places, patches = (None if part is None else part.to(device) for part in (self.places, self.patches))
        return replace(self, ids=ids, mask=mask, token_types=token_types, places=places, patches=patches)


def load_tokenizer(folder: str | Path, config: ModelConfig) -> Any:
    """The checkpoint's tokenizer, refused where it knows tokens the embedding table has no row for."""
    folder = Path(folder)
    if config.image_size:
        return load_image_processor(folder, config)
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


def load_image_processor(folder: Path, config: ModelConfig) -> Any:
    """What makes pixels of an image, as the checkpoint's author does."""
    if not (folder / IMAGE_FILE).is_file():
        raise ModelError(
            f"'{folder}' has no '{IMAGE_FILE}': it says how an image becomes {config.image_size} pixels square"
        )
    from transformers import AutoImageProcessor

    try:
        return AutoImageProcessor.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # as above
        raise ModelError(f"the image processor in '{folder}' cannot be read: {error}") from None


def encode_images(processor: Any, config: ModelConfig, images: Iterable[Any]) -> list[Tokens]:
    """Images (arrays of bytes, height by width by channels, or of PIL) as patches, row by row."""
    images = list(images)
    if not images or any(isinstance(image, str) for image in images):
        raise InputError("this model takes images: give a list of arrays (height, width, channels) or PIL images")
    try:
        pixels = processor(images=images, return_tensors="pt")["pixel_values"]
    except Exception as error:  # its text may hold the pixels themselves
        raise InputError(
            f"an image cannot be read ({type(error).__name__}): give a list of arrays (height, width, channels) or PIL images"
        ) from None
    wanted = (config.channels, config.image_size, config.image_size)
    if tuple(pixels.shape[1:]) != wanted:
        raise ModelError(f"the image processor gives {tuple(pixels.shape[1:])} numbers, the model takes {wanted}")
    return [
        Tokens([0] * config.positions, None, patches=rows) for rows in patches_of(pixels.double(), config.patch_size)
    ]


def patches_of(pixels: Tensor, size: int) -> Tensor:
    """(images, channels, side, side) → (images, patches, channels · size²)."""
    cut = pixels.unfold(2, size, size).unfold(3, size, size)  # (images, channels, rows, columns, size, size)
    return cut.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


class Tokens(NamedTuple):
    """One text, or pair of texts, as the tokenizer gives it. Secret."""

    ids: list[int]
    types: list[int] | None
    pieces: Pieces | None = None
    """For a model that classifies tokens."""
    places: list[int] | None = None
    """Of mask tokens, for a language model."""
    context: Context | None = None
    """For a model that answers questions."""
    choices: int = 0
    """For a model that chooses: how many rows, this one among them, belong to one question."""
    patches: Tensor | None = None
    """Of an image: (patches, numbers), for as many ids that mean nothing."""

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
    on_cut: Callable[[int, int], None] = lambda count, length: None,
    prompts: Sequence[str | None] = (None,),
) -> list[Tokens]:
    """Texts, or pairs of texts, each by itself, prepared as the model's author does: a prompt before it (`prompts` of the
    model by name, in turn; the first of a pair has it), stripped, lowered, cut at `max_tokens`.

    A text longer than `max_length` (by default what the model's position table allows) is an error, unless it may be
    `cut`; `on_cut` then hears how many were, and where.
    """
    if config.image_size:
        return encode_images(tokenizer, config, texts)
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
    if shortened and cut:
        on_cut(shortened, cut_at or limit)
    elif shortened:
        _warn_of_cuts(shortened, len(texts), cut_at)
    return found


def prepared(
    tokenizer: Any,
    config: ModelConfig,
    texts: Iterable[Any],
    pairs: Iterable[Any] | None = None,
    prompt: str | None = None,
    truncate: bool = False,
) -> list[Tokens]:
    """`asked` for whoever has any iterables of texts; how many were cut is said in a warning."""
    if config.image_size:
        return encode_images(tokenizer, config, texts)
    first, second = listed(texts), None if pairs is None else listed(pairs)

    def tell(count: int, length: int) -> None:
        warnings.warn(f"{count} of {len(first)} texts were cut at {length} tokens", stacklevel=5)

    return asked(tokenizer, config, first, second, cut=truncate, on_cut=tell, prompts=(prompt,))


def asked(
    tokenizer: Any, config: ModelConfig, texts: Sequence[Any], pairs: Pairs | None = None, **options: Any
) -> list[Tokens]:
    """`encode`d texts as the model's head takes them: a model that chooses takes several second texts for each, one that
    answers questions a second text to answer from, a language model texts with mask tokens, a model of images images."""
    texts, pairs, choices = _rows(config, texts, pairs)
    rows = encode(tokenizer, config, texts, pairs, **options)
    if config.head == "masked":
        _check_masked(tokenizer, rows)
    return [row._replace(choices=choices) for row in rows] if choices else rows


def listed(texts: Iterable[Any]) -> list[Any]:
    """Any iterable of texts, generators too; one text is none."""
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise InputError(f"texts must be a list of texts, not one {type(texts).__name__}; write [text]")
    return list(texts)


def _encoded(
    tokenizer: Any, config: ModelConfig, index: int, given: Sequence[str], cut_at: int | None = None
) -> Tokens:
    options: dict[str, Any] = dict(truncation=True, max_length=cut_at) if cut_at else dict(truncation=False)
    located, answered = config.head == "tokens" and tokenizer.is_fast, config.head == "question" and len(given) == 2
    options |= dict(return_special_tokens_mask=True, return_offsets_mapping=located or answered)
    encoded = tokenizer(*given, padding=False, verbose=False, **options)
    ids, masked = encoded["input_ids"], config.head == "masked"
    places = [place for place, token in enumerate(ids) if token == tokenizer.mask_token_id] if masked else None
    if all(encoded["special_tokens_mask"]) and not places:
        raise InputError(f"text {index + 1} is empty: the tokenizer finds no token in it")
    return Tokens(
        ids,
        encoded.get("token_type_ids") if config.token_types > 1 else None,
        pieces=_pieces(tokenizer, encoded, given) if located else None,
        places=places,
        context=Context(given[1], _places_in_second(encoded)) if answered else None,
    )


def _places_in_second(encoded: Any) -> list[tuple[int, int] | None]:
    found = zip(encoded["offset_mapping"], encoded.sequence_ids(), strict=True)
    return [tuple(place) if sequence == 1 else None for place, sequence in found]


def _pieces(tokenizer: Any, encoded: Any, given: Sequence[str]) -> Pieces:
    """Where in the text each token comes from; an unknown word is shown as it stands there."""
    found = []
    names, parts = tokenizer.convert_ids_to_tokens(encoded["input_ids"]), encoded.sequence_ids()
    for index, (start, end) in enumerate(encoded["offset_mapping"]):
        if not encoded["special_tokens_mask"][index]:
            part = parts[index] or 0
            unknown = encoded["input_ids"][index] == tokenizer.unk_token_id
            found.append(Piece(index, given[part][start:end] if unknown else names[index], start, end, part == 1))
    return Pieces(tuple(found), tokenizer.convert_tokens_to_string)


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
    pairs: Pairs | None = None,
    max_length: int | None = None,
    pad_to: int | None = None,
    cut: bool = False,
    prompt: str | None = None,
) -> Batch:
    """`asked` texts as one batch, padded to its longest or to `pad_to`, which none may exceed."""
    limit = _limit(config, max_length, pad_to)
    return pad(asked(tokenizer, config, texts, pairs, max_length=limit, cut=cut, prompts=(prompt,)), config, pad_to)


def _rows(
    config: ModelConfig, texts: Sequence[str], pairs: Pairs | None
) -> tuple[Sequence[str], Sequence[str] | None, int]:
    """Texts and second texts row by row, and how many rows a question has."""
    if config.head == "question" and pairs is None:
        raise InputError("this model answers questions from a text: give the texts as second texts (pairs)")
    if config.head != "choice":
        return texts, pairs, 0  # type: ignore[return-value]
    numbers = {0 if isinstance(choices, str) else len(choices) for choices in pairs or ()}
    if pairs is None or len(numbers) != 1 or numbers == {0} or len(pairs) != len(texts):
        raise InputError(
            "this model chooses: give for each text, as its second text, a list of choices, as many each time"
        )
    (number,) = numbers
    return [text for text in texts for _ in range(number)], [choice for row in pairs for choice in row], number


def _check_masked(tokenizer: Any, rows: Sequence[Tokens]) -> None:
    for index, row in enumerate(rows):
        if not row.places:
            raise InputError(f"text {index + 1} has no {tokenizer.mask_token}: put one where a word is to be found")


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
    pieces = tuple(row.pieces for row in rows if row.pieces is not None)
    contexts = tuple(row.context for row in rows if row.context is not None)
    return Batch(
        ids,
        mask,
        token_types,
        pieces=pieces if len(pieces) == len(rows) else (),
        places=_asked_places(rows),
        contexts=contexts,
        choices=rows[0].choices,
        patches=torch.stack([row.patches for row in rows if row.patches is not None]) if config.image_size else None,
    )


def _asked_places(rows: Sequence[Tokens]) -> Tensor | None:
    """As many for each row as the fullest has: a row with fewer is asked for its first again."""
    if not all(row.places for row in rows):
        return None
    places = [row.places or [] for row in rows]
    number = max(map(len, places))
    return torch.tensor([row + row[:1] * (number - len(row)) for row in places])


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
    return replace(batch, ids=ids, mask=longer(batch.mask, more), token_types=longer(batch.token_types, more))


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
