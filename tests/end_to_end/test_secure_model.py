"""`SecureModel` and `secformer run` with three real server processes over TLS."""

from __future__ import annotations

import json

import pytest
import torch
from checkpoints import TEXTS, build_checkpoint
from commands import command
from secure import load, relative_error, transformers_result

from secformer.errors import InputError
from secformer.models.cost import client_bytes
from secformer.models.tokens import for_query
from secformer.parties import launch
from secformer.secure_model import SecureModel

TOLERANCE = 1e-2
SIZES = dict(layers=2, heads=3, hidden=24, intermediate=40)


@pytest.fixture(scope="module")
def started():
    """Every set of server processes that is started meanwhile."""
    found: list[launch.ProcessServers] = []
    start = launch.launch

    def remember(*given, **options):
        found.append(start(*given, **options))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "launch", remember)
        yield found


@pytest.fixture(scope="module")
def classifier(started, tmp_path_factory):
    """transformers' model, and ours with its servers running after the first query."""
    folder, cache = tmp_path_factory.mktemp("checkpoint"), tmp_path_factory.mktemp("cache")
    reference = build_checkpoint(folder, "bert", "classification", seed=2, **SIZES)
    with load(folder, cache) as model:
        model.calibrate(TEXTS, few=True)
        yield reference, model


def test_two_queries_share_one_upload(classifier):
    reference, model = classifier
    steps: list[str] = []
    first = model.predict(TEXTS, mode="secure", progress=steps.append)
    expected = transformers_result(reference, model, model._batch(TEXTS, None))
    assert relative_error(first.result, expected) <= TOLERANCE
    assert first.labels == [model.config.labels[index] for index in expected.argmax(-1).tolist()]
    assert any("uploading" in step for step in steps) and any("layer 1" in step for step in steps)
    service = model._service
    steps.clear()
    second = model.predict(TEXTS, mode="secure", progress=steps.append)
    assert model._service is service and not any("upload" in step for step in steps)
    assert relative_error(second.result, first.result) <= TOLERANCE / 2
    assert not torch.equal(first.result, second.result)  # fresh masks: the last bits are rounded anew
    for prediction in (first, second):
        counted = prediction.outcome
        assert counted is not None
        declared = counted.declared
        assert (counted.rounds, counted.online_bytes, counted.dealer_bytes) == (
            declared.rounds,
            declared.online_bytes,
            declared.dealer_bytes,
        )


def test_the_plan_is_what_the_sockets_count(classifier):
    _, model = classifier
    prediction = model.predict(TEXTS[:2], mode="secure")
    plan = model.plan(for_query(model._batch(TEXTS[:2], None), model.config).ids.shape[1], 2)
    counted = prediction.outcome
    assert counted is not None and counted.declared == plan.cost and counted.rounds == plan.cost.rounds
    # Beside the payload: a job with the card's hash for each server, the servers' answers, and frame headers.
    assert 0 < counted.sent + counted.received - client_bytes(plan) < 12_000


def test_refusals_leave_the_servers_alone(classifier):
    _, model = classifier
    model.predict(TEXTS[:1], mode="secure")
    service = model._service
    for texts, mode, complaint in (
        ([""], "secure", "text 1 is empty"),
        (["cat " * 63], "secure", "65 tokens, 64 are allowed"),
        (TEXTS, "secret", "unknown mode 'secret': choose plain, simulate or secure"),
    ):
        with pytest.raises(InputError, match=complaint):
            model.predict(texts, mode=mode)
    assert model._service is service
    assert model.predict(TEXTS[:1], mode="secure").result.isfinite().all()


def test_a_new_calibration_ends_the_old_servers(started, classifier):
    """Weights folded for one calibration would give silent nonsense under another. The last test of `classifier`."""
    _, model = classifier
    assert model._service is not None
    (servers,) = started
    processes = [each._process for each in servers._processes.values()]
    assert len(processes) == 3 and all(process.poll() is None for process in processes)
    model.calibrate([*TEXTS, "the dog was good, the dog was bad, a dog ran home"], few=True)
    assert model._service is None and all(process.poll() is not None for process in processes)
    model.close()  # twice is no error


@pytest.mark.long  # in one process: test_one_process.py
@pytest.mark.parametrize("suite", ["fast", "secformer"])
def test_another_suite_with_the_table_handed_out(tmp_path, suite):
    build_checkpoint(tmp_path / "model", "distilbert", "embedding", seed=4, **{**SIZES, "layers": 1})
    with load(tmp_path / "model", tmp_path / "cache", suite, private_table=False) as model:
        model.calibrate(TEXTS, few=True)
        secure = model.predict(TEXTS, mode="secure")
        assert relative_error(secure.result, model.predict(TEXTS, mode="plain").result) <= TOLERANCE


def test_secformer_run(monkeypatch, capfd, tmp_path):
    """Token classification of two texts of different lengths, calibrated on the way with the built-in texts."""
    monkeypatch.setenv("SECFORMER_CACHE_FOLDER", str(tmp_path / "cache"))
    build_checkpoint(tmp_path / "model", "roberta", "tokens", seed=1, layers=1)
    before = sorted(path.name for path in (tmp_path / "model").iterdir())
    texts = ["the cat sat", "it was a good film"]
    outcome = command(monkeypatch, capfd, "run", tmp_path / "model", "--text", texts[0], "--text", texts[1], "--json")
    assert outcome.code == 0, outcome.err
    content = json.loads(outcome.out)
    assert {"result", "labels", "max_error", "rounds", "online_bytes", "dealer_bytes", "client_bytes"} <= set(content)
    model = SecureModel.from_pretrained(tmp_path / "model")  # calibrated: the record is in the cache
    assert model.calibrated
    expected = model.predict(texts, mode="plain")
    result = torch.tensor(content["result"], dtype=torch.float64)
    assert relative_error(result, expected.result) <= TOLERANCE
    assert content["max_error"] == pytest.approx(float((result - expected.result).abs().max()))
    assert content["labels"] == expected.labels
    assert content["rounds"] == model.plan(expected.result.shape[1], 2).cost.rounds
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == before
