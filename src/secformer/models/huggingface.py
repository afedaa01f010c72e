"""Weights from a folder that `transformers` saved: safetensors of any float type, sharded or not.

A tensor of ours is found under one of a few names (families.py): with the family's prefix (`bert.`) or without, as a
head model or the bare encoder was saved, and LayerNorm's gain and bias also as `gamma` and `beta`, as checkpoints
converted from TensorFlow have them. Nothing is executed on reading: pickled `.bin` files are
refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from secformer.errors import ModelError
from secformer.models.config import ModelConfig
from secformer.models.families import family_named
from secformer.models.json_files import read_json
from secformer.models.sentences import dense_folder
from secformer.models.weights import Weights, assemble

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def load_weights(folder: str | Path, config: ModelConfig, dtype: torch.dtype = torch.float64) -> Weights:
    """The checkpoint's weights as `dtype`, every tensor checked for its shape and for NaN and infinity."""
    checkpoint, family = Checkpoint(Path(folder)), family_named(config.family)
    head = "classification" if config.head == "regression" else config.head

    def source(name: str, shape: tuple[int, ...]) -> Tensor:
        if name.startswith("dense."):
            return _dense(Path(folder), name.removeprefix("dense."), shape).to(dtype)
        names = family.stored_names(name, head)
        if name.endswith(".bias") and not family.biases and not any(map(checkpoint.holds, names)):
            return torch.zeros(shape, dtype=dtype)
        found = checkpoint.find(names)
        tensor = checkpoint.read(found)
        part, parts = family.slice_of(name)
        if config.image_size:  # (1, rows, size) as rows, (size, channels, side, side) as a map
            tensor = (
                tensor.flatten(1) if name.endswith(".weight") else tensor.flatten(0, -2) if tensor.ndim > 1 else tensor
            )
        if name == "position":
            _check_shape(found, tensor, (config.positions + config.position_offset, config.table_size))
            tensor = tensor[config.position_offset :]
        else:
            transposed = name.endswith(".weight")
            stored = tuple(reversed(shape)) if transposed else shape
            _check_shape(found, tensor, (parts * stored[0], *stored[1:]))
            tensor = tensor[part * stored[0] : (part + 1) * stored[0]]
            tensor = tensor.T if transposed else tensor
        return tensor.to(dtype).contiguous()

    return assemble(config, source)


def _dense(folder: Path, leaf: str, shape: tuple[int, ...]) -> Tensor:
    """Weight or bias of the map behind a sentence encoder's pooling, which lies in a folder of its own."""
    checkpoint, name = Checkpoint(dense_folder(folder)), f"linear.{leaf}"
    if leaf == "bias" and not checkpoint.holds(name):
        return torch.zeros(shape)
    tensor = checkpoint.read(checkpoint.find([name]))
    _check_shape(name, tensor, tuple(reversed(shape)))
    return tensor.T.contiguous() if leaf == "weight" else tensor


class Checkpoint:
    """The tensors of a folder by name, read one at a time; shards stay memory-mapped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, Any] = {}
        self._location = self._locate()

    @property
    def names(self) -> list[str]:
        return list(self._location)

    def _locate(self) -> Mapping[str, str]:
        """The file each tensor lies in."""
        if (self.folder / WEIGHTS_FILE).is_file():
            return {name: WEIGHTS_FILE for name in tuple(self._open(WEIGHTS_FILE).keys())}
        if (self.folder / INDEX_FILE).is_file():
            return dict(self._shards())
        raise ModelError(self._why_missing())

    def _shards(self) -> Iterator[tuple[str, str]]:
        table = read_json(self.folder / INDEX_FILE).get("weight_map")
        if not isinstance(table, dict) or not table:
            raise ModelError(f"'{INDEX_FILE}' has no weight_map; save the checkpoint again")
        for name, file in table.items():
            if not isinstance(file, str) or Path(file).name != file:  # no reading outside the folder
                raise ModelError(f"'{INDEX_FILE}' points tensor '{name}' at something that is not a file beside it")
            yield name, file

    def _why_missing(self) -> str:
        if not self.folder.is_dir():
            return f"'{self.folder}' is not a folder; give the folder of a checkpoint saved by transformers"
        for pattern, kind in (("*.bin", "pickled PyTorch"), ("*.onnx", "ONNX"), ("*.h5", "TensorFlow")):
            if any(self.folder.glob(pattern)):
                return (
                    f"'{self.folder}' has {kind} weights only, which are not read; convert them with "
                    "transformers: AutoModelFor….from_pretrained(folder).save_pretrained(new_folder) "
                    f"writes '{WEIGHTS_FILE}'"
                )
        return f"'{self.folder}' has no weights: neither '{WEIGHTS_FILE}' nor '{INDEX_FILE}' is there"

    def _open(self, file: str) -> Any:
        from safetensors import SafetensorError, safe_open

        if file not in self._files:
            try:
                self._files[file] = safe_open(self.folder / file, framework="pt", device="cpu")
            except FileNotFoundError:
                raise ModelError(f"'{self.folder / file}' is missing; '{INDEX_FILE}' names it") from None
            except (SafetensorError, OSError) as error:
                raise ModelError(f"'{self.folder / file}' is corrupt or truncated: {error}") from None
        return self._files[file]

    def holds(self, name: str) -> bool:
        return name in self._location

    def find(self, names: list[str]) -> str:
        """The first of `names` that the checkpoint holds."""
        found = next(filter(self.holds, names), None)
        if found is None:
            raise ModelError(f"the checkpoint in '{self.folder}' has no tensor '{names[0]}'; it is incomplete")
        return found

    def read(self, name: str) -> Tensor:
        """One tensor, of floats and finite."""
        from safetensors import SafetensorError

        try:
            tensor = self._open(self._location[name]).get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"tensor '{name}' in '{self.folder}' cannot be read: {error}") from None
        if tensor.dtype not in FLOATS:
            raise ModelError(f"tensor '{name}' is stored as {tensor.dtype}; quantised weights are not supported")
        if not torch.isfinite(tensor).all():
            raise ModelError(f"tensor '{name}' holds NaN or infinite values; the checkpoint is damaged")
        return tensor


def _check_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise ModelError(f"tensor '{name}' has shape {tuple(tensor.shape)}, but config.json asks for {shape}")
