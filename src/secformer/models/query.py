"""The client's side of a query: what it shares, and what it makes of the result.

Token ids never leave as such. With a private table each id becomes a pair of DPF keys (crypto/dpf.py), a few hundred
bytes a token; if the provider hands the embedding table out instead, the client looks its rows up and shares them.
The padding mask and the token types are shared as bits. The padded length and the batch size are public.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from secformer.crypto import dpf
from secformer.engine.local import share_bits, share_ring
from secformer.engine.values import Bits, Shared, Value
from secformer.models.folding import Static
from secformer.models.job import Card, ModelCard
from secformer.models.tokens import Batch
from secformer.ring.fixed_point import encode
from secformer.ring.gf2 import pack_bits


@dataclass(frozen=True, repr=False)
class Query:
    """Shares of a batch for S0 and S1. The one-hot rows travel as DPF keys."""

    shares: dict[str, tuple[Value, Value]]
    keys: tuple[dpf.DpfKey, dpf.DpfKey] | None

    def expanded(self) -> dict[str, tuple[Value, Value]]:
        """All inputs with the keys evaluated, as the servers do it."""
        if self.keys is None:
            return self.shares
        rows = tuple(Bits(dpf.evaluate(key, key.domain).to(torch.int64), 8) for key in self.keys)
        return {**self.shares, "onehot": (rows[0], rows[1])}


def share_query(card: Card, batch: Batch, words: Tensor | None = None) -> Query:
    """Shares of a batch. `words` is the centred embedding table, where the provider hands it out."""
    shares: dict[str, tuple[Value, Value]] = {"mask": share_bits(batch.mask.to(torch.int64)[..., None])}
    if card.config.token_types > 1:
        shares["types"] = share_bits(batch.token_types[..., None])
    if card.private_table:
        return Query(shares, dpf.keygen(batch.ids.reshape(-1), card.config.vocabulary))
    assert words is not None
    table = card.embedding
    shares["words"] = share_ring(encode(words[batch.ids], table.scale), table.width, table.scale)
    return Query(shares, None)


def plain_query(card: Card, batch: Batch, words: Tensor | None = None) -> dict[str, Value]:
    """The same inputs on plain values, for simulation."""
    values: dict[str, Value] = {"mask": Bits(batch.mask.to(torch.int64)[..., None], 1)}
    if card.config.token_types > 1:
        values["types"] = Bits(batch.token_types[..., None], 1)
    if card.private_table:
        values["onehot"] = Bits(_one_hot(batch.ids.reshape(-1), card.config.vocabulary), 8)
        return values
    assert words is not None
    table = card.embedding
    values["words"] = Shared(encode(words[batch.ids], table.scale), table.width, table.scale)
    return values


def _one_hot(ids: Tensor, vocabulary: int) -> Tensor:
    rows = torch.zeros(len(ids), vocabulary, dtype=torch.uint8)
    rows[torch.arange(len(ids)), ids] = 1
    return pack_bits(rows).to(torch.int64)


def static_shares(folded: dict[str, Static]) -> dict[str, tuple[Value, Value]]:
    """The provider's side: shares of every folded tensor."""
    return {
        name: share_bits(static.ring, static.width)
        if static.boolean
        else share_ring(static.ring, static.width, static.scale)
        for name, static in folded.items()
    }


def finish(card: Card, batch: Batch, raw: Tensor) -> Tensor:
    """From what the servers return to what the model gives: a sentence's sum to its mean, and its norm if asked for.

    (The paper's suites pool and normalise among the servers.)
    """
    config = card.config
    if config.head != "embedding" or not isinstance(card, ModelCard):
        return raw
    pooled = raw if config.pooling == "cls" else raw / batch.lengths[:, None].to(raw.dtype)
    return torch.nn.functional.normalize(pooled, dim=-1) if config.normalise else pooled
