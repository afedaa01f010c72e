"""Many texts as batches of like lengths: little padding, bounded memory.

texts → tokens (tokens.py) → `batched` → an observer of the forward pass in the clear (plain.py)
                           → `sessions`: which texts share a private query
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import cycle, islice
from random import Random
from typing import Any

from secformer.models.config import ModelConfig
from secformer.models.tokens import Batch, Tokens, encode, length_class, pad

MOST_TOKENS = 1024
"""Of a batch, padding included. Attention scores take heads · tokens · length numbers a layer."""
MOST_TOKENS_ON_GPU = 8 * MOST_TOKENS
"""There a batch of either size takes as long as its launches."""


def calibration_tokens(
    tokenizer: Any, config: ModelConfig, texts: Sequence[str], pairs: Sequence[str] | None = None
) -> list[Tokens]:
    """Every text once, what is too long cut. A model with prompts is asked with each of them, so they take turns."""
    prompts = tuple(dict.fromkeys((config.default_prompt, *dict(config.prompts))))
    return encode(tokenizer, config, texts, pairs, cut=True, prompts=prompts)


DOCUMENTS = 2
"""Joined documents of each length that are measured with a calibration's texts."""


def documents(rows: Sequence[Tokens], config: ModelConfig) -> list[Tokens]:
    """The texts joined to documents of half the model's length and of all of it, in an order of their own: what ranges long
    texts have shows in long texts only. (Calibrated with them, 256 sentences held for foreign documents as well.)"""
    longest, shuffle = config.max_tokens or config.positions, Random(0).shuffle
    found, order = [], list(rows)
    for length in (longest // 2, longest) * DOCUMENTS:
        shuffle(order)
        found.append(_joined(order, length))
    return found


def _joined(rows: Sequence[Tokens], length: int) -> Tokens:
    """What lies between the first and last token of each, one after the other, over again if they do not suffice."""
    first, last = rows[0].ids[0], rows[0].ids[-1]
    inner = [
        (token, kind) for row in rows for token, kind in zip(row.ids[1:-1], (row.types or row.ids)[1:-1], strict=True)
    ]
    taken = list(islice(cycle(inner or [(first, 0)]), max(0, length - 2)))
    ids = [first, *(token for token, _ in taken), last]
    types = None if rows[0].types is None else [0, *(kind for _, kind in taken), 0]
    return Tokens(ids[:length], types if types is None else types[:length])


def batched(rows: Iterable[Tokens], config: ModelConfig, most: int = MOST_TOKENS) -> Iterator[Batch]:
    """Short texts first; no batch has more than `most` tokens, unless a single text has."""
    part: list[Tokens] = []
    for row in sorted(rows, key=lambda row: len(row.ids)):
        if part and (len(part) + 1) * len(row.ids) > most:
            yield pad(part, config)
            part = []
        part.append(row)
    if part:
        yield pad(part, config)


def watched(batches: Iterable[Batch], total: int, progress: Callable[[int, int], None]) -> Iterator[Batch]:
    """The same batches; `progress` hears how many texts of all are done, whenever the next one is asked for."""
    done = 0
    for batch in batches:
        progress(done, total)
        yield batch
        done += batch.ids.shape[0]
    progress(done, total)


# -- queries --------------------------------------------------------------------------------------------------------------

MEMORY = 2 << 30
"""Bytes that a server may need for a query, beside the model at rest."""
AHEAD = 256 << 20
"""Of these, what it may have received ahead (settings.receive_buffer)."""
KEPT = 512 << 20
"""What its first queries leave behind for the next ones: digits of weights, buffers, what the allocator does not give back."""
COPIES = 80
"""And of a layer's widest tensor so many, at the peak. Measured over the model at rest, with MiniLM under `exact`: a text of 128
tokens, whose scores are 1.5 MiB, 756 MiB; 8 of them 1569 MiB. tests/end_to_end/test_memory.py measures it again."""
WORD = 8
ALIKE = 2
"""Texts of one session are padded to one length: to this multiple of the shortest one's at the most."""


def query_bytes(config: ModelConfig, texts: int, tokens: int) -> int:
    """The most that a server needs for a query of this shape, beside the model."""
    return (
        AHEAD + KEPT + COPIES * WORD * texts * tokens * max(config.heads * tokens, config.intermediate, config.hidden)
    )


def sessions(
    lengths: Sequence[int], config: ModelConfig, memory: int = MEMORY, *, alike: bool = False, rows: int = 1
) -> list[list[int]]:
    """Which texts, of these `lengths` in tokens and so many `rows` each, share a session: as many as `memory` has room for, and
    at least one.

    All of them, in their order, if they have room. Otherwise, and with `alike` in any case, short ones first.
    """
    longest = max(lengths, default=1)
    if not alike and query_bytes(config, rows * len(lengths), length_class(longest, config.positions)) <= memory:
        return [list(range(len(lengths)))]
    found: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: lengths[index]):
        padded = length_class(lengths[index], config.positions)
        part = found[-1] if found else []
        room = part and query_bytes(config, rows * (len(part) + 1), padded) <= memory
        if room and padded <= ALIKE * length_class(lengths[part[0]], config.positions):
            part.append(index)
        else:
            found.append([index])
    return found
