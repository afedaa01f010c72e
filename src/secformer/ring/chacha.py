"""ChaCha20 (RFC 8439) in torch integers: one stream on every device.

The cipher's state is sixteen 32-bit words, written as a 4 x 4 matrix:

    constant constant constant constant
    key      key      key      key
    key      key      key      key
    counter  nonce    nonce    nonce

A double round applies the quarter round to the four columns, then to the four diagonals; ten of them and the
addition of the initial state give 64 bytes of keystream (section 2.3). Here a row is a tensor (4, blocks), so
one torch operation serves the four quarter rounds of every block; the diagonals become columns by rotating
rows 1, 2, 3.

Words are int32: torch adds and shifts left modulo 2^32, but `>>` is arithmetic, so rotations mask what comes
down. A block is read as bytes in the machine's order, which is little endian wherever torch runs on a GPU.
`prg` uses this where the `cryptography` package is missing or the tensors live elsewhere than on the CPU.
"""

import torch
from torch import Tensor

from secformer.errors import InputError, MaterialError

KEY_BYTES = 32
NONCE_BYTES = 12
BLOCK_BYTES = 64
# The counter has 32 bits: one (key, nonce) covers 2^32 blocks, 256 GiB.
BLOCK_LIMIT = 1 << 32
_CONSTANT = b"expand 32-byte k"
# About 550 operations a piece, whatever its size: a piece fits a core's cache, or fills a GPU.
_CPU_PIECE_BLOCKS = 1 << 12
_DEVICE_PIECE_BLOCKS = 1 << 20


def keystream(
    key: bytes | Tensor, nonce: bytes, size: int, counter: int = 0, device: torch.device | str = "cpu"
) -> Tensor:
    """`size` bytes of the stream of (key, nonce), from block `counter` on: uint8 (size,). The key may be words on the device."""
    device = torch.device(device)
    if isinstance(key, bytes):
        _check(key, nonce, size, counter)
        key = words(key, device)
    blocks = -(-size // BLOCK_BYTES)
    stream = torch.empty((blocks, 16), dtype=torch.int32, device=device)
    piece = _CPU_PIECE_BLOCKS if device.type == "cpu" else _DEVICE_PIECE_BLOCKS
    for start in range(0, blocks, piece):
        rows = stream[start : start + piece]
        _write_blocks(rows, key, nonce, counter + start)
    return stream.view(torch.uint8).reshape(-1)[:size]


def _check(key: bytes, nonce: bytes, size: int, counter: int) -> None:
    if len(key) != KEY_BYTES or len(nonce) != NONCE_BYTES:
        raise InputError(f"ChaCha20 takes a key of {KEY_BYTES} and a nonce of {NONCE_BYTES} bytes")
    if size < 0 or counter < 0:
        raise InputError("a keystream cannot have a negative length or start before block 0")
    if counter + -(-size // BLOCK_BYTES) > BLOCK_LIMIT:
        raise MaterialError("one ChaCha20 nonce covers 256 GiB; beyond that its counter would repeat")


def words(content: bytes, device: torch.device) -> Tensor:
    """Bytes as int32 on a device."""
    return torch.frombuffer(bytearray(content), dtype=torch.int32).to(device)


def _write_blocks(rows: Tensor, key: Tensor, nonce: bytes, counter: int) -> None:
    """Blocks counter, counter + 1, ... into `rows`, int32 (blocks, 16)."""
    initial = _initial_state(key, nonce, counter, rows.shape[0], rows.device)  # (4, 4, blocks)
    a, b, c, d = initial.clone()
    for _ in range(10):
        _quarter_rounds(a, b, c, d)
        b, c, d = b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0)
        _quarter_rounds(a, b, c, d)
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    for words, first, final in zip(rows.view(-1, 4, 4).permute(1, 2, 0), initial, (a, b, c, d), strict=True):
        torch.add(first, final, out=words)


def _initial_state(key: Tensor, nonce: bytes, counter: int, blocks: int, device: torch.device) -> Tensor:
    parts = (words(_CONSTANT, device), key, words(bytes(4) + nonce, device))
    state = torch.cat(parts).view(4, 4, 1).repeat(1, 1, blocks)
    # int64 to int32 keeps the low 32 bits: the counter as an unsigned word
    state[3, 0] = torch.arange(counter, counter + blocks, device=device).to(torch.int32)
    return state


def _quarter_rounds(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> None:
    """Section 2.1, in place, on the four columns at once."""
    _rotate_left(d.bitwise_xor_(a.add_(b)), 16)
    _rotate_left(b.bitwise_xor_(c.add_(d)), 12)
    _rotate_left(d.bitwise_xor_(a.add_(b)), 8)
    _rotate_left(b.bitwise_xor_(c.add_(d)), 7)


def _rotate_left(words: Tensor, distance: int) -> None:
    carried = (words >> (32 - distance)).bitwise_and_((1 << distance) - 1)
    words.bitwise_left_shift_(distance).bitwise_or_(carried)
