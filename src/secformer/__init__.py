"""SecFormer: run a Transformer on data nobody may see.

    from secformer import SecureModel

    with SecureModel.from_pretrained("path/to/checkpoint") as model:
        model.calibrate(sample_texts)
        model.predict(["a private text"], mode="secure")

Names are imported when they are used, so that the engine and its simulation need torch and numpy alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from secformer.version import __version__

if TYPE_CHECKING:
    from secformer.errors import SecFormerError
    from secformer.models.answers import Answer, Entity
    from secformer.models.texts import Texts, read_texts
    from secformer.parties.client import Client
    from secformer.parties.prediction import Prediction
    from secformer.secure_model import SecureModel
    from secformer.settings import Settings, load_settings

__all__ = [
    "Answer",
    "Client",
    "Entity",
    "Prediction",
    "SecFormerError",
    "SecureModel",
    "Settings",
    "Texts",
    "__version__",
    "load_settings",
    "read_texts",
]

_PLACES = {
    "Answer": "secformer.models.answers",
    "Entity": "secformer.models.answers",
    "Client": "secformer.parties.client",
    "Prediction": "secformer.parties.prediction",
    "SecFormerError": "secformer.errors",
    "SecureModel": "secformer.secure_model",
    "Settings": "secformer.settings",
    "Texts": "secformer.models.texts",
    "load_settings": "secformer.settings",
    "read_texts": "secformer.models.texts",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'secformer' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
