"""How a caller's inputs travel to two servers, and the outputs back.

The caller splits x into [x]_0 + [x]_1 (or the XOR of two). An input is written in one of three ways:

    packed      the share itself, packed to its width
    seeded      32 bytes from which S0 draws its share; only S1 gets a whole one, half the caller's traffic
    points      keys of point functions (crypto/dpf.py): S_j expands them to its share of one-hot rows

Shape and width of every tensor follow from the program, so a frame that announces anything else is refused.
Results come back packed, after their shares were randomised again.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from secformer.crypto import dpf
from secformer.crypto.dpf import DpfKey
from secformer.crypto.prg import SEED_BYTES, Seed, Stream
from secformer.engine.program import Inputs, InputSpec
from secformer.engine.values import Bits, Share, Shared, Value
from secformer.errors import AgreementError, DtypeError, FrameError, InputError, RangeError, ShapeError
from secformer.parties import messages
from secformer.parties.messages import InputForms
from secformer.ring.fixed_point import decode, encode, reduce
from secformer.ring.packing import pack, packed_bytes, unpack
from secformer.transport.channel import Channel, FrameType, Payload
from secformer.transport.frame import CONTROL_LIMIT

PACKED, SEEDED, POINTS = "packed", "seeded", "points"


class Ring(NamedTuple):
    """Ring elements, encoded already at the scale the program declares."""

    elements: Tensor

    def __repr__(self) -> str:
        return f"Ring(shape={tuple(self.elements.shape)})"


CallerInput = Tensor | Ring | tuple[Value, Value] | tuple[DpfKey, DpfKey]
"""Numbers to be encoded and split, ring elements, shares that are split already, or keys of point functions."""


class Part(NamedTuple):
    """What one server gets of one input."""

    encoding: str
    payload: Payload
    shape: tuple[int, ...]
    width: int

    def __repr__(self) -> str:  # the payload is a share, or the seed of one
        return f"Part({self.encoding}, shape={self.shape}, width={self.width})"


# The caller


def check_given(inputs: Mapping[str, CallerInput]) -> None:
    """Refuse what no program can take before any server is troubled."""
    for name, given in inputs.items():
        if not isinstance(given, Tensor):
            continue
        if given.numel() == 0:
            raise ShapeError(f"input {name!r} is empty: its shape is {tuple(given.shape)}")
        if given.dtype.is_complex or given.dtype is torch.bool:
            raise DtypeError(f"input {name!r} must hold real numbers or integers, not {given.dtype}")
        if given.dtype.is_floating_point and not bool(torch.isfinite(given).all()):
            raise RangeError(f"input {name!r} holds NaN or infinity: clean it first")


def split(
    inputs: Mapping[str, CallerInput], forms: Mapping[str, InputSpec], session: bytes
) -> tuple[dict[str, Part], dict[str, Part]]:
    """What S0 gets and what S1 gets."""
    if set(inputs) != set(forms):
        raise AgreementError(f"the program takes the inputs {sorted(forms)}, not {sorted(inputs)}")
    pairs = {name: _split_one(name, given, forms[name], session) for name, given in inputs.items()}
    return {name: pair[0] for name, pair in pairs.items()}, {name: pair[1] for name, pair in pairs.items()}


def _split_one(name: str, given: CallerInput, spec: InputSpec, session: bytes) -> tuple[Part, Part]:
    if isinstance(given, Tensor | Ring):
        return _split_numbers(name, given, spec, session)
    first, second = given
    if isinstance(first, DpfKey) and isinstance(second, DpfKey):
        return _points_part(first), _points_part(second)
    if isinstance(first, Shared | Bits) and isinstance(second, Shared | Bits):
        return _share_part(name, first, spec), _share_part(name, second, spec)
    raise DtypeError(f"input {name!r} must be a tensor, two shares or two keys of point functions")


def _split_numbers(name: str, given: Tensor | Ring, spec: InputSpec, session: bytes) -> tuple[Part, Part]:
    numbers = given.elements if isinstance(given, Ring) else given
    if tuple(numbers.shape) != spec.shape:
        raise ShapeError(f"input {name!r} has shape {tuple(numbers.shape)}, the program takes {spec.shape}")
    seed = Seed.from_os()
    half = _from_seed(seed, session, name, spec, torch.device("cpu"))
    if spec.kind == "bits":
        rest = _words(name, numbers, spec.width) ^ half
    elif isinstance(given, Ring):
        rest = numbers.cpu() - half
    else:
        rest = encode(numbers.cpu(), spec.scale, spec.width) - half
    return Part(SEEDED, seed.bytes, (SEED_BYTES,), 8), _packed(rest, spec.width)


def _words(name: str, given: Tensor, width: int) -> Tensor:
    words = given.cpu()
    if words.dtype.is_floating_point:
        raise DtypeError(f"input {name!r} holds words of {width} bits: give integers, not {given.dtype}")
    words = words.to(torch.int64)
    if not torch.equal(reduce(words, width), words):
        raise RangeError(f"input {name!r} holds a word of more than {width} bits")
    return words


def _share_part(name: str, value: Share, spec: InputSpec) -> Part:
    if InputSpec.of(value) != spec:
        raise ShapeError(f"input {name!r} is {InputSpec.of(value)}, the program takes {spec}")
    return _packed(value.share, spec.width)


def _packed(share: Tensor, width: int) -> Part:
    return Part(PACKED, pack(share, width).cpu(), tuple(share.shape), width)


def _points_part(key: DpfKey) -> Part:
    content = key.to_bytes()
    return Part(POINTS, content, (len(content),), 8)


def send_forms(channel: Channel, parts: Mapping[str, Part]) -> None:
    messages.send(channel, InputForms({name: part.encoding for name, part in parts.items()}))


def send_part(channel: Channel, part: Part) -> None:
    channel.send(FrameType.INPUT, part.payload, part.shape, part.width)


# The servers


def largest_input(forms: Mapping[str, InputSpec]) -> int:
    """Bytes of the largest frame with which a caller can answer these forms, however it writes its inputs."""
    sizes = [packed_bytes(prod(spec.shape), spec.width) for spec in forms.values()]
    keys = [dpf.key_bytes(8 * spec.shape[1], spec.shape[0]) for spec in forms.values() if _takes_points(spec)]
    return max([CONTROL_LIMIT, *sizes, *keys])


def _takes_points(spec: InputSpec) -> bool:
    """One-hot rows, eight bits to a word."""
    return spec.kind == "bits" and spec.width == 8 and len(spec.shape) == 2


def receive_inputs(
    channel: Channel, forms: Mapping[str, InputSpec], party: int, device: torch.device
) -> dict[str, Value]:
    """All inputs of the caller, in the order of their names."""
    encodings = messages.receive(channel, InputForms).encodings
    if set(encodings) != set(forms):
        raise InputError(f"the program takes the inputs {sorted(forms)}, not {sorted(encodings)}")
    return {name: _receive_one(channel, name, encodings[name], forms[name], party, device) for name in sorted(forms)}


def _receive_one(
    channel: Channel, name: str, encoding: str, spec: InputSpec, party: int, device: torch.device
) -> Value:
    if encoding == PACKED:
        return receive_share(channel, FrameType.INPUT, spec, device)
    if encoding == SEEDED:
        content = channel.receive(FrameType.INPUT, shape=(SEED_BYTES,))
        seed = Seed(content.numpy().tobytes())
        return _as_value(_from_seed(seed, channel.session, name, spec, device), spec)
    if encoding == POINTS:
        return _receive_points(channel, name, spec, party, device)
    raise FrameError(f"record: input {name!r} comes in the unknown encoding {encoding!r}")


def _from_seed(seed: Seed, session: bytes, name: str, spec: InputSpec, device: torch.device) -> Tensor:
    return Stream(seed, session, "caller-server0", f"input {name}", device).draw(0, spec.shape, spec.width)


def _receive_points(channel: Channel, name: str, spec: InputSpec, party: int, device: torch.device) -> Bits:
    """One-hot rows (n, ceil(domain / 8))."""
    if not _takes_points(spec):
        raise InputError(f"input {name!r} is {spec}: point functions give rows of bytes")
    rows, columns = spec.shape
    content = channel.receive(FrameType.INPUT, limit=dpf.key_bytes(8 * columns, rows))
    key = DpfKey.from_bytes(content.numpy().tobytes())
    if (key.party, key.count, -(-key.domain // 8)) != (party, rows, columns):
        raise InputError(f"input {name!r}: the keys are not for this server, or not for {spec.shape}")
    return Bits(dpf.evaluate(key, key.domain).to(device, torch.int64), 8)


def receive_share(channel: Channel, kind: FrameType, spec: InputSpec, device: torch.device) -> Share:
    packed = channel.receive(kind, shape=spec.shape, width=spec.width)
    count = torch.Size(spec.shape).numel()
    return _as_value(unpack(packed.to(device), count, spec.width).reshape(spec.shape), spec)


def _as_value(share: Tensor, spec: InputSpec) -> Share:
    return Shared(share, spec.width, spec.scale) if spec.kind == "shared" else Bits(share, spec.width)


# Outputs


def send_outputs(channel: Channel, outputs: Inputs) -> None:
    """Every share among the outputs, in the order of their names; wires stay."""
    for name in sorted(outputs):
        value = outputs[name]
        if isinstance(value, Shared | Bits):
            packed = pack(value.share, value.width).cpu()
            channel.send(FrameType.OUTPUT, packed, tuple(value.shape), value.width)


def receive_outputs(channel: Channel, forms: Mapping[str, InputSpec]) -> dict[str, Share]:
    device = torch.device("cpu")
    return {name: receive_share(channel, FrameType.OUTPUT, forms[name], device) for name in sorted(forms)}


def combine(first: Share, second: Share) -> Tensor:
    """The result: float64 for numbers, int64 for words of bits."""
    if isinstance(first, Shared):
        return decode(first.share + second.share, first.scale, first.width)
    return reduce(first.share ^ second.share, first.width)
