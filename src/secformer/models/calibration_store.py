"""Where calibrations are kept: in the user's cache folder, by the weights' hash; never in the user's checkpoint.

A file holds the public calibration and, beside it, the provider's secret layout (which head and which neuron is where),
so it is readable by its owner alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from secformer.errors import CalibrationError
from secformer.models.calibration import Calibration, Layout
from secformer.models.config import ModelConfig
from secformer.models.weights import Weights


def default_path(cache: Path, weights: Weights, config: ModelConfig, suite: str) -> Path:
    shift = f"-{config.quad_shift:g}" if config.softmax == "2quad" else ""
    return cache / "calibration" / f"{weights.digest}-{suite}{shift}.json"


def save(path: Path, calibration: Calibration, layout: Layout) -> None:
    content = {
        "calibration": json.loads(calibration.to_json()),
        "layout": {"heads": layout.heads, "neurons": layout.neurons},
    }
    _write(path, content)


def _write(path: Path, content: dict) -> None:
    """Write aside and rename, so that a reader never sees half a record, nor anybody else a whole one."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.unlink(missing_ok=True)
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(content, file)
        aside.replace(path)
    except OSError as error:
        raise CalibrationError(f"the calibration cannot be kept at '{path}': {error.strerror or error}") from None


def load(path: Path, weights: Weights, config: ModelConfig) -> tuple[Calibration, Layout]:
    """The record of exactly this model, or CalibrationError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        calibration = Calibration.from_json(json.dumps(content["calibration"]))
        orders = content["layout"]
        layout = Layout(*(tuple(tuple(order) for order in orders[part]) for part in ("heads", "neurons")))
    except FileNotFoundError:
        raise CalibrationError(f"there is no calibration at '{path}': run `secformer calibrate`") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise CalibrationError(f"'{path}' is no calibration record: calibrate again") from None
    _check(path, calibration, layout, weights, config)
    return calibration, layout


def _check(path: Path, calibration: Calibration, layout: Layout, weights: Weights, config: ModelConfig) -> None:
    if calibration.digest != weights.digest:
        raise CalibrationError(f"'{path}' was made for other weights: calibrate this model")
    if (calibration.softmax, calibration.quad_shift) != (config.softmax, config.quad_shift):
        raise CalibrationError(f"'{path}' was made for softmax '{calibration.softmax}', not '{config.softmax}'")
    if not calibration.fits(config):
        raise CalibrationError(f"'{path}' does not fit the model's shape: calibrate again")
    heads = all(sorted(order) == list(range(config.heads)) for order in layout.heads)
    neurons = all(sorted(order) == list(range(config.intermediate)) for order in layout.neurons)
    if not heads or not neurons or {len(layout.heads), len(layout.neurons)} != {config.layers}:
        raise CalibrationError(f"the layout in '{path}' does not fit the model: calibrate again")


def save_deflation(path: Path, weights: Weights, deflation: Mapping[str, float]) -> None:
    """What a paper suite needs: η by place."""
    _write(path, {"digest": weights.digest, "deflation": dict(deflation)})


def load_deflation(path: Path, weights: Weights) -> dict[str, float]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["digest"] != weights.digest:
            raise CalibrationError(f"'{path}' was made for other weights: calibrate this model")
        return {str(name): float(eta) for name, eta in content["deflation"].items()}
    except FileNotFoundError:
        raise CalibrationError(f"there is no calibration at '{path}': run `secformer calibrate`") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise CalibrationError(f"'{path}' is no calibration record of a paper suite: calibrate again") from None
