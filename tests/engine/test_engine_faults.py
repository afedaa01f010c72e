"""Bad input and faults: a typed error, on every side, soon; and the next run works."""

import time

import pytest
import torch

from secformer.crypto.prg import Seed, Stream
from secformer.engine.computing import Computing, SeededMaterial
from secformer.engine.local import dealer, run_locally, share, share_bits, share_ring
from secformer.engine.program import InputSpec, Program
from secformer.engine.simulating import Simulating
from secformer.engine.tape import SERVER_LINKS
from secformer.engine.tracing import trace
from secformer.engine.values import Bits, Shared
from secformer.errors import (
    AgreementError,
    DtypeError,
    MaterialError,
    RangeError,
    SecFormerError,
    ShapeError,
    TransportError,
    WidthError,
)
from secformer.protocols.compare import sign_bit
from secformer.protocols.multiply import matmul, multiply, square
from secformer.transport.memory import memory_pair


def program(body, **specs):
    return Program("test", lambda runtime, values: {"y": body(runtime, **values)}, specs)


def squares(shape=(3,), width=40, scale=8):
    return program(lambda r, x: square(r, *r.open(x)), x=InputSpec("shared", shape, width, scale))


def run_squares():
    x = torch.tensor([1.5, -2.0, 0.25])
    return run_locally(squares(), {"x": share(x, 8, 40)}).value("y").tolist() == [2.25, 4.0, 0.0625]


# Values


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 2.0**31, -(2.0**31) - 1])
def test_values_that_cannot_be_encoded(bad):
    with pytest.raises(RangeError):
        share(torch.tensor([0.0, bad], dtype=torch.float64), 8, 40)
    assert run_squares()


def test_the_message_does_not_tell_the_value():
    with pytest.raises(RangeError) as caught:
        share(torch.tensor([0.0, 3.25e13]), 8, 40)
    assert "3.25" not in str(caught.value)


def test_empty_and_complex_tensors_cannot_be_encoded():
    with pytest.raises(ShapeError):
        share(torch.empty(0, 3), 8)
    with pytest.raises(DtypeError):
        share(torch.zeros(2, dtype=torch.complex64), 8)


@pytest.mark.parametrize("real", [float("nan"), float("inf"), 2.0**60])
def test_public_constants_are_checked_while_tracing(real):
    with pytest.raises(RangeError):
        trace(program(lambda r, x: r.add(x, real), x=InputSpec("shared", (2,), 64, 16)))


# Programs


@pytest.mark.parametrize(
    ("error", "body", "shape"),
    [
        (ShapeError, lambda r, x: square(r, *r.open(x)), (2, 0)),
        (ShapeError, lambda r, x: multiply(r, *r.open(x[:2], x)), (3,)),
        (ShapeError, lambda r, x: matmul(r, *r.open(x, x)), (2, 3)),
        (ShapeError, lambda r, x: matmul(r, *r.open(x, x)), (3,)),
        (WidthError, lambda r, x: r.drop(x, 40), (3,)),
        (WidthError, lambda r, x: x.narrow(41), (3,)),
        (WidthError, lambda r, x: x + x.raise_scale(1), (3,)),
        (WidthError, lambda r, x: r.open(x)[0].narrow(41), (3,)),
    ],
)
def test_impossible_programs_fail_while_tracing(error, body, shape):
    with pytest.raises(error):
        trace(program(body, x=InputSpec("shared", shape, 40, 8)))


@pytest.mark.parametrize("width", [0, 65, -3])
def test_widths_outside_the_ring_fail_while_tracing(width):
    with pytest.raises(WidthError):
        trace(squares(width=width))


def test_words_of_different_widths_do_not_mix():
    with pytest.raises(WidthError):
        trace(program(lambda r, x, y: x ^ y, x=InputSpec("bits", (2,), 3), y=InputSpec("bits", (2,), 4)))


# Inputs


def zeros(shape=(3,), dtype=torch.int64):
    return torch.zeros(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("error", "inputs"),
    [
        (ShapeError, {"x": (Shared(zeros((4,)), 40, 8),) * 2}),
        (ShapeError, {"x": (Shared(zeros((3, 1)), 40, 8),) * 2}),
        (ShapeError, {"x": (Shared(zeros(), 41, 8),) * 2}),
        (ShapeError, {"x": (Shared(zeros(), 40, 9),) * 2}),
        (ShapeError, {"x": (Bits(zeros(), 40),) * 2}),
        (DtypeError, {"x": (Shared(zeros(dtype=torch.int32), 40, 8),) * 2}),
        (DtypeError, {"x": (Shared(zeros(dtype=torch.float64), 40, 8),) * 2}),
        (AgreementError, {}),
        (AgreementError, {"x": share_ring(zeros(), 40, 8), "y": share_ring(zeros(), 40, 8)}),
    ],
)
def test_wrong_inputs_fail_before_anything_is_sent(error, inputs):
    with pytest.raises(error):
        run_locally(squares(), inputs)
    plain = {name: pair[0] for name, pair in inputs.items()}
    with pytest.raises(error):
        Simulating().run(squares(), plain)
    assert run_squares()


# Material


def parts(plan):
    session, seeds = bytes(range(16)), (Seed.from_os(), Seed.from_os())
    link, _ = memory_pair("server0", "server1", session)
    outgoing, _ = memory_pair("assistant", "server1", session)
    cpu = torch.device("cpu")
    masks = Stream(seeds[0], session, SERVER_LINKS[0], "mask")
    server = Computing(0, plan, link, masks, SeededMaterial(seeds[0], session, cpu))
    return server, dealer(plan, outgoing, seeds, session)


def test_a_spent_session_is_refused():
    plan = trace(program(lambda r, x: x * 3, x=InputSpec("shared", (3,))))
    server, dealing = parts(plan)
    server.run({"x": Shared(zeros(), 64)})
    dealing.run({})
    with pytest.raises(MaterialError, match="new session"):
        server.run({"x": Shared(zeros(), 64)})
    with pytest.raises(MaterialError, match="new session"):
        dealing.run({})


def test_a_session_that_failed_is_spent_as_well():
    server, dealing = parts(trace(squares()))
    with pytest.raises(ShapeError):
        server.run({"x": Shared(zeros((4,)), 40, 8)})
    with pytest.raises(MaterialError):
        server.run({"x": Shared(zeros(), 40, 8)})
    with pytest.raises(AgreementError):
        dealing.run({"unknown": Shared(zeros(), 40, 8)})
    with pytest.raises(MaterialError):
        dealing.run({})


# A server that fails


class Deliberate(Exception):
    pass


def fails_at(party, after):
    """Raises at one server only, after some openings; at T for party 2."""

    def body(runtime, x):
        value = x
        for number in range(4):
            if number == after and _who(runtime) == party:
                raise Deliberate("a secret 123456")
            (wire,) = runtime.open(value)
            value = runtime.drop(square(runtime, wire), 8).raise_scale(8)
        return value

    return program(body, x=InputSpec("shared", (3,), 40, 8))


def _who(runtime):
    name = type(runtime).__name__
    return runtime.party if name == "Computing" else {"Dealing": 2}.get(name)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("party", [0, 1, 2])
def test_a_failing_server_ends_all_three_and_the_next_run_works(party, after):
    start = time.monotonic()
    with pytest.raises(Deliberate):
        run_locally(fails_at(party, after), {"x": share(torch.tensor([0.5, 0.25, -0.5]), 8, 40)})
    assert time.monotonic() - start < 5
    assert run_squares()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("party", [0, 1])
def test_the_others_hear_of_it_as_a_typed_error_without_the_text(party, monkeypatch):
    """What each thread ends with: the failing one with its own error, the others with one of the transport."""
    ended = []
    original = run_locally.__globals__["_run_all"]

    def keep(workers):
        try:
            original(workers)
        finally:
            ended.extend(worker.error for worker in workers)

    monkeypatch.setitem(run_locally.__globals__, "_run_all", keep)
    with pytest.raises(Deliberate):
        run_locally(fails_at(party, 1), {"x": share(torch.tensor([0.5, 0.25, -0.5]), 8, 40)})
    assert isinstance(ended[party], Deliberate)
    assert isinstance(ended[1 - party], TransportError)
    assert "123456" not in str(ended[1 - party])
    assert ended[2] is None or isinstance(ended[2], SecFormerError)


@pytest.mark.timeout(20)
def test_servers_that_run_different_programs_stop():
    """S1's program opens one thing less: nobody waits for it for ever."""

    def body(runtime, x):
        (wire,) = runtime.open(x)
        if _who(runtime) == 1:
            return square(runtime, wire)
        (wire,) = runtime.open(square(runtime, wire))
        return square(runtime, wire)

    with pytest.raises(SecFormerError):
        run_locally(program(body, x=InputSpec("shared", (3,), 40, 8)), {"x": share(torch.ones(3), 8, 40)})
    assert run_squares()


# Printing


def test_printing_a_value_never_shows_it():
    secret = 987654321
    pair = share_ring(torch.tensor([secret]))
    words = share_bits(torch.tensor([secret]), 40)
    for value in (*pair, *words, Shared(torch.tensor([secret]), 64)):
        assert str(secret) not in repr(value)
        assert "shape=(1,)" in repr(value)


def test_one_element_and_many_dimensions_work():
    x = torch.tensor([[[[[-1.5]]]]])
    body = program(lambda r, x: square(r, *r.open(x)), x=InputSpec("shared", (1, 1, 1, 1, 1), 40, 8))
    assert run_locally(body, {"x": share(x, 8, 40)}).value("y").tolist() == [[[[[2.25]]]]]
    signs = program(lambda r, x: sign_bit(r, *r.open(x)), x=InputSpec("shared", (1, 1, 1, 1, 1), 40, 8))
    assert run_locally(signs, {"x": share(x, 8, 40)}).value("y").item() == 1.0
