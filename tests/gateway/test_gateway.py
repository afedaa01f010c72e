"""The gateway's interface before real servers: right answers in every form, typed errors, and no text where none belongs."""

from __future__ import annotations

import base64
import json
import logging
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

pytest.importorskip("fastapi", reason="the extra `gateway` is not installed")

from fastapi.testclient import TestClient
from gateways import bring
from secure import relative_error

from secformer.gateway.guard import BODY_LIMIT, Token

TEXTS = ["the cat sat on a mat", "dogs", "it was a good film, running the dog home on bad mats"]
SECRET = "zebra"
TOKEN = "t" * 40
VECTORS = 2e-3
"""What an embedding of length 1 may be off by, as the gateway promises."""
LOGITS = 1e-2
"""What logits may be off by, relative to the largest: the bound that every test of a whole model holds them to. They are not
brought to length 1, and a random checkpoint's are large or small as it happens."""


def unit(rows: torch.Tensor) -> torch.Tensor:
    return rows / rows.norm(dim=-1, keepdim=True)


def near(found, expected: torch.Tensor) -> bool:
    """Within VECTORS of the largest number expected, or of 1."""
    error = (torch.tensor(found, dtype=torch.float64) - expected).abs().max()
    return bool(error < VECTORS * max(1.0, float(expected.abs().max())))


def right(found, expected: torch.Tensor) -> bool:
    return relative_error(torch.tensor(found, dtype=torch.float64), expected) <= LOGITS


# OpenAI's form


def test_embeddings_as_openai_has_them(served, http):
    reply = http.post("/v1/embeddings", json={"input": TEXTS, "model": "vectors"})
    said = reply.json()
    assert reply.status_code == 200 and said["object"] == "list"
    assert [one["index"] for one in said["data"]] == [0, 1, 2]
    assert {one["object"] for one in said["data"]} == {"embedding"}
    assert near([one["embedding"] for one in said["data"]], unit(served.plain("vectors", TEXTS)))
    tokens = sum(
        len(row.ids) for row in http.app.state.gateway.offers.choose("vectors", ("embedding",), "").encode(TEXTS)
    )
    assert said["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert said["model"].startswith("vectors@")


def test_one_text_and_base64(served, http):
    said = http.post("/v1/embeddings", json={"input": TEXTS[0], "encoding_format": "base64"}).json()
    content = base64.b64decode(said["data"][0]["embedding"])
    assert near(struct.unpack(f"<{len(content) // 4}f", content), unit(served.plain("vectors", TEXTS[:1]))[0])


@pytest.mark.parametrize("tokens", [[1, 2, 3], [[1, 2], [3]], 7])
def test_token_ids_are_refused_clearly(http, tokens):
    reply = http.post("/v1/embeddings", json={"input": tokens, "model": "vectors"})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert "token ids are not taken" in error["message"] and error["type"] == "invalid_request_error"
    assert error["code"] == "input"


def test_dimensions_other_than_the_models_own_are_refused(http):
    assert http.post("/v1/embeddings", json={"input": "a", "dimensions": 5}).status_code == 400
    assert http.post("/v1/embeddings", json={"input": "a", "dimensions": 24}).status_code == 200


def test_models_are_listed(http):
    found = {one["id"]: one["head"] for one in http.get("/v1/models").json()["data"]}
    assert found == {"vectors": "embedding", "mood": "classification", "words": "tokens"}


# text-embeddings-inference's form


def test_embed(served, http):
    plain = served.plain("vectors", TEXTS)
    assert near(http.post("/embed", json={"inputs": TEXTS}).json(), unit(plain))
    raw = http.post("/embed", json={"inputs": TEXTS[0], "normalize": False}).json()
    assert near(raw, plain[:1])


def test_predict_has_labels_with_scores_the_highest_first(served, http):
    config, expected = served.models["mood"].config, torch.softmax(served.plain("mood", TEXTS), -1)
    said = http.post("/predict", json={"inputs": [[text] for text in TEXTS]}).json()
    for rows, row in zip(said, expected, strict=True):
        assert [one["score"] for one in rows] == sorted((one["score"] for one in rows), reverse=True)
        by_label = {one["label"]: one["score"] for one in rows}
        assert right([by_label[label] for label in config.labels], row)
    alone = http.post("/predict", json={"inputs": TEXTS[0], "raw_scores": True}).json()
    logits = {one["label"]: one["score"] for one in alone}
    assert right([logits[label] for label in config.labels], served.plain("mood", TEXTS[:1])[0])


def test_predict_takes_pairs_alone_and_in_a_batch_with_single_texts(served, http):
    expected = served.plain("mood", TEXTS[:1], TEXTS[1:2])[0]
    alone = http.post("/predict", json={"inputs": TEXTS[:2], "raw_scores": True}).json()
    batch = http.post("/predict", json={"inputs": [TEXTS[:2], TEXTS[2:]], "raw_scores": True}).json()
    for rows in (alone, batch[0]):
        assert right([score for _, score in sorted((one["label"], one["score"]) for one in rows)], expected)
    assert len(batch) == 2


def test_headers_say_model_marks_and_cost(http):
    headers = http.post("/embed", json={"inputs": TEXTS[:1]}).headers
    assert headers["X-SecFormer-Model"].startswith("vectors@")
    assert headers["X-SecFormer-Marked"] == "" and headers["X-SecFormer-Sessions"] == "1"
    assert int(headers["X-SecFormer-Rounds"]) > 10 and int(headers["X-SecFormer-Dealer-Bytes"]) > 1000


def test_a_model_for_something_else_is_refused_by_its_head(http):
    for path, model in (("/embed", "mood"), ("/predict", "vectors"), ("/predict", "words")):
        reply = http.post(path, json={"inputs": "a cat", "model": model})
        assert reply.status_code == 422 and "its head is" in reply.json()["error"], path


# Everything about one text


def test_an_answer_has_evidence_cost_and_views(served, http):
    said = http.post("/answer", json={"text": TEXTS[0], "model": "mood"}).json()
    assert said["label"] == served.models["mood"].predict(TEXTS[:1], mode="plain").labels[0]
    assert said["marked"] is False and said["evidence"] == {} and said["advice"] == ""
    assert said["cost"]["rounds"] > 10 and said["cost"]["texts_in_session"] == 1
    assert set(said["seen"]) == {"client", "server0", "server1", "dealer", "provider"}
    assert f"{said['cost']['dealer_bytes']:,}" in " ".join(said["seen"]["dealer"])
    assert "16 tokens" in " ".join(said["seen"]["server0"])


def test_a_token_classifier_answers_by_token(served, http):
    said = http.post("/answer", json={"text": TEXTS[0], "model": "words"}).json()
    plain = served.models["words"].predict(TEXTS[:1], mode="plain")
    assert said["label"] == plain.labels[0] and len(said["result"]) == len(said["label"])
    places = [token.index for token in plain[0].tokens]
    assert right(said["result"], plain.result[0][places])


def test_a_marked_answer_says_so_everywhere(served, tmp_path):
    bring(served.servers, tmp_path / "wild", "wild", "embedding", wild=True)
    with TestClient(served.app("wild", "mood"), base_url="http://localhost") as http:
        said = http.post("/answer", json={"text": TEXTS[0]}).json()
        assert said["marked"] and said["evidence"] and "may be wrong" in said["advice"]
        assert http.post("/v1/embeddings", json={"input": TEXTS[0]}).json()["data"][0]["marked"] is True
        assert http.post("/embed", json={"inputs": TEXTS[:1]}).headers["X-SecFormer-Marked"] == "0"
        assert http.post("/predict", json={"inputs": TEXTS[0]}).headers["X-SecFormer-Marked"] == ""
        assert 'secformer_gateway_texts_total{marked="yes"} 3.0' in http.get("/metrics").text


# Errors


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/v1/embeddings", {"input": "a", "model": "nobody"}, 404, "input.model"),
        ("/v1/embeddings", {"input": []}, 400, "input"),
        ("/v1/embeddings", {"input": "  "}, 400, "input"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "int8"}, 400, "input"),
        ("/v1/embeddings", {"model": "vectors"}, 400, "input"),
        ("/embed", {"inputs": "a", SECRET: 1}, 422, "input"),
        ("/embed", {"inputs": f"{SECRET} " * 200}, 422, "input"),
        ("/embed", {"inputs": "a", "prompt_name": SECRET}, 422, "input"),
        ("/predict", {"inputs": [["a", "b", "c"]]}, 422, "input"),
        ("/predict", {"inputs": [1, 2]}, 422, "input"),
        ("/answer", {"text": ["a"]}, 422, "input"),
    ],
)
def test_what_cannot_be_used_is_a_typed_error_without_the_text(http, path, body, status, code):
    reply = http.post(path, json=body)
    said = reply.json()
    assert reply.status_code == status, said
    found = said["error"]["code"] if path.startswith("/v1/") else said["code"]
    assert found == code
    assert "prompt_name" in body or SECRET not in reply.text


def test_a_long_text_is_cut_where_that_is_asked_for(http):
    assert http.post("/embed", json={"inputs": "cat " * 200, "truncate": True}).status_code == 200


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[" * 5000, b'"text"', b'{"inputs": "\\ud800"}', b""])
def test_a_body_that_is_no_request_is_no_500(http, content):
    reply = http.post("/embed", content=content, headers={"Content-Type": "application/json"})
    assert reply.status_code == 422 and reply.json()["code"] == "input"


def test_paths_and_methods_that_do_not_exist(http):
    assert http.get("/nothing").status_code == 404 and http.get("/nothing").json()["code"] == "input"
    assert http.get("/embed").status_code == 405


def test_a_body_that_is_too_large_is_refused_while_it_comes(http):
    def endless():
        for _ in range(BODY_LIMIT // (1 << 20) + 2):
            yield b" " * (1 << 20)

    assert http.post("/embed", content=endless()).status_code == 413
    assert http.post("/embed", content=b"", headers={"Content-Length": str(BODY_LIMIT + 1)}).status_code == 413


def test_a_full_queue_is_a_429_that_says_when(served):
    with TestClient(served.app("vectors", gateway_queue=2), base_url="http://localhost") as http:
        assert http.post("/embed", json={"inputs": ["a", "b", "c"]}).status_code == 413
        gateway, gate = http.app.state.gateway, threading.Event()
        offer = gateway.offers.choose(None, ("embedding",), "")
        real, offer.ask = offer.ask, lambda rows: (gate.wait(20), real(rows))[1]
        with ThreadPoolExecutor(4) as pool:
            first = []
            for running in (1, 2):  # one after the other: together they would share a session
                first.append(pool.submit(http.post, "/embed", json={"inputs": "a"}))
                until(lambda running=running: gateway.desk.running == running)
            later = pool.submit(http.post, "/embed", json={"inputs": ["b", "c"]})
            until(lambda: gateway.desk.waiting == 2)
            refused = http.post("/v1/embeddings", json={"input": "d"})
            gate.set()
            assert {one.result().status_code for one in (*first, later)} == {200}
    assert refused.status_code == 429 and int(refused.headers["Retry-After"]) >= 1
    assert refused.json()["error"]["code"] == "gateway.busy"


def until(condition, seconds: float = 10.0) -> None:
    import time

    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)


# Who may


def test_with_a_token_only_who_shows_it_is_served(served):
    with TestClient(served.app("vectors", token=Token(TOKEN)), base_url="http://gateway.example") as http:
        for header in (
            {},
            {"Authorization": "Bearer " + "x" * 40},
            {"Authorization": TOKEN},
            {"Authorization": "Bearer é"},
        ):
            reply = http.post("/embed", json={"inputs": "a"}, headers=[(k, v.encode()) for k, v in header.items()])
            assert reply.status_code == 401 and reply.headers["WWW-Authenticate"] == "Bearer"
        assert http.get("/metrics").status_code == 401 and http.get("/v1/models").status_code == 401
        assert http.get("/health").status_code == 200 and http.get("/").status_code == 200
        good = {"Authorization": f"Bearer {TOKEN}"}
        assert http.post("/embed", json={"inputs": "a"}, headers=good).status_code == 200
        assert http.get("/metrics", headers=good).status_code == 200


def test_without_a_token_only_this_machines_own_names_are_answered(served):
    app = served.app("vectors")
    with TestClient(app, base_url="http://127.0.0.1:27180") as http:
        assert http.get("/health").status_code == 200
        assert http.get("/health", headers={"Host": "evil.example"}).status_code == 421
        assert http.get("/health", headers={"Host": "localhost:80"}).status_code == 200


# What is written down


def test_no_text_is_in_logs_errors_or_metrics(served, caplog):
    with caplog.at_level(logging.DEBUG), TestClient(served.app(), base_url="http://localhost") as http:
        http.post("/embed", json={"inputs": f"a {SECRET} ran"})
        http.post(f"/embed?{SECRET}", json={"inputs": SECRET, "model": SECRET})
        http.get(f"/{SECRET}")
        offer = http.app.state.gateway.offers.choose("vectors", ("embedding",), "")

        def broken(*_):
            raise ValueError(SECRET)

        offer.ask = broken
        failed = http.post("/embed", json={"inputs": SECRET})
        offer.encode = broken
        odd = http.post("/embed", json={"inputs": SECRET})
        assert failed.status_code == odd.status_code == 500 and SECRET not in failed.text + odd.text
        assert SECRET not in http.get("/metrics").text
    assert "ValueError" in caplog.text, "the log must say what kind of error it was"
    ours = [record for record in caplog.records if not record.name.startswith(("httpx", "httpcore", "httpx2"))]
    assert SECRET not in " ".join(record.getMessage() + repr(record.args) + (record.exc_text or "") for record in ours)


def test_metrics_count_requests_texts_and_sessions(served):
    with TestClient(served.app("vectors"), base_url="http://localhost") as http:
        http.post("/embed", json={"inputs": TEXTS})
        http.post("/embed", json={"inputs": 5})
        text = http.get("/metrics").text
    assert 'secformer_gateway_requests_total{route="/embed",status="200"} 1.0' in text
    assert 'secformer_gateway_requests_total{route="/embed",status="422"} 1.0' in text
    assert 'secformer_gateway_texts_total{marked="no"} 3.0' in text
    assert "secformer_gateway_healthy 1.0" in text and "process_resident_memory_bytes" in text


# Keeping up with the servers


def test_a_new_version_is_offered_and_a_missing_model_is_a_503(served, tmp_path):
    with TestClient(served.app("later"), base_url="http://localhost") as http:
        health = http.get("/health")
        assert health.status_code == 503 and health.json()["code"] == "input.model" and health.headers["Retry-After"]
        missing = http.post("/embed", json={"inputs": "a", "model": "later"})
        assert missing.status_code == 503 and missing.headers["Retry-After"]
        offers = http.app.state.gateway.offers
        bring(served.servers, tmp_path / "one", "later", "embedding", seed=1)
        offers._wake.set()
        until(lambda: offers.healthy)
        first = http.post("/embed", json={"inputs": "a cat"})
        second_model = bring(served.servers, tmp_path / "two", "later", "embedding", seed=2)
        offers._wake.set()
        until(lambda: offers.listed()[0].offer.name != first.headers["X-SecFormer-Model"])
        second = http.post("/embed", json={"inputs": "a cat"})
        assert second.headers["X-SecFormer-Model"] != first.headers["X-SecFormer-Model"]
        assert near(second.json(), unit(second_model.predict(["a cat"], mode="plain").result))


def test_the_interface_is_described(http):
    described = http.get("/openapi.json").json()
    assert {"/v1/embeddings", "/v1/models", "/embed", "/predict", "/answer", "/health", "/metrics"} == set(
        described["paths"]
    )
    assert json.dumps(described).count("PlainError") > 5
