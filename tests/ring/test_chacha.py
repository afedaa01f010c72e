"""RFC 8439's vectors through both ciphers: the torch one and the one of `cryptography`."""

import pytest
import torch

from secformer.errors import InputError, MaterialError
from secformer.ring import chacha
from secformer.ring.keystream import native_cipher

COUNTING_KEY = bytes(range(32))
# (key, counter, nonce, keystream), section 2.3.2 and appendix A.1, vectors 1 to 5
BLOCKS = {
    "2.3.2": (
        COUNTING_KEY,
        1,
        "000000090000004a00000000",
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
    ),
    "A.1 1": (
        bytes(32),
        0,
        "000000000000000000000000",
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    "A.1 2": (
        bytes(32),
        1,
        "000000000000000000000000",
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    "A.1 3": (
        bytes(31) + b"\x01",
        1,
        "000000000000000000000000",
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
    ),
    "A.1 4": (
        b"\x00\xff" + bytes(30),
        2,
        "000000000000000000000000",
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
    ),
    "A.1 5": (
        bytes(32),
        0,
        "000000000000000000000002",
        "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
        "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d",
    ),
}
SUNSCREEN = (
    b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, "
    b"sunscreen would be it."
)
SUNSCREEN_ENCRYPTED = (
    "6e2e359a2568f98041ba0728dd0d6981e97e7aec1d4360c20a27afccfd9fae0bf91b65c5524733ab8f593dabcd62b3571639d624"
    "e65152ab8f530c359f0861d807ca0dbf500d6a6156a38e088a22b65e52bc514d16ccf806818ce91ab77937365af90bbf74a35be6"
    "b40b8eedf2785e42874d"
)


def torch_keystream(key: bytes, nonce: bytes, size: int, counter: int) -> bytes:
    return bytes(chacha.keystream(key, nonce, size, counter).tolist())


def native_keystream(key: bytes, nonce: bytes, size: int, counter: int) -> bytes:
    pytest.importorskip("cryptography")
    cipher = native_cipher(key)
    cipher.reset_nonce(counter.to_bytes(4, "little") + nonce)
    return cipher.update(bytes(size))


both = pytest.mark.parametrize("keystream", [torch_keystream, native_keystream])


@both
@pytest.mark.parametrize("vector", BLOCKS)
def test_block_vectors(keystream, vector):
    key, counter, nonce, expected = BLOCKS[vector]
    assert keystream(key, bytes.fromhex(nonce), 64, counter).hex() == expected


@both
def test_encryption_vector(keystream):
    stream = keystream(COUNTING_KEY, bytes.fromhex("000000000000004a00000000"), len(SUNSCREEN), 1)
    assert bytes(a ^ b for a, b in zip(SUNSCREEN, stream, strict=True)).hex() == SUNSCREEN_ENCRYPTED


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 4096 * 64 - 1, 4096 * 64 + 1, 5000 * 64 + 7])
def test_ciphers_agree_across_pieces(size):
    nonce = bytes(range(12))
    assert torch_keystream(COUNTING_KEY, nonce, size, 3) == native_keystream(COUNTING_KEY, nonce, size, 3)


def test_last_block_of_a_nonce():
    last = chacha.BLOCK_LIMIT - 1
    expected = native_keystream(COUNTING_KEY, bytes(12), 64, last)
    assert torch_keystream(COUNTING_KEY, bytes(12), 64, last) == expected
    with pytest.raises(MaterialError):
        chacha.keystream(COUNTING_KEY, bytes(12), 65, last)


def test_counter_is_unsigned():
    half = 1 << 31
    expected = native_keystream(COUNTING_KEY, bytes(12), 192, half - 1)
    assert torch_keystream(COUNTING_KEY, bytes(12), 192, half - 1) == expected


@pytest.mark.parametrize(("key", "nonce"), [(bytes(31), bytes(12)), (bytes(32), bytes(8))])
def test_wrong_lengths(key, nonce):
    with pytest.raises(InputError):
        chacha.keystream(key, nonce, 64)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_gives_the_same_stream():
    on_gpu = chacha.keystream(COUNTING_KEY, bytes(12), 1 << 20, device="cuda").cpu()
    assert torch.equal(on_gpu, chacha.keystream(COUNTING_KEY, bytes(12), 1 << 20))
