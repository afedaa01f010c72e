"""Whole models in the catalogue: a job carries the model's card (shape and calibration), the batch and the length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from secformer.engine.program import InputSpec, Program
from secformer.errors import InputError
from secformer.models.config import ModelConfig
from secformer.models.job import card_from_json, check_query
from secformer.models.layer_job import layer_program
from secformer.parties.catalogue import read_parameters

Size = Annotated[int, Meta(ge=1, le=1 << 16)]

TOKENS_LIMIT = 1 << 15
SCORES_LIMIT = 1 << 27
"""Tokens and attention scores of a layer in one query (64 texts of 512 tokens, 42 for 12 heads): a job of a hundred bytes
must not make three servers trace for hours."""


class EncoderParameters(Struct, frozen=True, forbid_unknown_fields=True):
    card: Annotated[str, Meta(max_length=1 << 20)]
    batch: Size
    tokens: Size


def encoder(given: Mapping[str, Any], stored: Mapping[str, InputSpec]) -> Program:
    """A query to an encoder whose weights are stored."""
    wanted = read_parameters(EncoderParameters, given)
    card = card_from_json(wanted.card)
    _check_size(card.config, wanted.batch, wanted.tokens)
    if card.static_specs() != dict(stored):
        raise InputError("the stored model is not the one this query describes: upload it anew")
    return card.query_program(wanted.batch, wanted.tokens)


def layer(given: Mapping[str, Any], stored: Mapping[str, InputSpec]) -> Program:
    """One layer of a stored model, for benchmarks."""
    wanted = read_parameters(EncoderParameters, given)
    card = card_from_json(wanted.card)
    _check_size(card.config, wanted.batch, wanted.tokens)
    return layer_program(card, wanted.batch, wanted.tokens)


def _check_size(config: ModelConfig, batch: int, tokens: int) -> None:
    check_query(config, batch, tokens)
    if batch * tokens > TOKENS_LIMIT or batch * tokens * tokens * config.heads > SCORES_LIMIT:
        raise InputError(f"{batch} texts of {tokens} tokens are too many for one query: send several")
