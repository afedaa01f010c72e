"""Applications that know nothing of us: the official OpenAI client, curl, a fuzzer, against a gateway at a real port."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("fastapi", reason="the extra `gateway` is not installed")

from gateways import listening

from secformer.gateway.guard import Token

TEXTS = ["the cat sat on a mat", "dogs", "it was a good film, running the dog home on bad mats"]
TOKEN = "a-token-of-more-than-32-letters-0123456789"
TOLERANCE = 2e-3


@pytest.fixture(scope="module")
def gateway(served):
    with listening(served.app(token=Token(TOKEN))) as url:
        yield url


def expected(served, texts: list[str]) -> torch.Tensor:
    rows = served.plain("vectors", texts)
    return rows / rows.norm(dim=-1, keepdim=True)


def error(found, wanted: torch.Tensor) -> float:
    return float((torch.tensor(found, dtype=torch.float64) - wanted).abs().max())


# The official client


@pytest.fixture(scope="module")
def openai(gateway):
    library = pytest.importorskip("openai", reason="the package openai is not installed")
    return library, library.OpenAI(base_url=f"{gateway}/v1", api_key=TOKEN, max_retries=0)


@pytest.mark.parametrize("options", [{}, {"encoding_format": "float"}, {"dimensions": 24}])
def test_the_official_client_gets_embeddings(served, openai, options):
    said = openai[1].embeddings.create(model="vectors", input=TEXTS, **options)
    assert error([one.embedding for one in said.data], expected(served, TEXTS)) < TOLERANCE
    assert [one.index for one in said.data] == [0, 1, 2] and said.usage.total_tokens > len(TEXTS)
    assert said.model.startswith("vectors@") and not any(one.marked for one in said.data)


def test_the_official_client_lists_models_and_raises_typed_errors(openai, gateway):
    library, client = openai
    assert [one.id for one in client.models.list()] == ["vectors", "mood", "words"]
    with pytest.raises(library.NotFoundError) as missing:
        client.embeddings.create(model="nothing", input="a")
    assert missing.value.code == "input.model"
    with pytest.raises(library.BadRequestError, match="token ids are not taken"):
        client.embeddings.create(model="vectors", input=[1, 2, 3])
    with pytest.raises(library.AuthenticationError):
        library.OpenAI(base_url=f"{gateway}/v1", api_key="wrong", max_retries=0).embeddings.create(
            model="vectors", input="a"
        )


def test_many_requests_at_once_each_get_their_own_answer(served, openai):
    texts = [f"{first} {second}" for first in ("the", "a", "it", "was") for second in ("cat", "dog", "mat", "film")]
    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda text: openai[1].embeddings.create(model="vectors", input=text), texts))
    assert error([one.data[0].embedding for one in said], expected(served, texts)) < TOLERANCE


# curl


@pytest.fixture(scope="module")
def curl(gateway):
    program = shutil.which("curl")
    if program is None:
        pytest.skip("curl is not installed")

    def call(path: str, body: object | None = None, *more: str) -> tuple[int, str]:
        given = [] if body is None else ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
        arguments = [program, "-s", "-w", "\n%{http_code}", f"{gateway}{path}", *given, *more]
        said = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True).stdout
        content, _, status = said.rpartition("\n")
        return int(status), content

    return call


GOOD = ("-H", f"Authorization: Bearer {TOKEN}")


def test_curl_gets_embeddings_and_predictions(served, curl):
    status, said = curl("/v1/embeddings", {"input": TEXTS[0], "model": "vectors"}, *GOOD)
    assert status == 200
    assert error(json.loads(said)["data"][0]["embedding"], expected(served, TEXTS[:1])[0]) < TOLERANCE
    status, said = curl("/embed", {"inputs": TEXTS[0]}, *GOOD)
    assert status == 200 and error(json.loads(said), expected(served, TEXTS[:1])) < TOLERANCE
    status, said = curl("/predict", {"inputs": TEXTS[0]}, *GOOD)
    label = served.models["mood"].predict(TEXTS[:1], mode="plain").labels[0]
    assert status == 200 and json.loads(said)[0]["label"] == label


def test_curl_hears_why_not(curl):
    assert curl("/embed", {"inputs": "a"})[0] == 401
    status, said = curl("/embed", {"inputs": ""}, *GOOD)
    assert status == 422 and json.loads(said)["error_type"] == "validation"
    assert curl("/health")[0] == 200
    assert "secformer_gateway_requests_total" in curl("/metrics", None, *GOOD)[1]


def test_an_application_that_hangs_up_is_not_computed_for(served):
    """It waits behind a session that is held up, and is gone before its turn comes."""
    import socket
    import threading
    import time

    app = served.app("vectors", gateway_sessions=1)
    with listening(app) as url:
        desk, offers = app.state.gateway.desk, app.state.gateway.offers
        offer, gate, asked = offers.choose(None, ("embedding",), ""), threading.Event(), []
        real = offer.ask

        def slow(rows):
            asked.append(len(rows))
            gate.wait(20)
            return real(rows)

        offer.ask = slow
        body = json.dumps({"inputs": "a cat"}).encode()
        head = f"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        port = int(url.rsplit(":", 1)[1])
        with socket.create_connection(("127.0.0.1", port)) as first:
            first.sendall(head.encode() + body)
            _until(lambda: desk.running == 1)
            with socket.create_connection(("127.0.0.1", port)) as second:
                second.sendall(head.encode() + body)
                _until(lambda: desk.waiting == 1)
            _until(lambda: desk.waiting == 0)
            gate.set()
            assert first.recv(15) == b"HTTP/1.1 200 OK"
        time.sleep(0.2)
        assert asked == [1] and desk.running == 0


def _until(condition, seconds: float = 10.0) -> None:
    import time

    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


# A fuzzer

EXAMPLES = 300 if os.environ.get("SECFORMER_SOAK") else 20
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_fuzzer_finds_no_500_and_nothing_that_is_not_described(served, tmp_path):
    """Sessions are made up, so that many requests fit into a second; in `make soak` there are more of them."""
    pytest.importorskip("schemathesis", reason="the package schemathesis is not installed")
    app = served.app()
    with listening(app) as url:
        for one in app.state.gateway.offers.listed():
            one.offer.ask = lambda rows, offer=one.offer, real=one.offer.ask: _made_up(offer, rows, real)
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json"),
                *("--checks", CHECKS, "--max-examples", str(EXAMPLES), "--seed", "1", "--workers", "1"),
                *("--phases", "examples,coverage,fuzzing", "--no-color"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=3000,
        )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


_REAL: dict = {}


def _made_up(offer, rows, real):
    """The form of a real answer, once there was one; numbers that mean nothing."""
    if offer not in _REAL:
        _REAL[offer] = real(rows[:1])[0]
    one = _REAL[offer]
    size = one.result.shape[-1]
    answers = []
    for row in rows:
        tokens = offer.config.head == "tokens"
        result = torch.zeros(len(row.ids), size) if tokens else torch.zeros(size)
        label = [offer.config.labels[0]] * len(row.ids) if tokens else one.label
        answers.append(SimpleNamespace(**{**vars(one), "result": result, "label": label}))
    return answers
