"""Where calibrations are kept: in the user's cache folder, by the weights' hash; never in the user's checkpoint.

A file holds all of a calibration, the provider's secrets included (which head and which neuron is where, what was measured on
which texts), so it is readable by its owner alone.
"""

from __future__ import annotations

import json
import os
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from secformer.errors import CalibrationError
from secformer.models.config import ModelConfig
from secformer.models.provenance import Provenance
from secformer.models.system import Calibration, System
from secformer.models.weights import Weights

FORMAT = 3


@dataclass(frozen=True, repr=False)
class Record:
    """A calibration and where it comes from."""

    calibration: Calibration
    provenance: Provenance


def default_path(cache: Path, weights: Weights, config: ModelConfig, system: System) -> Path:
    """Releases that write different formats keep out of each other's way: the next one just calibrates anew."""
    shift = f"-{config.quad_shift:g}" if config.softmax == "2quad" else ""
    return cache / "calibration" / f"{weights.digest}-{system.name}{shift}-{FORMAT}.json"


def save(path: Path, record: Record, system: System) -> None:
    """Write aside and rename, so that a reader never sees half a record, nor anybody else a whole one."""
    content = {
        "format": FORMAT,
        "suite": system.name,
        "provenance": record.provenance.to_data(),
        "calibration": record.calibration.to_data(),
    }
    aside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.unlink(missing_ok=True)
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(content, file)
        aside.replace(path)
    except OSError as error:
        with suppress(OSError):
            aside.unlink()
        raise CalibrationError(f"the calibration cannot be kept at '{path}': {error.strerror or error}") from None


def load(path: Path, weights: Weights, config: ModelConfig, system: System) -> Record:
    """The record of exactly this model under this suite, or CalibrationError. Says so if it was made of the built-in
    sample, or of few texts."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if (content["format"], content["suite"]) != (FORMAT, system.name):
            raise CalibrationError(f"'{path}' was made for suite '{content['suite']}', or by another release")
        provenance = Provenance.from_data(content["provenance"])
        record = Record(system.read_calibration(content["calibration"]), provenance)
    except FileNotFoundError:
        raise CalibrationError(f"there is no calibration at '{path}': run `secformer calibrate`") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CalibrationError(f"'{path}' is no calibration record: calibrate again") from None
    if record.calibration.digest != weights.digest:
        raise CalibrationError(f"'{path}' was made for other weights: calibrate this model")
    record.calibration.check(config)
    if provenance.weakness:
        warnings.warn(provenance.weakness, stacklevel=3)
    return record
