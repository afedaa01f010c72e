"""`secformer demo --sentiment`: what do private texts feel like? A distilled classifier under our suite and the paper's."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from secformer.cli.costs import cost_table
from secformer.cli.output import add_row, notes, show, steps, table
from secformer.cli.writing import one_line
from secformer.errors import ModelError
from secformer.models.bundled import example_classifier
from secformer.parties.prediction import Prediction
from secformer.secure_model import SecureModel
from secformer.systems import suite_names

TEXTS = (
    "A warm, funny film that stays with you for days.",
    "Two hours of my life that nobody will give back.",
    "The doctor took her time and explained everything.",
    "I waited for a month and the parcel never came.",
)
SUITES = ("fast", "secformer")
"""Our suite, and the paper's where the lab is installed."""


def sentiment(texts: list[str] | None, folder: Path | None) -> None:
    inputs = texts or list(TEXTS)
    folder = folder or example_classifier()
    plain: Prediction | None = None
    secure: dict[str, Prediction] = {}
    for suite in (suite for suite in SUITES if suite in suite_names()):
        with SecureModel.from_pretrained(folder, suite) as model, steps(notes()) as progress:
            if model.config.head != "classification":
                raise ModelError(f"the demo classifies texts, this checkpoint has head '{model.config.head}'")
            rows = model.tokens(inputs)
            if not model.calibrated:
                progress(f"{suite}: measuring ranges on sample texts, once for these weights")
                model.calibrate()
            plain = plain or model.predict_tokens(rows, mode="plain")
            model.predict_tokens(rows, progress=progress)  # a server's first query makes tables that serve all others
            secure[suite] = model.predict_tokens(rows, progress=progress)
    assert plain is not None
    show(_answers(inputs, plain, secure))
    show(cost_table({suite: found.outcome for suite, found in secure.items() if found.outcome is not None}))


def _answers(texts: list[str], plain: Prediction, secure: dict[str, Prediction]) -> Table:
    made = table("private labels beside the plaintext model's", "text", "plaintext", *secure)
    for index, text in enumerate(texts):
        add_row(made, one_line(text), *(str(found[index].label) for found in (plain, *secure.values())))
    return made
