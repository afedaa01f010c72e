"""Point functions: the two expansions XOR to a one-hot, and each alone is noise."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from secformer.crypto import dpf
from secformer.crypto.dpf import DpfKey, evaluate, key_bytes, keygen, levels_of
from secformer.errors import DtypeError, FrameError, InputError, RangeError, ShapeError

pytest.importorskip("cryptography")

DOMAINS = [1, 2, 127, 128, 129, 256, 257, 1000, 30522, 50265]


def unpacked(packed: torch.Tensor) -> np.ndarray:
    return np.unpackbits(packed.numpy(), axis=1, bitorder="little")


def assert_one_hot(keys: tuple[DpfKey, DpfKey], indices: list[int], domain: int) -> None:
    combined = evaluate(keys[0], domain) ^ evaluate(keys[1], domain)
    assert combined.dtype == torch.uint8 and combined.shape == (len(indices), -(-domain // 8))
    bits = unpacked(combined)
    assert (bits.sum(1) == 1).all()
    assert bits.argmax(1).tolist() == indices


@pytest.mark.parametrize("domain", DOMAINS)
def test_expansions_xor_to_the_one_hot(domain):
    drawn = torch.randint(0, domain, (100,)).tolist()
    indices = [0, domain - 1, domain // 2, *drawn]
    assert_one_hot(keygen(indices, domain), indices, domain)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 5000))
def test_any_domain(data, domain):
    indices = data.draw(st.lists(st.integers(0, domain - 1), min_size=1, max_size=5))
    assert_one_hot(keygen(torch.tensor(indices), domain), indices, domain)


def test_every_index_of_a_small_domain():
    indices = list(range(300))
    assert_one_hot(keygen(indices, 300), indices, 300)


@pytest.mark.parametrize("domain", [1, 3, 129, 1001])
def test_bits_past_the_domain_are_zero(domain):
    for key in keygen([0] * 50, domain):
        assert not unpacked(evaluate(key, domain))[:, domain:].any()


@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize("index", [0, 77])
def test_one_key_alone_looks_uniform(party, index):
    """Even for 64 times the same token: no byte, no word and no pair of rows stands out."""
    packed = evaluate(keygen([index] * 64, 8192)[party], 8192)
    counts = torch.bincount(packed.reshape(-1).long(), minlength=256).double()
    expected = counts.sum() / 256
    assert ((counts - expected) ** 2 / expected).sum() < 400  # 255 degrees of freedom, p = 2e-8
    bits = unpacked(packed).astype(float)
    assert abs(bits.mean() - 0.5) < 0.005  # 7 standard deviations
    assert abs(bits[:, index].mean() - 0.5) < 0.44  # 7 standard deviations of 64 bits
    similarity = (bits[:1] == bits[1:]).mean(1)
    assert (abs(similarity - 0.5) < 0.04).all()  # 7 standard deviations of 8192 bits


@pytest.mark.parametrize("index", [0, 5000])
def test_what_is_sent_looks_uniform(index):
    """The stored words of one key: roots and corrections, control bits included."""
    key = keygen([index] * 2000, 30522)[1]
    words = np.concatenate([key.roots[None], key.seed_corrections, key.block_corrections[None]])
    first_word_bits = words[..., 0] >> np.uint64(1)  # a seed's lowest bit is 0 by construction
    for shift in range(63):
        means = (first_word_bits >> np.uint64(shift) & np.uint64(1)).mean(1)
        assert (abs(means - 0.5) < 0.08).all()  # 7 standard deviations of 2000 bits
    for bit in (1, 2):
        assert (abs(((key.bit_corrections & bit) > 0).mean(1) - 0.5) < 0.08).all()


def test_keys_are_fresh_each_time():
    first, second = keygen([5, 5], 1000)[0], keygen([5, 5], 1000)[0]
    assert first.salt != second.salt
    assert not (first.roots == second.roots).any() and not (first.roots[0] == first.roots[1]).any()
    assert not torch.equal(evaluate(first, 1000), evaluate(second, 1000))


@pytest.mark.parametrize("domain", [30522, 50265])
def test_size_for_one_token(domain):
    key = keygen([7], domain)[0]
    assert len(key.to_bytes()) == key_bytes(domain, 1) <= 300
    assert key_bytes(domain, 513) - key_bytes(domain, 512) == 32 + 17 * levels_of(domain)


@pytest.mark.parametrize("domain", [1, 129, 30522])
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_bytes_round_trip(domain, wrap):
    key = keygen([0, domain - 1, 0], domain)[1]
    restored = DpfKey.from_bytes(wrap(key.to_bytes()))
    assert (restored.party, restored.count, restored.domain) == (1, 3, domain)
    assert restored.to_bytes() == key.to_bytes()
    assert torch.equal(evaluate(restored, domain), evaluate(key, domain))


def test_a_restored_key_outlives_its_buffer():
    key = keygen([3], 1000)[0]
    buffer = bytearray(key.to_bytes())
    restored = DpfKey.from_bytes(buffer)
    buffer[:] = bytes(len(buffer))
    assert restored.to_bytes() == key.to_bytes()


def patched(content: bytes, place: int, value: bytes) -> bytes:
    return content[:place] + value + content[place + len(value) :]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda c: b"",
        lambda c: c[:10],
        lambda c: c[:-1],
        lambda c: c + b"\0",
        lambda c: patched(c, 0, b"DPF9"),
        lambda c: patched(c, 4, b"\x02"),
        lambda c: patched(c, 8, bytes(4)),
        lambda c: patched(c, 8, b"\xff\xff\xff\xff"),
        lambda c: patched(c, 8, (1 << 30).to_bytes(4, "little")),
        lambda c: patched(c, 12, bytes(4)),
        lambda c: patched(c, 12, b"\xff\xff\xff\xff"),
        lambda c: patched(c, 32 + 16 * 2 + 16 * 2 * 3, b"\x04"),
    ],
)
def test_malformed_bytes_are_refused(spoil):
    content = keygen([3, 4], 1000)[0].to_bytes()
    assert levels_of(1000) == 3
    DpfKey.from_bytes(content)
    with pytest.raises(FrameError):
        DpfKey.from_bytes(spoil(content))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_noise_is_refused(content):
    with pytest.raises(FrameError):
        DpfKey.from_bytes(content)


@pytest.mark.parametrize("index", [-1, 1000, 1 << 40])
def test_index_out_of_range_is_named_by_its_place(index):
    with pytest.raises(RangeError, match="index number 1 ") as caught:
        keygen([0, index], 1000)
    assert str(index) not in str(caught.value).replace("domain of 1000", "")


def test_wrong_input():
    with pytest.raises(ShapeError):
        keygen([], 10)
    with pytest.raises(ShapeError):
        keygen(torch.zeros(2, 2, dtype=torch.int64), 10)
    with pytest.raises(DtypeError):
        keygen(torch.zeros(2), 10)
    with pytest.raises(DtypeError):
        keygen([1 << 70], 10)
    with pytest.raises(InputError):
        evaluate(keygen([1], 10)[0], 11)
    for domain in (0, -5, (1 << 31) + 1):
        with pytest.raises(RangeError):
            keygen([0], domain)


def test_narrow_index_types():
    assert_one_hot(keygen(torch.tensor([200, 3], dtype=torch.uint8), 30522), [200, 3], 30522)


def test_a_key_hides_its_content():
    key = keygen([3], 1000)[0]
    assert repr(key) == "DpfKey(party=0, count=1, domain=1000, hidden)"


def test_tokens_are_expanded_in_groups(monkeypatch):
    key = keygen(list(range(70)), 1000)[0]
    expected = evaluate(key, 1000)
    monkeypatch.setattr(dpf, "_TOKENS_TOGETHER", 1)
    assert torch.equal(evaluate(key, 1000), expected)
