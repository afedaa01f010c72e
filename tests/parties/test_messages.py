from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secformer.engine.form import bits, shared
from secformer.engine.ledger import Cost
from secformer.errors import FrameError, InputError
from secformer.parties import messages
from secformer.parties.messages import CONTROL_LIMIT, Facts, Job, Ready, Report, Reports
from secformer.transport.channel import Counters, FrameType
from secformer.transport.memory import memory_pair

RECORDS = [
    Job("dense", {"rows": 3, "nested": {"list": [1, 2.5, None, True, "x"]}}, uses="a-model"),
    Ready("ab", {"x": shared((3, 4), 54, 12)}, {"y": bits((), 1)}, Cost(1, 2, 3, 4, 5)),
    Reports([Report("server0", 0.5, {"server1": Counters(1, 2, 3, 4, 5, 6, 7)})]),
]


@pytest.fixture
def ends():
    return memory_pair("client", "server0", bytes(16), timeout=2)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_what_is_sent_is_received(ends, record):
    messages.send(ends[0], record)
    assert messages.receive(ends[1], type(record)) == record


json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), json, max_size=4))
def test_the_digest_of_a_job_does_not_depend_on_the_order_of_its_parameters(parameters):
    turned = dict(reversed(parameters.items()))
    assert Job("p", parameters).digest() == Job("p", turned).digest()
    assert Job("p", {**parameters, "one more": 1}).digest() != Job("p", {**parameters, "one more": 2}).digest()


@pytest.mark.parametrize(
    "record",
    [
        {"program": "x", "code": "print()"},
        {"program": 3},
        {"program": ""},
        {"program": "x" * 201},
        {"program": "x\nfake log line"},
        {"parameters": {}},
        {"program": "x", "parameters": [1]},
        {"program": "x", "uses": ["a"]},
        [],
        None,
    ],
)
def test_a_record_of_another_form_is_refused(ends, record):
    ends[0].send(FrameType.CONTROL, msgspec.msgpack.encode(record))
    with pytest.raises(FrameError, match="malformed Job"):
        messages.receive(ends[1], Job)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_raise_anything_else(content):
    first, second = memory_pair("client", "server0", bytes(16), timeout=2)
    first.send(FrameType.CONTROL, content)
    with suppress(FrameError):
        messages.receive(second, Facts)


def test_nesting_without_end_is_refused(ends):
    ends[0].send(FrameType.CONTROL, b"\x82\xa7program\xa1x\xaaparameters\x81\xa1a" + b"\x91" * 100_000 + b"\xc0")
    with pytest.raises(FrameError, match="malformed"):
        messages.receive(ends[1], Job)


def test_a_refusal_cannot_write_lines_into_a_log(ends):
    ends[0].send(FrameType.CONTROL, msgspec.msgpack.encode({"program": "x", "a\n2030 INFO all is well\x1b[0m": 1}))
    with pytest.raises(FrameError) as caught:
        messages.receive(ends[1], Job)
    assert str(caught.value).isprintable()


def test_a_record_has_a_limit_on_both_sides(ends):
    with pytest.raises(InputError, match="exceeds the limit"):
        messages.send(ends[0], Job("x", {"text": "y" * CONTROL_LIMIT}))
    ends[0].send(FrameType.CONTROL, bytes(CONTROL_LIMIT + 1))
    with pytest.raises(FrameError, match="exceed the limit"):
        messages.receive(ends[1], Job)


def test_parameters_that_cannot_be_written():
    with pytest.raises(InputError, match="cannot be sent"):
        Job("x", {"object": object()}).digest()
