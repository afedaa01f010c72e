"""What T takes to deal for a whole inference on one device, transport aside: packed in the host's memory, then thrown away.

    python -m secformer_lab.bench.dealing --device cuda --tokens 128,512 --suites exact,fast

Shapes and ranges are those of `secformer-lab bench model`. Prints JSON, a line for each suite and length: the best of a few
runs after two that do not count, and the bytes that S1 would have been sent.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from secformer.crypto.prg import Seed
from secformer.engine.program import Inputs
from secformer.engine.redealing import Dealings
from secformer.engine.sharing import Encoded, share
from secformer.engine.tracing import Plan, trace
from secformer.models.shapes import PRESETS
from secformer.ring import kernels
from secformer.transport.channel import Channel
from secformer.transport.frame import SESSION_BYTES
from secformer_lab.bench.device import on
from secformer_lab.bench.model import Subject

WARM_UP = 2
"""Runs that do not count: the first makes tables, on a GPU the second records."""


class Nowhere:
    """The end of T's link to S1 that a benchmark needs: it counts."""

    def __init__(self) -> None:
        self.session = os.urandom(SESSION_BYTES)
        self.bytes = 0

    def send(self, kind: Any, payload: Tensor, *form: Any) -> None:
        self.bytes += len(kernels.step("to_host", payload.device)(payload))

    def lend(self, kind: Any, payload: Tensor, *form: Any) -> None:
        self.bytes += len(payload)

    def flush(self) -> None:
        """Nothing is under way."""


def weights_of(subject: Subject, plan: Plan, device: torch.device) -> Inputs:
    """The wires of the weights as T has them: masks."""
    forms = plan.program.inputs
    shared = {name: share(Encoded(forms[name], subject.folded[name].ring)) for name in forms if name in subject.folded}
    return {name: on(device, sharing.dealt) for name, sharing in shared.items() if sharing.dealt is not None}


def measure(model: str, suite: str, lengths: Sequence[int], device: torch.device, runs: int) -> list[dict[str, Any]]:
    subject = Subject(PRESETS[model], lengths, suite)
    rows = []
    for tokens in lengths:
        plan = trace(subject.card.query_program(1, tokens))
        weights, dealings = weights_of(subject, plan, device), Dealings(device)
        times, link = [], Nowhere()
        for _ in range(WARM_UP + runs):
            link = Nowhere()
            started = time.perf_counter()
            dealings.deal(plan, weights, cast(Channel, link), (Seed.from_os(), Seed.from_os()))
            times.append(
                time.perf_counter() - started
            )  # the last correction was copied to the host: nothing is under way
        row = {"model": model, "suite": suite, "tokens": tokens, "device": str(device), "runs": runs}
        rows.append({**row, "seconds": min(times[WARM_UP:]), "dealer_bytes": link.bytes})
    return rows


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="bert-base")
    parser.add_argument("--tokens", default="128,512")
    parser.add_argument("--suites", default="exact,fast")
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args(arguments)
    lengths = [int(length) for length in given.tokens.split(",")]
    for suite in given.suites.split(","):
        for row in measure(given.model, suite, lengths, torch.device(given.device), given.runs):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
