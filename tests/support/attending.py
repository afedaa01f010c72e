"""Softmax and 2Quad attention on two real shares, with settings made for the scores at hand."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from case import revealing
from simulation import simulation
from torch import Tensor

from secformer.engine.local import Run, run_locally
from secformer.engine.program import Program
from secformer.engine.sharing import Encoded, Forced, share
from secformer.protocols.attention import (
    LOWEST_MAXIMUM,
    SMALLEST_DENOMINATOR,
    ExactSetting,
    HeadGroup,
    QuadSetting,
    RowSetting,
    exact_attention,
    largest_denominator,
    quad_attention,
)
from secformer.protocols.evidence import Evidence
from secformer.protocols.menu import reciprocal
from secformer.ring.fixed_point import encode

LOG2_E = math.log2(math.e)
SCORE_SCALE, VALUE_SCALE = 26, 10
PLACE = "attention"


def head_group(low: float, high: float, lowest_maximum: float | None = None) -> HeadGroup:
    """One head whose natural scores lie in [low, high] and whose row maxima are at least `lowest_maximum`."""
    least = (low if lowest_maximum is None else lowest_maximum) * LOG2_E
    for bits in range(6, 13):
        group = HeadGroup(1, bits)
        inside = -group.centre <= low * LOG2_E and high * LOG2_E < group.highest - group.centre
        if inside and least >= LOWEST_MAXIMUM - group.centre:
            return group
    raise ValueError(f"no window holds {low} to {high}")


def exact_setting(groups: list[HeadGroup], keys: int, highest: float | None = None) -> ExactSetting:
    high = largest_denominator(keys) if highest is None else highest
    return ExactSetting(tuple(groups), RowSetting(reciprocal(SMALLEST_DENOMINATOR, high), reciprocal_scale=19))


@dataclass
class Attention:
    """Scores (batch, heads, rows, keys), natural; mask (batch, keys); values (batch or 1, heads or 1, keys, columns)."""

    scores: Tensor
    mask: Tensor
    setting: ExactSetting | QuadSetting
    values: Tensor | None = None
    rows: Tensor | None = None  # (batch, rows): which query rows count
    watched: bool = False  # with evidence, given as "counts": (batch,)

    @property
    def exact(self) -> bool:
        return isinstance(self.setting, ExactSetting)

    @property
    def value(self) -> Tensor:
        """The identity unless values are given: the probabilities come out."""
        keys = self.scores.shape[-1]
        return torch.eye(keys, dtype=torch.float64)[None, None] if self.values is None else self.values

    @property
    def expected(self) -> Tensor:
        keys = self.mask[:, None, None, :] == 1
        if isinstance(self.setting, QuadSetting):
            weights = (self.scores + self.setting.shift).square() * keys
            return weights / weights.sum(-1, keepdim=True) @ self.value
        return torch.softmax(self.scores.masked_fill(~keys, -torch.inf), -1) @ self.value

    def secrets(self) -> dict[str, Encoded]:
        units = LOG2_E if self.exact else 1.0
        width = 64
        if isinstance(self.setting, ExactSetting):  # as many bits as evidence takes
            width = SCORE_SCALE + max(group.window_bits for group in self.setting.groups) + 1
        counted = torch.ones_like(self.scores[:, 0, :, 0]) if self.rows is None else self.rows
        scores = encode(self.scores * units * self.mask[:, None, None, :], SCORE_SCALE)
        return {
            "scores": Encoded.ring_elements(scores, SCORE_SCALE, width),
            "value": Encoded.numbers(self.value, VALUE_SCALE, self.setting.weight_width, "masked"),
            "mask": Encoded.numbers(self.mask[:, None, None, :], 0),
            "rows": Encoded.numbers(counted[:, None, :, None], 0),
        }

    def program(self, opened: bool = False) -> Program:
        forms = {name: secret.form for name, secret in self.secrets().items()}

        def body(runtime, inputs):
            function = exact_attention if self.exact else quad_attention
            given = [inputs[name] for name in ("scores", "value", "mask")]
            evidence = Evidence() if self.watched else None
            with runtime.scope(PLACE), runtime.scope("softmax"):
                result = function(runtime, *given, self.setting, evidence, inputs["rows"])
                if opened or self.watched:
                    runtime.open(result.at(12))
            if evidence is None:
                return {"y": result}
            return {"y": result, "counts": evidence.disclosed(runtime, [(PLACE, "scores")]).value}

        return revealing("attention", body, forms)

    def run(self, forced: Forced | None = None) -> Run:
        return run_locally(self.program(), {name: share(secret, forced) for name, secret in self.secrets().items()})

    def simulate(self, strict: bool = False) -> Tensor:
        return self.simulation(strict)["y"]

    def simulation(self, strict: bool = False) -> dict[str, Tensor]:
        return simulation(self.program(), self.secrets(), strict).results

    def counts(self, forced: Forced | None = None) -> tuple[list[int], list[int]]:
        """Rows of each text that are counted as outside: on shares, and in simulation."""
        secure, plain = self.run(forced).value("counts"), self.simulation()["counts"]
        return secure[:, 0].long().tolist(), plain[:, 0].long().tolist()

    def error(self, result: Tensor) -> float:
        difference = (result - self.expected).abs()
        return float(difference.max() if self.rows is None else (difference * self.rows[:, None, :, None]).max())

    def check(self, bound: float, forced: Forced | None = None) -> Tensor:
        """Within `bound` of plaintext, on shares and in simulation; gives what the shares gave."""
        result = self.run(forced).value("y")
        assert self.error(result) <= bound, f"off by {self.error(result):.2e} in shares"
        simulated = self.error(self.simulate())
        assert simulated <= bound, f"off by {simulated:.2e} in simulation"
        return result
