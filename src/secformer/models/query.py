"""The client's side of a query: what it shares of a batch.

Token ids never leave as such. With a private table each id becomes a pair of DPF keys (crypto/dpf.py), a few hundred
bytes a token; if the provider hands the embedding table out instead, the client looks its rows up and shares them.
The padding mask and the token types are shared as bits. The padded length and the batch size are public, and so is how many
tokens a language model is asked for; which ones stays secret.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from secformer.crypto import dpf
from secformer.crypto.prg import SEED_BYTES
from secformer.engine.form import Form
from secformer.engine.sharing import Encoded
from secformer.errors import SettingsError
from secformer.models.config import ModelConfig
from secformer.models.embedding import ASKED, MASK, ONE_HOT, PIXELS, TYPES, WORDS, Embedding
from secformer.models.tokens import Batch
from secformer.protocols.lookup import one_hot_rows
from secformer.ring.fixed_point import encode

Keys = tuple[dpf.DpfKey, dpf.DpfKey]


def query_tensors(embedding: Embedding, batch: Batch, words: Tensor | None = None) -> dict[str, Encoded]:
    """All inputs of a query but the token ids. `words` is the embedding table, where the provider hands it out."""
    forms = embedding.query_forms(*batch.shape)
    found = {MASK: Encoded(forms[MASK], batch.mask.to(torch.int64)[..., None])}  # (batch, n, 1)
    if TYPES in forms:
        found[TYPES] = Encoded(forms[TYPES], batch.token_types[..., None])
    if WORDS in forms:
        assert words is not None
        found[WORDS] = Encoded(forms[WORDS], encode(words[batch.ids], embedding.scale))
    if PIXELS in forms:
        assert batch.patches is not None
        found[PIXELS] = Encoded(forms[PIXELS], encode(batch.patches, forms[PIXELS].scale))
    if ASKED in forms:
        found[ASKED] = Encoded(forms[ASKED], encode(_asked_rows(batch), forms[ASKED].scale))
    return found


def _asked_rows(batch: Batch) -> Tensor:
    """(batch, number, n): one-hot rows of the tokens that are asked for; without any, a row of each one's share in the mean."""
    if batch.places is None:
        return (batch.mask.double() / batch.lengths[:, None])[:, None]
    return torch.nn.functional.one_hot(batch.places, batch.ids.shape[1]).double()


def private_query(embedding: Embedding, batch: Batch, words: Tensor | None = None) -> dict[str, Encoded | Keys]:
    """What the client shares: tensors to be split, and keys that stand for the one-hot rows of its ids."""
    found: dict[str, Encoded | Keys] = dict(query_tensors(embedding, batch, words))
    if embedding.private_table:
        found[ONE_HOT] = dpf.keygen(batch.ids.reshape(-1), embedding.config.vocabulary)
    return found


def plain_query(embedding: Embedding, batch: Batch, words: Tensor | None = None) -> dict[str, Encoded]:
    """The same inputs with the one-hot rows themselves, for simulation."""
    found = query_tensors(embedding, batch, words)
    if embedding.private_table:
        form = embedding.query_forms(*batch.ids.shape)[ONE_HOT]
        found[ONE_HOT] = Encoded(form, one_hot_rows(batch.ids.reshape(-1), embedding.config.vocabulary))
    return found


def check_query(config: ModelConfig, batch: int, tokens: int, asked: int = 1) -> None:
    if config.image_size and tokens != config.positions:
        raise SettingsError(f"an image has {config.positions} rows, patches and those before, not {tokens}")
    if not 1 <= tokens <= config.positions:
        raise SettingsError(f"a query has 1 to {config.positions} tokens, not {tokens}")
    if not 1 <= asked <= tokens or (asked > 1 and config.head != "masked"):
        raise SettingsError(f"of {tokens} tokens {asked} cannot be asked for")
    if batch < 1:
        raise SettingsError(f"a query has at least one text, not {batch}")


def client_payload(forms: Mapping[str, Form]) -> int:
    """Bytes of a query's inputs to both servers: keys in the place of one-hot rows, otherwise a seed and a packed share."""
    return sum(
        2 * dpf.key_bytes(8 * form.shape[1], form.shape[0]) if name == ONE_HOT else SEED_BYTES + form.packed_bytes
        for name, form in forms.items()
    )
