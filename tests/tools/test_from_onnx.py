"""A checkpoint out of an ONNX file: names from paths, matrices turned back, eight bits made whole."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

_spec = importlib.util.spec_from_file_location("from_onnx", Path(__file__).parents[2] / "tools" / "from_onnx.py")
assert _spec is not None and _spec.loader is not None
from_onnx = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = from_onnx  # where its dataclass looks itself up
_spec.loader.exec_module(from_onnx)


def varint(value: int) -> bytes:
    value %= 1 << 64
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def part(number: int, content: bytes | str | int) -> bytes:
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    data = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(data)) + data


def tensor(name: str, array: np.ndarray, kind: int, raw: bool = True) -> bytes:
    data = part(9, array.tobytes()) if raw else part(5, b"".join(varint(int(x)) for x in array.reshape(-1)))
    return part(5, b"".join(part(1, size) for size in array.shape) + part(2, kind) + part(8, name) + data)


def node(kind: str, name: str, inputs: list[str], output: str, turned: bool = False) -> bytes:
    attribute = part(5, part(1, "transB") + part(3, 1)) if turned else b""
    return part(
        1, b"".join(part(1, given) for given in inputs) + part(2, output) + part(3, name) + part(4, kind) + attribute
    )


WEIGHT = np.arange(6, dtype=np.float32).reshape(3, 2)
PACKED = np.array([[1, -2], [3, 4], [-128, 127]], np.int8)
SCALES, ZEROS = np.array([0.5, 0.25], np.float32), np.array([0, -3], np.int8)
GRAPH = (
    tensor("onnx::MatMul_7", WEIGHT, 1)
    + tensor("m.layer.0.dense.bias", np.ones(2, np.float16), 10)
    + tensor("onnx::MatMul_9_quantized", PACKED, 3)
    + tensor("onnx::MatMul_9_scale", SCALES, 1)
    + tensor("onnx::MatMul_9_zero_point", ZEROS, 3, raw=False)
    + tensor("m.head.weight", WEIGHT, 1)
    + node("Identity", "Identity_1", ["onnx::MatMul_7"], "alias")
    + node("MatMul", "/m/layer.0/dense/MatMul", ["x", "alias"], "y")
    + node("MatMul", "/m/layer.0/dense_1/MatMul", ["z", "onnx::MatMul_7"], "w")
    + node("MatMulInteger", "/m/layer.0/out/MatMul_quant", ["x", "onnx::MatMul_9_quantized"], "u")
    + node("Gemm", "/m/head/Gemm", ["u", "m.head.weight"], "logits", turned=True)
)


def write(folder: Path, content: bytes) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(content)
    return path


def test_a_checkpoint_out_of_a_graph(tmp_path):
    found = from_onnx.checkpoint(*from_onnx.read(write(tmp_path, part(7, GRAPH))))
    found = from_onnx.renamed(found, "m.", {"head": "classifier"})
    assert set(found) == {"layer.0.dense.weight", "layer.0.dense.bias", "layer.0.out.weight", "classifier.weight"}
    assert np.array_equal(found["layer.0.dense.weight"], WEIGHT.T)
    assert np.array_equal(found["layer.0.out.weight"], ((PACKED.astype(np.float32) - ZEROS) * SCALES).T)
    assert np.array_equal(found["classifier.weight"], WEIGHT)
    assert all(tensor.dtype == np.float32 for tensor in found.values())


@pytest.mark.parametrize("content", [b"no model", part(7, GRAPH)[:-40], b"", part(7, b"")])
def test_what_is_no_onnx_file_is_refused(tmp_path, content):
    with pytest.raises(ValueError, match=r"no ONNX file|ends in the middle|no stored tensors"):
        from_onnx.read(write(tmp_path, content))


def test_two_tensors_of_one_name_are_refused():
    with pytest.raises(ValueError, match=r"two tensors would be called 'b\.weight'"):
        from_onnx.renamed({"a.weight": WEIGHT, "b.weight": WEIGHT}, "", {"a": "b"})
