"""S0, S1 and T run a plan again and again, as servers that record it do."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

from secformer.crypto.prg import Seed
from secformer.engine.computing import received_corrections
from secformer.engine.form import masked, shared
from secformer.engine.program import Program
from secformer.engine.redealing import Dealings
from secformer.engine.replaying import Recordings
from secformer.engine.session import Session
from secformer.engine.sharing import Encoded, reconstruct, share
from secformer.engine.tracing import trace
from secformer.models.shapes import PRESETS
from secformer.protocols.multiply import Square, matmul
from secformer.ring.fixed_point import encode
from secformer.roles import DEALER, SERVER0, SERVER1
from secformer.transport.memory import memory_pair
from secformer_lab.bench.device import encoded, on
from secformer_lab.bench.layer import INPUT, MASK, RESULT, Subject, layer_program

CPU = torch.device("cpu")
TOKENS = 2


class Layer:
    """A layer of a Transformer."""

    def __init__(self, suite: str) -> None:
        small = replace(PRESETS["bert-base"], layers=1, vocabulary=8, hidden=8, heads=1, intermediate=8, positions=8)
        subject = Subject(suite, TOKENS, small)
        self.program = layer_program(subject.card, 1, TOKENS)
        self.static = {name: weight.ring for name, weight in subject.folded.items()}
        self.input, self.expected = subject.input, subject.expected

    def given(self, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
        return {INPUT: tensor, MASK: torch.ones(1, TOKENS, 1, dtype=torch.int64)}


class Squares:
    """(x·w)²: what a recording has, in two rounds."""

    def __init__(self) -> None:
        weight = torch.tensor([[0.5, -1.0], [2.0, 0.25]], dtype=torch.float64)
        forms = {INPUT: shared((1, TOKENS, 2), 60, 12), "weight": masked((2, 2), 60, 12)}
        self.program = Program("squares", self._body, forms, {RESULT: 24})
        self.static = {"weight": encode(weight, 12)}
        self.input = torch.tensor([[[1.0, -0.5], [0.75, 2.0]]], dtype=torch.float64)
        self.expected = (self.input @ weight) ** 2

    @staticmethod
    def _body(runtime, inputs):
        with runtime.scope("product"):
            (x,) = runtime.open(inputs[INPUT])
            product = matmul(runtime, x, inputs["weight"])
        with runtime.scope("square"):
            (y,) = runtime.open(product.at(12))
            rows = y.map(lambda tensor: tensor.flatten(0, 1))
            squares = runtime.apply_by_rows(Square(), 1, rows)
            return {RESULT: runtime.disclose(squares.map(lambda tensor: tensor.view(y.shape)))}

    def given(self, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
        return {INPUT: tensor}


class Servers:
    """S0, S1 and T with a subject's weights, run after run."""

    def __init__(self, subject: Layer | Squares, device: torch.device = CPU) -> None:
        self.subject, self.device = subject, device
        self.plan = trace(subject.program)
        self.forms = self.plan.program.inputs
        static = {name: share(Encoded(self.forms[name], ring)) for name, ring in subject.static.items()}
        self.static = [{name: on(device, each.pair[j].as_static()) for name, each in static.items()} for j in (0, 1)]
        self.dealt = {name: on(device, each.dealt) for name, each in static.items()}
        self.recordings = [Recordings(j, device) for j in (0, 1)]
        self.dealings = Dealings(device)

    def begin(self, session: bytes, links, dealt: bytes | None = None, ahead: bool = True) -> list:
        own, common = (Seed.from_os(), Seed.from_os()), Seed.from_os()
        outgoing, incoming = memory_pair(DEALER, SERVER1, session)
        corrections = (None, received_corrections(incoming))
        sessions = [Session(links[j], own[j], common, corrections[j], dealt, ahead) for j in (0, 1)]
        runs = [self.recordings[j].begin(self.plan, self.static[j], sessions[j]) for j in (0, 1)]
        self.dealings.deal(self.plan, self.dealt, outgoing, own, dealt)
        return runs

    def end(self, runs) -> None:
        for recordings, run in zip(self.recordings, runs, strict=True):
            recordings.end(run)

    def load_anew(self) -> None:
        self.static = [{name: wire.as_static() for name, wire in wires.items()} for wires in self.static]
        self.dealt = {name: wire.as_static() for name, wire in self.dealt.items()}

    def inputs(self, tensor: torch.Tensor) -> list[dict]:
        shares = {name: share(encoded(self.forms[name], each)) for name, each in self.subject.given(tensor).items()}
        return [
            {**self.static[j], **{name: on(self.device, each.pair[j]) for name, each in shares.items()}} for j in (0, 1)
        ]

    def run(self, tensor: torch.Tensor, watcher=None, **how):
        session = os.urandom(16)
        links = memory_pair(SERVER0, SERVER1, session)
        runs = self.begin(session, links, **how)
        runs[0].watcher = watcher
        with ThreadPoolExecutor(2) as pool:
            outputs = list(pool.map(lambda pair: pair[0].run(pair[1]), zip(runs, self.inputs(tensor), strict=True)))
        return runs, reconstruct(*(each[RESULT] for each in outputs)).cpu(), links[0].counters
