"""One of each from outside the package, as docs/extending.md says: an activation, a family, a kernel, a suite, a transport."""

from __future__ import annotations

import json
import socket
import struct
from contextlib import suppress
from dataclasses import replace
from threading import Condition
from time import monotonic

import pytest
import torch
from checkpoints import TEXTS, build_checkpoint
from safetensors.torch import load_file, save_file
from secure import load, relative_error, transformers_result

from secformer.errors import ConnectionLostError, FitError, ModelError, PeerTimeoutError, SettingsError, TransportError
from secformer.models import families
from secformer.models.families import BERT, LAYER, add_family
from secformer.models.system import System
from secformer.parties.client import Client
from secformer.parties.provider import Provider
from secformer.parties.serve import make_server
from secformer.protocols import functions, menu
from secformer.protocols.fit import scaled
from secformer.protocols.functions import Activation, add_activation
from secformer.ring import kernels
from secformer.ring.kernels import reference
from secformer.roles import CLIENT, PROVIDER, SERVERS
from secformer.settings import Settings
from secformer.systems import add_suite, suite_named
from secformer.transport.channel import Channel
from secformer.transport.frame import HEADER_BYTES, SESSION_BYTES, Frame, decode, encode
from secformer.transport.network import Listening, Network
from secformer_lab.fits.menu import activation_requests
from secformer_lab.paper import variants
from secformer_lab.paper.suites import MPCFORMER, Baseline


def predictions(folder, cache, reference_model, suite="exact"):
    """A model's private answer over servers in this process, beside transformers' own."""
    model = load(folder, cache, suite, servers="threads")
    model.calibrate(TEXTS * 8)
    with model:
        secure = model.predict(TEXTS).result
    return secure, transformers_result(reference_model, model, model._batch(TEXTS, None))


# -- an activation ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def quick_gelu(monkeypatch):
    monkeypatch.setattr(functions, "_ACTIVATIONS", dict(functions._ACTIVATIONS))
    monkeypatch.setattr(menu, "_added", {})
    function = lambda x: x * torch.sigmoid(1.702 * x)  # noqa: E731
    add_activation(Activation("quick_gelu", function, ("quick_gelu",)))
    return function


def test_an_activation(quick_gelu, tmp_path):
    requests = activation_requests("quick_gelu", quick_gelu)
    wide = ("quick_gelu huge", "quick_gelu vast")  # minutes each to find; but 1.702·f(x) is SiLU of 1.702·x
    menu.add_fits({name: request.find(name) for name, request in requests.items() if name not in wide})
    menu.add_fits({name: scaled(menu.activation("silu", name.split()[1]), 1 / 1.702, 1 / 1.702) for name in wide})
    checkpoint = build_checkpoint(tmp_path / "model", activation="quick_gelu")
    secure, expected = predictions(tmp_path / "model", tmp_path, checkpoint)
    assert relative_error(secure, expected) < 1e-2


def test_an_activation_without_its_fits_is_refused_when_it_is_calibrated(quick_gelu, tmp_path):
    build_checkpoint(tmp_path / "model", activation="quick_gelu")
    model = load(tmp_path / "model", tmp_path)
    with pytest.raises(FitError, match="no entry 'quick_gelu"):
        model.calibrate(TEXTS * 8)
    assert not model.calibrated


@pytest.mark.parametrize("suite", ["crypten", "puma", "mpcformer", "secformer"])
def test_an_activation_the_papers_suites_lack_is_refused_and_no_gelu(quick_gelu, tmp_path, suite):
    build_checkpoint(tmp_path / "model", activation="quick_gelu")
    with pytest.raises(ModelError, match=f"suite {suite} has no protocol for activation 'quick_gelu'"):
        load(tmp_path / "model", tmp_path, suite)


# -- a family --------------------------------------------------------------------------------------------------------------

TOY = replace(
    BERT,
    name="toybert",
    classes="Toy",
    tensors={
        **BERT.tensors,
        LAYER + "query": "blocks.{}.q",
        LAYER + "up": "blocks.{}.wide",
        "word": "lexicon.weight",
    },
    settings={"hidden_size": "breadth"},
)


def toy_checkpoint(folder):
    """BERT under other names."""
    checkpoint = build_checkpoint(folder, "bert", "classification")
    tensors = load_file(folder / "model.safetensors")
    renamed = {}
    for name, tensor in tensors.items():
        new = name.replace("embeddings.word_embeddings", "lexicon").replace("bert.", "toybert.")
        new = new.replace("attention.self.query", "q").replace("intermediate.dense", "wide")
        if new.endswith(("q.weight", "q.bias", "wide.weight", "wide.bias")):
            new = new.replace("encoder.layer", "blocks")
        renamed[new] = tensor
    save_file(renamed, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "toybert",
        "architectures": ["ToyForSequenceClassification"],
        "breadth": config.pop("hidden_size"),
    }
    (folder / "config.json").write_text(json.dumps(config))
    return checkpoint


def test_a_family(tmp_path, monkeypatch):
    monkeypatch.setattr(families, "_FAMILIES", dict(families._FAMILIES))
    checkpoint = toy_checkpoint(tmp_path / "model")
    with pytest.raises(ModelError, match="'toybert' is not supported"):
        load(tmp_path / "model", tmp_path)
    add_family(TOY)
    secure, expected = predictions(tmp_path / "model", tmp_path, checkpoint)
    assert relative_error(secure, expected) < 1e-2


# -- a kernel --------------------------------------------------------------------------------------------------------------


class Counted:
    """A device's own steps: the reference with a counter, and one gate of its own."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}

    def _count(self, name: str) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1

    def matmul(self, a, right, width, a_bits):
        self._count("matmul")
        return reference.matmul(a, right, width, a_bits)

    def close(self, share, closing, keystream):
        self._count("close")
        return reference.close(share, closing, keystream)

    def reveal(self, closed, received, closing):
        self._count("reveal")
        return reference.reveal(closed, received, closing)

    def evaluate_Multiply(self, gate, party, wires, dealt):
        self._count("evaluate_Multiply")
        return gate.evaluate(party, wires, dealt)

    def deal_Multiply(self, gate, x, y):
        self._count("deal_Multiply")
        return gate.deal(x, y)


def test_a_kernel(tmp_path):
    checkpoint, mine = build_checkpoint(tmp_path / "model"), Counted()
    kernels.register("cpu", mine)
    try:
        secure, expected = predictions(tmp_path / "model", tmp_path, checkpoint)
    finally:
        kernels.unregister("cpu", mine)
    assert relative_error(secure, expected) < 1e-2
    assert set(mine.calls) == {"matmul", "close", "reveal", "evaluate_Multiply", "deal_Multiply"}
    assert mine.calls["close"] == mine.calls["reveal"]
    assert mine.calls["evaluate_Multiply"] == 2 * mine.calls["deal_Multiply"]


# -- a suite ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def suites(monkeypatch):
    from secformer import systems

    monkeypatch.setattr(systems, "_SUITES", dict(systems._SUITES))


def test_a_suite(suites, tmp_path):
    """MPCFormer as it runs BERT-LARGE, with 2ReLU, and true GeLU segments: one object and its registration."""
    activations = {"gelu": variants.GELU_PUMA}
    add_suite(Baseline("mixed", activations, variants.RELU2_MPCFORMER, variants.NORM_PUMA))
    build_checkpoint(tmp_path / "model", "bert", "classification")
    model = load(tmp_path / "model", tmp_path, "mixed", servers="threads")
    model.calibrate(TEXTS * 8)
    with model:
        secure = model.predict(TEXTS).result
    assert relative_error(secure, model.predict(TEXTS, mode="plain").result) < 5e-2
    with pytest.raises(SettingsError, match="already"):
        add_suite(replace(MPCFORMER, name="mixed"))


def test_a_suite_without_one_of_its_parts_cannot_be_made(suites):
    class Forgetful(System):
        def adapt(self, config):
            return config

    with pytest.raises(TypeError, match="abstract"):
        Forgetful("forgetful")
    with pytest.raises(TypeError):
        Baseline("forgetful", {}, variants.SOFTMAX_PUMA)  # no LayerNorm
    with pytest.raises(TypeError):
        variants.Unary(variants.RELU.protocol)  # no twin
    with pytest.raises(SettingsError, match="unknown suite"):
        suite_named("forgetful")


# -- a transport -----------------------------------------------------------------------------------------------------------

_LENGTH = struct.Struct("<Q")


class InsecureSocketChannel(Channel):
    """Frames over one end of a socket pair: real bytes, no encryption."""

    def __init__(self, peer, session, end, timeout=None):
        super().__init__(peer, session, timeout)
        self._end, self._error = end, None

    def _put(self, kind, sequence, shape, width, payload):
        data = encode(kind, sequence, shape, width, payload.numel(), self.session) + payload.numpy().tobytes()
        try:
            self._end.sendall(_LENGTH.pack(len(data)) + data)
        except OSError:
            raise ConnectionLostError(f"{self.peer} went away") from None

    def _take(self):
        (size,) = _LENGTH.unpack(self._read(_LENGTH.size))
        data = self._read(size)
        header = decode(data[:HEADER_BYTES], self.session, 1 << 32)
        payload = torch.frombuffer(bytearray(data[HEADER_BYTES:]) or bytearray(1), dtype=torch.uint8)[: header.length]
        return Frame(header.kind, header.sequence, header.shape, header.width, payload, monotonic())

    def _read(self, size):
        data = b""
        while len(data) < size:
            piece = self._end.recv(size - len(data))
            if not piece:
                self._error = ConnectionLostError(f"{self.peer} went away")
                raise self._error
            data += piece
        return data

    @property
    def ended(self) -> TransportError | None:
        return self._error

    def close(self):
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()


class Switchboard:
    def __init__(self):
        self.changed, self.lines = Condition(), {}


class InsecureSocketNetwork(Network):
    def __init__(self, board, role):
        self.board, self.role = board, role

    def listen(self, roles):
        return InsecureListening(self.board, self.role)

    def connect(self, peer, session, *, timeout, options):
        assert len(session) == SESSION_BYTES
        own, theirs = socket.socketpair()
        for end in (own, theirs):
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                end.setsockopt(socket.SOL_SOCKET, option, 8 << 20)
        with self.board.changed:
            self.board.lines.setdefault((peer, self.role), []).append(InsecureSocketChannel(self.role, session, theirs))
            self.board.changed.notify_all()
        return InsecureSocketChannel(peer, session, own)


class InsecureListening(Listening):
    def __init__(self, board, role):
        self.address, self.board, self.role, self.open = f"pair:{role}", board, role, True

    def accept(self, role, session, *, timeout, options):
        def found():
            return next((c for c in self.board.lines.get((self.role, role), ()) if session in (None, c.session)), None)

        with self.board.changed:
            self.board.changed.wait_for(lambda: found() or not self.open, timeout)
            if not self.open:
                raise ConnectionLostError("closed")
            channel = found()
            if channel is None:
                raise PeerTimeoutError(f"{role} did not call")
            self.board.lines[self.role, role].remove(channel)
            return channel

    def close(self):
        with self.board.changed:
            self.open = False
            self.board.changed.notify_all()


def test_a_transport(tmp_path):
    build_checkpoint(tmp_path / "model", layers=1)
    model, settings, board = load(tmp_path / "model", tmp_path), Settings(data_folder=tmp_path / "data"), Switchboard()
    model.calibrate(TEXTS * 8)
    servers = [make_server(role, InsecureSocketNetwork(board, role), settings).start() for role in SERVERS]
    try:
        Provider(InsecureSocketNetwork(board, PROVIDER), settings).upload(
            "m", model.card, model.folded(), readers=["*"]
        )
        client = Client(InsecureSocketNetwork(board, CLIENT), settings, "m", model.card, model.tokenizer)
        prediction = client.predict(TEXTS)
    finally:
        for server in servers:
            server.stop()
    assert relative_error(prediction.result, model.predict(TEXTS, mode="plain").result) < 1e-2
    assert prediction.outcome.online_bytes == prediction.outcome.declared.online_bytes
