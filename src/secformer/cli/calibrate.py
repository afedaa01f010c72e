"""`secformer calibrate`: ranges measured on a file of texts, and where they came from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from secformer.cli.output import counter, notes
from secformer.errors import SettingsError
from secformer.models.images import Images
from secformer.models.texts import Texts
from secformer.secure_model import SecureModel


def calibrate(
    folder: Path, suite: str | None, texts: Texts | Images | None, add: bool, few: bool, out: Path | None
) -> None:
    """Measure ranges and keep the constants; without texts, on the built-in sample."""
    if add and texts is None:
        raise SettingsError("--add needs --data: the texts to add")
    console = notes()
    model = SecureModel.from_pretrained(folder, suite, calibration=out if add else None, uncalibrated=not add)
    path = measured(model, texts, console, add=add, few=few, out=out)
    console.print("calibrated on", markup=False)
    for source in model.provenance.sources:
        console.print(f"  {source}", markup=False, highlight=False)
    if model.provenance.weakness:
        console.print(f"note: {model.provenance.weakness}", markup=False, highlight=False)
    if (bits := model.card.entropy()) is not None:
        console.print(f"the public card tells at most {math.ceil(bits)} bits about the weights", markup=False)
    console.print(f"kept at {path}", markup=False, highlight=False)


def measured(
    model: SecureModel,
    texts: Texts | Images | None,
    console: Console,
    *,
    add: bool = False,
    few: bool = False,
    out: Path | None = None,
) -> Path:
    """Calibrate with a bar that shows how far it is."""
    first, second = _given(texts)
    with counter(console, "measuring ranges") as update:
        return model.calibrate(first, second, add=add, few=few, out=out, progress=update)


def _given(texts: Texts | Images | None) -> tuple[Sequence[Any] | None, Sequence[str] | None]:
    if texts is None:
        return None, None
    return (texts.pixels, None) if isinstance(texts, Images) else texts.in_pairs()
