"""Seeds, key derivation, and the streams every mask and every pad is drawn from.

Two roles that share a seed draw the same numbers without talking. A `Stream` belongs to one (session, pair of
roles, purpose); its key is derived from all three, and draw number `index` is the ChaCha20 keystream of that
key (RFC 8439) with nonce = index, 96 bits little endian, from block 0 on. An index is accepted once and only
upwards, and one nonce covers 256 GiB, so two draws can never coincide.

Layout of a draw, the same bit for bit on every device. Elements follow each other in row-major order:

    width 1         a bit each: element i is bit i % 8, the lowest first, of byte i // 8
    width 2..64     1, 2, 4 or 8 bytes each, the fewest that hold `width` bits, little endian; the low
                    `width` bits are kept

Cutting a uniform word to its low bits leaves them uniform: no rejection, no bias.
"""

import functools
import hashlib
import hmac
import math
import os
import threading
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from secformer.crypto import chacha
from secformer.errors import DtypeError, InputError, MaterialError, ShapeError, WidthError

SEED_BYTES = 32
DRAW_LIMIT_BYTES = chacha.BLOCK_LIMIT * chacha.BLOCK_BYTES
_INDEX_LIMIT = 1 << (8 * chacha.NONCE_BYTES)
# A piece of keystream is made, converted and cut while it lies in the core's cache: one pass over memory.
_CPU_PIECE_BYTES = 1 << 16
_DEVICE_PIECE_BYTES = 1 << 26
# Up to here a GPU is served by the CPU's cipher and a copy, the same stream: the torch cipher is ~550 kernel
# launches, 6 ms on an H200 for any draw up to 32 MiB, where the CPU makes 4 MiB in 1 ms.
_COPY_LIMIT_BYTES = 1 << 22
# Up to here a draw is made of a few calls, each worth more than the bytes it moves.
_SMALL_DRAW = 256
_TORCH_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_NUMPY_WORDS = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<i8")}


class Seed:
    """32 secret bytes. Printing one shows its type; copying or pickling one is refused."""

    __slots__ = ("_content",)

    def __init__(self, content: bytes) -> None:
        if not isinstance(content, (bytes, bytearray)):
            raise DtypeError(f"a seed is made of bytes, not {type(content).__name__}")
        if len(content) != SEED_BYTES:
            raise InputError(f"a seed has {SEED_BYTES} bytes, not {len(content)}")
        self._content = bytes(content)

    @classmethod
    def from_os(cls) -> "Seed":
        return cls(os.urandom(SEED_BYTES))

    @property
    def bytes(self) -> bytes:
        return self._content

    def __repr__(self) -> str:
        return "Seed(hidden)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Seed) and hmac.compare_digest(self._content, other._content)

    __hash__ = None  # type: ignore[assignment]  # a table of hashes would leak equality through time

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise MaterialError("a seed is never pickled or copied; hand over seed.bytes on an encrypted channel")


Label = bytes | str | int


def derive(seed: Seed, *labels: Label) -> Seed:
    """An independent seed for every list of labels: HKDF-Expand of RFC 5869 (one block), the seed as its key.

    Each label goes in as type, length, content, so no two lists have the same encoding: ("ab", "c") and
    ("a", "bc") differ, and so do "1", 1 and b"1".
    """
    info = b"".join(_encoded(label) for label in labels)
    return Seed(hmac.digest(seed.bytes, b"secformer derive 1" + info + b"\x01", hashlib.sha256))


def _encoded(label: Label) -> bytes:
    match label:
        case bytes():
            kind, content = b"b", label
        case str():
            kind, content = b"s", label.encode()
        case int() if not isinstance(label, bool):
            kind, content = b"i", label.to_bytes(label.bit_length() // 8 + 1, "little", signed=True)
        case _:
            raise DtypeError(f"a label is bytes, str or int, not {type(label).__name__}")
    return kind + len(content).to_bytes(8, "little") + content


class Stream:
    """Uniform numbers two roles draw in step; see the module's text for the layout."""

    def __init__(self, seed: Seed, session: bytes, pair: str, purpose: str, device: torch.device | str = "cpu") -> None:
        if not session or not pair or not purpose:
            raise InputError("a stream needs a session, a pair of roles and a purpose, none of them empty")
        self.pair = pair
        self.purpose = purpose
        self.device = torch.device(device)
        self._key = derive(seed, "stream", session, pair, purpose)
        self._cipher = _cipher(self._key.bytes) if _native_available() else None
        self._last_index = -1
        self._lock = threading.Lock()  # two threads must not set one cipher's nonce at once

    def __repr__(self) -> str:
        return f"Stream(pair={self.pair!r}, purpose={self.purpose!r}, last index={self._last_index})"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise MaterialError("a stream is never pickled or copied: the copy would draw the same numbers again")

    def draw(self, index: int, shape: Sequence[int], width: int) -> Tensor:
        """Uniform int64 in [0, 2^width), for width 64 all of int64, from the keystream of `index`."""
        count = _checked_count(shape)
        size = stream_bytes(count, width)
        if size > DRAW_LIMIT_BYTES:
            raise MaterialError(
                f"draw {index} of {self.purpose!r} needs {size} bytes; a nonce covers 256 GiB: split the draw"
            )
        cipher = self._cipher
        with self._lock:
            nonce = self._claim(index)
            if cipher is not None and (self.device.type == "cpu" or size <= _COPY_LIMIT_BYTES):
                cipher.reset_nonce(bytes(4) + nonce)  # cryptography: counter, then nonce
                drawn = torch.from_numpy(_from_cipher(cipher, count, width).reshape(shape))
                return drawn if self.device.type == "cpu" else drawn.to(self.device)
        return _from_torch(self._key.bytes, nonce, count, width, self.device).view(tuple(shape))

    def draw_array(self, index: int, count: int, width: int) -> np.ndarray:
        """The same elements as `draw`, in one dimension on the CPU: for draws so small that calls count."""
        cipher = self._cipher
        if cipher is None or width == 1 or not 0 < count <= _SMALL_DRAW:
            return self.draw(index, (count,), width).cpu().numpy()
        with self._lock:
            cipher.reset_nonce(bytes(4) + self._claim(index))
            raw = cipher.update(_zeros()[: count * _element_bytes(width)])
        elements = np.frombuffer(raw, _NUMPY_WORDS[_element_bytes(width)]).astype(np.int64)
        mask = _mask(width)
        return elements if mask is None else elements & mask

    def _claim(self, index: int) -> bytes:
        """The nonce of `index`, which from now on is spent."""
        if not self._last_index < index < _INDEX_LIMIT:
            raise MaterialError(
                f"draw {index} of {self.purpose!r} between {self.pair} comes after draw {self._last_index}: "
                "indices must rise, below 2^96, so that no draw happens twice; start a new session"
            )
        self._last_index = index
        return index.to_bytes(chacha.NONCE_BYTES, "little")


def stream_bytes(count: int, width: int) -> int:
    """Bytes of keystream that `count` elements of `width` bits take."""
    if width == 1:
        return (count + 7) // 8
    return count * _element_bytes(width)


def _element_bytes(width: int) -> int:
    if not 0 < width <= 64:
        raise WidthError(f"a draw has 1 to 64 bits an element, not {width}")
    return 1 if width <= 8 else 2 if width <= 16 else 4 if width <= 32 else 8


def _checked_count(shape: Sequence[int]) -> int:
    count = math.prod(shape)
    if count <= 0 or (len(shape) > 1 and min(shape) < 0):
        raise ShapeError(f"cannot draw the empty or negative shape {tuple(shape)}")
    return count


@functools.cache
def _native_available() -> bool:
    try:
        from cryptography.hazmat.primitives.ciphers import CipherContext
    except ImportError:
        return False
    return hasattr(CipherContext, "reset_nonce")  # cryptography 43 and later


def _cipher(key: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    return Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor()


@functools.cache
def _zeros() -> memoryview:
    """What is encrypted to get the bare keystream."""
    return memoryview(bytes(_CPU_PIECE_BYTES))


@functools.cache
def _mask(width: int) -> np.int64 | None:
    """What cuts a word to `width` bits; None where reading the word unsigned (or whole) already does."""
    return None if width in (1, 8, 16, 32, 64) else np.int64((1 << width) - 1)


def _from_cipher(cipher: Any, count: int, width: int) -> np.ndarray:
    """int64 (count,) on the CPU. numpy, not torch: half the fixed cost, and huge pages for large arrays."""
    piece = _CPU_PIECE_BYTES // _element_bytes(width)
    elements = np.empty(count, np.int64)
    if count <= piece:
        _fill(cipher, elements, width)
    else:
        for start in range(0, count, piece):
            _fill(cipher, elements[start : start + piece], width)
    return elements


def _fill(cipher: Any, elements: np.ndarray, width: int) -> None:
    """The next elements of the cipher's stream, in place."""
    if width > 32:
        cipher.update_into(_zeros()[: elements.nbytes], elements.data.cast("B"))
    else:
        raw = cipher.update(_zeros()[: stream_bytes(elements.size, width)])
        if width == 1:
            elements[:] = np.unpackbits(np.frombuffer(raw, np.uint8), count=elements.size, bitorder="little")
        else:
            elements[:] = np.frombuffer(raw, _NUMPY_WORDS[_element_bytes(width)])
    mask = _mask(width)
    if mask is not None:
        np.bitwise_and(elements, mask, out=elements)


def _from_torch(key: bytes, nonce: bytes, count: int, width: int, device: torch.device) -> Tensor:
    """The same elements through the torch cipher, on any device, in pieces to bound memory."""
    elements = torch.empty(count, dtype=torch.int64, device=device)
    piece = _DEVICE_PIECE_BYTES if width > 1 else _DEVICE_PIECE_BYTES // 8  # bits grow 64-fold on the way
    size = stream_bytes(count, width)
    filled = 0
    for start in range(0, size, piece):
        length = min(piece, size - start)
        raw = chacha.keystream(key, nonce, length, start // chacha.BLOCK_BYTES, device)
        part = _unpacked(raw, width)
        target = elements[filled : filled + part.numel()]
        target.copy_(part[: target.numel()])
        filled += target.numel()
    return elements if width in (1, 64) else elements.bitwise_and_((1 << width) - 1)


def _unpacked(raw: Tensor, width: int) -> Tensor:
    if width > 1:
        return raw.view(_TORCH_WORDS[_element_bytes(width)])  # the mask removes the extended sign
    places = torch.arange(8, dtype=torch.uint8, device=raw.device)
    return ((raw.unsqueeze(-1) >> places) & 1).view(-1)
