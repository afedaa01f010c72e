"""A model's query on two real shares in this process, and transformers' own answer to the same batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from secformer.engine.local import Run, run_locally
from secformer.engine.values import Value
from secformer.models.job import upload_program
from secformer.models.query import finish, share_query, static_shares
from secformer.models.tokens import Batch
from secformer.secure_model import SecureModel
from secformer.settings import Settings


def load(folder: str | Path, cache: str | Path, suite: str = "exact", **options: Any) -> SecureModel:
    """A model whose calibrations go to `cache`, never to anybody's home."""
    return SecureModel.from_pretrained(folder, suite, settings=Settings(cache_folder=Path(cache)), **options)


@dataclass(frozen=True)
class Uploaded:
    """The weights at the servers: the wires of S0 and S1, and T's masks."""

    wires: dict[str, tuple[Value, Value]]
    masks: dict[str, Value]
    run: Run


def upload(model: SecureModel) -> Uploaded:
    run = run_locally(upload_program(model.card), static_shares(model.folded()))
    zero, one = run.outputs
    return Uploaded({name: (zero[name], one[name]) for name in zero}, run.dealt, run)


def ask(model: SecureModel, uploaded: Uploaded, batch: Batch) -> tuple[Tensor, Run]:
    """The result of a batch as the client sees it, and the run behind it."""
    query = share_query(model.card, batch, model.handed_out_words()).expanded()
    program = model.card.query_program(*batch.ids.shape)
    run = run_locally(program, {**uploaded.wires, **query}, uploaded.masks)
    result = finish(model.card, batch, run.value("result"))
    return model._prediction(batch, result).result, run


def ask_texts(
    model: SecureModel, texts: Sequence[str], pairs: Sequence[str] | None = None, uploaded: Uploaded | None = None
) -> tuple[Tensor, Run]:
    return ask(model, uploaded or upload(model), model._batch(texts, pairs))


@torch.no_grad()
def transformers_result(reference: Any, model: SecureModel, batch: Batch) -> Tensor:
    """What transformers gives: logits, or the mean over a sentence's tokens; padding's rows as zeros."""
    types = dict(token_type_ids=batch.token_types) if model.config.token_types else {}
    output = reference(input_ids=batch.ids, attention_mask=batch.mask.long(), **types)
    mask = batch.mask[..., None].double()
    if model.config.head == "embedding":
        return (output.last_hidden_state * mask).sum(1) / mask.sum(1)
    return output.logits * mask if model.config.head == "tokens" else output.logits


def relative_error(result: Tensor, expected: Tensor) -> float:
    """The largest difference, as a part of the largest number expected."""
    return float((result - expected).abs().max() / expected.abs().max())


def assert_cost_as_declared(run: Run) -> None:
    """Rounds and bytes counted at both servers and at T are the plan's, to the last one."""
    cost = run.plan.cost
    for counters in run.counters:
        assert counters.rounds == cost.rounds
        assert (counters.payload_sent, counters.payload_received) == (cost.opened_bytes, cost.opened_bytes)
    assert run.dealer.payload_sent == cost.dealer_bytes
