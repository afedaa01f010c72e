"""A plan that is run often is recorded and replayed: the same results, the same bytes, new randomness."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import Counter

import pytest
import torch
from recorded import TOKENS, Layer, Servers, Squares
from talking import Deployment, both
from written_down import Graphs, Written, writing_down

from secformer.crypto.prg import Seed
from secformer.engine import computing
from secformer.engine.computing import Computing
from secformer.engine.form import shared
from secformer.engine.places import NoFeed, Places
from secformer.engine.recording import Recorded, _Segment
from secformer.engine.replaying import _Replay
from secformer.engine.sharing import reconstruct
from secformer.engine.tape import Dealt, Tape
from secformer.engine.tracing import trace
from secformer.errors import ConnectionLostError, MaterialError, TapeError
from secformer.protocols import blocks
from secformer.protocols.fourier import Fourier
from secformer.protocols.maximum import Histogram
from secformer.protocols.multiply import Square
from secformer.ring.kernels.steps import material_type
from secformer.ring.packing import pack
from secformer.roles import SERVER0, SERVER1
from secformer.transport.channel import ChannelOptions, FrameType
from secformer.transport.memory import MemoryChannel, memory_pair
from secformer_lab.bench.layer import RESULT


@pytest.fixture(params=["squares", *(pytest.param(suite, marks=pytest.mark.long) for suite in ("fast", "exact"))])
def servers(request, monkeypatch):
    with writing_down(monkeypatch):
        yield Servers(Squares() if request.param == "squares" else Layer(request.param))


def test_a_replay_computes_what_a_run_computes(servers):
    told: list[list[str]] = []
    for number in range(4):
        names: list[str] = []
        tensor = servers.subject.input if number % 2 == 0 else servers.subject.input.flip(1)
        expected = servers.subject.expected if number % 2 == 0 else servers.subject.expected.flip(1)
        runs, result, counters = servers.run(tensor, names.append)
        assert all(isinstance(run, _Replay if number else Computing) for run in runs)
        assert (result - expected).abs().max() < 2e-2
        assert counters.rounds == servers.plan.cost.rounds
        assert counters.payload_sent * 2 == servers.plan.cost.online_bytes
        told.append(names)
    assert told[0] == told[1] == told[3]


def test_what_T_dealt_is_laid_out_before_the_exchange_that_its_use_waits_for(servers, monkeypatch):
    for _ in range(2):
        servers.run(servers.subject.input)
    segments = next(iter(servers.recordings[0]._known.values())).recording.segments
    names = {id(each.early): ("early", number) for number, each in enumerate(segments) if each.early is not None}
    names |= {id(each.graph): ("graph", number) for number, each in enumerate(segments)}
    assert any(name == "early" for name, _ in names.values())
    order, replay, exchange = [], Written.replay, MemoryChannel.exchange

    def replayed(graph):
        order.append(names.get(id(graph)))
        replay(graph)

    def exchanged(channel, *given, **how):
        if channel.peer == SERVER1:
            order.append(("exchange", sum(name == "exchange" for name, _ in filter(None, order))))
        return exchange(channel, *given, **how)

    monkeypatch.setattr(Written, "replay", replayed)
    monkeypatch.setattr(MemoryChannel, "exchange", exchanged)
    servers.run(servers.subject.input)
    own = [each for each in order if each is not None]
    for number in range(len(segments) - 1):
        following = [("early", number + 1)] if segments[number + 1].early is not None else []
        place = own.index(("graph", number))
        assert own[place : place + len(following) + 2] == [("graph", number), *following, ("exchange", number)]


def noted(monkeypatch, gate) -> list[tuple[int, ...]]:
    """Of what was dealt for each evaluation of a gate."""
    shapes, evaluate = [], gate.evaluate

    def noting(self, party, wires, dealt):
        assert all(len(wire.public) == len(dealt[0]) for wire in wires)
        shapes.append(tuple(dealt[0].shape))
        return evaluate(self, party, wires, dealt)

    monkeypatch.setattr(gate, "evaluate", noting)
    return shapes


BOUNDS = [(computing.JOINED_BYTES, {(TOKENS, 2): 4}), (16, {(1, 2): 4 * TOKENS})]


@pytest.mark.parametrize("bound, joined", BOUNDS)
def test_blocks_of_rows_are_evaluated_as_one_where_launches_count(bound, joined, monkeypatch):
    monkeypatch.setattr(computing, "JOINED_BYTES", bound)
    shapes = noted(monkeypatch, Square)
    Servers(Squares()).run(torch.ones(1, TOKENS, 2, dtype=torch.float64))
    assert shapes == [(1, 2)] * 2 * TOKENS
    shapes.clear()
    with writing_down(monkeypatch):
        servers = Servers(Squares())
        assert [entry.block for entry in servers.plan.tape.dealt if entry.kind == "Square"] == list(range(TOKENS))
        for _ in range(2):  # a run, the recording, and replays
            servers.run(servers.subject.input)
    assert Counter(shapes) == joined


LAYER_BOUNDS = [
    (1300, {(8, 20): 4, (6, 20): 4, (1, 128): 8, (1, 160): 8}),
    pytest.param(computing.JOINED_BYTES, {(14, 20): 4, (2, 128): 4, (2, 160): 4}, marks=pytest.mark.long),
]


@pytest.mark.parametrize("bound, series", LAYER_BOUNDS)
def test_a_layer_whose_rows_blocks_do_not_divide(bound, series, monkeypatch):
    """GeLU's fourteen usual elements are dealt four at a time; a first run, the recording and replays."""
    monkeypatch.setattr(blocks, "BLOCK_VALUES", 80)
    monkeypatch.setattr(computing, "JOINED_BYTES", bound)
    shapes, counts = noted(monkeypatch, Fourier), noted(monkeypatch, Histogram)
    with writing_down(monkeypatch):
        servers = Servers(Layer("exact"))
        sizes = [entry.form.shape[0] for entry in servers.plan.tape.dealt if entry.form.shape[1:] == (20,)]
        assert sizes == [4, 4, 4, 2]
        for number in range(4):
            runs, result, _ = servers.run(servers.subject.input)
            assert all(isinstance(run, _Replay if number else Computing) for run in runs)
            assert (result - servers.subject.expected).abs().max() < 2e-2
    assert Counter(shapes) == series
    assert counts == [(2, 2, 32)] * 4  # of two bytes: both blocks within either bound


def blocks_of(tape: Tape, gate: str, width: int, *rows: int) -> list[Dealt]:
    return [tape.add_dealt("", gate, (), shared((count, 3, 4), width), block) for block, count in enumerate(rows)]


def test_blocks_are_joined_up_to_a_bound(monkeypatch):
    """A histogram's row takes 24 bytes, a series' 96."""
    monkeypatch.setattr(computing, "JOINED_BYTES", 480)
    tape = Tape("program")
    for gate in ("Histogram(2, 9)", "Fourier()"):
        blocks_of(tape, gate, 9, 8, 8, 8, 8, 1)
    blocks_of(tape, "Square()", 64, 2)
    blocks_of(tape, "Square()", 64, 2, 2)
    groups = [
        (group[0].kind, [entry.form.shape[0] for entry in group]) for group in computing.joined_blocks(tape.dealt)
    ]
    assert groups == [
        ("Histogram", [8, 8]), ("Histogram", [8, 8, 1]), *[("Fourier", [8])] * 4, ("Fourier", [1]),
        ("Square", [2]), ("Square", [2, 2]),
    ]  # fmt: skip


@pytest.mark.parametrize("gate, width", [("Histogram(2, 9)", 9), ("Fourier()", 45), ("Square()", 64)])
def test_blocks_that_are_joined_hold_what_each_was_dealt(gate, width, monkeypatch):
    """At S0, which draws them, and at S1, which unpacks them."""
    entries, seed = blocks_of(Tape("program"), gate, width, 5, 5, 3), Seed.from_os()
    corrections = [pack(torch.randint(1 << 8, entry.form.shape), width) for entry in entries]
    with writing_down(monkeypatch):
        drawn = [computing.seeded_material(seed, b"session", torch.device("cpu")) for _ in range(2)]
        together, apart = drawn[0](*entries), torch.cat([drawn[1](entry) for entry in entries])
    assert torch.equal(together, apart) and together.dtype == material_type(entries[0].kind, width)
    half = computing.corrected_material(lambda entry: corrections[entry.index], torch.device("cpu"))
    together, apart = half(*entries), torch.cat([half(entry) for entry in entries])
    assert torch.equal(together, apart) and together.dtype == material_type(entries[0].kind, width)


def test_a_server_does_not_wait_for_T_while_the_other_waits_for_its_opening(servers):
    """Corrections that have not come are waited for after the exchange."""
    for _ in range(2):
        servers.run(servers.subject.input)
    recorded = next(iter(servers.recordings[1]._known.values())).recording
    waited = []

    class Slow(NoFeed):
        def has(self, count):
            return False

        def wait(self, count):
            waited.append(count)

    class Alone:
        def land(self, place):
            self.place = place

        def exchange(self, packed, shape, width, lent):
            waited.append("exchange")
            return self.place

        def flush(self):
            pass

    recorded.run(Alone(), Slow(), lambda scopes: None)
    needed = [each.needed for each in recorded.segments]
    between = ["exchange"] * (len(needed) - 1)
    assert waited == [part for pair in zip(needed, [*between, None]) for part in pair if part is not None]
    assert needed == sorted(needed) and needed[-1] == len(servers.plan.tape.dealt)


def test_a_replay_runs_once_and_for_its_model(monkeypatch):
    with writing_down(monkeypatch):
        servers = Servers(Squares())
        for _ in range(2):
            servers.run(servers.subject.input)
        runs, _, _ = servers.run(servers.subject.input)
        with pytest.raises(MaterialError, match="spent"):
            runs[0].run(servers.inputs(servers.subject.input)[0])
        session = os.urandom(16)
        runs = servers.begin(session, memory_pair(SERVER0, SERVER1, session))
        servers.load_anew()
        with pytest.raises(TapeError, match="recorded"):
            runs[0].run(servers.inputs(servers.subject.input)[0])


def test_a_model_that_was_loaded_anew_is_recorded_anew(servers):
    for _ in range(3):
        servers.run(servers.subject.input)
    servers.load_anew()
    for kind in (Computing, _Replay, _Replay):
        runs, result, _ = servers.run(servers.subject.input)
        assert all(isinstance(run, kind) for run in runs)
        assert (result - servers.subject.expected).abs().max() < 2e-2


def test_only_a_run_that_ended_well_is_recorded_the_next_time(servers):
    """While capturing nothing may be made: not a table, nor what is derived from a weight."""
    session = os.urandom(16)
    runs = servers.begin(session, memory_pair(SERVER0, SERVER1, session))
    assert all(isinstance(run, Computing) for run in runs)
    servers.end(runs)  # its client went away
    for kind in (Computing, _Replay, _Replay):
        runs, _, _ = servers.run(servers.subject.input)
        assert all(isinstance(run, kind) for run in runs)


def test_nothing_of_a_session_stays_in_the_places(servers):
    for _ in range(3):
        servers.run(servers.subject.input)
        for recordings in servers.recordings:
            for known in recordings._known.values():
                if known.recording is not None:
                    kept = known.recording.places
                    shares = [value.share for value in kept.inputs.values() if hasattr(value, "share")]
                    assert not any(p.any() for p in (*kept.keys, *shares, kept.material, kept.received, *kept.landing))
    assert all(known.recording for recordings in servers.recordings for known in recordings._known.values())


def test_a_feed_that_was_stopped_writes_no_more(servers):
    for _ in range(2):
        servers.run(servers.subject.input)
    session = os.urandom(16)
    runs = servers.begin(session, memory_pair(SERVER0, SERVER1, session))  # T deals, and the run never begins
    servers.end(runs)
    with pytest.raises(MaterialError, match="spent"):
        runs[0].run(servers.inputs(servers.subject.input)[0])
    runs, result, _ = servers.run(servers.subject.input)
    assert all(isinstance(run, _Replay) for run in runs)
    assert (result - servers.subject.expected).abs().max() < 2e-2


def test_a_replay_of_what_was_dealt_ahead(servers):
    """Masks and pads are named by the item, new shares of results by the session; corrections may wait outside the device."""
    for number in range(4):
        runs, result, _ = servers.run(servers.subject.input, dealt=b"stock" + os.urandom(16), ahead=number % 2 == 0)
        assert all(isinstance(run, _Replay if number else Computing) for run in runs)
        assert (result - servers.subject.expected).abs().max() < 2e-2


def test_a_recording_serves_one_session_at_a_time(servers):
    for _ in range(2):
        servers.run(servers.subject.input)
    session = os.urandom(16)
    first = servers.begin(session, memory_pair(SERVER0, SERVER1, session))
    runs, result, _ = servers.run(servers.subject.input)
    assert all(isinstance(run, _Replay) for run in first) and all(type(run) is Computing for run in runs)
    assert (result - servers.subject.expected).abs().max() < 2e-2
    servers.end(first)
    runs, _, _ = servers.run(servers.subject.input)
    assert all(isinstance(run, _Replay) for run in runs)


def test_a_session_that_takes_the_recording_over_leaves_the_last_opening_of_the_one_before_alone(servers):
    """S0 has ended session A when S1 has not yet looked at S0's last opening. Session B then writes to the same buffers."""
    for _ in range(2):
        servers.run(servers.subject.input)
    late, outputs = threading.Event(), [{}, {}]

    def start(number, tensor, hold):
        session = os.urandom(16)
        links = memory_pair(SERVER0, SERVER1, session)
        runs = servers.begin(session, links)
        assert all(isinstance(run, _Replay) for run in runs[: 1 if number else 2])
        if hold:
            take, taken = links[1]._take, itertools.count(1)
            links[1]._take = lambda: (next(taken) < servers.plan.tape.rounds or late.wait(20), take())[1]
        shares = servers.inputs(tensor)
        threads = [
            threading.Thread(target=lambda j=j: outputs[number].update({j: runs[j].run(shares[j])})) for j in (0, 1)
        ]
        for thread in threads:
            thread.start()
        return threads

    first = start(0, servers.subject.input, hold=True)
    first[0].join(20)
    for thread in start(1, servers.subject.input.flip(1), hold=False):
        thread.join(20)
    late.set()
    first[1].join(20)
    for out, expected in zip(outputs, (servers.subject.expected, servers.subject.expected.flip(1)), strict=True):
        assert (reconstruct(out[0][RESULT], out[1][RESULT]) - expected).abs().max() < 2e-2


def test_a_run_over_tls_ends_when_its_last_opening_has_left(tmp_path):
    """The peer was faster, and its opening is here long before ours has left. Then the buffers go to the next session."""
    size, still = 16 << 20, torch.zeros(16 << 20, dtype=torch.uint8)
    plan, graphs = trace(Squares().program), Graphs(torch.device("cpu"))
    with Deployment(tmp_path).channels(2, ChannelOptions(receive_buffer=1 << 10)) as (zero, one):
        recorded = Recorded(0, plan, graphs, Places(0, plan, graphs))
        outgoing, landing = torch.ones(size, dtype=torch.uint8), torch.empty(size, dtype=torch.uint8)
        segment = _Segment(None, Written(), outgoing, (size,), 8, landing, torch.empty_like(landing), 0, ())
        recorded.segments = [segment, segment._replace(outgoing=None)]

        def run():
            zero.send(FrameType.MATERIAL, bytes(1 << 10))  # fills the peer's room, so that it reads no opening yet
            recorded.run(zero, NoFeed(), lambda scopes: None)
            outgoing.fill_(2)

        def answer():
            one.send(FrameType.OPENING, still)
            time.sleep(1)
            one.receive(FrameType.MATERIAL)
            return one.receive(FrameType.OPENING)

        _, received = both(run, answer)
    assert torch.equal(received, torch.ones_like(received))


def test_places_of_a_run_that_failed_are_not_used_again(servers):
    """Its link may still be writing there."""
    for _ in range(2):
        servers.run(servers.subject.input)
    places = [known.recording.places for recordings in servers.recordings for known in recordings._known.values()]
    session = os.urandom(16)
    links = memory_pair(SERVER0, SERVER1, session)
    runs = servers.begin(session, links)
    links[1].close()
    with pytest.raises(ConnectionLostError):
        runs[0].run(servers.inputs(servers.subject.input)[0])
    servers.end(runs)
    for _ in range(2):
        runs, result, _ = servers.run(servers.subject.input)
        assert all(isinstance(run, _Replay) for run in runs)
        assert (result - servers.subject.expected).abs().max() < 2e-2
    now = [known.recording.places for recordings in servers.recordings for known in recordings._known.values()]
    assert now[0] is not places[0] and now[1] is places[1]  # S1 had not begun


def test_what_cannot_be_captured_runs_step_by_step(servers, monkeypatch, caplog):
    def refuse(self):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr("written_down.Graphs.end", refuse)
    for _ in range(3):
        runs, result, _ = servers.run(servers.subject.input)
        assert all(isinstance(run, Computing) for run in runs)
        assert (result - servers.subject.expected).abs().max() < 2e-2
    assert caplog.text.count("runs step by step: operation not permitted") == 3  # once at each server and at T


def test_a_model_that_was_removed_leaves_no_recording(servers):
    for _ in range(2):
        servers.run(servers.subject.input)
    for recordings in servers.recordings:
        recordings.keep(lambda wires: True)
        assert recordings._known
        recordings.keep(lambda wires: False)
        assert not recordings._known


def test_a_device_that_captures_nothing_records_nothing():
    servers = Servers(Squares())
    for _ in range(3):
        runs, result, _ = servers.run(servers.subject.input)
        assert all(isinstance(run, Computing) for run in runs)
        assert (result - servers.subject.expected).abs().max() < 2e-2


# -- on a GPU (make test-gpu) ------------------------------------------------------------------------------------------

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GPU = torch.device("cuda", 0)


@on_a_gpu
@pytest.mark.parametrize("suite", ["fast", "exact"])
def test_a_gpu_replays(suite):
    servers = Servers(Layer(suite), GPU)
    for number in range(5):
        dealt = b"stock" + os.urandom(16) if number % 2 else None
        runs, result, counters = servers.run(servers.subject.input, dealt=dealt, ahead=number != 3)
        assert all(isinstance(run, _Replay if number else Computing) for run in runs)
        assert (result - servers.subject.expected).abs().max() < 2e-2
        assert counters.rounds == servers.plan.cost.rounds


@on_a_gpu
def test_a_gpu_that_cannot_capture_runs_step_by_step(monkeypatch, caplog):
    """A step that waits for the device: the plan is not recorded, and neither it nor another one fails."""
    servers, real = Servers(Layer("fast"), GPU), computing.reduce
    with monkeypatch.context() as patch:
        patch.setattr(computing, "reduce", lambda x, width: (x.flatten()[0].item(), real(x, width))[1])
        for _ in range(3):
            runs, result, _ = servers.run(servers.subject.input)
            assert all(isinstance(run, Computing) for run in runs)
            assert (result - servers.subject.expected).abs().max() < 2e-2
    assert caplog.text.count("runs step by step") == 2
    servers.load_anew()
    for kind in (Computing, _Replay, _Replay):
        runs, result, _ = servers.run(servers.subject.input)
        assert all(isinstance(run, kind) for run in runs)
        assert (result - servers.subject.expected).abs().max() < 2e-2
