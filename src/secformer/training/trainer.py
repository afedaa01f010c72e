"""One optimisation: AdamW over batches of like lengths, warm-up, then a linear fall of the learning rate.

`Trainer.run` gives control back after every step, so that whoever drives it shows progress, writes checkpoints, or lets
several runs share a GPU. The state after a step is everything the next one depends on: on a CPU a run that was killed and
resumed ends with the same bits as one that was not. The host asks a GPU for nothing inside an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from secformer.errors import InputError, SettingsError
from secformer.models.tokens import Batch
from secformer.training.batches import Places, Rows, epoch_batches
from secformer.training.graphs import Graphed

Loss = Callable[[Batch, Tensor], Tensor]


@dataclass(frozen=True)
class Schedule:
    epochs: int
    learning_rate: float
    batch: int = 32
    warmup: float = 0.1
    """The share of the steps over which the learning rate rises."""
    weight_decay: float = 0.0
    largest_gradient: float = 1.0
    """Longer gradients are shortened to this length."""

    def __post_init__(self) -> None:
        if self.epochs < 0 or self.batch < 1:
            raise SettingsError(f"{self.epochs} epochs in batches of {self.batch} cannot be trained")
        if not (0 < self.learning_rate < 1 and 0 <= self.warmup < 1):
            raise SettingsError(f"a learning rate of {self.learning_rate} with warm-up {self.warmup} makes no sense")

    def rate(self, step: int, steps: int) -> float:
        rising = (step + 1) / max(self.warmup * steps, 1)
        falling = (steps - step) / max((1 - self.warmup) * steps, 1)
        return self.learning_rate * min(1.0, rising, falling)


class Trainer:
    """`parameters` are changed in place. `generators` are those the loss draws from, by name."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        rows: Rows,
        loss: Loss,
        schedule: Schedule,
        seed: int,
        generators: Mapping[str, torch.Generator] | None = None,
    ) -> None:
        self.parameters, self.rows, self.schedule = dict(parameters), rows, schedule
        self._loss, self._seed, self.generators = loss, seed, dict(generators or {})
        self._device = rows.ids.device
        self._lengths = rows.lengths.cpu()
        self.steps_an_epoch = len(rows) // min(schedule.batch, len(rows))
        self.steps = schedule.epochs * self.steps_an_epoch
        self.step = 0
        self._sum, self._summed = torch.zeros((), device=self._device), 0
        on_gpu = self._device.type == "cuda"
        rate = torch.zeros((), device=self._device) if on_gpu else 0.0
        self._optimizer = torch.optim.AdamW(
            self.parameters.values(),
            lr=rate,
            weight_decay=schedule.weight_decay,
            fused=True if on_gpu else None,
            capturable=on_gpu,
        )
        self._graphed = Graphed(tuple(self.generators.values())) if on_gpu else None

    def run(self) -> Iterator[int]:
        """Train to the end, giving the number of steps done after each; gradients, which a record holds, are not left behind."""
        yield from self._steps()
        self._optimizer.zero_grad()

    def _steps(self) -> Iterator[int]:
        while self.step < self.steps:
            epoch, done = divmod(self.step, self.steps_an_epoch)
            batches = self._epoch(epoch)
            for places in batches[done:]:
                self._set_rate(self.schedule.rate(self.step, self.steps))
                self._update(places)
                self.step += 1
                self._summed += 1
                yield self.step

    def mean_loss(self) -> float:
        """Since the last time it was asked; waits for the device."""
        mean = float(self._sum) / max(self._summed, 1)
        self._sum.zero_()
        self._summed = 0
        if self.step and mean != mean:
            raise InputError("the loss is not a number any more: lower the learning rate")
        return mean

    def _epoch(self, epoch: int) -> list[Places]:
        longest = self.rows.ids.shape[1]
        batches = epoch_batches(self._lengths, self.schedule.batch, longest, self._seed, epoch)
        together = torch.stack([places.rows for places in batches]).to(self._device)
        return [Places(rows, places.length) for rows, places in zip(together, batches, strict=True)]

    def _set_rate(self, rate: float) -> None:
        for group in self._optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _update(self, places: Places) -> None:
        if self._graphed is None:
            self._plain_update(places)
        else:
            self._graphed(self._plain_update, places)

    def _plain_update(self, places: Places) -> None:
        self._optimizer.zero_grad()
        loss = self._loss(*self.rows.select(places))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.schedule.largest_gradient)
        self._optimizer.step()
        self._sum.add_(loss.detach())

    # -- everything the next step depends on -------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        found = {f"weight.{name}": tensor.detach() for name, tensor in self.parameters.items()}
        for name, tensor in self.parameters.items():
            for part, value in self._optimizer.state.get(tensor, {}).items():
                found[f"optimizer.{part}.{name}"] = value
        found |= {f"generator.{name}": generator.get_state() for name, generator in self.generators.items()}
        return {**found, "step": torch.tensor(self.step)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take up a state that `state` gave, of a trainer made in the same way."""
        self.step = int(state["step"])
        with torch.no_grad():
            for name, tensor in self.parameters.items():
                tensor.copy_(state[f"weight.{name}"])
                parts = {part: state.get(f"optimizer.{part}.{name}") for part in ("step", "exp_avg", "exp_avg_sq")}
                on_cpu = "step" if self._device.type != "cuda" else None
                self._optimizer.state[tensor] = {
                    part: value.to("cpu" if part == on_cpu else self._device)
                    for part, value in parts.items()
                    if value is not None
                }
        for name, generator in self.generators.items():
            generator.set_state(state[f"generator.{name}"].cpu())
