"""How a caller's inputs travel to two servers, and the results back.

The caller splits x into [x]_0 + [x]_1 (or the XOR of two). An input is written in one of three ways:

    packed      the share itself, packed to its width
    seeded      32 bytes from which S0 draws its share; only S1 gets a whole one, half the caller's traffic
    points      keys of point functions (crypto/dpf.py): S_j expands them to its share of one-hot rows

Shape and width of every tensor follow from the program, so a frame that announces anything else is refused.
Results come back packed; their shares were made anew when they were disclosed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from secformer.crypto import dpf
from secformer.crypto.dpf import DpfKey
from secformer.crypto.prg import SEED_BYTES, Seed, single_draw
from secformer.engine.form import Form
from secformer.engine.program import Outputs
from secformer.engine.sharing import Encoded, other_half
from secformer.engine.values import Bits, Disclosed, Share, Value, share_of
from secformer.errors import AgreementError, DtypeError, FrameError, InputError, RangeError, ShapeError
from secformer.models.query import Keys
from secformer.parties import messages
from secformer.parties.messages import FILES_LIMIT, Encodings, FileNote
from secformer.ring.fixed_point import encode, reduce
from secformer.ring.packing import pack, unpack
from secformer.roles import SERVER0, link
from secformer.transport.channel import Channel, FrameType, Payload
from secformer.transport.frame import CONTROL_LIMIT

PACKED, SEEDED, POINTS = "packed", "seeded", "points"

CallerInput = Tensor | Encoded | Keys
"""Numbers to be encoded as the program declares, tensors that are encoded, or keys of point functions."""


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
    inputs: Mapping[str, CallerInput], forms: Mapping[str, Form], session: bytes
) -> tuple[dict[str, Part], dict[str, Part]]:
    """What S0 gets and what S1 gets."""
    if set(inputs) != set(forms):
        raise AgreementError(f"the program takes the inputs {sorted(forms)}, not {sorted(inputs)}")
    pairs = {name: _split_one(name, given, forms[name], session) for name, given in inputs.items()}
    return {name: pair[0] for name, pair in pairs.items()}, {name: pair[1] for name, pair in pairs.items()}


def _split_one(name: str, given: CallerInput, form: Form, session: bytes) -> tuple[Part, Part]:
    if isinstance(given, tuple) and all(isinstance(key, DpfKey) for key in given):
        return _points_part(given[0]), _points_part(given[1])
    if not isinstance(given, Tensor | Encoded):
        raise DtypeError(f"input {name!r} must be a tensor, encoded or not, or two keys of point functions")
    encoded = _encoded(name, given, form) if isinstance(given, Tensor) else given
    if encoded.form != form:
        raise ShapeError(f"input {name!r} is {encoded.form}, the program takes {form}")
    seed = Seed.from_os()
    half = _from_seed(seed, session, name, form, torch.device("cpu"))
    return Part(SEEDED, seed.bytes, (SEED_BYTES,), 8), _packed(other_half(encoded, half), form.width)


def _encoded(name: str, given: Tensor, form: Form) -> Encoded:
    if tuple(given.shape) != form.shape:
        raise ShapeError(f"input {name!r} has shape {tuple(given.shape)}, the program takes {form.shape}")
    if not form.boolean:
        return Encoded(form, encode(given.cpu(), form.scale, form.width))
    if given.dtype.is_floating_point:
        raise DtypeError(f"input {name!r} holds words of {form.width} bits: give integers, not {given.dtype}")
    words = given.cpu().to(torch.int64)
    if not torch.equal(reduce(words, form.width), words):
        raise RangeError(f"input {name!r} holds a word of more than {form.width} bits")
    return Encoded(form, words)


def _packed(share: Tensor, width: int) -> Part:
    return Part(PACKED, pack(share, width).cpu(), tuple(share.shape), width)


def _points_part(key: DpfKey) -> Part:
    content = key.to_bytes()
    return Part(POINTS, content, (len(content),), 8)


def send_encodings(channel: Channel, parts: Mapping[str, Part]) -> None:
    messages.send(channel, Encodings({name: part.encoding for name, part in parts.items()}))


def send_part(channel: Channel, part: Part) -> None:
    channel.send(FrameType.INPUT, part.payload, part.shape, part.width)


# The servers


def largest_input(forms: Mapping[str, Form]) -> int:
    """Bytes of the largest frame with which a caller can answer these forms, however it writes its inputs."""
    sizes = [form.packed_bytes for form in forms.values()]
    keys = [dpf.key_bytes(8 * form.shape[1], form.shape[0]) for form in forms.values() if _takes_points(form)]
    return max([CONTROL_LIMIT, *sizes, *keys])


def _takes_points(form: Form) -> bool:
    """One-hot rows, eight bits to a word."""
    return form.kind == "bits" and form.width == 8 and len(form.shape) == 2


def receive_inputs(channel: Channel, forms: Mapping[str, Form], party: int, device: torch.device) -> dict[str, Value]:
    """All inputs of the caller, in the order of their names."""
    encodings = messages.receive(channel, Encodings).by_name
    if set(encodings) != set(forms):
        raise InputError(f"the program takes the inputs {sorted(forms)}, not {sorted(encodings)}")
    return {name: _receive_one(channel, name, encodings[name], forms[name], party, device) for name in sorted(forms)}


def _receive_one(channel: Channel, name: str, encoding: str, form: Form, party: int, device: torch.device) -> Value:
    if encoding == PACKED:
        return receive_share(channel, FrameType.INPUT, form, device)
    if encoding == SEEDED:
        seed = Seed(channel.receive(FrameType.INPUT, shape=(SEED_BYTES,)).numpy().tobytes())
        return share_of(form, _from_seed(seed, channel.session, name, form, device))
    if encoding == POINTS:
        return _receive_points(channel, name, form, party, device)
    raise FrameError(f"record: input {name!r} comes in the unknown encoding {encoding!r}")


def _from_seed(seed: Seed, session: bytes, name: str, form: Form, device: torch.device) -> Tensor:
    return single_draw(seed, session, link("caller", SERVER0), f"input {name}", form.shape, form.width, device)


def _receive_points(channel: Channel, name: str, form: Form, party: int, device: torch.device) -> Bits:
    """One-hot rows (n, ceil(domain / 8))."""
    if not _takes_points(form):
        raise InputError(f"input {name!r} is {form}: point functions give rows of bytes")
    rows, columns = form.shape
    content = channel.receive(FrameType.INPUT, limit=dpf.key_bytes(8 * columns, rows))
    key = DpfKey.from_bytes(content.numpy().tobytes())
    if (key.party, key.count, -(-key.domain // 8)) != (party, rows, columns):
        raise InputError(f"input {name!r}: the keys are not for this server, or not for {form.shape}")
    return Bits(dpf.evaluate(key, key.domain).to(device, torch.int64), 8)


def receive_files(channel: Channel, notes: Sequence[FileNote], keep: Callable[[FileNote, bytes], None]) -> None:
    """Files that are handed out with a model; not secret, and not larger than announced."""
    if sum(note.size for note in notes) > FILES_LIMIT:
        raise InputError(f"the files of a model may have {FILES_LIMIT >> 20} MiB in all")
    for note in notes:
        keep(note, channel.receive(FrameType.INPUT, shape=(note.size,)).numpy().tobytes())


def receive_share(channel: Channel, kind: FrameType, form: Form, device: torch.device) -> Share:
    packed = channel.receive(kind, shape=form.shape, width=form.width)
    return share_of(form, unpack(packed.to(device), form.elements, form.width).reshape(form.shape))


# Results


def send_outputs(channel: Channel, outputs: Outputs) -> None:
    """Every disclosed result, in the order of their names; wires stay."""
    for name in sorted(outputs):
        value = outputs[name]
        if isinstance(value, Disclosed):
            packed = pack(value.value.share, value.width).cpu()
            channel.send(FrameType.OUTPUT, packed, tuple(value.shape), value.width)


def receive_outputs(channel: Channel, forms: Mapping[str, Form]) -> dict[str, Share]:
    device = torch.device("cpu")
    return {name: receive_share(channel, FrameType.OUTPUT, forms[name], device) for name in sorted(forms)}
