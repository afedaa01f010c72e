"""`secformer demo`: which of a few documents is closest to a private question? Nobody but the asker may know.

A real sentence encoder (MiniLM), unmodified, in three server processes that talk TLS 1.3. The question and the documents are
the client's, the weights the provider's. The similarities stand beside those of the plaintext model.
"""

from __future__ import annotations

from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from secformer.cli.model import closest, cost_table, steps
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
    console = Console()
    inputs = [question or QUESTION, *(texts or DOCUMENTS)]
    model = SecureModel.from_pretrained(folder or bundled_model(), "exact")
    if model.config.head != "embedding":
        raise ModelError(f"the demo compares sentence embeddings, this checkpoint has head '{model.config.head}'")
    model.check(inputs)
    with model, steps(console) as progress:
        if not model.calibrated:
            progress("measuring ranges on sample texts, once for these weights")
            model.calibrate()
        expected = model.predict(inputs, mode="plain")
        secure = model.predict(inputs, mode="secure", progress=progress)
        again = model.predict(inputs, mode="secure", progress=progress)
    console.print(_answer(inputs, secure.result, expected.result))
    console.print(_agreement(secure, expected))
    console.print(cost_table({"first query": secure, "the same again, fresh masks": again}))
    console.print(_seen())


def _answer(inputs: list[str], secure: torch.Tensor, expected: torch.Tensor) -> Table:
    table = Table(title=f"closest to: {inputs[0]}", title_justify="left")
    for column in ("document", "secure", "plaintext"):
        table.add_column(column, overflow="fold")
    pairs = zip(inputs[1:], closest(secure).tolist(), closest(expected).tolist(), strict=True)
    for text, private, plain in sorted(pairs, key=lambda row: -row[1]):
        table.add_row(text, f"{private:+.4f}", f"{plain:+.4f}")
    return table


def _agreement(secure: Prediction, expected: Prediction) -> str:
    error = float((secure.result - expected.result).abs().max())
    cosine = float(torch.nn.functional.cosine_similarity(secure.result, expected.result).min())
    return f"vectors beside the plaintext model's: largest difference {error:.1e}, smallest cosine {cosine:.6f}"


def _seen() -> Table:
    table = Table(title="what each party saw", title_justify="left", show_header=False)
    for party, content in SEEN.items():
        table.add_row(party, content)
    return table
