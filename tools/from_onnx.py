"""From an encoder's ONNX file to a folder as `transformers` saves it: many packages carry weights in no other form.

    python tools/from_onnx.py model.onnx FOLDER --config config.json --tokenizer TOKENIZER_FOLDER [--strip m.] [--rename a=b]

Exporters keep a parameter's name where they can. The matrix of a linear map is stored turned over under a number, but the node
that multiplies by it is called by the map's path: `/encoder/layer.0/output/dense/MatMul` is `encoder.layer.0.output.dense`.
Weights of 8 bits become scale·(q − zero point), which is what such a model computes with but for its rounding of activations.

The file is read as what it is, a protocol buffer (onnx.proto, version 3), and nothing in it is run.
"""

from __future__ import annotations

import argparse
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

DTYPES = {1: "<f4", 2: "u1", 3: "i1", 6: "<i4", 7: "<i8", 9: "?", 10: "<f2", 11: "<f8"}
"""TensorProto.DataType; tensors of any other type are left out."""
MULTIPLICATIONS = ("MatMul", "MatMulInteger", "Gemm")
QUANTISED = "_quantized"


# -- protocol buffers ------------------------------------------------------------------------------------------------------


def fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of every field: an integer, or the bytes of what has a length."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        size = {1: 8, 5: 4}.get(kind)
        if size is None:
            if kind != 2:
                raise ValueError(f"field {number} is of kind {kind}: this is no ONNX file")
            size, at = _varint(message, at)
        if at + size > len(message):
            raise ValueError("the file ends in the middle of a field")
        yield number, message[at : at + size]
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise ValueError("this is no ONNX file")
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _parts(message: memoryview, number: int) -> Iterator[memoryview]:
    for found, value in fields(message):
        if found == number and isinstance(value, memoryview):
            yield value


def _text(value: int | memoryview) -> str:
    return bytes(value).decode() if isinstance(value, memoryview) else ""


# -- a graph ---------------------------------------------------------------------------------------------------------------


@dataclass
class Node:
    kind: str = ""
    name: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    turned: bool = False
    """Gemm's transB: the matrix is stored as PyTorch has it."""


def read(path: Path) -> tuple[list[Node], dict[str, np.ndarray]]:
    """Nodes and stored tensors of a file."""
    message = memoryview(path.read_bytes())
    nodes: list[Node] = []
    tensors: dict[str, np.ndarray] = {}
    for graph in _parts(message, 7):
        nodes += [_node(part) for part in _parts(graph, 1)]
        tensors |= dict(found for part in _parts(graph, 5) if (found := _tensor(part)) is not None)
    if not tensors:
        raise ValueError(f"{path} has no stored tensors")
    return nodes, tensors


def _node(message: memoryview) -> Node:
    node = Node()
    for number, value in fields(message):
        if number in (1, 2):
            (node.inputs if number == 1 else node.outputs).append(_text(value))
        elif number == 3:
            node.name = _text(value)
        elif number == 4:
            node.kind = _text(value)
        elif number == 5 and isinstance(value, memoryview):
            attribute = dict(fields(value))
            node.turned |= _text(attribute.get(1, 0)) == "transB" and attribute.get(3) == 1
    return node


def _tensor(message: memoryview) -> tuple[str, np.ndarray] | None:
    shape: list[int] = []
    whole: list[int] = []
    name, kind, raw, plain = "", 0, None, b""
    for number, value in fields(message):
        if number == 1:
            shape += [value] if isinstance(value, int) else _packed(value)
        elif number == 2 and isinstance(value, int):
            kind = value
        elif number == 4 and isinstance(value, memoryview):  # float_data
            plain += bytes(value)
        elif number == 5:  # int32_data, of narrower integers too
            whole += [value] if isinstance(value, int) else _packed(value)
        elif number == 8:
            name = _text(value)
        elif number == 9:
            raw = value
        elif number == 13:
            raise ValueError(f"tensor '{name}' lies in another file: save the model in one")
    if kind not in DTYPES:
        return None
    if whole:
        values = np.array(whole, np.uint64).astype(np.int64)  # negative ones are written modulo 2^64
        return (name, values.astype(DTYPES[kind]).reshape(shape)) if kind != 10 else None
    data = raw if isinstance(raw, memoryview) else plain
    return (name, np.frombuffer(data, DTYPES[kind]).reshape(shape)) if data else None


def _packed(message: memoryview) -> list[int]:
    found, at = [], 0
    while at < len(message):
        value, at = _varint(message, at)
        found.append(value)
    return found


# -- a checkpoint ----------------------------------------------------------------------------------------------------------


def checkpoint(nodes: list[Node], tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Parameters by the names that PyTorch had for them."""
    own = {node.outputs[0]: node.inputs[0] for node in nodes if node.kind == "Identity" and node.inputs}
    found: dict[str, np.ndarray] = {}
    turned: set[str] = set()
    for node in nodes:
        if node.kind not in MULTIPLICATIONS or len(node.inputs) < 2:
            continue
        stored = _followed(node.inputs[1], own)
        if stored in tensors and tensors[stored].ndim == 2:
            matrix = _dequantised(stored, tensors)
            found.setdefault(_path(node.name) + ".weight", matrix if node.turned else matrix.T)
            turned.add(stored)
    for name in tensors:
        plain = name.removesuffix(QUANTISED)
        if name not in turned and plain.endswith((".weight", ".bias", ".cls_token", ".position_embeddings")):
            found.setdefault(plain, _dequantised(name, tensors))
    return {
        name: np.ascontiguousarray(tensor, np.float32) for name, tensor in found.items() if _first(name) not in found
    }


def _followed(name: str, own: Mapping[str, str]) -> str:
    while name in own:
        name = own[name]
    return name


def _dequantised(name: str, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    """Scales and zero points are one each, or one a column."""
    if not name.endswith(QUANTISED):
        return tensors[name].astype(np.float32)
    plain = name.removesuffix(QUANTISED)
    zero = tensors[f"{plain}_zero_point"].astype(np.float32)
    return (tensors[name].astype(np.float32) - zero) * tensors[f"{plain}_scale"].astype(np.float32)


def _path(node: str) -> str:
    return ".".join(node.strip("/").split("/")[:-1])


def _first(name: str) -> str:
    """The name at its first use, if this is that of a later one: a map used twice stands there twice, as `key` and `key_1`."""
    part, leaf = name.rsplit(".", 1)
    stem, _, number = part.rpartition("_")
    return f"{stem}.{leaf}" if number.isdigit() else ""


def renamed(found: Mapping[str, np.ndarray], strip: str, renames: Mapping[str, str]) -> dict[str, np.ndarray]:
    names: defaultdict[str, list[str]] = defaultdict(list)
    for name in found:
        plain = name.removeprefix(strip)
        part, leaf = plain.rsplit(".", 1)
        names[f"{renames.get(part, part)}.{leaf}"].append(name)
    twice = [name for name, sources in names.items() if len(sources) > 1]
    if twice:
        raise ValueError(f"two tensors would be called '{twice[0]}'")
    return {name: found[source] for name, (source,) in names.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--strip", default="", help="what names begin with and transformers' do not")
    parser.add_argument("--rename", action="append", default=[], metavar="OLD=NEW", help="a map by its other name")
    given = parser.parse_args()
    found = renamed(checkpoint(*read(given.model)), given.strip, dict(pair.split("=", 1) for pair in given.rename))
    given.folder.mkdir(parents=True, exist_ok=True)
    for path in given.tokenizer.iterdir():
        if path.name.startswith(("tokenizer", "special_tokens", "vocab", "merges", "spm", "added_tokens")):
            shutil.copy(path, given.folder / path.name)
    shutil.copy(given.config, given.folder / "config.json")
    save_file(found, given.folder / "model.safetensors", {"format": "pt"})
    print(f"{len(found)} tensors, {sum(tensor.size for tensor in found.values()):,} numbers in {given.folder}")


if __name__ == "__main__":
    main()
