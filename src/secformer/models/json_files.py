"""JSON files of a checkpoint, and numbers in them; what is malformed is a `ModelError`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from secformer.errors import ModelError


def read_json(path: Path, expected: type = dict) -> Any:
    """The contents of a file: an object, or a list if one is expected."""
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"'{path}' is missing; is the folder a checkpoint saved by transformers?") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"'{path}' cannot be read as JSON: {error}") from None
    if not isinstance(contents, expected):
        raise ModelError(f"'{path}' should hold a JSON {'object' if expected is dict else 'list'}")
    return contents


def as_integer(key: str, value: Any, file: str = "config.json") -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ModelError(f"{file}: '{key}' must be a whole number")
    return value


def as_number(key: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ModelError(f"config.json: '{key}' must be a number")
    return float(value)
