"""`secformer demo`: which of a few documents is closest to a private question? Nobody but the asker may know.

A real sentence encoder (MiniLM), unmodified, in three server processes that talk TLS 1.3. The question and the documents are
the client's, the weights the provider's. The similarities stand beside those of the plaintext model.
"""

from __future__ import annotations

from pathlib import Path

import torch
from rich.table import Table

from secformer.cli.costs import cost_table
from secformer.cli.output import add_row, console, notes, show, steps, table
from secformer.cli.writing import one_line
from secformer.errors import ModelError
from secformer.models.bundled import bundled_model
from secformer.parties.prediction import Prediction
from secformer.secure_model import SecureModel

QUESTION = "Can I take painkillers while I am on antibiotics?"
DOCUMENTS = (
    "Ibuprofen and most common antibiotics may be combined; ask a pharmacist about your prescription.",
    "The night train to Vienna leaves at ten past eight from platform four.",
    "Quarterly revenue rose by nine percent, driven by subscriptions.",
    "To reset your password, open the settings and choose the third entry.",
)
SEEN = {
    "client": "its texts; its shares of the vectors, hence the vectors",
    "provider": "its weights; the calibration it made",
    "server0, server1": "shares and masked values, each uniform to it; the model's shape, batch and padded length",
    "dealer": "masks it drew itself; the model's shape, batch and padded length; no share, no opening",
    "the network": "TLS 1.3 records: who talks to whom, when, and how much",
}


def demo(question: str | None, texts: list[str] | None, folder: Path | None) -> None:
    inputs = [question or QUESTION, *(texts or DOCUMENTS)]
    model = SecureModel.from_pretrained(folder or bundled_model(), "exact")
    if model.config.head != "embedding":
        raise ModelError(f"the demo compares sentence embeddings, this checkpoint has head '{model.config.head}'")
    rows = model.tokens(inputs)
    with model, steps(notes()) as progress:
        if not model.calibrated:
            progress("measuring ranges on sample texts, once for these weights")
            model.calibrate()
        expected = model.predict_tokens(rows, mode="plain")
        secure, alone = (model.predict_tokens(asked, progress=progress) for asked in (rows, rows[:1]))
    assert secure.outcome is not None and alone.outcome is not None
    out = console()
    show(_answer(inputs, secure.result, expected.result))
    out.print(_agreement(secure, expected))
    show(cost_table({f"all {len(rows)} texts": secure.outcome, "the question again, alone": alone.outcome}))
    show(_seen())


def _answer(inputs: list[str], secure: torch.Tensor, expected: torch.Tensor) -> Table:
    made = table(f"closest to: {one_line(inputs[0])}", "document", "secure", "plaintext")
    pairs = zip(inputs[1:], closest(secure).tolist(), closest(expected).tolist(), strict=True)
    for text, private, plain in sorted(pairs, key=lambda row: -row[1]):
        add_row(made, one_line(text), f"{private:+.4f}", f"{plain:+.4f}")
    return made


def closest(vectors: torch.Tensor) -> torch.Tensor:
    """Cosine similarity of the first row to the others."""
    unit = torch.nn.functional.normalize(vectors, dim=-1)
    return unit[1:] @ unit[0]


def _agreement(secure: Prediction, expected: Prediction) -> str:
    error = float((secure.result - expected.result).abs().max())
    cosine = float(torch.nn.functional.cosine_similarity(secure.result, expected.result).min())
    return f"vectors beside the plaintext model's: largest difference {error:.1e}, smallest cosine {cosine:.6f}"


def _seen() -> Table:
    made = table("what each party saw", "party", "saw")
    for party, content in SEEN.items():
        add_row(made, party, content)
    return made
