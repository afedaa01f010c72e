"""Many texts as batches of like lengths, for whoever runs the model over them in the clear: little padding, bounded memory.

texts → tokens (tokens.py) → batches → an observer of the forward pass (plain.py)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from secformer.models.config import ModelConfig
from secformer.models.tokens import Batch, Tokens, encode, pad

MOST_TOKENS = 1024
"""Of a batch, padding included. Attention scores take heads · tokens · length numbers a layer."""


def calibration_tokens(
    tokenizer: Any, config: ModelConfig, texts: Sequence[str], pairs: Sequence[str] | None = None
) -> list[Tokens]:
    """Every text once, what is too long cut. A model with prompts is asked with each of them, so they take turns."""
    prompts = tuple(dict.fromkeys((config.default_prompt, *dict(config.prompts))))
    return encode(tokenizer, config, texts, pairs, cut=True, prompts=prompts)


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
