"""A large model comes in pieces, a session each: bounded memory, repeated after a break, one version in the end."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial

import pytest
import torch
from attackers import Watch
from checkpoints import TEXTS, build_checkpoint
from secure import load, relative_error
from servers import settings_in

from secformer.engine.sharing import Encoded
from secformer.errors import ConnectionLostError, StoreError, TransportError
from secformer.models.shapes import PRESETS
from secformer.parties import provider as module
from secformer.parties.client import Client
from secformer.parties.launch import in_memory, launch
from secformer.parties.planner import pieces_of
from secformer.parties.provider import Provider
from secformer.roles import SERVERS
from secformer.settings import Settings
from secformer.wires.suites import EXACT


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    build_checkpoint(folder / "checkpoint", "bert", "classification", seed=2, layers=1)
    model = load(folder / "checkpoint", folder / "cache")
    model.calibrate(TEXTS, few=True)
    return model


@pytest.fixture
def servers(tmp_path):
    settings_in(tmp_path / "identity")
    with in_memory(Settings(threads=1)) as running:
        yield running


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(module, "pieces_of", partial(pieces_of, limit=4000))
    monkeypatch.setattr(module, "PAUSE", 0.1)


def answers(servers, model) -> bool:
    client = Client(servers.network("client"), servers.settings, "m", model.card, model.tokenizer)
    expected = model.predict(TEXTS, mode="plain").result
    return relative_error(client.predict(TEXTS).result, expected) < 1e-2


def test_a_model_in_many_pieces_is_the_model(servers, model, small_pieces):
    heard: list[str] = []
    uploaded = Provider(servers.network("provider"), servers.settings).upload(
        "m", model.card, model.folded(), ["*"], progress=heard.append
    )
    assert (
        len(uploaded.results) > 3 and heard[-1] == f"uploading piece {len(uploaded.results)} of {len(uploaded.results)}"
    )
    assert answers(servers, model)


class Shaky(Provider):
    """Its line breaks in the middle of every second session."""

    count = 0

    def _share(self, links, inputs, ready):
        self.count += 1
        if self.count % 2:
            raise ConnectionLostError("the line broke")
        super()._share(links, inputs, ready)


def test_a_piece_whose_session_breaks_is_brought_again(servers, model, small_pieces):
    heard: list[str] = []
    provider = Shaky(servers.network("provider"), servers.settings)
    provider.upload("m", model.card, model.folded(), ["*"], progress=heard.append)
    assert sum("trying again" in step for step in heard) > 3
    assert answers(servers, model)


class Gone(Provider):
    """Goes away for good after two pieces."""

    count = 0

    def _bring(self, *given):
        self.count += 1
        if self.count > 2:
            raise ConnectionLostError("gone")
        return super()._bring(*given)


def test_an_upload_that_is_given_up_leaves_the_version_before(servers, model, small_pieces):
    whole = Provider(servers.network("provider"), servers.settings)
    whole.upload("m", model.card, model.folded(), ["*"])
    with pytest.raises(TransportError):
        Gone(servers.network("provider"), servers.settings).upload("m", model.card, model.folded(), ["*"])
    assert answers(servers, model)
    again = whole.upload("m", model.card, model.folded(), ["*"])
    client = Client(servers.network("client"), servers.settings, "m", model.card, model.tokenizer)
    assert client.predict(TEXTS).outcome.model == f"m@{again.version[:12]}"


def test_an_upload_that_lacks_a_piece_is_no_version(servers, model, monkeypatch):
    monkeypatch.setattr(module, "pieces_of", lambda forms: pieces_of(forms, 4000)[1:])
    with pytest.raises(StoreError, match=r"incomplete|do not fit"):
        Provider(servers.network("provider"), servers.settings).upload("m", model.card, model.folded(), ["*"])


@pytest.mark.long
def test_memory_after_a_large_upload():
    """At most twice the packed size more than before, while it goes on and afterwards."""
    config = replace(PRESETS["bert-base"], layers=4, hidden=768)
    card = EXACT.preset(config)
    forms = card.static_forms()
    packed = sum(form.packed_bytes for form in forms.values())

    def fold(name):
        return Encoded(forms[name], torch.randint(0, 1 << 10, forms[name].shape, dtype=torch.int64))

    with launch(Settings(threads=1)) as servers:
        provider = Provider(servers.network("provider"), servers.settings)
        watches = {role: Watch(servers._processes[role]._process.pid) for role in SERVERS}
        before = {role: watch.memory for role, watch in watches.items()}
        peaks = dict(before)

        done = threading.Event()

        def look():
            while not done.wait(0.02):
                for role, watch in watches.items():
                    peaks[role] = max(peaks[role], watch.memory)

        looking = threading.Thread(target=look)
        looking.start()
        provider.upload("large", card, fold, ["*"])
        done.set()
        looking.join()
        more = {role: peaks[role] - before[role] for role in SERVERS}
        print(f"packed {packed >> 20} MiB", {role: f"+{size >> 20} MiB" for role, size in more.items()})
        assert packed > 100 << 20 and all(size <= 2 * packed for size in more.values()), more
