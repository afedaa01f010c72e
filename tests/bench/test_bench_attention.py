"""`secformer bench attention` on a small random checkpoint: every layer and head, held-out texts, what it promises."""

from __future__ import annotations

import json
import random

import pytest
import torch
from checkpoints import WORDS, build_checkpoint
from typer.testing import CliRunner

from secformer.bench.attention import Bench, documents, measure_attention, sentences
from secformer.cli.main import app
from secformer.errors import InputError
from secformer.secure_model import SecureModel


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint")
    build_checkpoint(path, "bert", "embedding", seed=3, layers=2, heads=3)
    return path


@pytest.fixture(scope="module")
def texts():
    draw = random.Random(5)
    words = [word for word in WORDS if not word.startswith("#")]
    return [" ".join(draw.choices(words, k=draw.randint(1, 20))) for _ in range(120)]


def test_every_layer_on_sentences_and_documents(folder, texts):
    rows = measure_attention(folder, texts, tokens=40, rows=10)
    assert [(row.input, row.layer) for row in rows] == [
        (name, layer) for name in ("sentences", "document 0", "document 1") for layer in (0, 1)
    ]
    for row in rows:
        assert row.max_error <= 2e-3
        assert row.headroom > 0
        assert len(row.windows) == 3
        assert (row.rounds, row.fast_rounds) == (7, 4)
        assert row.rows_a_head == (10 if row.input != "sentences" else row.rows_a_head)


def test_documents_have_exactly_the_tokens_asked_for(folder, texts):
    model = SecureModel.from_pretrained(folder, uncalibrated=True)
    batches = documents(model, texts, 31, 3)
    assert [batch.ids.shape for batch in batches] == [(1, 31)] * 3
    assert not torch.equal(batches[0].ids, batches[1].ids)
    with pytest.raises(InputError, match="needs 60"):
        documents(model, ["a cat"], 60, 1)


def test_sentences_are_of_all_lengths(texts):
    chosen = sentences(texts, 8)
    assert chosen[0] == min(texts, key=len) and len(chosen[-1]) == max(map(len, texts))


def test_chosen_rows_hold_the_extremes():
    """Of a document's rows: the lowest and the highest maximum, the smallest and the largest sum, in every head."""
    scores = torch.randn(1, 2, 50, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 3
    chosen, real = Bench(None, None, 9)._choose(scores, torch.ones(1, 50, dtype=torch.bool))
    assert chosen.shape == (1, 2, 10, 50) and bool(real.all())
    for of in (lambda x: x.amax(-1), lambda x: torch.exp(x - x.amax(-1, keepdim=True)).sum(-1)):
        assert torch.equal(of(chosen).amax(-1), of(scores).amax(-1))
        assert torch.equal(of(chosen).amin(-1), of(scores).amin(-1))


def test_command(folder, texts, tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(texts))
    done = CliRunner().invoke(
        app, ["bench", "attention", str(folder), "--data", str(file), "--tokens", "20", "--rows", "4", "--json"]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert {"model", "layers"} <= set(found)
    assert {"dealer_a_score", "online_ratio", "max_error", "windows"} <= set(found["layers"][0])


@pytest.mark.parametrize(("texts", "tokens"), [(["a"], 20), (["a cat"] * 9, 65), (["a cat"] * 9, 2)])
def test_impossible_requests(folder, texts, tokens):
    with pytest.raises(InputError):
        measure_attention(folder, texts, tokens)
