"""Distributed point functions: a private one-hot vector as two short keys.

Boyle, Gilboa, Ishai, "Function Secret Sharing: Improvements and Extensions" (CCS 2016), with their early
termination. The client turns a token alpha into two keys; each server expands its own into one bit for every
word of the vocabulary, and the XOR of the two expansions is 1 at alpha and 0 elsewhere. One key alone is
pseudorandom: it says nothing about alpha.

A binary tree carries a seed s (128 bits) and a control bit t in every node. Off the path to alpha both
servers hold the same (s, t), which cancel; on it the seeds are independent and the bits differ. The generator
G expands a node into its two children, and the correction word of a level, the same in both keys, repairs the
child that leaves the path:

    (s_L, t_L, s_R, t_R) = G(s) xor t * (s_CW, t_CW^L, s_CW, t_CW^R)
    s_CW   = s0_lose xor s1_lose
    t_CW^L = t0_L xor t1_L xor alpha_i xor 1
    t_CW^R = t0_R xor t1_R xor alpha_i

The tree ends 7 levels early: a leaf is a block of 128 output bits, Convert(s) xor t * CW, with
CW = Convert(s0) xor Convert(s1) xor (the one-hot of alpha modulo 128).

G is the Matyas-Meyer-Oseas compression H(x) = AES(x) xor x: a seed's lowest bit is kept 0, its children are
H(s) and H(s xor 1), and the lowest bit of each becomes the control bit. Convert(s) = H(s); a leaf is never
expanded, so no input of H serves twice. AES has one key for all tokens of a call, a public random salt
(16 bytes in both keys), so tables computed in advance, or for another batch, help nobody. A level is one AES
call.

A key takes 32 + 17 * levels bytes a token: 168 for 30,522 words, 185 for 50,265.
"""

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from secformer.errors import DtypeError, FrameError, InputError, RangeError, ShapeError

BLOCK_BYTES = 16
BLOCK_BITS = 128
DOMAIN_LIMIT = 1 << 31
_HEADER = struct.Struct("<4sB3xII16s")  # magic, party, domain, count, salt: 32 bytes, so words stay aligned
_MAGIC = b"DPF1"
_WORD = np.dtype("<u8")
_ONE = np.uint64(1)
# Tokens expanded in one go: the widest level of 64 tokens and 50,265 words, 0.4 MB, stays in the cache.
_TOKENS_TOGETHER = 64


def levels_of(domain: int) -> int:
    """Levels of the tree over the blocks of a domain."""
    return (_blocks_of(domain) - 1).bit_length()


def _blocks_of(domain: int) -> int:
    if not 0 < domain <= DOMAIN_LIMIT:
        raise RangeError(f"the domain of a point function has 1 to 2^31 elements, not {domain}")
    return -(-domain // BLOCK_BITS)


@dataclass(frozen=True, repr=False, eq=False)
class DpfKey:
    """One server's keys for `count` tokens; words are little endian pairs of 64 bits."""

    party: int
    domain: int
    salt: bytes  # public, the same in both keys
    roots: np.ndarray  # (count, 2)
    seed_corrections: np.ndarray  # (levels, count, 2), s_CW
    bit_corrections: np.ndarray  # (levels, count) uint8, t_CW^L + 2 * t_CW^R
    block_corrections: np.ndarray  # (count, 2), CW

    @property
    def count(self) -> int:
        return self.roots.shape[0]

    def __repr__(self) -> str:
        return f"DpfKey(party={self.party}, count={self.count}, domain={self.domain}, hidden)"

    def to_bytes(self) -> bytes:
        header = _HEADER.pack(_MAGIC, self.party, self.domain, self.count, self.salt)
        arrays = (self.roots, self.seed_corrections, self.bit_corrections, self.block_corrections)
        return header + b"".join(array.tobytes() for array in arrays)

    @classmethod
    def from_bytes(cls, content: bytes | bytearray | memoryview) -> "DpfKey":
        """The inverse of `to_bytes`; the length is checked before anything is allocated."""
        party, domain, count, salt = _read_header(content)
        levels = levels_of(domain)
        body = np.frombuffer(bytes(content), np.uint8, offset=_HEADER.size)
        roots, seeds, bits, blocks = np.split(body, np.cumsum(_array_sizes(levels, count))[:-1])
        if bits.size and bits.max() > 3:
            raise FrameError("a point function's key holds control bits that are no bits")
        return cls(
            party,
            domain,
            salt,
            roots.view(_WORD).reshape(count, 2),
            seeds.view(_WORD).reshape(levels, count, 2),
            bits.reshape(levels, count),
            blocks.view(_WORD).reshape(count, 2),
        )


def _array_sizes(levels: int, count: int) -> list[int]:
    """Bytes of roots, seed corrections, bit corrections, block corrections."""
    return [BLOCK_BYTES * count, BLOCK_BYTES * levels * count, levels * count, BLOCK_BYTES * count]


def key_bytes(domain: int, count: int) -> int:
    """Bytes one server receives for `count` tokens."""
    return _HEADER.size + sum(_array_sizes(levels_of(domain), count))


def _read_header(content: bytes | bytearray | memoryview) -> tuple[int, int, int, bytes]:
    if len(content) < _HEADER.size:
        raise FrameError(f"a point function's key is truncated: {len(content)} bytes, header {_HEADER.size}")
    magic, party, domain, count, salt = _HEADER.unpack_from(content)
    if magic != _MAGIC or party > 1 or count == 0 or not 0 < domain <= DOMAIN_LIMIT:
        raise FrameError("a point function's key has a malformed header; are both sides of the same version?")
    if len(content) != key_bytes(domain, count):
        raise FrameError(
            f"a point function's key of {count} tokens over {domain} words has "
            f"{key_bytes(domain, count)} bytes, not {len(content)}"
        )
    return party, domain, count, salt


def keygen(indices: Tensor | Sequence[int], domain: int) -> tuple[DpfKey, DpfKey]:
    """Keys for S0 and S1 whose evaluations XOR to the one-hot rows of `indices`."""
    levels = levels_of(domain)
    alpha = _checked_indices(indices, domain)
    count = alpha.size
    salt = os.urandom(BLOCK_BYTES)
    cipher = _cipher(salt)
    roots = np.frombuffer(os.urandom(2 * count * BLOCK_BYTES), _WORD).reshape(2, count, 2).copy()
    _take_bit(roots)
    seeds, bits = roots, np.broadcast_to(np.array([[0], [1]], np.uint64), (2, count))
    seed_corrections = np.empty((levels, count, 2), _WORD)
    bit_corrections = np.empty((levels, count), np.uint8)
    for level in range(levels):
        turn = (alpha // BLOCK_BITS >> np.uint64(levels - 1 - level)) & _ONE
        seeds, bits, seed_corrections[level], bit_corrections[level] = _descend(cipher, seeds, bits, turn)
    blocks = _compress(cipher, seeds)
    block_corrections = blocks[0] ^ blocks[1] ^ _one_hot_block(alpha % BLOCK_BITS)
    shared = (seed_corrections, bit_corrections, block_corrections)
    return DpfKey(0, domain, salt, roots[0], *shared), DpfKey(1, domain, salt, roots[1], *shared)


def _checked_indices(indices: Tensor | Sequence[int], domain: int) -> np.ndarray:
    """uint64 (count,). An index is secret: errors name its place, never its value."""
    try:
        given = torch.as_tensor(indices)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise DtypeError("indices are a flat list of integers of at most 64 bits") from None
    if given.ndim != 1 or given.numel() == 0:
        raise ShapeError(f"point functions take a list of indices, not the shape {tuple(given.shape)}")
    if given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
        raise DtypeError(f"indices are integers, not {given.dtype}")
    alpha = given.detach().to("cpu", torch.int64)
    outside = ((alpha < 0) | (alpha >= domain)).nonzero()
    if outside.numel():
        raise RangeError(f"index number {int(outside[0])} lies outside the domain of {domain}")
    return alpha.numpy().astype(np.uint64)


def _descend(
    cipher: Any, seeds: np.ndarray, bits: np.ndarray, turn: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """One level of both keys' paths: seeds (2, count, 2), bits (2, count), turn (count,) is 1 for right.

    Returns the next seeds and bits on the path, s_CW (count, 2) and the packed t_CW (count,).
    """
    children, child_bits = _expand(cipher, seeds)  # (2, count, 2 children, 2), (2, count, 2)
    right = turn.astype(bool)
    lost = np.where(right[:, None], children[:, :, 0], children[:, :, 1])
    kept = np.where(right[:, None], children[:, :, 1], children[:, :, 0])
    seed_correction = lost[0] ^ lost[1]
    left_bit = child_bits[0, :, 0] ^ child_bits[1, :, 0] ^ turn ^ _ONE
    right_bit = child_bits[0, :, 1] ^ child_bits[1, :, 1] ^ turn
    kept_bit = np.where(right, child_bits[:, :, 1], child_bits[:, :, 0])
    next_seeds = kept ^ bits[..., None] * seed_correction
    next_bits = kept_bit ^ (bits & np.where(right, right_bit, left_bit))
    return next_seeds, next_bits, seed_correction, (left_bit | right_bit << _ONE).astype(np.uint8)


def _one_hot_block(place: np.ndarray) -> np.ndarray:
    """128 bits with bit `place` set: (count, 2)."""
    bit = _ONE << (place % np.uint64(64))
    high = (place >= 64).astype(np.uint64)
    return np.stack((bit * (_ONE - high), bit * high), -1)


def evaluate(key: DpfKey, domain: int) -> Tensor:
    """This server's XOR share of the one-hot rows: uint8 (count, ceil(domain / 8)).

    Word v is bit v % 8, the lowest first, of byte v // 8; the bits past the domain are 0.
    """
    if key.domain != domain:
        raise InputError(f"these point functions are over {key.domain} words, the vocabulary has {domain}")
    cipher = _cipher(key.salt)
    packed = np.empty((key.count, -(-domain // 8)), np.uint8)
    for start in range(0, key.count, _TOKENS_TOGETHER):
        tokens = slice(start, start + _TOKENS_TOGETHER)
        blocks = _evaluate_blocks(cipher, key, tokens)
        packed[tokens] = blocks.view(np.uint8).reshape(blocks.shape[0], -1)[:, : packed.shape[1]]
    if domain % 8:
        packed[:, -1] &= (1 << domain % 8) - 1
    return torch.from_numpy(packed)


def _evaluate_blocks(cipher: Any, key: DpfKey, tokens: slice) -> np.ndarray:
    """All output blocks of some tokens: (tokens, blocks, 2)."""
    levels, blocks = levels_of(key.domain), _blocks_of(key.domain)
    seeds = key.roots[tokens, None]  # (tokens, nodes, 2)
    bits = np.full(seeds.shape[:2], key.party, np.uint64)  # (tokens, nodes)
    for level in range(levels):
        nodes = -(-blocks // (1 << (levels - 1 - level)))  # those on the way to a block of the domain
        seeds, bits = _expand_level(cipher, key, tokens, level, seeds, bits)
        seeds, bits = seeds[:, :nodes], bits[:, :nodes]
    return _compress(cipher, seeds) ^ _selected(bits, key.block_corrections[tokens, None])


def _expand_level(
    cipher: Any, key: DpfKey, tokens: slice, level: int, seeds: np.ndarray, bits: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    count, nodes = bits.shape
    children, child_bits = _expand(cipher, seeds)  # (tokens, nodes, 2 children, 2), (tokens, nodes, 2)
    children ^= _selected(bits, key.seed_corrections[level, tokens, None])[:, :, None]
    packed = key.bit_corrections[level, tokens].astype(np.uint64)
    correction = np.stack((packed & _ONE, packed >> _ONE), -1)  # (tokens, 2 children)
    child_bits ^= bits[..., None] & correction[:, None]
    return children.reshape(count, 2 * nodes, 2), child_bits.reshape(count, 2 * nodes)


def _selected(bits: np.ndarray, words: np.ndarray) -> np.ndarray:
    """words where the bit is 1, else 0; without a branch."""
    return -bits[..., None] & words


def _expand(cipher: Any, seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """G: seeds (..., 2) to children (..., 2 children, 2) and their control bits (..., 2 children)."""
    inputs = np.stack((seeds, seeds), -2)
    inputs[..., 1, 0] ^= _ONE
    children = _compress(cipher, inputs)
    return children, _take_bit(children)


def _take_bit(seeds: np.ndarray) -> np.ndarray:
    """The lowest bit of every seed, which becomes 0 in place."""
    lowest = seeds[..., 0] & _ONE
    seeds[..., 0] ^= lowest
    return lowest


def _compress(cipher: Any, blocks: np.ndarray) -> np.ndarray:
    """H(x) = AES(x) xor x for every 128-bit block of (..., 2)."""
    blocks = np.ascontiguousarray(blocks)
    encrypted = cipher.update(blocks.reshape(-1).data.cast("B"))
    return np.frombuffer(encrypted, _WORD).reshape(blocks.shape) ^ blocks


def _cipher(salt: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    # ECB is the bare permutation; what makes it a one-way generator is the feed-forward in _compress.
    return Cipher(algorithms.AES128(salt), modes.ECB()).encryptor()
