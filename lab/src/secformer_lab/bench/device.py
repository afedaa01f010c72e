"""One BERT-base layer on one device, the three servers as threads of this process: what kernels gain, without a network.

    python -m secformer_lab.bench.device --device cuda --tokens 128 512 --suites exact fast

The same program runs through plain torch operations ("before") and through the device's kernels
("after"); the dealer works first. Copies and tables kept on the device are the same for both. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from secformer.crypto.prg import Seed
from secformer.engine.computing import Computing, received_material, seeded_material
from secformer.engine.dealing import Dealing, Draws
from secformer.engine.program import Inputs, Outputs
from secformer.engine.sharing import Encoded, reconstruct, share
from secformer.engine.tracing import Plan, trace
from secformer.engine.values import Masked, MaskedBits, Value
from secformer.ring import kernels
from secformer.ring.kernels import cuda, float64, reference
from secformer.ring.packing import packed, unpacked
from secformer.roles import DEALER, SERVER0, SERVER1
from secformer.transport.memory import memory_pair
from secformer_lab.bench.layer import INPUT, MASK, RESULT, Subject, layer_program


class Plain:
    """The steps in torch operations, whatever the device."""

    matmul = staticmethod(float64.matmul)
    draw = staticmethod(cuda.draw_plainly)
    close = staticmethod(reference.close)
    reveal = staticmethod(reference.reveal)
    correct = staticmethod(reference.correct)
    pack = staticmethod(packed)
    unpack = staticmethod(unpacked)
    gf2_matmul = staticmethod(reference.gf2_matmul)

    def __getattr__(self, name: str) -> Any:
        """Every gate by its own method."""
        kind, _, gate = name.partition("_")
        if kind not in ("evaluate", "deal") or not gate:
            raise AttributeError(name)
        return lambda own, *arguments: getattr(own, kind)(*arguments)


@contextmanager
def plain_operations(device: torch.device) -> Iterator[None]:
    plain = Plain()
    kernels.register(device.type, plain)
    try:
        yield
    finally:
        kernels.unregister(device.type, plain)


class Clocked(Computing):
    """A server that waits for its device at the end of every operation, to see what each takes."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.seconds: dict[str, float] = {}

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Time inside an inner scope is the inner scope's."""
        started, before = time.perf_counter(), sum(self.seconds.values())
        with super().scope(name):
            yield
        _wait(self.device)
        inner = sum(self.seconds.values()) - before
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started - inner


class Layer:
    """A layer whose weights lie on the device, shared once."""

    def __init__(self, suite: str, tokens: int, device: torch.device) -> None:
        self.subject = Subject(suite, tokens)
        self.device = device
        self.streams = [torch.cuda.Stream(device) if device.type == "cuda" else None for _ in (0, 1)]
        self.plan: Plan = trace(layer_program(self.subject.card, 1, tokens))
        forms = self.plan.program.inputs
        given = {INPUT: self.subject.input, MASK: torch.ones(1, tokens, 1, dtype=torch.int64)}
        self.encoded = {name: encoded(forms[name], tensor) for name, tensor in given.items()}
        static = {name: share(Encoded(forms[name], weight.ring)) for name, weight in self.subject.folded.items()}
        self.static = [{name: on(device, sharing.pair[party]) for name, sharing in static.items()} for party in (0, 1)]
        self.dealt: Inputs = {
            name: on(device, sharing.dealt) for name, sharing in static.items() if sharing.dealt is not None
        }

    def run(self, kind: type[Computing] = Computing) -> tuple[float, float, float]:
        """Seconds of the dealer, seconds of the servers, and the largest error."""
        session, own, common = os.urandom(16), (Seed.from_os(), Seed.from_os()), Seed.from_os()
        links = memory_pair(SERVER0, SERVER1, session)
        dealer_out, dealer_in = memory_pair(DEALER, SERVER1, session)
        materials = (seeded_material(own[0], session, self.device), received_material(dealer_in, self.device))
        servers = [kind(j, self.plan, links[j], own[j], common, materials[j], self.device) for j in (0, 1)]
        shared = {name: share(value) for name, value in self.encoded.items()}
        inputs: list[Inputs] = [
            {**self.static[j], **{name: on(self.device, each.pair[j]) for name, each in shared.items()}} for j in (0, 1)
        ]
        dealing = Dealing(self.plan, dealer_out, Draws.of(own, session, self.device))
        dealer_seconds, _ = self.timed([lambda: dealing.run(self.dealt)])
        seconds, outputs = self.timed([lambda: servers[0].run(inputs[0]), lambda: servers[1].run(inputs[1])])
        self.servers: list[Any] = servers
        result = reconstruct(*(each[RESULT] for each in outputs)).cpu()
        return dealer_seconds, seconds, float((result - self.subject.expected).abs().max())

    def timed(self, actions: Sequence[Callable[[], Outputs]]) -> tuple[float, list[Outputs]]:
        """Run them at once, each on a stream of its own."""

        def act(action: Callable[[], Outputs], stream: Any) -> Outputs:
            with torch.cuda.stream(stream):  # of None: nothing
                return action()

        _wait(self.device)
        started = time.perf_counter()
        with ThreadPoolExecutor(len(actions)) as pool:
            futures = [pool.submit(act, *item) for item in zip(actions, self.streams[: len(actions)], strict=True)]
        results = [future.result() for future in futures]
        _wait(self.device)
        return time.perf_counter() - started, results


def encoded(form: Any, tensor: Tensor) -> Encoded:
    return Encoded(form, tensor) if form.boolean else Encoded.numbers(tensor, form.scale, form.width, form.kind)


def on(device: torch.device, value: Any) -> Value:
    """A value with its tensors on the device; a wire keeps what is derived from it."""
    names = [name for name in ("share", "public", "mask") if hasattr(value, name)]
    moved = replace(value, **{name: getattr(value, name).to(_place(getattr(value, name), device)) for name in names})
    return moved.as_static() if isinstance(moved, Masked | MaskedBits) else moved


def _place(tensor: Tensor, device: torch.device) -> torch.device:
    return tensor.device if tensor.is_meta else device


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(suite: str, tokens: int, device: torch.device, repetitions: int) -> dict[str, Any]:
    layer = Layer(suite, tokens, device)
    with plain_operations(device):
        before = best(layer, repetitions)
    after = best(layer, repetitions)
    layer.run(Clocked)
    operations = {name: seconds for name, seconds in layer.servers[0].seconds.items() if seconds > 0}
    return {"suite": suite, "tokens": tokens, "before": before, "after": after, "operations": operations}


def best(layer: Layer, repetitions: int) -> dict[str, float]:
    runs = [layer.run() for _ in range(repetitions + 1)][1:]
    dealer, online, errors = zip(*runs, strict=True)
    return {"dealer_seconds": min(dealer), "online_seconds": min(online), "max_error": max(errors)}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--suites", nargs="+", default=["exact", "fast"])
    parser.add_argument("--repetitions", type=int, default=3)
    given = parser.parse_args(arguments)
    device = torch.device(given.device)
    for suite in given.suites:
        for tokens in given.tokens:
            print(json.dumps(measure(suite, tokens, device, given.repetitions)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
