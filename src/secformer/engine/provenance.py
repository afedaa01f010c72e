"""Tensors without content that remember what they are made of, so that a trace notices what a program must not do.

A traced value's tensors are meta tensors marked `share`, `public`, or with the mask they are, and whatever is computed from
them carries the marks of all its parts. So a share that a mask went into, a result that is nothing but public parts, and a
look at data (a branch on a share, `.item()`) are errors of the trace, before anything runs; and a gate's material is known
to depend on the masks of exactly these openings.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_iter, tree_map

from secformer.errors import TapeError

SHARE, PUBLIC, _MASK = "share", "public", "mask of "
NOTHING: frozenset[str] = frozenset()

_LOOKS = frozenset(
    ("__bool__", "__int__", "__float__", "__index__", "__complex__", "item", "tolist", "numpy", "nonzero", "unique")
)


class Traced(Tensor):
    """A meta tensor and the marks of its parts."""

    made_of: frozenset[str] = NOTHING

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _LOOKS:
            raise TapeError("a program looks at data: what it does may depend on forms and settings alone")
        result = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, Tensor | tuple | list):
            marks = NOTHING.union(*(part.made_of for part in tree_iter((args, kwargs)) if isinstance(part, Traced)))
            tree_map(lambda part: _mark(part, marks), result)
        return result


def _mark(part: Any, marks: frozenset[str]) -> None:
    if isinstance(part, Traced):
        part.made_of = part.made_of | marks


def traced(shape: tuple[int, ...], mark: str) -> Tensor:
    tensor = torch.empty(shape, dtype=torch.int64, device="meta").as_subclass(Traced)
    tensor.made_of = frozenset((mark,))
    return tensor


def made_of(tensor: Tensor) -> frozenset[str]:
    return tensor.made_of if isinstance(tensor, Traced) else NOTHING


def mask_of(name: str) -> str:
    """The mark of the mask of an opening, or of a static wire."""
    return _MASK + name


def masks_in(tensor: Tensor) -> set[str]:
    """The openings and static wires whose masks a tensor is made of."""
    return {mark.removeprefix(_MASK) for mark in made_of(tensor) if mark.startswith(_MASK)}
