"""What a program, or an engine gone wrong, must not do, and that it is stopped: the negative side of docs/threat-model.md."""

from __future__ import annotations

import pytest
import torch

from secformer.crypto.prg import Draw, Seed, Stream
from secformer.engine import computing
from secformer.engine.computing import Computing, check_mask, seeded_material
from secformer.engine.dealing import Dealing, Draws
from secformer.engine.form import bits, masked, shared
from secformer.engine.local import run_locally
from secformer.engine.program import Program
from secformer.engine.sharing import Encoded
from secformer.engine.tracing import trace
from secformer.engine.values import Disclosed, Public, Shared
from secformer.errors import AgreementError, MaterialError, SecurityError, TapeError
from secformer.protocols.lift import lift_wire
from secformer.protocols.multiply import matmul, multiply, square, unmask
from secformer.ring import kernels
from secformer.ring.kernels import cpu
from secformer.roles import COMPUTING, DEALER, DEALER_LINKS, SERVER_LINK
from secformer.transport.channel import Channel
from secformer.transport.memory import memory_pair

X = shared((3, 4), 40, 8)


def program(body, results=None, **forms):
    return Program("test", body, forms or {"x": X}, {"y": 16} if results is None else results)


def disclosed(body):
    """A body that discloses one value."""
    return lambda runtime, inputs: {"y": runtime.disclose(body(runtime, inputs["x"]))}


def refused(body, match, results=None, **forms):
    with pytest.raises(TapeError, match=match):
        trace(program(body, results, **forms))


# What is opened


def test_a_wire_is_not_opened_again():
    refused(lambda r, i: r.open(*r.open(i["x"])), "Masked cannot be opened")


def test_a_lifted_wire_is_not_opened():
    refused(lambda r, i: r.open(lift_wire(r, *r.open(i["x"]), 50)), "Lifted cannot be opened")


def test_a_share_made_of_a_mask_is_not_opened():
    def body(runtime, inputs):
        (wire,) = runtime.open(inputs["x"])
        return {"y": runtime.disclose(unmask(runtime, *runtime.open(Shared(wire.mask, 40, 8))))}

    refused(body, "made of a mask")


# What is disclosed


def test_an_output_must_be_disclosed():
    refused(lambda r, i: {"y": i["x"]}, "bare Shared")


def test_an_output_finer_than_declared_is_refused():
    refused(disclosed(lambda r, x: x), "finer than declared", {"y": 7})
    trace(program(disclosed(lambda r, x: x), {"y": 8}))
    trace(program(disclosed(lambda r, x: r.drop(x, 1)), {"y": 7}))


def test_an_output_nobody_declared_is_refused():
    refused(disclosed(lambda r, x: x), "not declared", {"z": 16})


def test_integers_at_scale_zero_are_fine():
    trace(program(lambda r, i: {"y": r.disclose(i["x"])}, {"y": 0}, x=shared((2,), 20)))
    trace(program(lambda r, i: {"y": r.disclose(i["x"])}, {"y": 0}, x=bits((2,), 20)))


def mask_alone(runtime, x):
    (wire,) = runtime.open(x)
    return Shared(wire.mask, 40, 8)


def mask_among_shares(runtime, x):
    (wire,) = runtime.open(x)
    return square(runtime, wire).rescaled(8) + Shared(wire.mask.flip(0) * 3, 40, 8)


@pytest.mark.parametrize("body", [mask_alone, mask_among_shares])
def test_an_output_that_contains_a_mask_is_refused(body):
    refused(disclosed(body), "made of a mask")


def test_the_mask_of_a_static_wire_counts_as_well():
    body = lambda r, i: {"y": r.disclose(i["x"] + Shared(i["w"].mask, 40, 8))}  # noqa: E731
    refused(body, "made of a mask", x=X, w=masked((3, 4), 40, 8))


def test_a_result_made_of_an_opening_alone_is_refused():
    """x + r to the client, and r to whoever it asks."""

    def body(runtime, x):
        (wire,) = runtime.open(x)
        return runtime.constant(Public(wire.public, 8), 40)

    refused(disclosed(body), "public parts alone")


def test_public_parts_may_go_into_a_share():
    def body(runtime, x):
        (wire,) = runtime.open(x)
        return x + runtime.constant(Public(wire.public & 0, 8), 40)

    trace(program(disclosed(body)))


def test_an_output_is_randomised_anew():
    """The shares a caller gets say nothing but their sum: they change from run to run where the program changes nothing."""
    x = Encoded.ring_elements(torch.arange(40), width=30)
    built = Program("same", lambda r, i: {"y": r.disclose(i["x"])}, {"x": x.form}, {"y": 0})
    sharing = [Shared(torch.zeros(40, dtype=torch.int64), 30), Shared(x.ring, 30)]
    runs = [run_locally(built, {"x": _as_sharing(sharing)}) for _ in range(2)]
    halves = [run.outputs[0]["y"].value.share for run in runs]
    assert not torch.equal(*halves) and not bool((halves[0] == 0).any())
    assert all(torch.equal(run.value("y"), x.real) for run in runs)


def _as_sharing(pair):
    from secformer.engine.sharing import Sharing

    return Sharing(tuple(pair))


# What a program looks at


@pytest.mark.parametrize(
    "look",
    [
        lambda x: bool((x.share > 0).any()),
        lambda x: x.share.sum().item(),
        lambda x: int(x.share[0, 0]),
        lambda x: x.share.tolist(),
        lambda x: x.share.nonzero(),
    ],
)
def test_a_branch_on_a_share_is_refused(look):
    refused(disclosed(lambda r, x: x if look(x) else -x), "looks at data")


def test_a_branch_on_an_opening_is_refused():
    refused(disclosed(lambda r, x: x if bool(r.open(x)[0].public.max()) else -x), "looks at data")


def test_a_program_that_strays_from_its_tape_stops():
    """A branch that a trace did not see, because it asks who reads."""

    def body(runtime, inputs):
        if type(runtime) is Computing:
            runtime.open(inputs["x"])
        return {"y": runtime.disclose(inputs["x"])}

    with pytest.raises(AgreementError, match="diverged"):
        run_locally(program(body), {"x": Encoded.numbers(torch.zeros(3, 4), 8, 40)})


# What a gate takes


def test_gates_for_wires_refuse_lifted_ones():
    def lifted(runtime, x):
        return lift_wire(runtime, *runtime.open(x), 60)

    pair = {"x": shared((4, 4), 40, 8)}
    refused(lambda r, i: multiply(r, lifted(r, i["x"]), lifted(r, i["x"])), "Multiply does not take", **pair)
    refused(lambda r, i: matmul(r, lifted(r, i["x"]), lifted(r, i["x"])), "MatMul does not take", **pair)
    refused(lambda r, i: square(r, lifted(r, i["x"])), "Square does not take", **pair)
    refused(lambda r, i: unmask(r, lifted(r, i["x"])), "Unmask does not take", **pair)
    with pytest.raises(TypeError):
        trace(program(lambda r, i: lifted(r, i["x"]) + lifted(r, i["x"])))


# What a body can reach


def reading(kind, plan):
    session, seeds = bytes(range(16)), (Seed.from_os(), Seed.from_os())
    link, _ = memory_pair(*COMPUTING, session)
    if kind is Dealing:
        return Dealing(plan, memory_pair(DEALER, COMPUTING[1], session)[0], Draws.of(seeds, session))
    material = seeded_material(seeds[0], session, torch.device("cpu"))
    return Computing(0, plan, link, seeds[0], Seed.from_os(), material)


def reachable(thing, seen, depth=0):
    """Everything that attributes, items and slots lead to, from a runtime outwards; not what functions close over."""
    if id(thing) in seen or depth > 6 or isinstance(thing, type | torch.Tensor | str | bytes | int | float):
        return
    seen[id(thing)] = thing
    if isinstance(thing, dict):
        children = [*thing.keys(), *thing.values()]
    elif isinstance(thing, list | tuple | set | frozenset):
        children = list(thing)
    else:
        names = [*getattr(thing, "__dict__", {}), *getattr(type(thing), "__slots__", ())]
        children = [getattr(thing, name) for name in names if hasattr(thing, name)]
    for child in children:
        reachable(child, seen, depth + 1)


@pytest.mark.parametrize("kind", [Computing, Dealing])
def test_a_body_reaches_neither_channel_nor_stream_nor_seed(kind):
    found: dict[int, object] = {}
    reachable(reading(kind, trace(program(disclosed(lambda r, x: x)))), found)
    assert not [thing for thing in found.values() if isinstance(thing, Channel | Stream | Seed)]
    assert len(found) > 10  # the walk did walk


def test_a_bare_share_cannot_be_sent():
    """The old way: a body that helps itself to the channel."""

    def body(runtime, inputs):
        if isinstance(runtime, Computing):
            runtime._channel.exchange(inputs["x"].share.view(torch.uint8).reshape(-1))
        return {"y": runtime.disclose(inputs["x"])}

    with pytest.raises(AttributeError):
        run_locally(program(body), {"x": Encoded.numbers(torch.zeros(3, 4), 8, 40)})


# What a stream draws


def test_a_stream_takes_its_own_draws_once():
    stream = Stream(Seed.from_os(), bytes(16), DEALER_LINKS[0], "mask")
    entry = Draw(DEALER_LINKS[0], "mask", 3, (2, 2), 20)
    assert stream.draw(entry).shape == (2, 2)
    for other in (entry, entry._replace(index=2), entry._replace(pair=DEALER_LINKS[1], index=4)):
        with pytest.raises(MaterialError):
            stream.draw(other)
    with pytest.raises(MaterialError):
        stream.draw(Draw(SERVER_LINK, "output", 5, (2, 2), 20))


# An engine gone wrong


class Narrow:
    """A device whose masks have 8 bits, whatever they hide."""

    @staticmethod
    def close(share, closing, keystream):
        closed = cpu.close(share, closing, keystream)
        return closed._replace(mask=closed.mask & 255)


class Broadcast:
    """A device that draws one row and uses it for all."""

    @staticmethod
    def close(share, closing, keystream):
        closed = cpu.close(share, closing, keystream)
        return closed._replace(mask=closed.mask[:1].expand(closed.mask.shape))


@pytest.mark.parametrize("broken", [Narrow, Broadcast])
def test_a_mask_that_hides_too_little_is_noticed_before_anything_is_sent(broken):
    x = Encoded.ring_elements(torch.arange(80).reshape(8, 10), width=40)
    built = Program("square", lambda r, i: {"y": r.disclose(square(r, *r.open(i["x"])))}, {"x": x.form}, {"y": 0})
    kernels.register("cpu", broken)
    try:
        with pytest.raises(SecurityError):
            run_locally(built, {"x": x})
    finally:
        kernels.unregister("cpu", broken)
    assert torch.equal(run_locally(built, {"x": x}).value("y"), (x.ring**2).double())


def test_a_tape_whose_draw_is_narrower_than_the_value_is_refused_by_open():
    x = Encoded.ring_elements(torch.arange(80), width=40)
    built = Program("open", lambda r, i: {"y": r.disclose(square(r, *r.open(i["x"])))}, {"x": x.form}, {"y": 0})
    plan = trace(built)
    opening = plan.tape.openings[0]
    draws = tuple(draw._replace(width=8) for draw in opening.draws)
    object.__setattr__(opening, "draws", draws)
    with pytest.raises(SecurityError, match="does not hide"):
        run_locally(built, {"x": x}, plan=plan)


@pytest.mark.parametrize(
    "mask",
    [
        torch.zeros(4, 30, dtype=torch.int64),
        torch.full((4, 32), (1 << 19) - 1),
        torch.full((1, 32), 1 << 19).expand(4, 32),
        torch.full((32, 4), 1 << 19).T,
    ],
)
def test_check_mask(mask):
    check_mask(torch.full((4, 32), 1 << 19), shared((4, 32), 20))
    with pytest.raises(SecurityError):
        check_mask(mask, shared((4, 32), 20))


def test_open_checks_every_mask(monkeypatch):
    """The assertion stands in the way of every opening, wide or narrow, numbers or bits."""
    seen = []
    monkeypatch.setattr(computing, "check_mask", lambda mask, form: seen.append(form))
    x, b = (
        Encoded.ring_elements(torch.arange(9), width=33),
        Encoded.ring_elements(torch.arange(9) & 1, width=1, kind="bits"),
    )

    def body(runtime, inputs):
        runtime.open(inputs["x"], inputs["b"])
        return {"y": runtime.disclose(square(runtime, *runtime.open(inputs["x"].at(0, 20))))}

    run_locally(Program("openings", body, {"x": x.form, "b": b.form}, {"y": 0}), {"x": x, "b": b})
    assert sorted(form.width for form in seen) == [1, 1, 20, 20, 33, 33]


def test_disclosed_values_hide_their_content():
    assert "987" not in repr(Disclosed(Shared(torch.tensor([987654321]), 64)))
