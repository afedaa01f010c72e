"""`secformer demo --sentiment`: what do private texts feel like? A distilled classifier under our suite and the paper's."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

import secformer
from secformer.cli.model import cost_table, steps
from secformer.errors import ModelError
from secformer.models.sample_texts import SENTENCES
from secformer.parties.prediction import Prediction
from secformer.secure_model import SecureModel

TEXTS = (
    "A warm, funny film that stays with you for days.",
    "Two hours of my life that nobody will give back.",
    "The doctor took her time and explained everything.",
    "I waited for a month and the parcel never came.",
)
SUITES = ("fast", "secformer")
SHIPPED = Path(secformer.__file__).parent / "sentiment"


def sentiment(texts: list[str] | None, folder: Path | None) -> None:
    console, inputs = Console(), texts or list(TEXTS)
    folder = folder or _shipped()
    plain: Prediction | None = None
    secure: dict[str, Prediction] = {}
    for suite in SUITES:
        with SecureModel.from_pretrained(folder, suite) as model, steps(console) as progress:
            if model.config.head != "classification":
                raise ModelError(f"the demo classifies texts, this checkpoint has head '{model.config.head}'")
            model.check(inputs)
            if not model.calibrated:
                progress(f"{suite}: measuring ranges on sample texts, once for these weights")
                model.calibrate(SENTENCES)  # of the length of what is asked; 2Quad does not stretch to documents
            plain = plain or model.predict(inputs, mode="plain")
            secure[suite] = model.predict(inputs, mode="secure", progress=progress)
    assert plain is not None
    console.print(_answers(inputs, plain, secure))
    console.print(cost_table(secure))


def _shipped() -> Path:
    if not (SHIPPED / "config.json").is_file():
        raise ModelError("no sentiment classifier comes with this installation: name a distilled one with --folder")
    return SHIPPED


def _answers(texts: list[str], plain: Prediction, secure: dict[str, Prediction]) -> Table:
    table = Table(title="private labels beside the plaintext model's", title_justify="left")
    for column in ("text", "plaintext", *secure):
        table.add_column(column, overflow="fold")
    for index, text in enumerate(texts):
        labels = [found.labels[index] for found in (plain, *secure.values()) if found.labels is not None]
        table.add_row(text, *labels)
    return table
