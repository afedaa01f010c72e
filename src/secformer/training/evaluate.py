"""`secformer eval`: a model's metric in the clear, by a suite's twin, in the servers' fixed point, and between real servers.

    plain      the model as its folder has it, in float32: what everything else is compared with
    twin       the suite's own approximations in float64 (of `exact` and `fast`: the model itself)
    simulate   the servers' fixed point on plain numbers, every range checked
    secure     three servers

A suite's constants are calibrated on training texts, never on those evaluated. A result is *flagged* when a value left its
calibrated range: there its number means nothing, and it counts as a wrong answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from secformer.errors import CalibrationError, InputError, RangeError, SettingsError
from secformer.models.batches import MEMORY
from secformer.models.tokens import load_tokenizer
from secformer.ring.devices import device_named
from secformer.secure_model import SecureModel, Servers
from secformer.settings import Settings, load_settings
from secformer.systems import suite_named
from secformer.training.batches import encode
from secformer.training.cards import read_card
from secformer.training.examples import Examples
from secformer.training.folders import Folder, check_task, read_folder
from secformer.training.metrics import METRICS
from secformer.training.scoring import results_on

Mode = Literal["plain", "twin", "simulate", "secure"]
CALIBRATION_TEXTS = 2000
"""Of train, from all over it. With 500, texts of dev left the ranges of some students under `fast`."""
BATCH: Mapping[str, int] = {"twin": 64, "simulate": 64, "secure": 8}
"""Texts that are asked about together, of like lengths: a long batch has little overhead, a short one little memory."""
BATCH_ON_GPU: Mapping[str, int] = {**BATCH, "simulate": 128}
"""There a simulated session takes a second whatever it holds."""
SHARE_OF_GPU = 16
"""Of its free memory a session may take one part in so many: several evaluations, and trainings, share a GPU."""


@dataclass(frozen=True)
class Evaluation:
    mode: str
    suite: str
    task: str
    data: str
    examples: int
    metric: str
    value: float
    agreeing: int | None
    """Labels that are the plain model's; of a score: None."""
    flagged: int
    largest_error: float
    """Of a result that is not flagged: how far it is from the plain model's."""
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, repr=False)
class Answers:
    results: Tensor  # (examples, outputs); a flagged row is without meaning
    flagged: Tensor  # (examples,) bool


Progress = Callable[[str, int, int], None]


def check_modes(names: Sequence[str]) -> list[str]:
    for name in names:
        if name not in get_args(Mode):
            raise SettingsError(f"unknown mode '{name}': choose {', '.join(get_args(Mode))}")
    return list(names)


def evaluate(
    folder: Path,
    examples: Examples,
    train: Examples | None,
    suite: str,
    modes: Sequence[str],
    *,
    data: str = "dev",
    limit: int | None = None,
    device: str | None = None,
    servers: Servers = "processes",
    progress: Progress = lambda mode, done, total: None,
    told: Callable[[Evaluation], None] = lambda row: None,
) -> list[Evaluation]:
    """A row for every mode, plain first; `told` hears of each as it is measured. `train` is what a suite is calibrated on (None:
    it must have been before). CalibrationError: the suite does not take this model."""
    model = read_folder(folder)
    check_task(model, examples.task)
    chosen = examples.chosen(range(min(limit or len(examples), len(examples))))
    names, settings = check_modes(modes), load_settings(device=device)
    suite_named(suite)
    device_named(settings.device)
    began = time.monotonic()
    longest, found = _longest(model), list[Evaluation]()
    reference = _reference(model, chosen, longest, settings.device)

    def measured(mode: str, suite: str, answers: Answers) -> None:
        found.append(_evaluation(mode, suite, chosen, answers, reference, data, time.monotonic() - began))
        told(found[-1])

    if "plain" in names:
        measured("plain", "", Answers(reference, torch.zeros(len(chosen), dtype=torch.bool)))
    others = [name for name in names if name != "plain"]
    if others:
        with _calibrated(secure_model(model, suite, servers, settings, longest), train, progress) as secure:
            for mode in others:
                began = time.monotonic()
                measured(mode, suite, _answers(secure, chosen, mode, progress))
    return found


def _longest(model: Folder) -> int:
    """Tokens at which a text is cut: where training cut them."""
    card, positions = read_card(model.path) or {}, model.network.config.positions
    return min(card.get("settings", {}).get("longest", positions), positions)


def _reference(model: Folder, examples: Examples, longest: int, device: str) -> Tensor:
    rows = encode(model.tokenizer, model.network.config, examples, longest)
    return results_on(model.network.to(device), rows.to(device))


def secure_model(
    model: Folder, suite: str, servers: Servers = "processes", settings: Settings | None = None, longest: int = 0
) -> SecureModel:
    """The folder under a suite, its texts cut at `longest` tokens (0: too long ones are refused).

    A quadratic activation is what suite mpcformer puts in GeLU's place, and nobody else.
    """
    network, system = model.network, suite_named(suite)
    if network.swaps.gelu == "quad" and suite != "mpcformer":
        raise SettingsError(f"'{model.path}' has a quadratic activation: only suite mpcformer computes it")
    config = replace(system.adapt(network.config), max_tokens=longest)
    weights = network.to("cpu", torch.float64).weights
    found = SecureModel(config, weights, load_tokenizer(model.path, config), system, settings or load_settings())
    found.servers = servers
    return found


def _calibrated(model: SecureModel, train: Examples | None, progress: Progress) -> SecureModel:
    suite = model.system.name
    if train is None:
        raise SettingsError(f"there are no training texts to calibrate suite {suite} on: give --data with a train part")
    some = train.chosen(spread(len(train), CALIBRATION_TEXTS))
    try:
        model.calibrate(some.texts, some.pairs, progress=lambda done, total: progress("calibrating", done, total))
    except ValueError as error:  # its approximations, or the model under them, leave all numbers
        if isinstance(error, InputError) and not isinstance(error, RangeError):
            raise
        raise CalibrationError(f"suite {suite} does not take this model: {error}") from error
    return model


def spread(count: int, most: int) -> list[int]:
    """At most so many places of `count`, evenly apart."""
    taken = min(count, most)
    return [place * count // taken for place in range(taken)]


def _answers(model: SecureModel, examples: Examples, mode: str, progress: Progress) -> Answers:
    """Batches of like lengths, each result put back into its place."""
    results = torch.zeros(len(examples), len(model.config.labels))
    flagged = torch.zeros(len(examples), dtype=torch.bool)
    order = sorted(range(len(examples)), key=lambda place: _length(examples, place))
    on_gpu = torch.device(model.settings.device).type == "cuda"
    batch = (BATCH_ON_GPU if on_gpu else BATCH)[mode]
    for start in range(0, len(order), batch):
        places = order[start : start + batch]
        for some, found, marks in _predict(model, examples, places, mode):
            results[some], flagged[some] = found, marks
        progress(mode, min(start + batch, len(order)), len(order))
    return Answers(results, flagged)


def session_memory(device: torch.device, mode: str) -> int:
    """Bytes that a session of this mode may take there."""
    if device.type != "cuda" or mode == "secure":
        return MEMORY
    free, _ = torch.cuda.mem_get_info(device)
    return max(MEMORY, free // SHARE_OF_GPU)


def _predict(
    model: SecureModel, examples: Examples, places: list[int], mode: str
) -> list[tuple[list[int], Tensor, Tensor]]:
    """Places, results, and which of them are flagged. A simulation that leaves a range is looked at in halves."""
    part = examples.chosen(places)
    try:
        memory = session_memory(torch.device(model.settings.device), mode)
        found = model.predict(part.texts, part.pairs, "plain" if mode == "twin" else mode, memory=memory)  # type: ignore[arg-type]
    except RangeError:
        if len(places) == 1:
            return [(places, torch.zeros(len(model.config.labels)), torch.ones(1, dtype=torch.bool))]
        middle = len(places) // 2
        return [row for half in (places[:middle], places[middle:]) for row in _predict(model, examples, half, mode)]
    results = found.result.float()
    return [(places, results, ~torch.isfinite(results).all(-1) | _marks(found, len(places)))]


def _marks(prediction: Any, count: int) -> Tensor:
    """Which results of a prediction come with evidence of a value out of range."""
    return torch.as_tensor(getattr(prediction, "marked", [False] * count))


def _length(examples: Examples, place: int) -> int:
    return len(examples.texts[place]) + (len(examples.pairs[place]) if examples.pairs is not None else 0)


def _evaluation(
    mode: str, suite: str, examples: Examples, answers: Answers, reference: Tensor, data: str, seconds: float
) -> Evaluation:
    task = examples.task
    targets = torch.tensor(examples.targets, dtype=torch.float32)
    labels = answers.results.argmax(-1)
    if task.score:
        results, agreeing = answers.results.masked_fill(answers.flagged[:, None], 0.0), None
    else:
        agreeing = int(((labels == reference.argmax(-1)) & ~answers.flagged).sum())
        results = answers.results.clone()
        results[answers.flagged] = _wrong(targets[answers.flagged], results.shape[-1])
    value = METRICS[task.metric](results, targets)
    assert math.isfinite(value)
    return Evaluation(
        mode=mode,
        suite=suite,
        task=task.name,
        data=data,
        examples=len(examples),
        metric=task.metric,
        value=value,
        agreeing=agreeing,
        flagged=int(answers.flagged.sum()),
        largest_error=_largest((answers.results - reference)[~answers.flagged]),
        seconds=round(seconds, 1),
    )


def _largest(differences: Tensor) -> float:
    return float(f"{float(differences.abs().max()):.2g}") if len(differences) else 0.0


def _wrong(targets: Tensor, outputs: int) -> Tensor:
    """Results that name another label than the right one."""
    return torch.nn.functional.one_hot((targets.long() + 1) % outputs, outputs).float()
