"""The rules of a tape, each broken by hand; its digest; the cursor that follows it."""

from dataclasses import replace

import pytest
import torch

from secformer.engine.gate import Material
from secformer.engine.program import InputSpec, Program
from secformer.engine.tape import SERVER_LINKS, Cursor, Draw, Tape
from secformer.engine.tracing import trace
from secformer.errors import AgreementError, TapeError
from secformer.protocols.multiply import multiply, square


def good_tape():
    tape = Tape("program", ("input weight",))
    tape.add_opening("layer", Material((2, 3), 20))
    tape.add_opening("layer", Material((4,), 1, boolean=True))
    tape.rounds = 2
    tape.add_dealt("layer", "Square()", ("opening 0",), Material((2, 3), 20))
    tape.add_dealt("layer", "Multiply()", ("opening 0", "input weight"), Material((2, 3), 20))
    return tape


def with_opening(tape, **changes):
    tape.openings[1] = replace(tape.openings[1], **changes)
    return tape


def with_dealt(tape, **changes):
    tape.dealt[1] = replace(tape.dealt[1], **changes)
    return tape


def masks(*links, index=1, shape=(4,), width=1, purpose="mask"):
    return tuple(Draw(link, purpose, index, shape, width) for link in links)


ZERO, ONE = SERVER_LINKS
PAD = good_tape().dealt[1].pad
BROKEN = {
    "mask reused": with_opening(good_tape(), draws=masks(ZERO, ONE, index=0)),
    "mask of another shape": with_opening(good_tape(), draws=masks(ZERO, ONE, shape=(1,))),
    "mask of another width": with_opening(good_tape(), draws=masks(ZERO, ONE, width=2)),
    "mask narrower than the value": with_opening(good_tape(), width=8),
    "mask of S0 alone": with_opening(good_tape(), draws=masks(ZERO)),
    "mask of S1 alone": with_opening(good_tape(), draws=masks(ONE)),
    "no mask": with_opening(good_tape(), draws=()),
    "mask of two draws of one server": with_opening(good_tape(), draws=masks(ZERO) + masks(ZERO, index=2)),
    "mask from the pads": with_opening(good_tape(), draws=masks(ZERO, ONE, purpose="pad", index=7)),
    "pad of another shape": with_dealt(good_tape(), pad=replace(PAD, shape=(2, 1))),
    "pad too narrow": with_dealt(good_tape(), pad=replace(PAD, width=19)),
    "pad that S1 knows": with_dealt(good_tape(), pad=replace(PAD, link=ONE)),
    "pad that is a mask": with_dealt(good_tape(), pad=replace(PAD, purpose="mask", index=9)),
    "pad reused": with_dealt(good_tape(), pad=replace(PAD, index=0)),
    "unknown opening": with_dealt(good_tape(), sources=("opening 2",)),
    "no opening at all": with_dealt(good_tape(), sources=()),
    "unknown input": with_dealt(good_tape(), sources=("input bias",)),
    "draw beyond a nonce": with_opening(good_tape(), shape=(1 << 36,), draws=masks(ZERO, ONE, shape=(1 << 36,))),
}


def test_a_good_tape_passes():
    good_tape().verify()


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_tape_is_rejected(name):
    with pytest.raises(TapeError):
        BROKEN[name].verify()


@pytest.mark.parametrize("name", BROKEN)
def test_every_difference_changes_the_digest(name):
    assert BROKEN[name].digest() != good_tape().digest()


def test_the_digest_covers_program_inputs_order_and_version(monkeypatch):
    digests = {good_tape().digest()}
    assert digests == {good_tape().digest()}
    for change in (
        lambda tape: setattr(tape, "program", "another"),
        lambda tape: setattr(tape, "inputs", ("input bias",)),
        lambda tape: tape.dealt.reverse(),
        lambda tape: tape.openings.pop(),
        lambda tape: monkeypatch.setattr("secformer.engine.tape.PROTOCOL_VERSION", 99),
    ):
        tape = good_tape()
        change(tape)
        digests.add(tape.digest())
    assert len(digests) == 6


def square_program(shape=(2, 3), width=20, scale=0, settings=""):
    def body(runtime, values):
        (wire,) = runtime.open(values["x"])
        return {"y": square(runtime, wire)}

    return Program("square", body, {"x": InputSpec("shared", shape, width, scale)}, settings)


@pytest.mark.parametrize(
    "other",
    [
        square_program(shape=(3, 2)),
        square_program(width=21),
        square_program(scale=1),
        square_program(settings="suite = exact"),
        replace(square_program(), name="cube"),
    ],
)
def test_the_digest_of_a_trace_covers_shapes_widths_scales_and_settings(other):
    digest = trace(square_program()).tape.digest()
    assert trace(square_program()).tape.digest() == digest
    assert trace(other).tape.digest() != digest


def test_a_trace_records_openings_masks_sources_and_rounds():
    def body(runtime, values):
        x, w = runtime.open(values["x"], values["x"])
        (y,) = runtime.open(multiply(runtime, x, values["w"]))
        return {"z": multiply(runtime, y + w, x)}

    specs = {"x": InputSpec("shared", (2,), 30), "w": InputSpec("masked", (2,), 30)}
    tape = trace(Program("mixed", body, specs)).tape
    assert [(opening.round, opening.shape, opening.width) for opening in tape.openings] == [
        (0, (2,), 30),
        (0, (2,), 30),
        (1, (2,), 30),
    ]
    assert [dealt.sources for dealt in tape.dealt] == [
        ("opening 0", "input w"),
        ("opening 2", "opening 1", "opening 0"),
    ]
    assert tape.rounds == 2


def test_the_cursor_accepts_exactly_the_tape():
    cursor = Cursor(good_tape())
    assert cursor.next_opening(Material((2, 3), 20)) == 0
    assert cursor.next_dealt(Material((2, 3), 20)) == 0
    assert cursor.next_opening(Material((4,), 1, boolean=True)) == 1
    with pytest.raises(AgreementError, match="ended before"):
        cursor.finish()
    assert cursor.next_dealt(Material((2, 3), 20)) == 1
    cursor.finish()
    with pytest.raises(AgreementError, match="opening 2"):
        cursor.next_opening(Material((4,), 1))
    with pytest.raises(AgreementError, match="item 2"):
        cursor.next_dealt(Material((4,), 1))


@pytest.mark.parametrize(
    "content", [Material((3, 2), 20), Material((2, 3), 21), Material((2, 3), 20, boolean=True), Material((6,), 20)]
)
def test_the_cursor_catches_divergence(content):
    with pytest.raises(AgreementError, match="diverged"):
        Cursor(good_tape()).next_opening(content)
    with pytest.raises(AgreementError, match="diverged"):
        Cursor(good_tape()).next_dealt(content)


def test_shapes_of_torch_count_as_shapes():
    assert Cursor(good_tape()).next_opening(Material(torch.Size((2, 3)), 20)) == 0
