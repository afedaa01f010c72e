"""Everything two releases must agree on to the bit, computed: streams, frames, keys, tapes, packing, gates, fits.

`python tests/support/vectors.py` writes tests/vectors/vN.json for a new protocol version N; it never changes a file that is
there. What stands in such a file is what peers of that version say to each other.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from case import revealing

from secformer.crypto import dpf
from secformer.crypto.prg import Draw, Seed, Stream, derive
from secformer.engine import local, sharing
from secformer.engine.local import run_locally
from secformer.engine.sharing import Encoded, share
from secformer.engine.tracing import trace
from secformer.errors import SecFormerError
from secformer.protocols import attention, menu
from secformer.protocols.activation import activate_one
from secformer.protocols.fourier import gated_fourier
from secformer.protocols.multiply import square
from secformer.protocols.rectifier import relu
from secformer.ring.packing import pack, unpack
from secformer.roles import DEALER_LINKS, SERVER_LINK
from secformer.transport.frame import HEADER_BYTES, FrameType, decode, encode
from secformer.transport.lanes import stripes
from secformer.transport.sealed import RECORD
from secformer.version import PROTOCOL_VERSION
from secformer_lab.bench.cases import wire_cases

FOLDER = Path(__file__).parents[1] / "vectors"
PAYLOADS = ((100_000, 5), (300_000, 5), (3_000_000, 5), (9_000_000, 5), (9_000_000, 3), (9_000_000, 1))
SEED, SESSION = Seed(bytes(range(32))), bytes(range(16))


def digest(*contents: bytes | torch.Tensor) -> str:
    state = hashlib.sha256()
    for content in contents:
        state.update(content if isinstance(content, bytes) else content.contiguous().numpy().tobytes())
    return state.hexdigest()


class Counting:
    """In the place of the OS's randomness: the same bytes in the same order, every time."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, size: int) -> bytes:
        self.calls += 1
        return hashlib.shake_256(self.calls.to_bytes(8, "little")).digest(size)


def fixed_randomness():
    """Seeds, sessions and keys that repeat: an insecure run, to be compared with another."""
    source = Counting()
    system = SimpleNamespace(urandom=source)  # only what these modules see: other threads draw as ever
    patches = [mock.patch.object(module, "os", system) for module in (local, sharing, dpf)]
    patches.append(mock.patch.object(Seed, "from_os", classmethod(lambda cls: cls(source(32)))))
    return patches


def with_fixed_randomness(action):
    from contextlib import ExitStack

    with ExitStack() as stack:
        for patch in fixed_randomness():
            stack.enter_context(patch)
        return action()


# -- what agrees -----------------------------------------------------------------------------------------------------------


def streams() -> dict[str, Any]:
    found: dict[str, Any] = {"derive": derive(SEED, "a", b"b", 3, -1).bytes.hex()}
    for pair, purpose in (
        (DEALER_LINKS[0], "mask"),
        (DEALER_LINKS[0], "pad"),
        (DEALER_LINKS[1], "mask"),
        (SERVER_LINK, "output"),
    ):
        stream = Stream(SEED, SESSION, pair, purpose)
        first = stream.draw(Draw(pair, purpose, 0, (4,), 64))
        found[f"{pair} {purpose}"] = [int(word) for word in first]
    stream = Stream(SEED, SESSION, "pair", "widths")
    for width in range(1, 65):
        found[f"width {width}"] = digest(stream.draw(Draw("pair", "widths", width, (5, 7), width)))
    return found


def frames() -> dict[str, str]:
    cases = {
        "opening": (FrameType.OPENING, 1, (3, 5), 17),
        "material": (FrameType.MATERIAL, 2**40, (7,), 64),
        "control": (FrameType.CONTROL, 3, (100,), 8),
        "scalar": (FrameType.OUTPUT, 4, (), 1),
        "eight dimensions": (FrameType.INPUT, 5, (1, 2, 3, 4, 1, 2, 3, 4), 9),
    }
    found = {}
    for name, (kind, sequence, shape, width) in cases.items():
        length = (torch.Size(shape).numel() * width + 7) // 8
        found[name] = encode(kind, sequence, shape, width, length, SESSION).hex()
    return found


def keys() -> dict[str, Any]:
    def make():
        found = {}
        for domain, indices in ((5, [0, 4]), (128, [127]), (129, [128, 0, 64]), (30522, [101, 30521])):
            pair = dpf.keygen(indices, domain)
            found[str(domain)] = {
                "keys": [digest(key.to_bytes()) for key in pair],
                "rows": [digest(dpf.evaluate(key, domain)) for key in pair],
            }
        return found

    return with_fixed_randomness(make)


def packing() -> dict[str, str]:
    words = torch.arange(1, 1001, dtype=torch.int64) * 0x9E3779B97F4A7C15 % (1 << 62)
    found = {}
    for width in range(1, 65):
        found[str(width)] = digest(*(pack(words[:count], width) for count in (1, 8, 64, 65, 256, 257, 1000)))
    return found


def gate_cases() -> dict[str, tuple[Any, dict[str, Encoded]]]:
    """A program for every kind of gate, with inputs."""
    found: dict[str, tuple[Any, dict[str, Encoded]]] = {
        case.protocol: (case.program, dict(case.inputs(1))) for case in wire_cases(3, 5)
    }
    numbers = torch.linspace(-4, 4, 10, dtype=torch.float64).reshape(2, 5)
    x = Encoded.numbers(numbers, 16)
    bit = Encoded.ring_elements(torch.tensor([[1, 0, 1, 1, 0]] * 2), width=1, kind="bits")
    found["relu"] = (revealing("relu", lambda r, i: {"result": relu(r, i["x"], 25, 12, 40)}, {"x": x.form}), {"x": x})
    tanh = menu.entry("tanh 32")

    def gated(runtime, inputs):
        (wire,) = runtime.open(inputs["x"].at(12, 24))
        (gate,) = runtime.open(inputs["m"])
        return {"result": gated_fourier(runtime, wire, gate, tanh, 20, 18)}

    found["gated"] = (revealing("gated", gated, {"x": x.form, "m": bit.form}), {"x": x, "m": bit})
    found["activate"] = (
        revealing(
            "activate", lambda r, i: {"result": activate_one(r, i["x"], menu.entry("gelu tight"))}, {"x": x.form}
        ),
        {"x": x},
    )
    scores = Encoded.numbers(numbers.reshape(1, 1, 2, 5) * 1.4, 26, 32)
    value = Encoded.numbers(torch.eye(5, dtype=torch.float64)[None, None], 10, 35, "masked")
    mask = Encoded.ring_elements(torch.ones(1, 1, 1, 5, dtype=torch.int64))
    rows = attention.RowSetting(menu.reciprocal(attention.SMALLEST_DENOMINATOR, 8.0), reciprocal_scale=19)
    setting = attention.ExactSetting((attention.HeadGroup(1, 6),), rows)
    found["softmax"] = (
        revealing(
            "softmax",
            lambda r, i: {"result": attention.exact_attention(r, i["s"], i["v"], i["m"], setting)},
            {"s": scores.form, "v": value.form, "m": mask.form},
        ),
        {"s": scores, "v": value, "m": mask},
    )
    return found


def gates() -> dict[str, Any]:
    """Tape digest, and what each server ends with under fixed seeds: it depends on every mask, pad and correction."""

    def run(program, inputs):
        return run_locally(program, {name: share(encoded) for name, encoded in inputs.items()})

    found = {}
    for name, (program, inputs) in gate_cases().items():
        done = with_fixed_randomness(lambda program=program, inputs=inputs: run(program, inputs))
        found[name] = {
            "tape": done.plan.tape.digest(),
            "shares": [digest(outputs["result"].value.share) for outputs in done.outputs],
        }
    return found


def tapes() -> dict[str, str]:
    forms = {"x": Encoded.ring_elements(torch.zeros(2, 3, dtype=torch.int64), 8, 40).form}
    squares = revealing("square", lambda r, i: {"y": square(r, *r.open(i["x"]))}, forms)
    twice = revealing("twice", lambda r, i: {"y": square(r, *r.open(square(r, *r.open(i["x"])).at(8, 30)))}, forms)
    return {program.name: trace(program).tape.digest() for program in (squares, twice)}


def fits() -> dict[str, str]:
    return {name: menu.entry(name).digest() for name in sorted(menu._shipped())}


# -- what is refused -------------------------------------------------------------------------------------------------------


def refusals() -> dict[str, str]:
    """Malformed input and the code of the error it meets."""
    good = bytearray(encode(FrameType.OPENING, 1, (3, 5), 17, 32, SESSION))

    def frame(offset: int, value: bytes) -> bytes:
        return bytes(good[:offset] + value + good[offset + len(value) :])

    def header(data: bytes, limit: int = 1 << 20):
        return lambda: decode(data, SESSION, limit)

    with_key = with_fixed_randomness(lambda: dpf.keygen([3], 200)[0].to_bytes())
    cases = {
        "frame: truncated": header(bytes(good[: HEADER_BYTES - 1])),
        "frame: magic": header(frame(0, b"HTTP")),
        "frame: version": header(frame(4, b"\xff\xff")),
        "frame: kind": header(frame(6, b"\x63")),
        "frame: width 0": header(frame(7, b"\x00")),
        "frame: session": header(frame(8, b"\xff" * 16)),
        "frame: length": header(frame(32, b"\x21")),
        "frame: beyond the limit": header(bytes(good), 31),
        "frame: dimensions": header(frame(40, b"\x09")),
        "frame: a dimension beyond the last": header(frame(72, b"\x01")),
        "key: truncated": lambda: dpf.DpfKey.from_bytes(with_key[:-1]),
        "key: magic": lambda: dpf.DpfKey.from_bytes(b"XXXX" + with_key[4:]),
        "key: party": lambda: dpf.DpfKey.from_bytes(with_key[:4] + b"\x02" + with_key[5:]),
        "packing: length": lambda: unpack(torch.zeros(3, dtype=torch.uint8), 2, 8),
        "stream: index again": lambda: [stream().draw(Draw("a", "b", index, (1,), 8)) for index in (1, 0)] and _again(),
        "stream: another purpose": lambda: stream().draw(Draw("a", "c", 0, (1,), 8)),
        "stream: empty": lambda: stream().draw(Draw("a", "b", 0, (0,), 8)),
    }
    return {name: _code(action) for name, action in cases.items()}


def lanes() -> dict[str, Any]:
    """How a large payload is cut: by lane, and on a sealed lane by record."""
    cuts = {
        f"{size} on {count}": [[part.start, part.stop] for part in stripes(size, count)] for size, count in PAYLOADS
    }
    return {"record": RECORD, "stripes": cuts}


def stream() -> Stream:
    return Stream(SEED, SESSION, "a", "b")


def _again() -> None:
    one = stream()
    for _ in range(2):
        one.draw(Draw("a", "b", 0, (1,), 8))


def _code(action) -> str:
    try:
        action()
    except SecFormerError as error:
        return error.code
    return "accepted"


PARTS = {
    "streams": streams,
    "frames": frames,
    "lanes": lanes,
    "point functions": keys,
    "packing": packing,
    "tapes": tapes,
    "gates": gates,
    "fits": fits,
    "refusals": refusals,
}


def compute() -> dict[str, Any]:
    return {name: part() for name, part in PARTS.items()}


def path(version: int = PROTOCOL_VERSION) -> Path:
    return FOLDER / f"v{version}.json"


if __name__ == "__main__":
    if path().exists():
        sys.exit(
            f"{path()} is there: a change of what peers say to each other needs a new PROTOCOL_VERSION (version.py)"
        )
    path().write_text(json.dumps(compute(), indent=1, sort_keys=True) + "\n")
