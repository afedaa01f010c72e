"""Constants for shapes without a checkpoint, so that `plan bert-base` answers with realistic widths.

The ranges were measured on real encoders (gte-small with Softmax; MiniLM with 2Quad) over sentences and documents of up to
512 tokens; `presets.json` holds what `calibrate` made of them. A preset lends its layers, heads and neuron classes in
turn to a model of any size.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import cache
from importlib import resources
from typing import Any

from secformer.models.config import ModelConfig
from secformer.protocols.functions import activation_named
from secformer.wires.calibration import Constants, HeadWindow, LayerConstants


def read_constants(data: Any) -> Constants:
    """Constants from JSON; ValueError says what is wrong with anything else."""
    import msgspec

    try:
        found = msgspec.convert(data, Constants)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    if json.dumps(asdict(found), sort_keys=True) != json.dumps(data, sort_keys=True):
        raise ValueError("constants with fields or types that nobody wrote")
    return found


@cache
def _measured(softmax: str) -> Constants:
    return read_constants(json.loads(resources.files("secformer.wires").joinpath("presets.json").read_text())[softmax])


def preset_constants(config: ModelConfig) -> Constants:
    """Measured constants stretched to a model's layers, heads and neurons."""
    measured = _measured(config.softmax)
    layers = tuple(
        _stretch(measured.layers[index * len(measured.layers) // config.layers], config)
        for index in range(config.layers)
    )
    return replace(measured, layers=layers, quad_shift=config.quad_shift)


def _stretch(layer: LayerConstants, config: ModelConfig) -> LayerConstants:
    return replace(layer, windows=_windows(layer.windows, config.heads), classes=_classes(layer.classes, config))


def _windows(windows: tuple[HeadWindow, ...], heads: int) -> tuple[HeadWindow, ...]:
    return tuple(windows[head * len(windows) // heads] for head in range(heads))


def _classes(classes: tuple[tuple[str, int], ...], config: ModelConfig) -> tuple[tuple[str, int], ...]:
    """The same shares of wide neurons, rounded up as far as there are neurons; the rest is in the narrowest class."""
    if activation_named(config.activation).rectifies:
        return (("relu", config.intermediate),)
    total, left, found = sum(count for _, count in classes), config.intermediate, []
    for name, count in reversed(classes[1:]):
        found.append((name, min(left, -(-count * config.intermediate // total))))
        left -= found[-1][1]
    found.append((classes[0][0], left))
    return tuple((name, count) for name, count in reversed(found) if count)
