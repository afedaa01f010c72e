"""Uniform numbers modulo 2^w from a key: the ChaCha20 keystream of one nonce (RFC 8439), cut to residues.

The layout is the same bit for bit on every device. Elements follow each other in row-major order:

    width 1         a bit each: element i is bit i % 8, the lowest first, of byte i // 8
    width 2..64     1, 2, 4 or 8 bytes each, the fewest that hold `width` bits, little endian; the low
                    `width` bits are kept

Cutting a uniform word to its low bits leaves them uniform: no rejection, no bias. Which draw may have which nonce, and
how often, is crypto/prg.py's matter.
"""

from __future__ import annotations

import functools
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from secformer.errors import WidthError
from secformer.ring import chacha

# A piece of keystream is made, converted and cut while it lies in the core's cache: one pass over memory.
_CPU_PIECE_BYTES = 1 << 16
_DEVICE_PIECE_BYTES = 1 << 26
_TORCH_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_NUMPY_WORDS = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<i8")}


class Keystream:
    """The key and nonce of one draw. `cipher` is OpenSSL's for that key, or None; a stream's draws take turns with it.

    `words` is the key as it lies on the stream's device, if that is not the CPU: kernels read it there, so that work which was
    recorded with one key can be done again with another.
    """

    __slots__ = ("cipher", "key", "lock", "nonce", "words")

    def __init__(
        self, key: bytes, nonce: bytes, cipher: Any = None, lock: Lock | None = None, words: Tensor | None = None
    ) -> None:
        self.key = key
        self.nonce = nonce
        self.cipher = cipher
        self.lock = lock or Lock()
        self.words = words

    def __repr__(self) -> str:
        return "Keystream(hidden)"


def stream_bytes(count: int, width: int) -> int:
    """Bytes of keystream that `count` elements of `width` bits take."""
    if width == 1:
        return (count + 7) // 8
    return count * element_bytes(width)


def element_bytes(width: int) -> int:
    if not 0 < width <= 64:
        raise WidthError(f"a draw has 1 to 64 bits an element, not {width}")
    return 1 if width <= 8 else 2 if width <= 16 else 4 if width <= 32 else 8


@functools.cache
def _native_available() -> bool:
    try:
        from cryptography.hazmat.primitives.ciphers import CipherContext
    except ImportError:
        return False
    return hasattr(CipherContext, "reset_nonce")  # cryptography 43 and later


def native_cipher(key: bytes) -> Any:
    """OpenSSL's ChaCha20 with this key, whose nonce every draw sets; None where the package is missing."""
    if not _native_available():
        return None
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


def native_elements(
    keystream: Keystream, count: int, width: int, dtype: type[np.integer[Any]] = np.int64
) -> np.ndarray:
    """(count,) on the CPU. numpy, not torch: half the fixed cost, and huge pages for large arrays."""
    cipher = keystream.cipher
    piece = _CPU_PIECE_BYTES // element_bytes(width)
    elements = np.empty(count, dtype)
    with keystream.lock:
        cipher.reset_nonce(bytes(4) + keystream.nonce)  # cryptography: counter, then nonce
        if count <= piece:
            _fill(cipher, elements, width)
        else:
            for start in range(0, count, piece):
                _fill(cipher, elements[start : start + piece], width)
    return elements


def native_bytes(keystream: Keystream, size: int) -> bytes:
    """The keystream itself, for draws so small that the number of calls is all that counts."""
    with keystream.lock:
        keystream.cipher.reset_nonce(bytes(4) + keystream.nonce)
        return keystream.cipher.update(_zeros()[:size])


def _fill(cipher: Any, elements: np.ndarray, width: int) -> None:
    """The next elements of the cipher's stream, in place."""
    if elements.itemsize == element_bytes(width) and width > 1:
        cipher.update_into(_zeros()[: elements.nbytes], elements.data.cast("B"))
    else:
        raw = cipher.update(_zeros()[: stream_bytes(elements.size, width)])
        if width == 1:
            elements[:] = np.unpackbits(np.frombuffer(raw, np.uint8), count=elements.size, bitorder="little")
        else:
            elements[:] = np.frombuffer(raw, _NUMPY_WORDS[element_bytes(width)])
    mask = _mask(width)
    if mask is not None:
        np.bitwise_and(elements, mask, out=elements, casting="unsafe")


def torch_elements(keystream: Keystream, count: int, width: int, device: torch.device) -> Tensor:
    """The same elements through the torch cipher, on any device, in pieces to bound memory."""
    elements = torch.empty(count, dtype=torch.int64, device=device)
    piece = _DEVICE_PIECE_BYTES if width > 1 else _DEVICE_PIECE_BYTES // 8  # bits grow 64-fold on the way
    size = stream_bytes(count, width)
    key = keystream.key if keystream.words is None else keystream.words
    filled = 0
    for start in range(0, size, piece):
        length = min(piece, size - start)
        raw = chacha.keystream(key, keystream.nonce, length, start // chacha.BLOCK_BYTES, device)
        part = _unpacked(raw, width)
        target = elements[filled : filled + part.numel()]
        target.copy_(part[: target.numel()])
        filled += target.numel()
    return elements if width in (1, 64) else elements.bitwise_and_((1 << width) - 1)


def _unpacked(raw: Tensor, width: int) -> Tensor:
    if width > 1:
        return raw.view(_TORCH_WORDS[element_bytes(width)])  # the mask removes the extended sign
    places = torch.arange(8, dtype=torch.uint8, device=raw.device)
    return ((raw.unsqueeze(-1) >> places) & 1).view(-1)
