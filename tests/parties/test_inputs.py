from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from secformer.crypto import dpf
from secformer.engine.form import bits, shared
from secformer.engine.sharing import Encoded, reconstruct, share
from secformer.engine.values import Bits, Disclosed, Masked, MaskedBits, Shared, form_of
from secformer.errors import AgreementError, DtypeError, FrameError, InputError, RangeError, ShapeError
from secformer.parties import messages
from secformer.parties.inputs import (
    PACKED,
    POINTS,
    SEEDED,
    Part,
    receive_inputs,
    receive_outputs,
    send_encodings,
    send_outputs,
    send_part,
    split,
)
from secformer.parties.messages import Encodings
from secformer.transport.channel import FrameType
from secformer.transport.memory import memory_pair

SESSION = bytes(range(16))
CPU = torch.device("cpu")


def travel(inputs, forms):
    """Both servers' values, and the parts that brought them."""
    parts = split(inputs, forms, SESSION)
    values = []
    for party, own in enumerate(parts):
        caller, server = memory_pair("client", f"server{party}", SESSION, timeout=2)
        send_encodings(caller, own)
        for name in sorted(own):
            send_part(caller, own[name])
        values.append(receive_inputs(server, forms, party, CPU))
    return values, parts


shapes = st.lists(st.integers(1, 5), min_size=0, max_size=3).map(tuple)


@settings(max_examples=40, deadline=None)
@given(shapes, st.integers(8, 64), st.data())
def test_numbers_arrive_as_two_shares(shape, width, data):
    scale = data.draw(st.integers(0, width - 6))
    numbers = (torch.rand(shape, dtype=torch.float64) - 0.5) * 30
    (zero, one), parts = travel({"x": numbers}, {"x": shared(shape, width, scale)})
    assert (reconstruct(zero["x"], one["x"]) - numbers).abs().max() <= 2.0 ** -(scale + 1)
    assert [part["x"].encoding for part in parts] == [SEEDED, PACKED]
    assert len(parts[0]["x"].payload) == 32  # S0 gets a seed, and the caller pays for one share only


@settings(max_examples=20, deadline=None)
@given(shapes, st.integers(1, 64))
def test_words_arrive_as_two_shares(shape, width):
    words = torch.randint(-(2**62), 2**62, shape)
    words = words if width == 64 else words & ((1 << width) - 1)
    (zero, one), _ = travel({"x": words}, {"x": bits(shape, width)})
    assert torch.equal(reconstruct(zero["x"], one["x"]), words)


def test_what_is_encoded_goes_as_it_is():
    numbers = Encoded.numbers(torch.ones(3), 10, 40)
    words = Encoded.ring_elements(torch.ones(2, 2, dtype=torch.int64), width=3, kind="bits")
    ring = Encoded.ring_elements(torch.tensor([-5, 1 << 30]), 4, 32)
    forms = {"a": shared((3,), 40, 10), "b": bits((2, 2), 3), "c": shared((2,), 32, 4)}
    (zero, one), parts = travel({"a": numbers, "b": words, "c": ring}, forms)
    assert torch.equal(reconstruct(zero["a"], one["a"]), torch.ones(3, dtype=torch.float64))
    assert torch.equal(reconstruct(zero["b"], one["b"]), torch.ones(2, 2, dtype=torch.int64))
    assert torch.equal(reconstruct(zero["c"], one["c"]), ring.real)
    assert {part.encoding for part in parts[0].values()} == {SEEDED}
    assert {part.encoding for part in parts[1].values()} == {PACKED}


@pytest.mark.parametrize("domain", [5, 64, 1000])
def test_point_functions_become_one_hot_rows(domain):
    places = torch.tensor([0, domain - 1, domain // 2])
    forms = {"places": bits((3, -(-domain // 8)), 8)}
    (zero, one), parts = travel({"places": dpf.keygen(places, domain)}, forms)
    rows = reconstruct(zero["places"], one["places"])
    for row, place in zip(rows, places.tolist(), strict=True):
        assert row.tolist() == [1 << place % 8 if byte == place // 8 else 0 for byte in range(len(row))]
    assert parts[0]["places"].encoding == POINTS


def test_the_same_numbers_twice_give_unrelated_parts():
    forms = {"x": shared((50,), 64, 12)}
    first, second = (split({"x": torch.zeros(50)}, forms, SESSION)[1]["x"].payload for _ in range(2))
    assert not torch.equal(first, second)  # type: ignore[arg-type]


FORMS = {"x": shared((2, 3), 32, 12), "b": bits((4,), 2)}
GOOD = {"x": torch.zeros(2, 3), "b": torch.zeros(4, dtype=torch.int64)}


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"x": torch.zeros(3, 2)}, ShapeError),
        ({"x": torch.full((2, 3), 2.0**20)}, RangeError),
        ({"x": torch.full((2, 3), float("nan"))}, RangeError),
        ({"b": torch.full((4,), 4)}, RangeError),
        ({"b": torch.zeros(4)}, DtypeError),
        ({"y": torch.zeros(1)}, AgreementError),
        ({"x": Encoded.numbers(torch.zeros(2, 3), 12, 33)}, ShapeError),
        ({"x": Encoded.numbers(torch.zeros(2, 3), 11, 32)}, ShapeError),
        ({"x": Encoded.numbers(torch.zeros(2, 3), 12, 32, "masked")}, ShapeError),
        ({"x": Encoded.ring_elements(torch.zeros(2, 3, dtype=torch.int64), 12, 32, "bits")}, ShapeError),
        ({"x": share(Encoded.numbers(torch.zeros(2, 3), 12, 32)).pair}, DtypeError),
        ({"x": ("a", "b")}, DtypeError),
        ({"x": [0.0] * 6}, DtypeError),
    ],
)
def test_what_does_not_fit_the_program_is_refused(change, kind):
    with pytest.raises(kind):
        split({**GOOD, **change}, FORMS, SESSION)


def receive(forms, encodings, *parts, party=0):
    caller, server = memory_pair("client", "server0", SESSION, timeout=1)
    messages.send(caller, Encodings(encodings))
    for part in parts:
        send_part(caller, part)
    return receive_inputs(server, forms, party, CPU)


def test_a_server_takes_only_what_the_program_declares():
    form = {"x": shared((4,), 16)}
    good = Part(PACKED, bytes(8), (4,), 16)
    assert isinstance(receive(form, {"x": PACKED}, good)["x"], Shared)
    with pytest.raises(FrameError, match="shape"):
        receive(form, {"x": PACKED}, Part(PACKED, bytes(10), (5,), 16))
    with pytest.raises(FrameError, match="width"):
        receive(form, {"x": PACKED}, Part(PACKED, bytes(12), (4,), 24))
    with pytest.raises(FrameError, match="unknown encoding"):
        receive(form, {"x": "pickled"}, good)
    with pytest.raises(FrameError, match="shape"):
        receive(form, {"x": SEEDED}, Part(SEEDED, bytes(31), (31,), 8))
    with pytest.raises(InputError, match=r"\['x'\], not \['y'\]"):
        receive(form, {"y": PACKED}, good)
    with pytest.raises(InputError, match="rows of bytes"):
        receive(form, {"x": POINTS}, good)


def test_keys_for_another_server_or_table_are_refused():
    form = {"x": bits((2, 8), 8)}
    keys = dpf.keygen([1, 2], 64)

    def part(content):
        return Part(POINTS, content, (len(content),), 8)

    assert isinstance(receive(form, {"x": POINTS}, part(keys[0].to_bytes()))["x"], Bits)
    with pytest.raises(InputError, match="not for this server"):
        receive(form, {"x": POINTS}, part(keys[1].to_bytes()))
    with pytest.raises(InputError, match="not for this server"):
        receive(form, {"x": POINTS}, part(dpf.keygen([1], 64)[0].to_bytes()))
    with pytest.raises(FrameError, match="exceed the limit"):
        receive(form, {"x": POINTS}, part(dpf.keygen([1, 2], 1 << 20)[0].to_bytes()))


def test_outputs_travel_packed_and_wires_stay():
    server, caller = memory_pair("server0", "client", SESSION, timeout=1)
    results = {"b": Bits(torch.tensor([3, 5]), 3), "a": Shared(torch.tensor([[7, -1]]), 20, 4)}
    secret = torch.arange(4)
    wires = {"w": Masked(secret, secret, 64), "v": MaskedBits(secret, secret, 8)}
    send_outputs(server, {**{name: Disclosed(share) for name, share in results.items()}, **wires})
    assert server.counters.payload_sent == 1 + 5  # 6 and 40 bits
    got = receive_outputs(caller, {name: form_of(share) for name, share in results.items()})
    assert got["b"].share.tolist() == [3, 5]
    assert got["a"].share.tolist() == [[7, (1 << 20) - 1]]
    assert server.counters.messages_sent == 2


def test_an_output_of_another_shape_is_refused():
    server, caller = memory_pair("server0", "client", SESSION, timeout=1)
    server.send(FrameType.OUTPUT, bytes(4), (4,), 8)
    with pytest.raises(FrameError, match="shape"):
        receive_outputs(caller, {"y": bits((3,), 8)})
