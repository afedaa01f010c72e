"""What the two halves of an opening hand to each other.

S_j holds [z]_j modulo 2^source_width and opens z/2^drop modulo 2^width, width ≤ source_width − drop:

    close     [z']_j = ([z]_j + j·(2^drop − 1)) >> drop,  own = [z']_j + [r]_j,  packed = own modulo 2^width
    reveal    public = own + theirs modulo 2^width

The shift is logical, on the residue: S0 rounds its share down, S1 up (docs/protocols.md proves what that gives).
Bits are combined by xor and never dropped.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Closing(NamedTuple):
    party: int
    width: int
    boolean: bool = False
    drop: int = 0
    source_width: int = 64


class Closed(NamedTuple):
    """What goes to the other server, what this one keeps to add to the answer, and its half of the mask."""

    packed: Tensor | bytes
    own: Any
    mask: Tensor

    def __repr__(self) -> str:
        return f"Closed(shape={tuple(self.mask.shape)}, hidden)"


def material_type(gate: str, width: int) -> torch.dtype:
    """A histogram reads every dealt count once, and a count has few bits: most of its time is reading."""
    return torch.int16 if gate == "Histogram" and width < 16 else torch.int64


def put(made: Tensor, out: Tensor | None) -> Tensor:
    """Into the place that was given for it, if any."""
    return made if out is None else out.copy_(made)
