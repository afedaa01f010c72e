"""What parties, logs and memory must not learn beside the protocol: from errors, from reprs, from what is kept."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from servers import QUERY, X, promptly, settings_in, trio, weights

from secformer.crypto import dpf
from secformer.engine.form import bits, shared
from secformer.engine.sharing import Encoded, share
from secformer.engine.values import Disclosed, Shared
from secformer.errors import (
    FrameError,
    InputError,
    ModelError,
    PeerAbortedError,
    RangeError,
    ShapeError,
    TransportError,
)
from secformer.models.shapes import PRESETS
from secformer.parties import messages
from secformer.parties.caller import Caller
from secformer.parties.inputs import Part, largest_input
from secformer.parties.messages import Job
from secformer.parties.server import describe, without_frames
from secformer.systems import card_from_json
from secformer.transport.channel import FrameType
from secformer.transport.frame import CONTROL_LIMIT, Frame
from secformer.wires.calibration import WiresCalibration
from secformer.wires.constants import Secrets
from secformer.wires.ranges import RangeRecord
from secformer.wires.suites import EXACT
from secformer_lab.paper.suites import SECFORMER, Deflation


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    with trio(settings_in(tmp_path_factory.mktemp("disclosure") / "identity")) as running:
        running.upload(weights())
        yield running


# Errors


@pytest.mark.parametrize(
    ("given", "kind", "secret"),
    [(torch.full((3, 16), 1e14), RangeError, "range"), (torch.zeros(7, 16), ShapeError, "7")],
)
def test_the_servers_do_not_hear_what_is_wrong_with_an_input(servers, caplog, given, kind, secret):
    """An unpadded length or a magnitude would reach all three servers, and their logs."""
    with caplog.at_level(logging.INFO), pytest.raises(kind, match=r"fit|shape"):
        servers.client.run(QUERY, {"x": given})
    for error in servers.errors().values():
        assert type(error) is InputError and str(error).endswith("the caller's input does not fit the program")
    assert secret not in "".join(record.getMessage().partition("failed: ")[2] for record in caplog.records)


def test_an_error_of_the_servers_still_names_its_cause(servers):
    with pytest.raises(InputError, match="unknown program 'nothing'"):
        servers.client.run(Job("nothing"), {"x": X})


def test_a_log_line_is_one_line_of_bounded_length():
    error = ModelError("head 'x\n2030-01-01 INFO all is well\x1b[2J' is unknown " + "y" * 10_000)
    line = describe(error)
    assert line.isprintable() and len(line) < 1100 and line.startswith("[model] head 'x 2030")


# Memory


def test_a_failed_session_leaves_no_seed_behind(servers):
    """The last outcomes are kept; the frames an error passed through would keep seeds, shares and plans with them."""

    class Vanishing(Caller):
        def _share(self, links, inputs, ready):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        servers.caller(Vanishing).run(QUERY, {"x": X})
    for error in servers.errors().values():
        assert error is not None
        assert error.__traceback__ is None and error.__context__ is None and error.__cause__ is None


class Early(Caller):
    """Sends a tensor where only a job may come."""

    def _begin(self, links, job):
        channel = links.add(self._dial("server0", links.session, 3))
        channel.send(FrameType.INPUT, bytes(CONTROL_LIMIT + 1))
        return messages.receive(channel, messages.Ready)


def test_a_caller_gets_no_memory_before_its_inputs_are_asked_for(servers):
    with promptly(), pytest.raises((PeerAbortedError, FrameError), match=f"limit of {CONTROL_LIMIT}"):
        servers.caller(Early).run(QUERY, {"x": X})


def test_inputs_larger_than_a_record_are_taken_when_asked_for(servers):
    x = torch.linspace(-4, 4, 1 << 18, dtype=torch.float64)
    result = servers.client.run(Job("activation", {"shape": [1 << 18]}), {"x": x})
    assert result.sent > CONTROL_LIMIT
    assert (result.outputs["y"] - torch.nn.functional.gelu(x)).abs().max() < 2e-3


def test_the_largest_input_covers_every_way_to_write_it():
    rows = bits((50_000, 2), 8)
    assert largest_input({"a": rows}) == dpf.key_bytes(16, 50_000) > 100_000
    assert largest_input({"a": shared((1 << 20,), 51)}) == (1 << 20) * 51 // 8
    assert largest_input({}) == CONTROL_LIMIT


# Reprs


SECRET = torch.full((2, 3), 424242, dtype=torch.int64)


@pytest.mark.parametrize(
    "thing",
    [
        Encoded.ring_elements(SECRET),
        Encoded.ring_elements(SECRET, kind="masked"),
        share(Encoded.ring_elements(SECRET), lambda ring, width: ring),
        Disclosed(Shared(SECRET, 64)),
        Part("seeded", b"424242", (6,), 8),
        Part("packed", SECRET, (2, 3), 64),
        Frame(FrameType.OPENING, 1, (2, 3), 64, SECRET, 0.0),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_printing_shows_no_content(thing):
    assert "424242" not in repr(thing) and "424242" not in f"{thing}"
    assert type(thing).__name__ in repr(thing)


def test_printing_a_result_shows_what_it_cost_alone(servers):
    result = servers.client.run(QUERY, {"x": X})
    assert "tensor" not in repr(result) and "rounds=7" in repr(result)


# Cards


CONFIG = replace(PRESETS["bert-base"], layers=1, hidden=16, heads=2, intermediate=32, vocabulary=64, positions=16)


def test_a_card_does_not_tell_which_weights_it_is_for():
    """A hash of the weights would let everybody who has a candidate make sure of it; so would orders and factors."""
    constants = EXACT.preset(CONFIG).public
    digests, heads, neurons = ("a" * 64, "b" * 64), ((0, 1), (1, 0)), (tuple(range(32)), tuple(reversed(range(32))))
    calibrations = [
        WiresCalibration(
            digest,
            constants,
            Secrets((head,), (neuron,), (((factor,) * 8,) * 2,), ((factor,) * 2,), (factor,) * 3),
            RangeRecord(digest, longest),
        )
        for digest, head, neuron, factor, longest in zip(digests, heads, neurons, (0.5, 2.0), (7, 9), strict=True)
    ]
    for calibration in calibrations:
        calibration.check(CONFIG)
    cards = [EXACT.card(CONFIG, calibration).to_json() for calibration in calibrations]
    assert cards[0] == cards[1] and digests[0] not in cards[0]
    assert card_from_json(cards[0]).to_json() == cards[0]


def test_nor_does_a_card_of_the_baselines():
    eta = {"layers.0.attention_norm": 2.0}
    config = SECFORMER.adapt(CONFIG)
    cards = [SECFORMER.card(config, Deflation(digest, eta)).to_json() for digest in ("a" * 64, "b" * 64)]
    assert cards[0] == cards[1] and "a" * 64 not in cards[0]
    assert card_from_json(cards[0]).to_json() == cards[0]


def test_an_error_raised_again_gives_its_record_no_frames():
    error = TransportError("lost")
    kept = without_frames(error)
    with pytest.raises(TransportError):
        raise error
    assert error.__traceback__ is not None and kept.__traceback__ is None
    assert type(kept) is TransportError and str(kept) == "lost" and kept.code == error.code
