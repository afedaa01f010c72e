"""How each task is trained: epochs, batches, texts, learning rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

RATES = (3e-5, 1e-4)
INSIDE_RATE, PREDICTION_RATE = 3e-4, 5e-5
"""Learning rates of the two stages."""


@dataclass(frozen=True)
class TaskPlan:
    epochs: int
    inside: int
    prediction: int
    batch: int
    together: int
    """The batch of a distillation."""
    more: int = 4
    """Texts of other tasks in stage one, for each of the task's own."""
    longest: int = 64
    """Tokens of such a text."""
    apart: bool = False
    """Whether they are those of pairs, one by one, for a task of one text."""
    altered: int = 0
    """Texts of its own with a word changed, for each as it is."""
    both: bool = False
    """Whether stage two takes all these texts too."""
    inside_rate: float = INSIDE_RATE
    prediction_rate: float = PREDICTION_RATE
    seeds: int = 3
    rates: tuple[float, ...] = RATES
    """Chosen from on held-out examples; one: taken."""

    def slowed(self, share: float) -> TaskPlan:
        """With so much of a distillation's learning rates."""
        return replace(self, inside_rate=share * self.inside_rate, prediction_rate=share * self.prediction_rate)

    def shortened(self, share: float) -> TaskPlan:
        """With so much of its epochs, one at least."""
        epochs = (max(1, round(share * each)) for each in (self.epochs, self.inside, self.prediction))
        return replace(self, **dict(zip(("epochs", "inside", "prediction"), epochs, strict=True)))


PLANS: Mapping[str, TaskPlan] = {
    "mrpc": TaskPlan(epochs=6, inside=8, prediction=4, batch=32, together=64),
    "rte": TaskPlan(epochs=8, inside=8, prediction=4, batch=32, together=64, longest=128),
    "cola": TaskPlan(
        epochs=6, inside=4, prediction=2, batch=64, together=128, apart=True, altered=4, both=True, longest=48
    ),
    "stsb": TaskPlan(epochs=6, inside=6, prediction=5, batch=64, together=64),
    "sst2": TaskPlan(epochs=2, inside=4, prediction=1, batch=64, together=128, more=0, seeds=1, rates=(3e-5,)),
    "qnli": TaskPlan(epochs=3, inside=6, prediction=2, batch=64, together=64, more=0, seeds=1, rates=(5e-5,)),
}
ABLATED = ("mrpc", "cola")
"""Where recipes are compared, and the weighting is chosen for all."""
RECIPES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "cola": {
        "altered": {"apart": False, "more": 0, "both": False, "inside": 7, "prediction": 4},
        "altered, both stages": {"apart": False, "more": 0, "inside": 7, "prediction": 3},
        "all, both stages": {},
        "all, both stages, batch 256": {
            "inside": 8, "prediction": 4, "together": 256, "inside_rate": 4e-4, "prediction_rate": 1e-4,
        },
    },
}  # fmt: skip
"""What the plan of a task was chosen from, as changes to it: the nearest student on held-out examples decides."""
