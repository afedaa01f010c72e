"""Bad input and faults: a typed error, on every side, soon; and the next run works."""

import time

import pytest
import torch
from case import revealing

from secformer.crypto.prg import Seed
from secformer.engine import local
from secformer.engine.computing import Computing, seeded_material
from secformer.engine.dealing import Dealing, Draws
from secformer.engine.form import bits, shared
from secformer.engine.local import run_locally
from secformer.engine.sharing import Encoded, Sharing, share
from secformer.engine.simulating import Simulating
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


def program(body, **forms):
    return revealing("test", lambda runtime, values: {"y": body(runtime, **values)}, forms)


def squares(shape=(3,), width=40, scale=8):
    return program(lambda r, x: square(r, *r.open(x)), x=shared(shape, width, scale))


def numbers(*real):
    return Encoded.numbers(torch.tensor(real, dtype=torch.float64), 8, 40)


def run_squares():
    return run_locally(squares(), {"x": numbers(1.5, -2.0, 0.25)}).value("y").tolist() == [2.25, 4.0, 0.0625]


# Values


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 2.0**31, -(2.0**31) - 1])
def test_values_that_cannot_be_encoded(bad):
    with pytest.raises(RangeError):
        numbers(0.0, bad)
    assert run_squares()


def test_the_message_does_not_tell_the_value():
    with pytest.raises(RangeError) as caught:
        numbers(0.0, 3.25e13)
    assert "3.25" not in str(caught.value)


def test_empty_and_complex_tensors_cannot_be_encoded():
    with pytest.raises(ShapeError):
        Encoded.numbers(torch.empty(0, 3), 8)
    with pytest.raises(DtypeError):
        Encoded.numbers(torch.zeros(2, dtype=torch.complex64), 8)


@pytest.mark.parametrize("real", [float("nan"), float("inf"), 2.0**60])
def test_public_constants_are_checked_while_tracing(real):
    with pytest.raises(RangeError):
        trace(program(lambda r, x: r.add(x, real), x=shared((2,), 64, 16)))


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
        trace(program(body, x=shared(shape, 40, 8)))


@pytest.mark.parametrize("width", [0, 65, -3])
def test_widths_outside_the_ring_fail_while_tracing(width):
    with pytest.raises(WidthError):
        trace(squares(width=width))


def test_words_of_different_widths_do_not_mix():
    with pytest.raises(WidthError):
        trace(program(lambda r, x, y: x ^ y, x=bits((2,), 3), y=bits((2,), 4)))


# Inputs


def zeros(shape=(3,), dtype=torch.int64):
    return torch.zeros(shape, dtype=dtype)


def both(value):
    return Sharing((value, value))


@pytest.mark.parametrize(
    ("error", "inputs"),
    [
        (ShapeError, {"x": both(Shared(zeros((4,)), 40, 8))}),
        (ShapeError, {"x": both(Shared(zeros((3, 1)), 40, 8))}),
        (ShapeError, {"x": both(Shared(zeros(), 41, 8))}),
        (ShapeError, {"x": both(Shared(zeros(), 40, 9))}),
        (ShapeError, {"x": both(Bits(zeros(), 40))}),
        (DtypeError, {"x": both(Shared(zeros(dtype=torch.int32), 40, 8))}),
        (DtypeError, {"x": both(Shared(zeros(dtype=torch.float64), 40, 8))}),
        (AgreementError, {}),
        (AgreementError, {"x": share(numbers(0.0, 0.0, 0.0)), "y": share(numbers(0.0, 0.0, 0.0))}),
    ],
)
def test_wrong_inputs_fail_before_anything_is_sent(error, inputs):
    with pytest.raises(error):
        run_locally(squares(), inputs)
    plain = {name: sharing.pair[0] for name, sharing in inputs.items()}
    with pytest.raises(error):
        Simulating().run(squares(), plain)
    assert run_squares()


def test_a_tensor_must_have_its_form():
    with pytest.raises(ShapeError):
        Encoded(shared((4,), 40, 8), zeros())


# Material


def parts(plan):
    session, seeds = bytes(range(16)), (Seed.from_os(), Seed.from_os())
    link, _ = memory_pair("server0", "server1", session)
    outgoing, _ = memory_pair("dealer", "server1", session)
    material = seeded_material(seeds[0], session, torch.device("cpu"))
    return Computing(0, plan, link, seeds[0], Seed.from_os(), material), Dealing(
        plan, outgoing, Draws.of(seeds, session)
    )


def test_a_spent_session_is_refused():
    plan = trace(program(lambda r, x: x * 3, x=shared((3,))))
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
            value = runtime.drop(square(runtime, wire), 8).raise_scale(8).rescaled(8)
        return value

    return program(body, x=shared((3,), 40, 8))


def _who(runtime):
    name = type(runtime).__name__
    return runtime.party if name == "Computing" else {"Dealing": 2}.get(name)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("party", [0, 1, 2])
def test_a_failing_server_ends_all_three_and_the_next_run_works(party, after):
    start = time.monotonic()
    with pytest.raises(Deliberate):
        run_locally(fails_at(party, after), {"x": numbers(0.5, 0.25, -0.5)})
    assert time.monotonic() - start < 5
    assert run_squares()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("party", [0, 1])
def test_the_others_hear_of_it_as_a_typed_error_without_the_text(party, monkeypatch):
    """What each server ends with: the failing one with its own error, the others with one of the transport."""
    links, ended = [], {}
    original = local._guarded

    def keep(action, channels):
        role = links.index(channels[0]) if channels[0] in links else 2
        try:
            return original(action, channels)
        except BaseException as error:
            ended[role] = error
            raise

    def remember(channel):
        links.append(channel)
        return channel

    monkeypatch.setattr(local, "_guarded", keep)
    with pytest.raises(Deliberate):
        run_locally(fails_at(party, 1), {"x": numbers(0.5, 0.25, -0.5)}, wrap=remember)
    assert isinstance(ended[party], Deliberate)
    assert isinstance(ended[1 - party], TransportError)
    assert "123456" not in str(ended[1 - party])
    assert isinstance(ended.get(2), SecFormerError | None)


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
        run_locally(program(body, x=shared((3,), 40, 8)), {"x": numbers(1.0, 1.0, 1.0)})
    assert run_squares()


# Printing


def test_printing_a_value_never_shows_it():
    secret = torch.tensor([987654321])
    number, word = Encoded.ring_elements(secret), Encoded.ring_elements(secret, width=40, kind="bits")
    wires = [Encoded.ring_elements(secret, kind=kind) for kind in ("masked", "masked_bits")]
    values = [value for encoded in (number, word, *wires) for value in (*share(encoded).pair, encoded.plain())]
    for value in values:
        assert "987654321" not in repr(value)
        assert "shape=(1,)" in repr(value)
    assert all("987654321" not in repr(encoded) for encoded in (number, word, *wires))


def test_one_element_and_many_dimensions_work():
    x = Encoded.numbers(torch.tensor([[[[[-1.5]]]]]), 8, 40)
    squared = program(lambda r, x: square(r, *r.open(x)), x=x.form)
    assert run_locally(squared, {"x": x}).value("y").tolist() == [[[[[2.25]]]]]
    signs = program(lambda r, x: sign_bit(r, *r.open(x)), x=x.form)
    assert run_locally(signs, {"x": x}).value("y").item() == 1.0
