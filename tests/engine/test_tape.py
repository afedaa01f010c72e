"""What a trace records; the digest of a tape; the cursor that follows it."""

from dataclasses import replace

import pytest
import torch
from case import revealing

from secformer.crypto.prg import Draw
from secformer.engine.form import bits, masked, shared
from secformer.engine.tape import Cursor, Dealt, Disclosure, Opening, Tape
from secformer.engine.tracing import trace
from secformer.engine.values import Masked
from secformer.errors import AgreementError, TapeError
from secformer.protocols.lift import Carry
from secformer.protocols.multiply import Multiply, multiply, square
from secformer.roles import DEALER_LINKS, SERVER_LINK

NUMBERS, FLAGS = shared((2, 3), 20), bits((4,), 1)


def good_tape():
    tape = Tape("program", ("input weight",))
    tape.add_opening("layer", NUMBERS)
    tape.add_opening("layer", FLAGS)
    tape.rounds = 2
    tape.add_dealt("layer", "Square()", ("opening 0",), NUMBERS)
    tape.add_dealt("layer", "Multiply()", ("opening 0", "input weight"), NUMBERS)
    tape.add_disclosure("head", NUMBERS)
    tape.add_disclosure("head", FLAGS)
    return tape


def with_opening(tape, **changes):
    tape.openings[1] = replace(tape.openings[1], **changes)
    return tape


def with_dealt(tape, **changes):
    tape.dealt[1] = replace(tape.dealt[1], **changes)
    return tape


def with_disclosure(tape, **changes):
    tape.disclosed[1] = replace(tape.disclosed[1], **changes)
    return tape


def masks(*links, index=1, shape=(4,), width=1, purpose="mask"):
    return tuple(Draw(link, purpose, index, shape, width) for link in links)


ZERO, ONE = DEALER_LINKS
PAD, RENEWAL = good_tape().dealt[1].pad, good_tape().disclosed[1].draw
OTHER = {
    "mask reused": with_opening(good_tape(), draws=masks(ZERO, ONE, index=0)),
    "mask of another shape": with_opening(good_tape(), draws=masks(ZERO, ONE, shape=(1,))),
    "mask of another width": with_opening(good_tape(), draws=masks(ZERO, ONE, width=2)),
    "mask narrower than the value": with_opening(good_tape(), form=bits((4,), 8)),
    "mask of S0 alone": with_opening(good_tape(), draws=masks(ZERO)),
    "mask of S1 alone": with_opening(good_tape(), draws=masks(ONE)),
    "no mask": with_opening(good_tape(), draws=()),
    "mask of two draws of one server": with_opening(good_tape(), draws=masks(ZERO) + masks(ZERO, index=2)),
    "mask from the pads": with_opening(good_tape(), draws=masks(ZERO, ONE, purpose="pad", index=7)),
    "mask without T": with_opening(good_tape(), draws=masks(ZERO, SERVER_LINK)),
    "pad of another shape": with_dealt(good_tape(), pad=PAD._replace(shape=(2, 1))),
    "pad too narrow": with_dealt(good_tape(), pad=PAD._replace(width=19)),
    "pad that S1 knows": with_dealt(good_tape(), pad=PAD._replace(pair=ONE)),
    "pad that is a mask": with_dealt(good_tape(), pad=PAD._replace(purpose="mask", index=9)),
    "pad reused": with_dealt(good_tape(), pad=PAD._replace(index=0)),
    "unknown opening": with_dealt(good_tape(), sources=("opening 2",)),
    "no opening at all": with_dealt(good_tape(), sources=()),
    "unknown input": with_dealt(good_tape(), sources=("input bias",)),
    "result renewed with a number of another shape": with_disclosure(good_tape(), draw=RENEWAL._replace(shape=(1,))),
    "result renewed with too few bits": with_disclosure(good_tape(), form=bits((4,), 8)),
    "result renewed with what T knows": with_disclosure(good_tape(), draw=RENEWAL._replace(pair=ZERO)),
    "result renewed with a mask": with_disclosure(good_tape(), draw=RENEWAL._replace(purpose="mask")),
    "renewal reused": with_disclosure(good_tape(), draw=RENEWAL._replace(index=0)),
}


@pytest.mark.parametrize("name", OTHER)
def test_every_difference_changes_the_digest(name):
    """A party whose tape differs in anything is noticed before anything secret moves."""
    assert OTHER[name].digest() != good_tape().digest()


def test_a_gate_on_wires_from_nowhere_is_refused():
    wire = Masked(
        torch.zeros(3, dtype=torch.int64, device="meta"), torch.zeros(3, dtype=torch.int64, device="meta"), 20
    )
    with pytest.raises(TapeError, match="come from no opening"):
        trace(revealing("nowhere", lambda r, i: {"y": square(r, wire)}, {"x": shared((3,), 20)}))


def by_rows(gate, *forms):
    def body(runtime, values):
        return {"y": runtime.apply_by_rows(gate, 2, *runtime.open(*values.values()))}

    return revealing("rows", body, dict(zip("xyz", forms, strict=False)))


def test_wires_that_have_not_the_same_rows_are_refused():
    """The first wire's would be taken for all: three rows times the first three of five."""
    assert len(trace(by_rows(Multiply(), shared((3, 4), 20), shared((3, 4), 20))).tape.dealt) == 2
    for shape in ((5, 4), (4,), (1, 4)):
        with pytest.raises(TapeError, match="the same rows"):
            trace(by_rows(Multiply(), shared((3, 4), 20), shared(shape, 20)))


def test_a_gate_that_is_dealt_several_values_is_not_applied_by_rows():
    with pytest.raises(TapeError, match="not dealt one value"):
        trace(by_rows(Carry(60), shared((3, 4), 20)))


def test_the_digest_covers_program_inputs_order_and_version(monkeypatch):
    digests = {good_tape().digest()}
    assert digests == {good_tape().digest()}
    for change in (
        lambda tape: setattr(tape, "program", "another"),
        lambda tape: setattr(tape, "inputs", ("input bias",)),
        lambda tape: tape.dealt.reverse(),
        lambda tape: tape.openings.pop(),
        lambda tape: tape.disclosed.pop(),
        lambda tape: monkeypatch.setattr("secformer.engine.tape.PROTOCOL_VERSION", 99),
    ):
        tape = good_tape()
        change(tape)
        digests.add(tape.digest())
    assert len(digests) == 7


def square_program(shape=(2, 3), width=20, scale=0, settings=""):
    def body(runtime, values):
        (wire,) = runtime.open(values["x"])
        return {"y": square(runtime, wire)}

    return revealing("square", body, {"x": shared(shape, width, scale)}, settings)


@pytest.mark.parametrize(
    "other",
    [
        square_program(shape=(3, 2)),
        square_program(width=21),
        square_program(scale=1),
        square_program(settings="suite = exact"),
        replace(square_program(), name="cube"),
        replace(square_program(), results={"y": 3}),
    ],
)
def test_the_digest_of_a_trace_covers_shapes_widths_scales_results_and_settings(other):
    digest = trace(square_program()).tape.digest()
    assert trace(square_program()).tape.digest() == digest
    assert trace(other).tape.digest() != digest


def test_a_trace_records_openings_masks_sources_and_rounds():
    def body(runtime, values):
        x, w = runtime.open(values["x"], values["x"])
        (y,) = runtime.open(multiply(runtime, x, values["w"]))
        return {"z": multiply(runtime, y + w, x)}

    value = shared((2,), 30)
    tape = trace(revealing("mixed", body, {"x": value, "w": masked((2,), 30)})).tape
    assert [(opening.round, opening.form) for opening in tape.openings] == [(0, value), (0, value), (1, value)]
    assert [set(dealt.sources) for dealt in tape.dealt] == [
        {"opening 0", "input w"},
        {"opening 2", "opening 1", "opening 0"},
    ]
    assert [disclosure.form for disclosure in tape.disclosed] == [value]
    assert tape.rounds == 2


def test_the_cursor_accepts_exactly_the_tape():
    tape = good_tape()
    cursor = Cursor(tape)
    assert cursor.next(Opening, NUMBERS) is tape.openings[0]
    assert cursor.next(Dealt, NUMBERS) is tape.dealt[0]
    assert cursor.next(Disclosure, NUMBERS) is tape.disclosed[0]
    assert cursor.next(Opening, FLAGS) is tape.openings[1]
    for left in (lambda: cursor.next(Dealt, NUMBERS), lambda: cursor.next(Disclosure, FLAGS)):
        with pytest.raises(AgreementError, match="ended before"):
            cursor.finish()
        left()
    cursor.finish()
    for kind in (Opening, Dealt, Disclosure):
        with pytest.raises(AgreementError, match=f"{kind.__name__} 2"):
            cursor.next(kind, FLAGS)


@pytest.mark.parametrize("kind", [Opening, Dealt, Disclosure])
@pytest.mark.parametrize(
    "form", [shared((3, 2), 20), shared((2, 3), 21), shared((2, 3), 20, 1), bits((2, 3), 20), shared((6,), 20)]
)
def test_the_cursor_catches_divergence(kind, form):
    with pytest.raises(AgreementError, match="diverged"):
        Cursor(good_tape()).next(kind, form)


def test_shapes_of_torch_count_as_shapes():
    tape = good_tape()
    assert Cursor(tape).next(Opening, shared(torch.Size((2, 3)), 20)) is tape.openings[0]
