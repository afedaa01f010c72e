"""Seeds, key derivation, and the streams every mask and every pad is drawn from.

Two roles that share a seed draw the same numbers without talking. A `Stream` belongs to one (session, pair of
roles, purpose); its key is derived from all three, and draw number `index` is the ChaCha20 keystream of that
key with nonce = index, 96 bits little endian, from block 0 on (ring/keystream.py has the layout). An index is
accepted once and only upwards, and one nonce covers 256 GiB, so two draws can never coincide.

What is drawn is said by a `Draw`, an entry of the tape: a stream takes no other, and only its own.
"""

import hashlib
import hmac
import math
import os
import threading
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from secformer.errors import DtypeError, InputError, MaterialError, ShapeError
from secformer.ring import chacha, kernels
from secformer.ring.keystream import Keystream, native_cipher, stream_bytes

SEED_BYTES = 32
DRAW_LIMIT_BYTES = chacha.BLOCK_LIMIT * chacha.BLOCK_BYTES
_INDEX_LIMIT = 1 << (8 * chacha.NONCE_BYTES)


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


class Draw(NamedTuple):
    """A range of a stream: the whole of index `index` of the stream that `pair` shares for `purpose`."""

    pair: str
    purpose: str
    index: int
    shape: tuple[int, ...]
    width: int


class Stream:
    """Uniform numbers two roles draw in step."""

    def __init__(self, seed: Seed, session: bytes, pair: str, purpose: str, device: torch.device | str = "cpu") -> None:
        if not session or not pair or not purpose:
            raise InputError("a stream needs a session, a pair of roles and a purpose, none of them empty")
        self.pair = pair
        self.purpose = purpose
        self.device = torch.device(device)
        self._key = derive(seed, "stream", session, pair, purpose)
        self._cipher = native_cipher(self._key.bytes)
        self.words = _words(self._key.bytes, self.device)
        """The key on the device, if kernels read it there: as secret as the stream."""
        self._last_index = -1
        self._claiming = threading.Lock()
        self._drawing = threading.Lock()

    def __repr__(self) -> str:
        return f"Stream(pair={self.pair!r}, purpose={self.purpose!r}, last index={self._last_index})"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise MaterialError("a stream is never pickled or copied: the copy would draw the same numbers again")

    def draw(self, entry: Draw, dtype: torch.dtype = torch.int64, out: Tensor | None = None) -> Tensor:
        """Uniform in [0, 2^width), for width 64 all of int64. A place for it is given on devices that have `graphs`."""
        keystream, place = self.spend(entry), () if out is None else (out,)
        return kernels.step("draw", self.device)(keystream, entry.shape, entry.width, self.device, dtype, *place)

    def spend(self, entry: Draw) -> Keystream:
        """The keystream of an entry, for whoever draws inside a larger step. The entry is spent from now on."""
        if (entry.pair, entry.purpose) != (self.pair, self.purpose):
            raise MaterialError(f"a draw of {entry.purpose!r} between {entry.pair} is not one of {self!r}")
        size = _size(tuple(entry.shape), entry.width)
        if size > DRAW_LIMIT_BYTES:
            raise MaterialError(
                f"draw {entry.index} of {self.purpose!r} needs {size} bytes; a nonce covers 256 GiB: split the draw"
            )
        with self._claiming:
            nonce = self._claim(entry.index)
        return Keystream(self._key.bytes, nonce, self._cipher, self._drawing, self.words)

    def _claim(self, index: int) -> bytes:
        """The nonce of `index`, which from now on is spent."""
        if not self._last_index < index < _INDEX_LIMIT:
            raise MaterialError(
                f"draw {index} of {self.purpose!r} between {self.pair} comes after draw {self._last_index}: "
                "indices must rise, below 2^96, so that no draw happens twice; start a new session"
            )
        self._last_index = index
        return index.to_bytes(chacha.NONCE_BYTES, "little")


def _words(key: bytes, device: torch.device) -> Tensor | None:
    return None if device.type in ("cpu", "meta") else chacha.words(key, device)


def single_draw(
    seed: Seed, session: bytes, pair: str, purpose: str, shape: tuple[int, ...], width: int, device: torch.device | str
) -> Tensor:
    """All that a seed is for, where it serves one tensor: the first draw of a stream of its own."""
    return Stream(seed, session, pair, purpose, device).draw(Draw(pair, purpose, 0, tuple(shape), width))


@lru_cache(maxsize=4096)
def _size(shape: tuple[int, ...], width: int) -> int:
    """Bytes of keystream that a draw takes."""
    count = math.prod(shape)
    if count <= 0 or (len(shape) > 1 and min(shape) < 0):
        raise ShapeError(f"cannot draw the empty or negative shape {tuple(shape)}")
    return stream_bytes(count, width)
