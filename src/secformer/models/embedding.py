"""The private embedding of a query: word rows by one-hot lookup, positions, token types, and the padding bit as wires.

Token ids are the client's secret, the tables the provider's (protocols/lookup.py has the lookup). Positions are public,
so their rows are plain shares. A token type is a secret bit times the difference of the two type rows; the first type's row
is added to every position at upload.

If the provider hands the word table out instead (`private_table` off), the client looks its rows up itself and shares
them: cheaper, and the client then knows the table.

Rounds 2. The bits of mask and types are opened beside the one-hot rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from secformer.engine.form import Form, bits, masked, masked_bits, shared
from secformer.engine.runtime import Runtime
from secformer.engine.values import Bits, Masked, MaskedBits, Shared, Value, joined, need
from secformer.models.config import ModelConfig
from secformer.models.statics import Source, Static
from secformer.protocols.bits import bit_to_arithmetic
from secformer.protocols.lookup import SelectRows, SignedWords, table_words
from secformer.protocols.multiply import matmul, unmask
from secformer.ring.fixed_point import encode

MASK, TYPES, ONE_HOT, WORDS, ASKED, PIXELS = "mask", "types", "one_hot", "words", "asked", "pixels"
"""What the client brings: padding bits, token types, and one-hot rows or (if it knows the table) word rows; and if the head
needs to know them, which tokens it is asked for. Of an image: the patches' pixels."""

ROWS_AT_ONCE = 2048
"""Words of a table whose bits are laid out together."""

MEAN_SCALE = 20
"""Fraction bits of a token's share in a mean."""


@dataclass(frozen=True)
class Padding:
    """The client's mask in every form an encoder needs; m = 1 for a real token."""

    gate: MaskedBits  # (batch, n, 1), opened bit, for gated functions
    column: Masked  # (batch, n, 1), wire at scale 0
    share: Shared  # (batch, n, 1), scale 0

    @property
    def keys(self) -> Shared:
        """(batch, 1, 1, n)."""
        return self.share.map(lambda tensor: tensor.squeeze(-1)[:, None, None, :])

    @property
    def rows(self) -> Shared:
        """(batch, 1, n, 1), to tell simulation which query rows count."""
        return self.share.map(lambda tensor: tensor[:, None])


def open_padding(runtime: Runtime, gate: MaskedBits, *others: Shared | Bits) -> tuple[Padding, tuple[Value, ...]]:
    """The padding from its opened bit; `others` are opened in the same round and come back as wires."""
    share = bit_to_arithmetic(runtime, gate)
    column, *wires = runtime.open(share, *others)
    return Padding(gate, need(column, Masked), share), tuple(wires)


@dataclass(frozen=True)
class Embedding:
    """Tables at `scale` modulo 2^width; a word's entry has `word_bits` bits, sign included. `centred`: rows are uploaded
    less their mean, for a LayerNorm that expects it."""

    config: ModelConfig
    scale: int
    width: int
    word_bits: int
    private_table: bool = True
    centred: bool = False

    def statics(self) -> dict[str, Static]:
        hidden = self.config.table_size
        table: dict[str, Static] = {}
        if self.config.position_rows:
            form = masked((self.config.positions, hidden), self.width, self.scale)
            table["position"] = Static(form, self._positions)
        if self.private_table:
            form = masked_bits((self.config.vocabulary, -(-hidden * self.word_bits // 64)))
            table["word"] = Static(form, self._word_planes)
        if self.config.token_types > 1:
            table["type"] = Static(masked((1, hidden), self.width, self.scale), self._type_step)
        return table

    def words(self, source: Source) -> Tensor:
        """The word table in real numbers (vocabulary, table_size)."""
        return self._prepared(source, source.weights["word"].double())

    def _word_planes(self, source: Source) -> Tensor:
        """Some rows at a time: 250,000 words of 768 numbers would be 29 GB as bits of a word each."""
        blocks = source.weights["word"].split(ROWS_AT_ONCE)
        numbers = (encode(self._prepared(source, rows.double()), self.scale, self.word_bits) for rows in blocks)
        return torch.cat([table_words(rows, self.word_bits) for rows in numbers])

    def _positions(self, source: Source) -> Tensor:
        rows = source.weights["position"].double()
        first = source.weights["token_type"][0].double() if self.config.token_types else 0.0
        return self._prepared(source, rows + first)

    def _type_step(self, source: Source) -> Tensor:
        types = source.weights["token_type"].double()
        return self._prepared(source, types[1] - types[0])[None]

    def _prepared(self, source: Source, rows: Tensor) -> Tensor:
        return source.embedding_factor * (rows - rows.mean(-1, keepdim=True) if self.centred else rows)

    @property
    def asked_scale(self) -> int | None:
        """Of the rows that say which tokens a head takes, one-hot or shares in a mean; None where it needs none."""
        if self.config.head == "masked":
            return 0
        return MEAN_SCALE if self.config.shares_in_mean else None

    def query_forms(self, batch: int, tokens: int, asked: int = 1) -> dict[str, Form]:
        """What the client brings."""
        found = {MASK: bits((batch, tokens, 1))}
        if self.asked_scale is not None:
            found[ASKED] = shared((batch, asked, tokens), scale=self.asked_scale)
        if self.config.token_types > 1:
            found[TYPES] = bits((batch, tokens, 1))
        if self.private_table:
            found[ONE_HOT] = bits((batch * tokens, -(-self.config.vocabulary // 8)), 8)
        else:
            found[WORDS] = shared((batch, tokens, self.config.table_size), self.width, self.scale)
        return found

    def read(self, runtime: Runtime, inputs: Mapping[str, Value]) -> tuple[Shared, Padding]:
        """The sum of word, position and type rows (batch, n, table_size), and the padding."""
        names = [name for name in (MASK, TYPES, ONE_HOT) if name in inputs]
        opened = dict(zip(names, runtime.open(*(need(inputs[name], Bits) for name in names)), strict=True))
        others: dict[str, Shared | Bits] = {}
        if TYPES in opened:
            others[TYPES] = bit_to_arithmetic(runtime, opened[TYPES], self.width)
        if self.private_table:
            others["rows"] = runtime.apply(SelectRows(), opened[ONE_HOT], need(inputs["word"], MaskedBits))
        padding, opened_others = open_padding(runtime, opened[MASK], *others.values())
        wires = dict(zip(others, opened_others, strict=True))
        batch, tokens = padding.gate.shape[:2]
        words = self._words(runtime, wires["rows"], batch) if self.private_table else need(inputs[WORDS], Shared)
        total = words
        if "position" in inputs:
            total = total + unmask(runtime, need(inputs["position"], Masked)[:tokens])
        if TYPES in wires:
            product = matmul(runtime, need(wires[TYPES], Masked), need(inputs["type"], Masked))
            total = total + product
        return total, padding

    def _words(self, runtime: Runtime, rows: Value, batch: int) -> Shared:
        gate = SignedWords(self.config.table_size, self.word_bits, self.width, self.scale)
        numbers = runtime.apply(gate, need(rows, MaskedBits))  # (batch · n, table_size)
        return numbers.map(lambda tensor: tensor.reshape(batch, -1, self.config.table_size))


PIXEL_SCALE, PATCH_SCALE = 12, 14
"""Fraction bits of pixels, and of the map of patches."""


@dataclass(frozen=True)
class PatchEmbedding(Embedding):
    """An image: its patches are the client's secret, their map the provider's. One product; nothing is looked up.

    The map's bias is added to the positions, and so are the rows before the patches. All rows of an image are real.
    """

    private_table: bool = False

    @property
    def _pixel_width(self) -> int:
        return self.width + PIXEL_SCALE + PATCH_SCALE - self.scale

    def statics(self) -> dict[str, Static]:
        hidden = self.config.hidden
        patch = masked((self.config.patch_numbers, hidden), self._pixel_width, PATCH_SCALE)
        rows = masked((self.config.positions, hidden), self.width, self.scale)
        return {
            "patch": Static(
                patch, lambda source: self._prepared(source, source.weights.linear("patch").weight.double())
            ),
            "position": Static(rows, self._rows),
        }

    def _rows(self, source: Source) -> Tensor:
        weights = source.weights
        first = [weights[name].double() for name in ("first", "second") if name in weights]
        bias = weights.linear("patch").bias.double().expand(self.config.patches, -1)
        return self._prepared(source, weights["position"].double() + torch.cat([*first, bias]))

    def query_forms(self, batch: int, tokens: int, asked: int = 1) -> dict[str, Form]:
        shape = (batch, self.config.patches, self.config.patch_numbers)
        return {MASK: bits((batch, tokens, 1)), PIXELS: shared(shape, self._pixel_width, PIXEL_SCALE)}

    def read(self, runtime: Runtime, inputs: Mapping[str, Value]) -> tuple[Shared, Padding]:
        pixels, gate = runtime.open(need(inputs[PIXELS], Shared), need(inputs[MASK], Bits))
        product = matmul(runtime, need(pixels, Masked), need(inputs["patch"], Masked))  # (batch, patches, hidden)
        padding, _ = open_padding(runtime, need(gate, MaskedBits))
        patches = runtime.drop_to(product, self.scale)
        first = patches[:, :1].map(lambda tensor: torch.zeros_like(tensor).expand(-1, self.config.first_rows, -1))
        rows = joined([first, patches], 1) + unmask(runtime, need(inputs["position"], Masked))
        return rows, padding


def embedding_of(
    config: ModelConfig, scale: int, width: int, word_bits: int, private_table: bool, centred: bool = False
) -> Embedding:
    """Of texts or of images."""
    if config.image_size:
        return PatchEmbedding(config, scale, width, word_bits, centred=centred)
    return Embedding(config, scale, width, word_bits, private_table, centred)
