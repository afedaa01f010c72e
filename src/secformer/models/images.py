"""Images from files, for a model that takes them: the extra `images` reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from secformer.errors import InputError, TableError

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


@dataclass(frozen=True, repr=False)
class Images:
    """Pixels in RGB, and the names of their files. Both may be private."""

    source: Path
    names: tuple[str, ...]
    pixels: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"Images({len(self)} of '{self.source}')"


def holds_images(path: Path) -> bool:
    """An image by its ending, or a folder."""
    return path.is_dir() or path.suffix.lower() in ENDINGS


def read_images(path: Path, limit: int | None = None) -> Images:
    """One image, or the first `limit` of a folder by name."""
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file() and file.suffix.lower() in ENDINGS)[:limit]
    if not files:
        raise TableError(f"'{path}' cannot be read as text: it is a folder, and holds no image ({', '.join(ENDINGS)})")
    return Images(path, tuple(file.name for file in files), tuple(_pixels(file) for file in files))


def _pixels(file: Path) -> Any:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise InputError(f"'{file}' needs Pillow to be read: pip install 'secformer[images]'") from None
    try:
        with Image.open(file) as image:
            return image.convert("RGB")
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"'{file}' cannot be read as an image: {error}") from None
