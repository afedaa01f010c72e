"""Which settings are taken: what was compared on held-out examples decides, else what is known to be good."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from secformer.models.config import QUAD_SHIFT
from secformer.training.distill import Recipe
from secformer.training.losses import Weighting
from secformer.training.network import Swaps
from secformer.training.plans import RECIPES, TaskPlan
from secformer.training.trainer import Schedule

PLAIN = Swaps()
SECFORMER = Swaps("2quad", QUAD_SHIFT)
MPCFORMER = Swaps("2quad", QUAD_SHIFT, "quad")
QUAD = Swaps(gelu="quad")
WEIGHTINGS = {"scores": Weighting(attention=1.0), "hidden": Weighting(attention=0.0)}
"""What a distillation may match inside: all that MPCFormer's does, or hidden states alone."""
PENALTIES = (0.01, 0.1)
DEFAULT = Weighting(attention=0.0, penalty=0.01)
"""Of `fast`, where no ablation stands to choose by; less the penalty, of the others."""


def recipe_of(
    plan: TaskPlan,
    swaps: Swaps,
    weighting: Weighting,
    stages: tuple[bool, bool] = (True, True),
    rate: float | None = None,
) -> Recipe:
    """How a plan distils."""
    inside = Schedule(plan.inside * stages[0], rate or plan.inside_rate, plan.together)
    prediction = Schedule(plan.prediction * stages[1], plan.prediction_rate, plan.together)
    return Recipe(swaps, inside, prediction, weighting, plan.both)


class Ablation(NamedTuple):
    swaps: Swaps
    weighting: Weighting
    stages: tuple[bool, bool] = (True, True)
    rate: float | None = None
    """Of stage one; None: the plan's."""


def ablations() -> dict[str, Ablation]:
    hidden = WEIGHTINGS["hidden"]
    found = {name: Ablation(SECFORMER, weighting) for name, weighting in WEIGHTINGS.items()}
    found |= {f"penalty {p:g}": Ablation(SECFORMER, replace(hidden, penalty=p)) for p in PENALTIES}
    found |= {f"c {c:g}": Ablation(Swaps("2quad", c), hidden) for c in (2.5, 10.0)}
    found["rate 0.0001"] = Ablation(SECFORMER, hidden, rate=1e-4)
    found["stage one alone"] = Ablation(SECFORMER, hidden, (True, False))
    found["stage two alone"] = Ablation(SECFORMER, hidden, (False, True))
    return found


@dataclass(frozen=True)
class Choices:
    """By the rows of comparisons there are."""

    rows: Sequence[Mapping[str, Any]]
    plans: Mapping[str, TaskPlan]
    penalty: float | None = None
    """Of `fast`; None: the one that the ablation chose."""
    sums: float = 0.0
    """How much the row sums of `fast` count."""

    def rate(self, task: str, kind: str) -> float:
        rates = self.plans[task].rates
        return rates[0] if len(rates) == 1 else max(rates, key=lambda rate: self.score(task, kind, rate))

    def plan(self, task: str) -> TaskPlan:
        """The plan whose student was nearest to its teacher, of those that were tried."""
        rows = [row for row in self.rows if (row["task"], row["part"]) == (task, "recipe")]
        tried = {row["row"]: row["settings"]["distance"] for row in rows}
        plans = {name: changes for name, changes in RECIPES.get(task, {}).items() if name in tried}
        best = min(plans, key=lambda name: tried[name], default=None)
        return self.plans[task] if best is None else replace(self.plans[task], **plans[best])

    def weighting(self, penalised: bool) -> Weighting:
        """The one whose students were nearest to their teachers on held-out examples, over the ablated tasks together."""
        if not penalised:
            return WEIGHTINGS[self.best(list(WEIGHTINGS)) or "hidden"]
        best = self.best([f"penalty {penalty:g}" for penalty in PENALTIES])
        chosen = float(best.split()[-1]) if best else DEFAULT.penalty
        return replace(DEFAULT, penalty=chosen if self.penalty is None else self.penalty, sums=self.sums)

    def best(self, names: Sequence[str]) -> str | None:
        """Of those that were tried on every task on which any was; None: none was."""
        found = {name: self._ablations_of(name) for name in names}
        tasks = set().union(*found.values())
        whole = [name for name in names if tasks and set(found[name]) == tasks]
        return min(whole, key=lambda name: sum(math.log(max(far, 1e-12)) for far in found[name].values()), default=None)

    def score(self, task: str, kind: str, rate: float) -> float:
        """Of a learning rate that was tried; where the loss stopped being a number, below all others."""
        kinds = [row for row in self.rows if (row["part"], row["task"], row["row"]) == ("choice", task, kind)]
        value = next(row["value"] for row in kinds if row["settings"]["rate"] == rate)
        return -math.inf if value is None else value

    def _ablations_of(self, name: str) -> dict[str, float]:
        """The distance of a recipe's student by task."""
        rows = [row for row in self.rows if (row["part"], row["row"]) == ("ablation", name)]
        return {row["task"]: row["settings"]["distance"] for row in rows}
