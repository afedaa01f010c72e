"""`SecureModel`: a checkpoint folder in, private predictions out.

    model = SecureModel.from_pretrained("path/to/checkpoint", suite="exact")
    model.calibrate(texts)
    with model:
        model.predict(["a private text"], mode="secure")

Three modes, one model: `plain` is the float64 model, `simulate` the same fixed point as the servers use with every range
checked, `secure` three server processes on this machine over TLS (for servers elsewhere see parties/). Weights are
uploaded once, with the first secure query.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor

from secformer.engine.ledger import Cost
from secformer.engine.program import Program
from secformer.engine.simulating import Simulating
from secformer.engine.tracing import Plan, trace
from secformer.engine.values import Masked, MaskedBits, Shared
from secformer.errors import CalibrationError, InputError, SettingsError
from secformer.models import calibration_store, plain
from secformer.models.calibration import Calibration, Layout, calibrate
from secformer.models.config import ModelConfig
from secformer.models.folding import Static, centred_words, fold
from secformer.models.huggingface import load_weights
from secformer.models.job import ModelCard, query_program, widths_of
from secformer.models.query import finish, plain_query, share_query
from secformer.models.ranges import RangeRecord
from secformer.models.tokens import Batch, load_tokenizer, tokenise
from secformer.models.weights import Weights
from secformer.ring.fixed_point import decode
from secformer.settings import Settings, load_settings

Mode = Literal["plain", "simulate", "secure"]
WIRE_SUITES = {"exact": "exact", "fast": "2quad"}
DEFAULT_SHIFT = 5.0
CALIBRATION_BATCH = 8


@dataclass(frozen=True, repr=False)
class Prediction:
    """`result` is what the model gives: vectors or logits. `labels` names the winners of a classifier."""

    result: Tensor
    labels: list[Any] | None
    declared: Cost | None = None
    counted: Any = None
    """parties.client.Result of a secure run: what every party measured at its sockets."""

    def __repr__(self) -> str:
        return f"Prediction(shape={tuple(self.result.shape)})"


class SecureModel:
    """See the module's text. Make one with `from_pretrained`."""

    def __init__(self, folder: Path, config: ModelConfig, weights: Weights, tokenizer: Any, suite: str, settings: Settings):
        self.folder = folder
        self.config = config
        self.weights = weights
        self.tokenizer = tokenizer
        self.suite = suite
        self.settings = settings
        self.private_table = True
        self._calibration: tuple[Calibration, Layout] | None = None
        self._folded: dict[str, Static] | None = None
        self._service: _Service | None = None

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        suite: str = "exact",
        *,
        calibration: str | Path | None = None,
        private_table: bool = True,
        settings: Settings | None = None,
    ) -> Self:
        """Read config, weights and tokenizer. A calibration comes from `calibration`, or from the cache if it has one."""
        if suite not in WIRE_SUITES:
            raise SettingsError(f"unknown suite {suite!r}: choose one of {', '.join(WIRE_SUITES)}")
        folder = Path(folder)
        config = _for_suite(ModelConfig.from_folder(folder), suite)
        weights = load_weights(folder, config)
        model = cls(folder, config, weights, load_tokenizer(folder, config), suite, settings or load_settings())
        model.private_table = private_table
        path = Path(calibration) if calibration else model.calibration_path
        if calibration or path.is_file():
            model._calibration = calibration_store.load(path, weights, config)
        return model

    # -- calibration --------------------------------------------------------------------------------------------------

    @property
    def calibration_path(self) -> Path:
        return calibration_store.default_path(Path(self.settings.cache_folder), self.weights, self.config)

    @property
    def calibrated(self) -> bool:
        return self._calibration is not None

    def calibrate(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        out: str | Path | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Calibration:
        """Measure ranges on texts like those to come and choose the public constants. Not on a client's own texts."""
        if not texts:
            raise InputError("calibration needs at least one text")
        record = RangeRecord.empty(self.weights, self.config)
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))  # like lengths together: little padding
        done = 0
        while done < len(order):
            longest = len(texts[order[min(done + CALIBRATION_BATCH, len(order)) - 1]])
            part = order[done : done + (CALIBRATION_BATCH if longest < 1000 else 1)]
            batch = self._batch([texts[i] for i in part], [pairs[i] for i in part] if pairs else None)
            record.measure(self.weights, self.config, [batch])
            done += len(part)
            progress(done, len(order))
        words = float(centred_words(self.weights).abs().max())
        self._calibration = calibrate(record, self.config, words)
        self._folded = None
        calibration_store.save(Path(out) if out else self.calibration_path, *self._calibration)
        return self._calibration[0]

    @property
    def card(self) -> ModelCard:
        """What everybody may know of the model."""
        if self._calibration is None:
            raise CalibrationError("this model is not calibrated: call calibrate(texts) or run `secformer calibrate`")
        return ModelCard(self.config, self._calibration[0], self.private_table)

    # -- prediction ---------------------------------------------------------------------------------------------------

    def predict(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        mode: Mode = "secure",
        *,
        progress: Callable[[str], None] = lambda step: None,
    ) -> Prediction:
        batch = self._batch(texts, pairs)
        if mode == "plain":
            return self._prediction(batch, plain.forward(self.weights, self.config, batch).result)
        if mode == "simulate":
            return self._simulate(batch)
        if mode == "secure":
            return self._secure(batch, progress)
        raise InputError(f"unknown mode {mode!r}: choose plain, simulate or secure")

    def plan(self, tokens: int, batch: int = 1) -> Plan:
        """What a query of this shape costs, without running it."""
        return trace(query_program(self.card, batch, tokens))

    def program(self, batch: Batch) -> Program:
        return query_program(self.card, *batch.ids.shape)

    def folded(self) -> dict[str, Static]:
        """The weights as they are uploaded."""
        if self._folded is None:
            card = self.card
            assert self._calibration is not None
            folded = fold(self.weights, self.config, widths_of(card, self.config.positions), self._calibration[1])
            if not self.private_table:
                del folded["word"]
            self._folded = folded
        return self._folded

    def _words(self) -> Tensor | None:
        """The table the client gets where the provider hands it out."""
        return None if self.private_table else centred_words(self.weights)

    def _simulate(self, batch: Batch) -> Prediction:
        inputs = {name: _plain_wire(static) for name, static in self.folded().items()}
        program = self.program(batch)
        outputs = Simulating().run(program, {**inputs, **plain_query(self.card, batch, self._words())})
        result = outputs["result"]
        assert isinstance(result, Shared)
        raw = decode(result.share, result.scale, result.width)
        return self._prediction(batch, finish(self.config, batch, raw))

    def _secure(self, batch: Batch, progress: Callable[[str], None]) -> Prediction:
        if self._service is None:
            self._service = _Service(self, progress)
        outcome = self._service.query(batch, progress)
        raw = finish(self.config, batch, outcome.outputs["result"])
        return replace(self._prediction(batch, raw), declared=outcome.declared, counted=outcome)

    def _prediction(self, batch: Batch, result: Tensor) -> Prediction:
        if self.config.head == "classification" and not self.config.multi_label:
            return Prediction(result, [self.config.labels[index] for index in result.argmax(-1).tolist()])
        if self.config.head == "tokens":
            rows = zip(result.argmax(-1).tolist(), batch.lengths.tolist(), strict=True)
            return Prediction(result, [[self.config.labels[index] for index in row[:count]] for row, count in rows])
        return Prediction(result, None)

    def _batch(self, texts: Sequence[str], pairs: Sequence[str] | None) -> Batch:
        return tokenise(self.tokenizer, self.config, texts, pairs)

    # -- life ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop the server processes of this model, if any run."""
        if self._service is not None:
            self._service.close()
            self._service = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Service:
    """Three local server processes with the model uploaded."""

    def __init__(self, model: SecureModel, progress: Callable[[str], None]) -> None:
        from secformer.parties.client import Client
        from secformer.parties.launch import launch
        from secformer.parties.provider import Provider, Weight

        progress("starting S0, S1 and T")
        self._servers = launch(replace(model.settings, threads=model.settings.threads or 1)).__enter__()
        try:
            self._model = model
            self._name = secrets.token_hex(8)
            progress("uploading the weights, shared and masked")
            weights = {
                name: Weight(static.ring, static.scale, static.width, "bits" if static.boolean else "shared")
                for name, static in model.folded().items()
            }
            self.upload = Provider(self._servers.settings).upload(self._name, weights)
            self._client = Client(self._servers.settings)
        except BaseException:
            self.close()
            raise

    def query(self, batch: Batch, progress: Callable[[str], None]) -> Any:
        from secformer.parties.messages import Job

        card = self._model.card
        shape = {"batch": batch.ids.shape[0], "tokens": batch.ids.shape[1]}
        query = share_query(card, batch, self._model._words())
        inputs: dict[str, Any] = dict(query.shares)
        if query.keys is not None:
            inputs["onehot"] = query.keys
        progress("computing")
        return self._client.run(Job("encoder", {"card": card.to_json(), **shape}, uses=self._name), inputs)

    def close(self) -> None:
        self._servers.__exit__(None, None, None)


def _for_suite(config: ModelConfig, suite: str) -> ModelConfig:
    softmax = WIRE_SUITES[suite]
    if config.softmax == softmax:
        return config
    if suite == "exact":
        raise SettingsError("this checkpoint was distilled for 2Quad: use suite 'fast'")
    return replace(config, softmax=softmax, quad_shift=DEFAULT_SHIFT)


def _plain_wire(static: Static) -> Masked | MaskedBits:
    absent = torch.empty(static.ring.shape, dtype=torch.int64, device="meta")
    if static.boolean:
        return MaskedBits(static.ring, absent, static.width).as_static()
    return Masked(static.ring, absent, static.width, static.scale).as_static()
