"""What a server computes before the query: the same shares, one product instead of two, and nothing left over."""

import pytest
import torch
from case import revealing

from secformer.crypto.prg import Draw, Seed
from secformer.engine.computing import Computing, Streams
from secformer.engine.form import masked, shared
from secformer.engine.local import run_locally
from secformer.engine.sharing import Encoded, share
from secformer.engine.values import Masked
from secformer.protocols.multiply import MatMul, matmul
from secformer.ring.fixed_point import reduce
from secformer.roles import DEALER_LINKS

WIDTH, LEFT = 50, 38


def words(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**63), 2**63 - 1, shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize("width", [31, 50, 64])
def test_a_share_is_the_same_with_and_without(party, width):
    x = Masked(words(2, 30, 40), words(2, 30, 40) + 1, width)
    y = Masked(words(40, 50), words(40, 50) + 1, width).as_static()
    gate, dealt = MatMul(), words(2, 30, 50)
    made = gate.ahead(x, y)
    assert made is not None and made.count_nonzero()
    expected = gate.evaluate(party, (x, y), (dealt,))
    assert torch.equal(reduce(gate.evaluate(party, (x, y), (dealt, made)), width), reduce(expected, width))


def test_a_wire_that_comes_with_the_query_leaves_nothing_to_do_ahead():
    x = Masked(words(3, 4), words(3, 4), WIDTH)
    assert MatMul().ahead(x, Masked(words(4, 5), words(4, 5), WIDTH)) is None


def program():
    def body(runtime, values):
        (wire,) = runtime.open(values["x"])
        first = matmul(runtime, wire, values["w"])
        (again,) = runtime.open(first.at(12))
        return {"y": matmul(runtime, again, values["v"])}

    forms = {"x": shared((5, 20), WIDTH, 12), "w": masked((20, 30), WIDTH, 12), "v": masked((30, 7), LEFT, 12)}
    return revealing("two products", body, forms)


def test_a_run_that_prepares_gives_the_same_and_uses_all_it_made(monkeypatch):
    generator = torch.Generator().manual_seed(1)
    x, w, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((5, 20), (20, 30), (30, 7)))
    left = []
    run = Computing.run

    def counted(server, inputs):
        made = len(server._made)
        outputs = run(server, inputs)
        left.append((made, len(server._made)))
        return outputs

    monkeypatch.setattr(Computing, "run", counted)
    given = {"x": Encoded.numbers(x, 12, WIDTH)}
    for name, weight, width in (("w", w, WIDTH), ("v", v, LEFT)):
        sharing = share(Encoded.numbers(weight, 12, width, "masked"))
        given[name] = type(sharing)(tuple(part.as_static() for part in sharing.pair), sharing.dealt)
    result = run_locally(program(), given, ahead=True).value("y")
    assert left == [(2, 0), (2, 0)]
    assert (result - x @ w @ v).abs().max() < 0.02
    assert (run_locally(program(), given).value("y") - result).abs().max() < 0.01


def test_masks_come_once_more_under_the_name_that_t_dealt_by():
    own, common, session, stocked = Seed.from_os(), Seed.from_os(), b"session", b"an item of the stock"
    draw = Draw(DEALER_LINKS[1], "mask", 0, (4,), 20)
    streams = [Streams.of(1, own, common, session, torch.device("cpu"), dealt) for dealt in (stocked, None)]
    first, other = (each.masks.draw(draw) for each in streams)
    assert torch.equal(streams[0].again().draw(draw), first)
    assert torch.equal(streams[1].again().draw(draw), other)
    assert not torch.equal(first, other)
