"""Examples as token ids, and the batches of an epoch.

Rows of like length go together, so that little is padding, and a batch is padded to one of few lengths (16, 24, 32, 48, …),
so that a GPU sees few shapes. The order is a function of seed and epoch alone: a run that was killed finds its place
again. All rows lie on the device; a batch is chosen there by its places, without the host waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from secformer.models.config import ModelConfig
from secformer.models.tokens import Batch, length_class, tokenise
from secformer.training.examples import Examples

SORTED_TOGETHER = 50
"""Batches whose rows are sorted by length among themselves: chance between them, like lengths inside."""


class Places(NamedTuple):
    """One batch of an epoch: which rows, padded to how many tokens."""

    rows: Tensor  # (batch,) int64
    length: int


@dataclass(frozen=True, repr=False)
class Rows:
    """Token ids of many texts, padded to the longest, and what a model should answer."""

    ids: Tensor  # (examples, longest) int32
    types: Tensor  # (examples, longest) int32
    lengths: Tensor  # (examples,) int64
    targets: Tensor  # (examples,) float32: a label's place or a score

    def __repr__(self) -> str:
        return f"Rows({len(self)} examples)"

    def __len__(self) -> int:
        return len(self.targets)

    def to(self, device: str | torch.device) -> Rows:
        return Rows(*(part.to(device) for part in (self.ids, self.types, self.lengths, self.targets)))

    def chosen(self, places: Tensor) -> Rows:
        return Rows(*(part[places] for part in (self.ids, self.types, self.lengths, self.targets)))

    def select(self, places: Places) -> tuple[Batch, Tensor]:
        """The batch and its targets; no more of a row than `length` tokens."""
        ids = self.ids[places.rows, : places.length].long()
        types = self.types[places.rows, : places.length].long()
        columns = torch.arange(places.length, device=ids.device)
        return Batch(ids, columns < self.lengths[places.rows, None], types), self.targets[places.rows]


def joined(parts: Sequence[Rows]) -> Rows:
    """One after the other, padded to the longest of them."""
    longest = max(part.ids.shape[1] for part in parts)

    def wide(tokens: Tensor) -> Tensor:
        return functional.pad(tokens, (0, longest - tokens.shape[1]))

    return Rows(
        torch.cat([wide(part.ids) for part in parts]),
        torch.cat([wide(part.types) for part in parts]),
        torch.cat([part.lengths for part in parts]),
        torch.cat([part.targets for part in parts]),
    )


def encode(tokenizer: Any, config: ModelConfig, examples: Examples, longest: int) -> Rows:
    """Texts cut to `longest` tokens, or to as many as the model takes."""
    most = min(longest, config.positions)
    batch = tokenise(tokenizer, config, examples.texts, examples.pairs, max_length=most, cut=True)
    targets = torch.tensor(examples.targets, dtype=torch.float32)
    return Rows(batch.ids.int(), batch.token_types.int(), batch.lengths, targets)


def epoch_batches(lengths: Tensor, batch: int, longest: int, seed: int, epoch: int) -> list[Places]:
    """All rows once, in batches of exactly `batch`; the few that are left over stay out, others every epoch.

    `lengths` are on the CPU, and so are the places.
    """
    generator = torch.Generator().manual_seed(1_000_003 * seed + epoch)
    order = torch.randperm(len(lengths), generator=generator)
    batch = min(batch, len(order))
    found = []
    for chunk in order[: len(order) // batch * batch].split(SORTED_TOGETHER * batch):
        ordered = chunk[lengths[chunk].argsort(stable=True)]
        found += [_places(rows, lengths, longest) for rows in ordered.split(batch)]
    shuffled = torch.randperm(len(found), generator=generator).tolist()
    return [found[index] for index in shuffled]


def in_order(lengths: Tensor, batch: int, longest: int) -> list[Places]:
    """Every row once, the shortest first, for evaluation."""
    return [_places(rows, lengths, longest) for rows in lengths.argsort(stable=True).split(batch)]


def _places(rows: Tensor, lengths: Tensor, longest: int) -> Places:
    return Places(rows, length_class(int(lengths[rows].max()), longest))


def batches_of(rows: Rows, batch: int, config: ModelConfig, limit: int | None = None) -> Sequence[Batch]:
    """The rows, or the first `limit` of them, as batches for `plain.forward`."""
    lengths = rows.lengths[:limit].cpu()
    places = in_order(lengths, batch, min(rows.ids.shape[1], config.positions))
    return [rows.select(Places(some.rows.to(rows.ids.device), some.length))[0] for some in places]
