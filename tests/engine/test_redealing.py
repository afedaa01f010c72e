"""A plan that T deals for often is recorded and replayed: the same bytes as any dealing, for every session's own keys."""

from __future__ import annotations

import os
from contextlib import suppress

import pytest
import torch
from recorded import CPU, Layer, Servers, Squares
from talking import Deployment
from written_down import Written, writing_down

from secformer.crypto.prg import Seed
from secformer.engine import redealing
from secformer.engine.dealing import Dealing, Draws
from secformer.engine.redealing import Dealings
from secformer.errors import ConnectionLostError
from secformer.roles import DEALER, SERVER1
from secformer.transport.channel import ChannelOptions, FrameType
from secformer.transport.memory import MemoryChannel, memory_pair


class Dealer:
    """T, which deals for one plan again and again."""

    def __init__(self, subject, device=CPU) -> None:
        servers = Servers(subject, device)
        self.plan, self.wires, self.device = servers.plan, servers.dealt, device
        self.dealings = Dealings(device)

    def deal(self, seeds, session, streams=None, lender=MemoryChannel):
        outgoing, incoming = memory_pair(DEALER, SERVER1, session)
        outgoing.__class__ = lender
        self.dealings.deal(self.plan, self.wires, outgoing, seeds, streams)
        return self.received(incoming), outgoing.counters

    def plainly(self, seeds, name):
        outgoing, incoming = memory_pair(DEALER, SERVER1, os.urandom(16))
        Dealing(self.plan, outgoing, Draws.of(seeds, name, self.device)).run(self.wires)
        return self.received(incoming), outgoing.counters

    def received(self, incoming):
        entries = self.plan.tape.dealt
        return [incoming.receive(FrameType.MATERIAL, entry.form.shape, entry.form.width) for entry in entries]

    @property
    def known(self):
        (known,) = self.dealings._known.values()
        return known


def seeds():
    return Seed.from_os(), Seed.from_os()


def same(left, right) -> bool:
    return len(left) == len(right) and all(map(torch.equal, left, right))


@pytest.fixture(params=["squares", *(pytest.param(suite, marks=pytest.mark.long) for suite in ("fast", "exact"))])
def dealer(request, monkeypatch):
    with writing_down(monkeypatch):
        yield Dealer(Squares() if request.param == "squares" else Layer(request.param))


@pytest.mark.parametrize("part", [redealing.PART_BYTES, 20])
def test_a_replay_deals_what_a_run_deals(dealer, monkeypatch, part):
    """In one part, and in many, of which some have one correction that is larger than a part is meant to be."""
    monkeypatch.setattr(redealing, "PART_BYTES", part)
    before = None
    for number in range(4):
        own, session = seeds(), os.urandom(16)
        dealt, counters = dealer.deal(own, session, streams=b"stock" + session if number == 3 else None)
        expected, expected_counters = dealer.plainly(own, b"stock" + session if number == 3 else session)
        assert same(dealt, expected) and counters == expected_counters
        assert before is None or not same(dealt, before)
        assert (dealer.known.recording is not None) == (number > 0)
        before = dealt
    parts = dealer.known.recording.parts
    assert (len(parts) > 2) == (part == 20)
    assert sum(len(each.frames) for each in parts) == len(dealer.plan.tape.dealt)


def test_no_buffer_is_written_before_what_lies_in_it_has_left(dealer, monkeypatch):
    """Whoever lends has the memory again after `flush`, not before."""
    monkeypatch.setattr(redealing, "PART_BYTES", 20)
    happened = []

    class Lender(MemoryChannel):
        def lend(self, kind, payload, shape, width):
            happened.append(("lend", payload.data_ptr()))
            super().lend(kind, payload, shape, width)

        def flush(self):
            happened.append(("flush", None))

    dealer.deal(seeds(), os.urandom(16))
    dealer.deal(seeds(), os.urandom(16))  # records, and replays
    recorded = dealer.known.recording
    places = {id(part.graph): [frame.packed.data_ptr() for frame in part.frames] for part in recorded.parts}
    replay = Written.replay
    monkeypatch.setattr(
        Written, "replay", lambda graph: (happened.append(("replay", places[id(graph)])), replay(graph))
    )
    dealer.deal(seeds(), os.urandom(16), lender=Lender)
    lent: set[int] = set()
    for what, where in happened:
        if what == "replay":
            buffer = [each for each in recorded.buffers if any(_inside(each, place) for place in where)]
            assert not any(_inside(each, place) for each in buffer for place in lent)
        elif what == "lend":
            lent.add(where)
        else:
            lent.clear()
    assert happened[-1][0] == "flush" and sum(what == "replay" for what, _ in happened) == len(recorded.parts) > 2


def _inside(buffer, address) -> bool:
    return buffer.data_ptr() <= address < buffer.data_ptr() + buffer.numel()


def test_nothing_of_a_session_stays_in_the_places(dealer):
    for _ in range(3):
        dealer.deal(seeds(), os.urandom(16))
    recorded = dealer.known.recording
    assert not any(place.any() for place in (*recorded.keys, *recorded.buffers))
    assert not any("tensor(" in repr(each) for each in (dealer.known, recorded, recorded.parts))


def test_places_of_a_run_that_failed_are_not_used_again(dealer):
    for _ in range(2):
        dealer.deal(seeds(), os.urandom(16))
    recorded = dealer.known.recording
    outgoing, incoming = memory_pair(DEALER, SERVER1, os.urandom(16))
    incoming.close()
    with pytest.raises(ConnectionLostError):
        dealer.dealings.deal(dealer.plan, dealer.wires, outgoing, seeds())
    assert dealer.known.recording is None and not dealer.known.busy
    assert not any(place.any() for place in recorded.keys)
    assert recorded.buffers[0].any()  # a link may still be reading there: nobody writes
    own, session = seeds(), os.urandom(16)
    assert same(dealer.deal(own, session)[0], dealer.plainly(own, session)[0])
    assert dealer.known.recording is not recorded


def test_a_link_that_breaks_between_two_parts(monkeypatch, tmp_path):
    """Over TLS, where lanes' threads may be sending what was lent."""
    monkeypatch.setattr(redealing, "PART_BYTES", 20)
    with writing_down(monkeypatch):
        dealer = Dealer(Squares())
        for _ in range(2):
            dealer.deal(seeds(), os.urandom(16))
        recorded, replay = dealer.known.recording, Written.replay
        with Deployment(tmp_path).channels(options=ChannelOptions(rounds=False)) as (zero, one):

            def break_off(graph):
                if graph is recorded.parts[1].graph:
                    one.close()
                    with suppress(ConnectionLostError):
                        zero.receive(FrameType.CONTROL)
                replay(graph)

            monkeypatch.setattr(Written, "replay", break_off)
            with pytest.raises(ConnectionLostError):
                dealer.dealings.deal(dealer.plan, dealer.wires, zero, seeds())
        assert dealer.known.recording is None and not dealer.known.busy
        assert not any(place.any() for place in recorded.keys)


def test_a_recording_serves_one_session_at_a_time(dealer):
    for _ in range(2):
        dealer.deal(seeds(), os.urandom(16))
    dealer.known.busy = True  # another lane has it
    own, session = seeds(), os.urandom(16)
    assert same(dealer.deal(own, session)[0], dealer.plainly(own, session)[0])
    assert dealer.known.busy


def test_only_a_dealing_that_ended_well_is_recorded_the_next_time(dealer):
    outgoing, incoming = memory_pair(DEALER, SERVER1, os.urandom(16))
    incoming.close()
    with pytest.raises(ConnectionLostError):
        dealer.dealings.deal(dealer.plan, dealer.wires, outgoing, seeds())
    for number in range(2):
        dealer.deal(seeds(), os.urandom(16))
        assert (dealer.known.recording is not None) == (number > 0)


def test_what_cannot_be_captured_is_dealt_step_by_step(dealer, monkeypatch, caplog):
    def refuse(self):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr("written_down.Graphs.end", refuse)
    for _ in range(3):
        own, session = seeds(), os.urandom(16)
        assert same(dealer.deal(own, session)[0], dealer.plainly(own, session)[0])
    assert caplog.text.count("runs step by step: operation not permitted") == 1


def test_a_model_that_was_removed_or_loaded_anew_leaves_no_recording(dealer):
    for _ in range(2):
        dealer.deal(seeds(), os.urandom(16))
    dealer.wires = {name: wire.as_static() for name, wire in dealer.wires.items()}
    dealer.deal(seeds(), os.urandom(16))
    assert dealer.known.recording is None
    dealer.dealings.keep(lambda wires: False)
    assert not dealer.dealings._known


def test_a_device_that_captures_nothing_records_nothing():
    dealer = Dealer(Squares())
    for _ in range(3):
        dealer.deal(seeds(), os.urandom(16))
    assert not dealer.dealings._known


# -- on a GPU (make test-gpu) ------------------------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("part", [redealing.PART_BYTES, 4096])
@pytest.mark.parametrize("suite", ["fast", "exact"])
def test_a_gpu_deals_again(suite, part, monkeypatch):
    monkeypatch.setattr(redealing, "PART_BYTES", part)
    dealer = Dealer(Layer(suite), torch.device("cuda", 0))
    for number in range(5):
        own, session = seeds(), os.urandom(16)
        assert same(dealer.deal(own, session)[0], dealer.plainly(own, session)[0])
        assert (dealer.known.recording is not None) == (number > 0)
