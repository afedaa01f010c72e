"""Whole sessions of client, provider, S0, S1 and T: in one process over memory as over TLS, the client without weights."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import enumerate as threads

import pytest
import torch
from checkpoints import TEXTS, build_checkpoint
from secure import load, relative_error
from small_programs import on_python_path

from secformer.crypto.identity import create_identity
from secformer.crypto.keyring import trust
from secformer.errors import InputError
from secformer.models.tokens import for_query, load_tokenizer, tokenise
from secformer.parties.client import Client
from secformer.parties.launch import _environment, in_memory, launch
from secformer.parties.prediction import Prediction
from secformer.parties.provider import Provider
from secformer.roles import CLIENT, PROVIDER, SERVERS
from secformer.settings import Settings
from secformer.systems import card_from_json

TOLERANCE = 1e-2
NAME = "sentiment"
SIZES = dict(layers=1, heads=3, hidden=24, intermediate=40)
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "config.json")


class Given:
    """What the provider has: the folded weights. What it hands out: a folder with the card and a tokenizer, no weights."""

    def __init__(
        self, folder: Path, family: str = "bert", head: str = "classification", suite: str = "exact", **options
    ):
        build_checkpoint(folder / "checkpoint", family, head, seed=2, **SIZES)
        with load(folder / "checkpoint", folder / "cache", suite, **options) as model:
            model.calibrate(TEXTS, few=True)
            self.card, self.folded, self.words = model.card, model.folded(), model.handed_out_words()
            self.expected = model.predict(TEXTS, mode="plain")
        self.handed_out = folder / "handed out"
        self.handed_out.mkdir()
        for file in TOKENIZER_FILES:
            if (folder / "checkpoint" / file).exists():
                shutil.copy(folder / "checkpoint" / file, self.handed_out)
        (self.handed_out / "card.json").write_text(self.card.to_json())
        shutil.rmtree(folder / "checkpoint")
        shutil.rmtree(folder / "cache")

    def upload(self, servers) -> None:
        result = Provider(servers.network(PROVIDER), servers.settings).upload(
            NAME, self.card, self.folded, readers=["*"]
        )
        assert [one.outputs for one in result.results] == [{}] and result.rounds == 1

    def client(self, servers) -> Client:
        """From the folder that was handed out, as another machine would make it."""
        card = card_from_json((self.handed_out / "card.json").read_text())
        tokenizer = load_tokenizer(self.handed_out, card.config)
        return Client(servers.network(CLIENT), servers.settings, NAME, card, tokenizer, self.words)

    def session(self, servers) -> Prediction:
        with servers:
            self.upload(servers)
            return self.client(servers).predict(TEXTS)


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    return Given(tmp_path_factory.mktemp("classifier"))


@pytest.fixture(scope="module")
def processes(given):
    """Servers over TLS that hold the model."""
    with launch(Settings(threads=1)) as servers:
        given.upload(servers)
        yield servers


@pytest.fixture
def nobody_serves():
    """Whether every thread of a server that this test started in this process has ended."""
    others, names = set(threads()), tuple(f"{role}-" for role in SERVERS)

    def ended() -> bool:
        deadline = time.monotonic() + 5
        while any(thread.name.startswith(names) for thread in set(threads()) - others):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    return ended


def test_a_session_in_memory_is_one_over_tls(given, processes, nobody_serves):
    """The same result up to rounding, at the same declared cost, counted alike at both kinds of channel."""
    memory, tls = given.session(in_memory()), given.client(processes).predict(TEXTS)
    for prediction in (memory, tls):
        assert relative_error(prediction.result, given.expected.result) <= TOLERANCE
        assert prediction.labels == given.expected.labels
    assert relative_error(memory.result, tls.result) <= TOLERANCE / 2
    assert memory.outcome is not None and tls.outcome is not None
    assert memory.outcome.declared == tls.outcome.declared
    for part in ("rounds", "online_bytes", "dealer_bytes"):
        assert getattr(memory.outcome, part) == getattr(tls.outcome, part) == getattr(tls.outcome.declared, part)
    assert nobody_serves()


@pytest.mark.parametrize(
    ("family", "head", "suite", "options"),
    [
        ("roberta", "tokens", "exact", {}),
        ("distilbert", "embedding", "fast", {}),
        ("bert", "regression", "secformer", {}),
        ("bert", "classification", "exact", {"private_table": False}),
        ("distilbert", "classification", "puma", {"private_table": False}),
    ],
    ids=str,
)
def test_card_and_tokenizer_are_all_a_client_needs(tmp_path, family, head, suite, options):
    """And the word table, where the provider hands it out: every kind of model, the checkpoint no longer there."""
    provided = Given(tmp_path, family, head, suite, **options)
    assert not list(tmp_path.rglob("*.safetensors"))
    prediction = provided.session(in_memory(Settings(threads=1, suites=suite)))
    assert relative_error(prediction.result, provided.expected.result) <= TOLERANCE
    assert prediction.labels == provided.expected.labels


def test_a_query_finds_what_the_operator_wished_to_have_in_stock(given, monkeypatch, nobody_serves):
    """The storekeeper fills the stock for one shape by itself, and again when an item is used."""
    monkeypatch.setattr("secformer.parties.storekeeper.PERIOD", 0.1)
    asked = given.client(in_memory())
    batch = for_query(tokenise(asked._tokenizer, asked.card.config, TEXTS), asked.card.config)
    size, tokens = batch.ids.shape
    with in_memory(Settings(threads=1, stock=f"{NAME} {size}x{tokens} 1")) as servers:
        given.upload(servers)
        client, dealt = given.client(servers), []
        deadline = time.monotonic() + 30
        while dealt.count(0) < 2 and time.monotonic() < deadline:
            prediction = client.predict(TEXTS)
            assert relative_error(prediction.result, given.expected.result) <= TOLERANCE
            dealt.append(prediction.outcome.dealer_bytes)
            time.sleep(0.2)
        assert dealt.count(0) == 2, dealt
        assert set(dealt) <= {0, prediction.outcome.declared.dealer_bytes}
    assert nobody_serves()


CLIENT_PROCESS = """
import json, sys
from pathlib import Path
from secformer.models.tokens import for_query, load_tokenizer, tokenise
from secformer.parties.client import Client
from secformer.settings import load_settings
from secformer.systems import card_from_json
from secformer.transport.tls_network import TlsNetwork

folder, settings = Path("."), load_settings()
card = card_from_json((folder / "card.json").read_text())
client = Client(TlsNetwork("client", settings), settings, sys.argv[1], card, load_tokenizer(folder, card.config))
prediction = client.predict(sys.argv[2:])
assert not {"secformer.models.huggingface", "secformer.secure_model"} & set(sys.modules)
print(json.dumps({"result": prediction.result.tolist(), "labels": prediction.labels}))
"""


def test_a_client_of_its_own_process_has_no_weights_in_reach(given, processes, tmp_path):
    """It has a key of its own, which the servers come to trust while they run."""
    for certificate in processes.settings.identity_folder.glob("server*.crt"):
        trust(tmp_path, certificate)
    trust(processes.settings.identity_folder, create_identity(CLIENT, tmp_path).certificate_path)
    with on_python_path():
        done = subprocess.run(
            [sys.executable, "-c", CLIENT_PROCESS, NAME, *TEXTS],
            cwd=given.handed_out,
            env=_environment(replace(processes.settings, identity_folder=tmp_path)),
            capture_output=True,
            text=True,
            timeout=100,
        )
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert relative_error(torch.tensor(content["result"]).double(), given.expected.result) <= TOLERANCE
    assert content["labels"] == given.expected.labels


def test_callers_in_one_process_take_turns(given, nobody_serves):
    """Two clients at the same moment, and refusals between them: the servers serve on."""
    with in_memory() as servers:
        given.upload(servers)
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(lambda texts: given.client(servers).predict(texts), (TEXTS, TEXTS[::-1]))
        assert relative_error(first.result, given.expected.result) <= TOLERANCE
        assert relative_error(second.result.flip(0), given.expected.result) <= TOLERANCE
        client = given.client(servers)
        with pytest.raises(InputError, match="text 2 is empty"):
            client.predict(["the cat", " "])
        client.name = "another"
        with pytest.raises(InputError, match="no model 'another' is stored here"):
            client.predict(TEXTS)
        client.name = NAME
        assert relative_error(client.predict(TEXTS).result, given.expected.result) <= TOLERANCE
    assert nobody_serves()


def test_a_model_with_its_servers_as_threads(tmp_path, nobody_serves):
    """SecureModel without a process or a socket."""
    build_checkpoint(tmp_path / "model", "bert", "classification", seed=2, **SIZES)
    with load(tmp_path / "model", tmp_path / "cache", servers="threads") as model:
        model.calibrate(TEXTS, few=True)
        steps: list[str] = []
        prediction = model.predict(TEXTS, mode="secure", progress=steps.append)
        expected = model.predict(TEXTS, mode="plain")
        assert relative_error(prediction.result, expected.result) <= TOLERANCE
        assert prediction.labels == expected.labels
        assert any("uploading" in step for step in steps) and any("layer 0" in step for step in steps)
    assert nobody_serves()
