"""The private embedding of a query: word rows by one-hot lookup, positions, token types, and the padding bit as wires.

Token ids are the client's secret, the tables the provider's (protocols/embedding.py has the lookup). Positions are public,
so their rows are plain shares. A token type is a secret bit times the difference of the two type rows; the first type's row
is added to every position at upload.

If the provider hands the word table out instead (`private_table` off), the client looks its rows up itself and shares
them: cheaper, and the client then knows the table.

Rounds 2. The bits of mask and types are opened beside the one-hot rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from secformer.engine.program import InputSpec
from secformer.engine.runtime import Runtime
from secformer.engine.values import (
    Bits,
    Masked,
    MaskedBits,
    Shared,
    Value,
    as_bits,
    as_masked,
    as_masked_bits,
    as_shared,
)
from secformer.models.config import ModelConfig
from secformer.protocols.bits import bit_to_arithmetic
from secformer.protocols.embedding import SelectRows, SignedWords
from secformer.protocols.multiply import matmul, unmask


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


@dataclass(frozen=True)
class Embedding:
    """Tables at `scale` modulo 2^width; a word's entry has `word_bits` bits, sign included."""

    config: ModelConfig
    scale: int
    width: int
    word_bits: int
    private_table: bool = True

    def static_specs(self) -> dict[str, InputSpec]:
        hidden, form = self.config.hidden, (self.width, self.scale)
        specs = {"position": InputSpec("masked", (self.config.positions, hidden), *form)}
        if self.private_table:
            words = -(-hidden * self.word_bits // 64)
            specs["word"] = InputSpec("masked_bits", (self.config.vocabulary, words), 64)
        if self.config.token_types > 1:
            specs["type"] = InputSpec("masked", (1, hidden), *form)
        return specs

    def query_specs(self, batch: int, tokens: int) -> dict[str, InputSpec]:
        specs = {"mask": InputSpec("bits", (batch, tokens, 1), 1)}
        if self.config.token_types > 1:
            specs["types"] = InputSpec("bits", (batch, tokens, 1), 1)
        if self.private_table:
            specs["onehot"] = InputSpec("bits", (batch * tokens, (self.config.vocabulary + 7) // 8), 8)
        else:
            specs["words"] = InputSpec("shared", (batch, tokens, self.config.hidden), self.width, self.scale)
        return specs

    def read(self, runtime: Runtime, inputs: Mapping[str, Value]) -> tuple[Shared, Padding]:
        """The sum of word, position and type rows (batch, n, hidden), and the padding."""
        names = [name for name in ("mask", "types", "onehot") if name in inputs]
        opened = dict(zip(names, runtime.open(*(as_bits(inputs[name]) for name in names)), strict=True))
        share = bit_to_arithmetic(runtime, opened["mask"])
        to_open: dict[str, Shared | Bits] = {"mask": share}
        if "types" in opened:
            to_open["types"] = bit_to_arithmetic(runtime, opened["types"], self.width)
        if self.private_table:
            to_open["rows"] = runtime.bits(SelectRows(), opened["onehot"], as_masked_bits(inputs["word"]))
        wires = dict(zip(to_open, runtime.open(*to_open.values()), strict=True))
        batch, tokens = opened["mask"].shape[:2]
        words = self._words(runtime, wires["rows"], batch) if self.private_table else as_shared(inputs["words"])
        total = words + unmask(runtime, as_masked(inputs["position"])[:tokens])
        if "types" in wires:
            product = matmul(runtime, as_masked(wires["types"]), as_masked(inputs["type"]))
            total = total + Shared(product.share, product.width, self.scale)
        return total, Padding(as_masked_bits(opened["mask"]), as_masked(wires["mask"]), share)

    def _words(self, runtime: Runtime, rows: Value, batch: int) -> Shared:
        gate = SignedWords(self.config.hidden, self.word_bits, self.width)
        numbers = runtime.shared(gate, as_masked_bits(rows))
        return Shared(numbers.share.reshape(batch, -1, self.config.hidden), numbers.width, self.scale)
