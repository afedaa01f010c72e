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
from typing import Any, TypeVar

from secformer.models.config import ModelConfig
from secformer.wires import choices
from secformer.wires.constants import Constants, LayerConstants, NormRange, Secrets, rectifies

FILE = "presets.json"


Part = TypeVar("Part", Constants, Secrets)


def read(data: Any, kind: type[Part]) -> Part:
    """Constants or secrets from JSON; ValueError says what is wrong with anything else. What has a default may be missing: an
    earlier release did not know it."""
    import msgspec

    try:
        found = msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    if not _is_of(data, json.loads(json.dumps(asdict(found)))):
        raise ValueError("constants with fields or types that nobody wrote")
    return found


def _is_of(data: Any, whole: Any) -> bool:
    """The same, but for fields that are missing."""
    if isinstance(data, dict) and isinstance(whole, dict):
        return all(name in whole and _is_of(value, whole[name]) for name, value in data.items())
    if isinstance(data, list) and isinstance(whole, list):
        return len(data) == len(whole) and all(map(_is_of, data, whole))
    return type(data) is type(whole) and data == whole


@cache
def _measured(softmax: str) -> Constants:
    return read(json.loads(resources.files("secformer.wires").joinpath(FILE).read_text())[softmax], Constants)


def preset_constants(config: ModelConfig) -> Constants:
    """Measured constants stretched to a model's layers, heads and neurons."""
    measured = _measured(config.softmax)
    layers = tuple(
        _stretch(measured.layers[index * len(measured.layers) // config.own_layers], config)
        for index in range(config.own_layers)
    )
    windows = choices.head_windows(config.head_activation)
    return replace(
        measured,
        layers=layers,
        quad_shift=config.quad_shift,
        projection_bits=choices.PROJECTION_BITS[1] if config.embedding_size else 0,
        pooler=windows[min(1, len(windows) - 1)],
        transform_norm=NormRange(5, choices.VARIANCE_RATIOS[1]) if config.transform else None,
        relu_bits=choices.RELU_BITS[1] if rectifies(config) else 0,
    )


def _stretch(layer: LayerConstants, config: ModelConfig) -> LayerConstants:
    windows = _shares(layer.windows, choices.WINDOW_BITS, choices.HEAD_SHARES, config.heads)
    classes = _shares(layer.classes, choices.NEURON_CLASSES, choices.NEURON_SHARES, config.intermediate)
    turned, gated = (
        choices.PROJECTED_BITS[1] if config.rotary_base else 0,
        choices.PROJECTED_BITS[1] if config.gated else 0,
    )
    return replace(
        layer,
        windows=windows if layer.windows else (),
        classes=() if rectifies(config) else classes,
        query_bits=turned,
        value_bits=turned,
        gate_bits=gated,
    )


Name = TypeVar("Name", int, str)


def _shares(
    counts: tuple[tuple[Name, int], ...], names: tuple[Name, ...], shares: tuple[tuple[int, ...], ...], total: int
) -> tuple[tuple[Name, int], ...]:
    """The same shares of wide members, as far as the menu has them for another total."""
    found, whole = dict(counts), max(1, sum(count for _, count in counts))
    wide = [found.get(name, 0) * total // whole for name in names[1:]]
    sizes = choices.rounded_up((total - sum(wide), *wide), shares)
    return tuple((name, size) for name, size in zip(names, sizes, strict=True) if size)
