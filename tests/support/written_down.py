"""What a CUDA graph does, in torch operations on the CPU: work is written down once and done again on the same memory.

Every operation between `begin` and `end` is noted with the tensors it read and made. `replay` does each again and puts what comes
out where it was. The steps below are torch operations throughout, keys included, so that nothing is left out; and a session's
keys lie in tensors, as on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from secformer.crypto import prg
from secformer.engine import computing, recording
from secformer.engine.tape import Dealt
from secformer.ring import chacha, kernels
from secformer.ring.fixed_point import reduce, shift_right
from secformer.ring.kernels import reference
from secformer.ring.kernels.steps import Closed, Closing, material_type, put
from secformer.ring.keystream import Keystream


class Written(TorchDispatchMode):
    """A graph: the operations in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        self.steps.append((function, args, kwargs or {}, made))
        return made

    def replay(self) -> None:
        for function, args, kwargs, made in self.steps:
            again = function(*args, **kwargs)
            for place, content in zip(tree_flatten(made)[0], tree_flatten(again)[0], strict=True):
                if isinstance(place, Tensor) and place.data_ptr() != content.data_ptr():
                    place.copy_(content)


class Graphs:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._current: Written | None = None

    @staticmethod
    def fits(size: int, device: torch.device) -> bool:
        return True

    @contextmanager
    def stream(self) -> Iterator[None]:
        yield

    def begin(self) -> None:
        self._current = Written()
        self._current.__enter__()

    def end(self) -> Written:
        graph, self._current = self._current, None
        assert graph is not None
        graph.__exit__(None, None, None)
        return graph

    def drop(self) -> None:
        if self._current is not None:
            self._current.__exit__(None, None, None)
            self._current = None

    def host(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def wait(self) -> None:
        pass

    def mark(self) -> Any:
        return self

    def aside(self) -> Any:
        return self

    def bring(self, target: Tensor, source: Tensor) -> None:
        target.copy_(source)


def _pack(x: Tensor, width: int) -> Tensor:
    bits = ((x.reshape(-1, 1) >> torch.arange(width)) & 1).flatten()
    bits = torch.nn.functional.pad(bits, (0, -len(bits) % 8)).view(-1, 8)
    return (bits << torch.arange(8)).sum(1).to(torch.uint8)


def _unpack(buffer: Tensor, count: int, width: int) -> Tensor:
    bits = ((buffer.to(torch.int64).unsqueeze(-1) >> torch.arange(8)) & 1).flatten()[: count * width]
    return (bits.view(count, width) << torch.arange(width)).sum(1)


class Steps:
    """The steps of a device that can write its work down."""

    graphs = Graphs
    matmul = staticmethod(reference.matmul)
    gf2_matmul = staticmethod(reference.gf2_matmul)

    @staticmethod
    def draw(keystream: Keystream, shape, width, device, dtype=torch.int64, out=None) -> Tensor:
        return reference.draw(keystream, shape, width, device, dtype, out)

    @staticmethod
    def close(share: Tensor, closing: Closing, keystream: Keystream) -> Closed:
        mask = reference.draw(keystream, tuple(share.shape), closing.width, share.device)
        if closing.boolean:
            own = share ^ mask
        else:
            plus = (1 << closing.drop) - 1 if closing.party == 1 else 0
            own = shift_right(share + plus, closing.drop, closing.source_width) + mask
        return Closed(_pack(own, closing.width), own, mask)

    @staticmethod
    def reveal(closed: Closed, received: Tensor, closing: Closing) -> Tensor:
        theirs = _unpack(received, closed.own.numel(), closing.width).reshape(closed.own.shape)
        return reduce(closed.own ^ theirs if closing.boolean else closed.own + theirs, closing.width)

    @staticmethod
    def correct(value: Tensor, width: int, boolean: bool, keystream: Keystream) -> Tensor:
        pad = reference.draw(keystream, tuple(value.shape), width, value.device)
        return _pack(value ^ pad if boolean else value - pad, width)


@contextmanager
def writing_down(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The CPU as such a device."""

    def half(packed: Tensor, entry: Dealt, out: Tensor | None = None) -> Tensor:
        form = entry.form
        unpacked = _unpack(packed, form.elements, form.width).reshape(form.shape)
        return put(unpacked.to(material_type(entry.kind, form.width)), out)

    monkeypatch.setattr(prg, "_words", chacha.words)
    for module in (computing, recording):
        monkeypatch.setattr(module, "unpacked_half", half)
    steps = Steps()
    kernels.register("cpu", steps)
    try:
        yield
    finally:
        kernels.unregister("cpu", steps)
