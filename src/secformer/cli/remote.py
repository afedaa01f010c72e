"""`secformer push`, `models`, `query`, `access` and `remove`: a deployment from the side of providers and clients."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

from secformer.cli.answering import answer_all
from secformer.cli.asking import Asked
from secformer.cli.calibrate import measured
from secformer.cli.output import add_row, notes, show, steps, table
from secformer.cli.run import MIB, Question, first_calibration, tell_done
from secformer.cli.writing import Manner
from secformer.errors import InputError
from secformer.models.images import Images
from secformer.models.texts import Texts
from secformer.parties.client import Client
from secformer.parties.library import Library, tokenizer_files
from secformer.parties.provider import Provider
from secformer.parties.store import VERSION_DIGITS
from secformer.roles import PROVIDER
from secformer.secure_model import SecureModel
from secformer.settings import Settings
from secformer.transport.tls_network import TlsNetwork


def push(
    folder: Path,
    name: str,
    settings: Settings,
    suite: str | None,
    texts: Texts | Images | None,
    few: bool,
    calibration: Path | None,
    allow: list[str],
) -> None:
    """Calibrate, fold, and bring the model to the servers as a new version."""
    model = SecureModel.from_pretrained(
        folder, suite, calibration=calibration, settings=settings, uncalibrated=texts is not None
    )
    provider = Provider(TlsNetwork(PROVIDER, settings), settings)
    said = notes()
    if texts is not None:
        measured(model, texts, said, few=few)
    elif not model.calibrated:
        first_calibration(model, said)
    if model.provenance.weakness:
        said.print(f"note: {model.provenance.weakness}", markup=False, highlight=False)
    with steps(said) as progress:
        files = tokenizer_files(folder, model.config.family)
        progress("folding the weights")
        folded = model.folded()
        uploaded = provider.upload(name, model.card, folded, allow, files, progress)
    print(f"{name}@{uploaded.version[:VERSION_DIGITS]}")
    if not allow:
        told = "who may use it stays as it was; of a new name, nobody but you: `secformer access` lets others"
        said.print(told, markup=False)


def models(role: str, settings: Settings, as_json: bool) -> None:
    """What this party may use, as S0 and S1 both say."""
    found = Library(TlsNetwork(role, settings), settings).models()
    rows = [
        {
            "model": f"{one.name}@{one.upload[:VERSION_DIGITS]}",
            "weights": one.weights,
            "owners": one.owners,
            "readers": one.readers,
        }
        for one in found
    ]
    if as_json:
        print(json.dumps(rows))
        return
    made = table("", "model", "weights", "owner", "may use it", numbers=["weights"])
    for row in rows:
        owners, readers = (", ".join(one[:16] for one in row[part]) for part in ("owners", "readers"))
        add_row(made, row["model"], f"{row['weights']:,}", owners, readers)
    show(made)


def access(name: str, settings: Settings, changes: dict[str, list[str]]) -> None:
    if not any(changes.values()):
        raise InputError("say what to change: --allow, --deny, --own or --disown with a fingerprint")
    Provider(TlsNetwork(PROVIDER, settings), settings).share(name, **changes)
    print(f"changed who may use {name}", file=sys.stderr)


def remove(name: str, settings: Settings) -> None:
    Provider(TlsNetwork(PROVIDER, settings), settings).remove(name)
    print(f"removed {name} from all three servers", file=sys.stderr)


def query(name: str, settings: Settings, role: str, texts: Asked, question: Question, how: Manner) -> None:
    """Ask a model about private texts, without its weights."""
    network = TlsNetwork(role, settings)
    with steps(notes()) as progress:
        progress("fetching card and tokenizer from both servers")
        fetched = Library(network, settings).fetch(name)
        client = Client(network, settings, fetched.name, fetched.card, fetched.tokenizer())
    rows = client.tokens(texts.given, texts.second, prompt=question.prompt, truncate=question.truncate)
    ask = partial(client.predict_tokens, memory=question.memory * MIB, alike=True)
    done = answer_all(
        lambda part, progress: ask(part, progress=progress), rows, texts, how, fetched.card.config, fetched.name
    )
    tell_done(done, f"by {fetched.name}")
