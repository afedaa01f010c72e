"""A model's query on two real shares in this process, and transformers' own answer to the same batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from checkpoints import TEXTS, build_checkpoint
from torch import Tensor

from secformer.crypto import dpf
from secformer.crypto.dpf import DpfKey
from secformer.engine.local import Run, run_locally
from secformer.engine.sharing import Encoded, Sharing
from secformer.engine.values import Bits
from secformer.models.query import private_query
from secformer.models.tokens import Batch
from secformer.parties import planner
from secformer.parties.prediction import prediction
from secformer.secure_model import SecureModel
from secformer.settings import Settings


def load(folder: str | Path, cache: str | Path, suite: str = "exact", **options: Any) -> SecureModel:
    """A model whose calibrations go to `cache`, never to anybody's home."""
    return SecureModel.from_pretrained(folder, suite, settings=Settings(cache_folder=Path(cache)), **options)


def calibrated(
    folder: Path,
    family: str,
    head: str,
    suite: str = "exact",
    texts: Sequence[str] = TEXTS,
    pairs: Sequence[str] | None = None,
    private_table: bool = True,
    **settings: Any,
) -> tuple[Any, SecureModel]:
    """A small checkpoint: transformers' model of it, and ours, calibrated."""
    reference = build_checkpoint(folder / "checkpoint", family, head, **settings)
    model = load(folder / "checkpoint", folder / "cache", suite, private_table=private_table)
    model.calibrate(texts, pairs, few=True)
    return reference, model


@dataclass(frozen=True)
class Uploaded:
    """The weights at the servers: the wires of S0 and S1, and T's masks."""

    wires: dict[str, Sharing]
    run: Run


def upload(model: SecureModel) -> Uploaded:
    """As servers do it: the program from the card's text, and wires kept for many queries."""
    program = planner.upload({"card": model.card.to_json()}, None)
    given = {name: Encoded(encoded.form.as_share(), encoded.ring) for name, encoded in model.folded().items()}
    run = run_locally(program, given)
    zero, one, dealt = ({name: wire.as_static() for name, wire in part.items()} for part in (*run.outputs, run.dealt))
    return Uploaded({name: Sharing((zero[name], one[name]), dealt[name]) for name in zero}, run)


def ask(model: SecureModel, uploaded: Uploaded, batch: Batch) -> tuple[Tensor, Run]:
    """The result of a batch as the client sees it, and the run behind it."""
    card = model.card
    query = private_query(card.embedding, batch, model.handed_out_words())
    given = {name: part if isinstance(part, Encoded) else _expanded(*part) for name, part in query.items()}
    run = run_locally(card.query_program(*batch.shape), {**uploaded.wires, **given})
    return prediction(model.config, batch, card.finish(batch, run.value("result"))).result, run


def _expanded(zero: DpfKey, one: DpfKey) -> Sharing:
    """One-hot rows from keys, as the servers do it."""
    first, second = (Bits(dpf.evaluate(key, key.domain).to(torch.int64), 8) for key in (zero, one))
    return Sharing((first, second))


def ask_texts(
    model: SecureModel, texts: Sequence[str], pairs: Sequence[str] | None = None, uploaded: Uploaded | None = None
) -> tuple[Tensor, Run]:
    return ask(model, uploaded or upload(model), model._batch(texts, pairs))


@torch.no_grad()
def transformers_result(reference: Any, model: SecureModel, batch: Batch) -> Tensor:
    """What transformers gives: logits, or the mean over a sentence's tokens; padding's rows as zeros."""
    types = dict(token_type_ids=batch.token_types) if model.config.token_types else {}
    inputs = dict(input_ids=batch.ids, attention_mask=batch.mask.long(), **types)
    if batch.choices:
        inputs = {name: rows.unflatten(0, (-1, batch.choices)) for name, rows in inputs.items()}
    output = reference(**inputs)
    mask = batch.mask[..., None].double()
    if model.config.head == "embedding":
        return (output.last_hidden_state * mask).sum(1) / mask.sum(1)
    if model.config.head == "question":
        return torch.stack((output.start_logits, output.end_logits), -1) * mask
    if batch.places is not None:
        return output.logits.gather(1, batch.places[..., None].expand(-1, -1, output.logits.shape[-1]))
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
