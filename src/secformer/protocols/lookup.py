"""Private table lookup: the token ids are the client's secret, the table is the provider's.

The client's DPF keys (crypto/dpf.py) give S0 and S1 XOR shares of one-hot rows e over the vocabulary. They are opened as a
GF(2) wire (one bit per vocabulary word) and multiplied by the table's bit planes B, a static GF(2) wire,

    [eB]_j = j·ê B̂ ⊕ ê[s]_j ⊕ [r]_j B̂ ⊕ [rs]_j = (j·ê ⊕ [r]_j) B̂ ⊕ ê[s]_j ⊕ [rs]_j.

The selected rows' bits are opened under fresh masks and read as arithmetic shares: bit i counts 2^i, the top bit
−2^(w−1), which also lifts to any width.

Rounds 2; each way: vocabulary bits + columns·w bits per token. Dealer: columns·w bits and columns·w ring elements per token.
Safe: the one-hot is opened under its own mask, one fresh bit for each of its bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secformer.engine.form import Form, bits, shared
from secformer.engine.gate import Gate
from secformer.engine.runtime import Runtime
from secformer.engine.values import Bits, MaskedBits, Shared
from secformer.ring.fixed_point import reduce
from secformer.ring.gf2 import combined_words, gf2_matmul


@dataclass(frozen=True)
class SelectRows(Gate[Bits]):
    """One-hot bytes (n, ceil(V/8)) of width 8 times table words (V, words) of width 64, over GF(2)."""

    takes = (MaskedBits, MaskedBits)

    def result(self, one_hot: MaskedBits, table: MaskedBits) -> Form:
        """Return the form of the result."""
        return bits((one_hot.shape[0], table.shape[1]), 64)

    def materials(self, one_hot: MaskedBits, table: MaskedBits) -> tuple[Form, ...]:
        """Return the forms of the values that T shares."""
        return (self.result(one_hot, table),)

    def work(self, one_hot: MaskedBits, table: MaskedBits) -> tuple[int, int]:
        """Count the products of matrix entries and the table words combined."""
        return 0, combined_words(one_hot.shape[0], *table.shape)

    def deal(self, one_hot: MaskedBits, table: MaskedBits) -> Sequence[Tensor]:
        """Compute T's values from the masks."""
        return (gf2_matmul(_bytes(one_hot.mask, table.shape[0]), table.mask),)

    def evaluate(self, party: int, wires: Sequence[MaskedBits], dealt: Sequence[Tensor]) -> Tensor:
        """Compute the output share of S_j."""
        one_hot, table = wires
        own = (
            one_hot.mask ^ one_hot.public if party else one_hot.mask
        )  # combined on this side, because the table may be large
        selected = gf2_matmul(_bytes(own, table.shape[0]), table.public)
        return selected ^ gf2_matmul(_bytes(one_hot.public, table.shape[0]), table.mask) ^ dealt[0]

    def plain(self, one_hot: MaskedBits, table: MaskedBits) -> Tensor:
        """Return the rows themselves if exactly one bit is set in each selector, else the GF(2) product."""
        byte, place = one_hot.public.max(-1)
        if bool((one_hot.public.sum(-1) != byte).any() or (byte & (byte - 1)).any() or (byte == 0).any()):
            return gf2_matmul(_bytes(one_hot.public, table.shape[0]), table.public)
        return table.public[8 * place + byte.to(torch.float64).log2().round().to(torch.int64)]


def _bytes(words: Tensor, rows: int) -> Tensor:
    """Return the bytes of the one-hot, with the mask's bits beyond the table's last row cleared."""
    words = words.clone()
    if rows % 8:
        words[..., -1] &= (1 << (rows % 8)) - 1
    return words.to(torch.uint8)


@dataclass(frozen=True)
class SignedWords(Gate[Shared]):
    """Opened bits (n, columns·bits), packed 64 to a word, as two's complement numbers modulo 2^width (n, columns)."""

    takes = (MaskedBits,)
    columns: int
    bits: int
    width: int
    scale: int

    def result(self, x: MaskedBits) -> Form:
        """Return the form of the result."""
        return shared((x.shape[0], self.columns), self.width, self.scale)

    def materials(self, x: MaskedBits) -> tuple[Form, ...]:
        """Return the forms of the values that T shares."""
        return (shared((x.shape[0], self.columns, self.bits), self.width),)

    def deal(self, x: MaskedBits) -> Sequence[Tensor]:
        """Compute T's values from the masks."""
        return (self._unpack(x.mask),)

    def evaluate(self, party: int, wires: Sequence[MaskedBits], dealt: Sequence[Tensor]) -> Tensor:
        """Compute the output share of S_j."""
        delta = self._unpack(wires[0].public)
        numbers = party * delta + (1 - 2 * delta) * dealt[0]
        return (numbers * self._weights(delta.device)).sum(-1)

    def plain(self, x: MaskedBits) -> Tensor:
        """Compute the result on plain numbers."""
        return (self._unpack(x.public) * self._weights(x.public.device)).sum(-1)

    def _unpack(self, words: Tensor) -> Tensor:
        places = torch.arange(64, device=words.device)
        bits = ((words.unsqueeze(-1) >> places) & 1).flatten(-2)[..., : self.columns * self.bits]
        return bits.unflatten(-1, (self.columns, self.bits))

    def _weights(self, device: torch.device) -> Tensor:
        weights = torch.ones(self.bits, dtype=torch.int64, device=device) << torch.arange(self.bits, device=device)
        weights[-1] = -weights[-1]
        return weights


def table_words(ring: Tensor, size: int) -> Tensor:
    """Return the bits of a table (V, columns) of signed `size`-bit numbers, end to end, 64 to a word: (V, words) int64."""
    rows, columns = ring.shape
    numbers = torch.nn.functional.pad(reduce(ring, size), (0, -columns % 64)).unflatten(1, (-1, 64))
    words = torch.zeros(rows, numbers.shape[1], size, dtype=torch.int64, device=ring.device)
    for place in range(64):  # 64 numbers fill `size` words
        word, shift = divmod(place * size, 64)
        words[..., word] |= numbers[..., place] << shift
        if shift + size > 64:
            words[..., word + 1] |= numbers[..., place] >> (64 - shift)
    return words.flatten(1)[:, : -(-columns * size // 64)].contiguous()


def one_hot_rows(ids: Tensor, vocabulary: int) -> Tensor:
    """Return plain one-hot rows in the servers' layout: (n, ceil(V/8)) words of 8 bits; word v is bit v % 8 of byte v//8."""
    rows = torch.zeros(len(ids), -(-vocabulary // 8), dtype=torch.int64)
    bit = torch.ones_like(ids) << (ids % 8)
    return rows.scatter_(1, (ids // 8).unsqueeze(1), bit.unsqueeze(1))


def lookup(
    runtime: Runtime, one_hot: Bits, table: MaskedBits, columns: int, size: int, scale: int, width: int = 64
) -> Shared:
    """Return rows of the table (n, columns) as shares modulo 2^width, from one-hot bytes (n, ceil(V/8))."""
    (selector,) = runtime.open(one_hot)
    (opened,) = runtime.open(runtime.apply(SelectRows(), selector, table))
    return runtime.apply(SignedWords(columns, size, width, scale), opened)
