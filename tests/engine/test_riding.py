"""Steps: at once in rounds of their own, or riding in the program's; the same result, charged where they belong."""

from __future__ import annotations

import pytest
import torch
from case import revealing
from simulation import simulation

from secformer.engine.form import shared
from secformer.engine.local import run_locally
from secformer.engine.sharing import Encoded, share
from secformer.engine.tracing import trace
from secformer.errors import TapeError
from secformer.protocols.multiply import square, unmask

FORMS = {"x": shared((5,), 40), "y": shared((5,), 40)}
VALUES = {"x": torch.tensor([3, -2, 0, 7, -9]), "y": torch.tensor([1, -1, 2, 0, 5])}


def fourth_power(runtime, value, kept):
    """Three rounds: x, x², and x⁴ once more."""
    (wire,) = yield (value,)
    (wire,) = yield (square(runtime, wire),)
    (wire,) = yield (square(runtime, wire),)
    kept.append(unmask(runtime, wire))


def program(way, rounds=4, riders=1):
    """The program squares nothing: it opens y in every round."""

    def body(runtime, inputs):
        kept, y = [], inputs["y"]
        with runtime.scope("layer"):
            with runtime.scope("work"):
                for _ in range(riders):
                    steps = fourth_power(runtime, inputs["x"], kept)
                    runtime.ride(steps, "guest") if way == "ride" else runtime.at_once(steps)
            for _ in range(rounds):
                with runtime.scope("other"):
                    (wire,) = runtime.open(y)
                    y = unmask(runtime, wire) + y
        powers = {f"x {place}": power for place, power in enumerate(kept)}
        return {"y": y, **powers}

    return revealing("steps", body, FORMS)


def secrets():
    return {name: Encoded.ring_elements(value, width=40) for name, value in VALUES.items()}


@pytest.mark.parametrize("way", ["at_once", "ride"])
@pytest.mark.parametrize("riders", [1, 3])
@pytest.mark.parametrize("first", [None, 0, -1, 1 << 39])
def test_the_same_result_at_once_and_riding(way, riders, first):
    built = program(way, riders=riders)
    forced = None if first is None else lambda ring, width: torch.full_like(ring, first)
    run = run_locally(built, {name: share(secret, forced) for name, secret in secrets().items()})
    plain = simulation(built, secrets()).results
    for results in ({name: run.value(name) for name in plain}, plain):
        assert torch.equal(results["y"].long(), 16 * VALUES["y"])
        assert len(results) == 1 + riders
        for place in range(riders):
            assert torch.equal(results[f"x {place}"].long(), VALUES["x"] ** 4)
    assert run.counters[0].rounds == run.plan.cost.rounds
    assert run.counters[0].payload_sent == run.plan.cost.opened_bytes


def test_a_ride_costs_no_round_and_is_charged_to_its_scope():
    riding, at_once = trace(program("ride")), trace(program("at_once"))
    assert (riding.cost.rounds, at_once.cost.rounds) == (4, 3 + 4)
    assert (riding.cost.opened_bits, riding.cost.dealer_bits) == (at_once.cost.opened_bits, at_once.cost.dealer_bits)
    guest, work, other = (riding.ledger.at(f"layer/{name}") for name in ("guest", "work", "other"))
    assert (guest.rounds, guest.opened_bits, guest.dealer_bits) == (0, 3 * 5 * 40, 2 * 5 * 40)
    assert (work.opened_bits, work.dealer_bits) == (0, 0)
    assert (other.rounds, other.opened_bits, other.dealer_bits) == (4, 4 * 5 * 40, 0)
    rounds = [opening.round for opening in riding.tape.openings]
    assert rounds == [0, 0, 1, 1, 2, 2, 3]


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_steps_that_never_arrive_are_refused_while_tracing(rounds):
    with pytest.raises(TapeError, match="layer/guest: steps wait for a round that never comes"):
        trace(program("ride", rounds))
    trace(program("ride", 3))


def test_steps_that_open_nothing_end_at_once():
    def nothing(kept, x):
        kept.append(x)
        return
        yield

    def body(runtime, inputs):
        kept = []
        runtime.ride(nothing(kept, inputs["x"]), "guest")
        return {"x": kept[0]}

    plan = trace(revealing("nothing", body, FORMS))
    assert plan.cost.rounds == 0


def test_steps_may_ride_on_steps():
    """Who rides when another's round is opened joins it."""

    def body(runtime, inputs):
        kept = []
        runtime.ride(fourth_power(runtime, inputs["x"], kept), "guest")
        runtime.at_once(fourth_power(runtime, inputs["y"], kept))
        return {"x": kept[0], "y": kept[1]}

    built = revealing("both", body, FORMS)
    run = run_locally(built, secrets())
    assert run.plan.cost.rounds == 3
    found = sorted(run.value(name).long().tolist() for name in ("x", "y"))
    assert found == sorted((VALUES[name] ** 4).tolist() for name in ("x", "y"))
