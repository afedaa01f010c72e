"""Whole queries of every family of models between servers that record: the first run, and replays."""

from __future__ import annotations

import pytest
import torch
from checkpoints import TEXTS
from secure import calibrated, relative_error
from written_down import writing_down

from secformer.engine.redealing import Dealings
from secformer.engine.repertoire import Repertoire
from secformer.engine.replaying import Recordings
from secformer.parties.client import Client
from secformer.parties.launch import in_memory
from secformer.parties.messages import ANYBODY
from secformer.parties.provider import Provider
from secformer.roles import CLIENT, PROVIDER
from secformer.settings import Settings

ODD = dict(heads=1, hidden=17, intermediate=29, layers=1)
MODERN = dict(heads=1, hidden=10, intermediate=9, layers=2, local_attention=6)
KINDS = [
    ("exact", "albert", dict(ODD, embedding_size=9, activation="gelu_new")),
    ("exact", "mpnet", ODD),
    ("exact", "deberta-v2", dict(ODD, position_buckets=8)),
    ("exact", "modernbert", MODERN),
    ("fast", "electra", dict(ODD, embedding_size=13)),
    ("crypten", "mpnet", ODD),
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("suite", "family", "sizes"), [pytest.param(*kind, id=f"{kind[0]} {kind[1]}") for kind in KINDS]
)
def test_a_replayed_query_gives_what_the_first_gave(tmp_path, monkeypatch, suite, family, sizes):
    _, model = calibrated(tmp_path, family, "embedding", suite, seed=3, **sizes)
    texts = TEXTS[:2]
    plain = model.predict(texts, mode="plain").result
    rows = model.tokens(texts)
    made: list[Repertoire] = []

    def making(kind):
        return lambda *given: (made.append(kind(*given)), made[-1])[1]

    monkeypatch.setattr("secformer.parties.computing_server.Recordings", making(Recordings))
    monkeypatch.setattr("secformer.parties.dealing_server.Dealings", making(Dealings))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with writing_down(monkeypatch), in_memory(Settings(cache_folder=tmp_path, threads=1)) as servers:
        Provider(servers.network(PROVIDER), servers.settings).upload(
            "model", model.card, model.folded(), readers=[ANYBODY]
        )
        client = Client(servers.network(CLIENT), servers.settings, "model", model.card, None)
        for _ in range(3):
            assert relative_error(client.predict_tokens(rows).result, plain) <= 1e-2
    assert sorted(type(each).__name__ for each in made) == ["Dealings", "Recordings", "Recordings"]
    for repertoire in made:
        (known,) = repertoire._known.values()
        assert known.recording is not None and not known.busy
    torch.set_num_threads(threads)
