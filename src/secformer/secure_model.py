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
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor

from secformer.engine.ledger import Cost
from secformer.engine.simulating import Simulating
from secformer.engine.tracing import Plan, trace
from secformer.engine.values import Masked, MaskedBits, Shared
from secformer.errors import CalibrationError, InputError, SettingsError
from secformer.models import calibration_store, twins
from secformer.models.calibration import Calibration, Layout, calibrate
from secformer.models.config import ModelConfig
from secformer.models.folding import Static, centred_words, fold
from secformer.models.huggingface import load_weights
from secformer.models.job import Card, ModelCard, check_query
from secformer.models.paper_job import PaperCard, fold_paper
from secformer.models.query import finish, plain_query, share_query
from secformer.models.ranges import RangeRecord
from secformer.models.tokens import Batch, check_texts, for_query, load_tokenizer, tokenise
from secformer.models.weights import Weights
from secformer.protocols.suites import Suite, suite_named
from secformer.ring.fixed_point import decode
from secformer.settings import Settings, load_settings

Mode = Literal["plain", "simulate", "secure"]
CALIBRATION_BATCH = 8
LONG_TEXT = 1000
"""Characters from which a text is measured alone: its scores fill the memory."""


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

    def __init__(self, config: ModelConfig, weights: Weights, tokenizer: Any, suite: Suite, settings: Settings) -> None:
        self.config = config
        self.weights = weights
        self.suite = suite
        self.settings = settings
        self.private_table = True
        self._tokenizer = tokenizer
        self._calibration: tuple[Calibration, Layout] | None = None
        self._deflation: dict[str, float] | None = None
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
        uncalibrated: bool = False,
    ) -> Self:
        """Read config, weights and tokenizer. A calibration comes from `calibration`, or from the cache if it has one
        (`uncalibrated`: from neither, for whoever is about to make a new one)."""
        folder, chosen = Path(folder), suite_named(suite)
        config = _for_suite(ModelConfig.from_folder(folder), chosen)
        weights = load_weights(folder, config)
        model = cls(config, weights, load_tokenizer(folder, config), chosen, settings or load_settings())
        model.private_table = private_table
        path = Path(calibration) if calibration else model.calibration_path
        if not uncalibrated and (calibration or path.is_file()):
            model._load_calibration(path)
        return model

    # -- calibration --------------------------------------------------------------------------------------------------

    @property
    def calibration_path(self) -> Path:
        folder = Path(self.settings.cache_folder)
        return calibration_store.default_path(folder, self.weights, self.config, self.suite.name)

    @property
    def calibrated(self) -> bool:
        return self._calibration is not None or self._deflation is not None

    def _load_calibration(self, path: Path) -> None:
        if self.suite.ours:
            self._calibration = calibration_store.load(path, self.weights, self.config)
        else:
            self._deflation = calibration_store.load_deflation(path, self.weights)

    def calibrate(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        out: str | Path | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Path:
        """Measure ranges on texts like those to come and choose the public constants; gives where they were kept.

        Never on a client's own texts: the constants are public. Texts longer than the model takes are cut. Servers that
        hold the weights as an earlier calibration folded them are stopped.
        """
        check_texts(texts, pairs)
        path = Path(out) if out else self.calibration_path
        self.close()
        self._folded = None
        if self.suite.ours:
            record = self._measure(texts, pairs, progress)
            self._calibration = calibrate(record, self.config, float(centred_words(self.weights).abs().max()))
            calibration_store.save(path, *self._calibration)
        else:
            chosen = _spread(texts, CALIBRATION_BATCH)
            batch = self._batch([texts[i] for i in chosen], [pairs[i] for i in chosen] if pairs else None, cut=True)
            self._deflation = twins.measure_deflation(self.weights, self.config, batch, self.suite)
            calibration_store.save_deflation(path, self.weights, self._deflation)
        return path

    def _measure(
        self, texts: Sequence[str], pairs: Sequence[str] | None, progress: Callable[[int, int], None]
    ) -> RangeRecord:
        record = RangeRecord.empty(self.weights, self.config)
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))  # like lengths together: little padding
        done = 0
        while done < len(order):
            longest = len(texts[order[min(done + CALIBRATION_BATCH, len(order)) - 1]])
            part = order[done : done + (CALIBRATION_BATCH if longest < LONG_TEXT else 1)]
            batch = self._batch([texts[i] for i in part], [pairs[i] for i in part] if pairs else None, cut=True)
            record.measure(self.weights, self.config, [batch])
            done += len(part)
            progress(done, len(order))
        return record

    @property
    def card(self) -> Card:
        """What everybody may know of the model."""
        if self.suite.ours and self._calibration is not None:
            return ModelCard(self.config, self._calibration[0], self.private_table)
        if not self.suite.ours and self._deflation is not None:
            deflation = tuple(sorted(self._deflation.items()))
            return PaperCard(self.config, self.suite.name, deflation, self.private_table)
        raise CalibrationError("this model is not calibrated: call calibrate(texts) or run `secformer calibrate`")

    # -- prediction ---------------------------------------------------------------------------------------------------

    def predict(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        mode: Mode = "secure",
        *,
        progress: Callable[[str], None] = lambda step: None,
    ) -> Prediction:
        """What the model gives for these texts. Rows of a token classifier that belong to padding are zero."""
        batch = self._batch(texts, pairs)
        if mode == "plain":
            return self._prediction(batch, self._plain(batch))
        self._warn_of_length(batch)
        query = for_query(batch, self.config)
        if mode == "simulate":
            return self._prediction(batch, self._simulate(query))
        if mode == "secure":
            if self._service is None:
                self._service = _Service(self, progress)
            outcome = self._service.query(query, progress)
            prediction = self._prediction(batch, finish(self.card, query, outcome.outputs["result"]))
            return replace(prediction, declared=outcome.declared, counted=outcome)
        raise InputError(f"unknown mode {mode!r}: choose plain, simulate or secure")

    def check(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> None:
        """Raise InputError for texts this model cannot take."""
        self._batch(texts, pairs)

    def plan(self, tokens: int, batch: int = 1) -> Plan:
        """What a query of this shape costs, without running it."""
        check_query(self.config, batch, tokens)
        return trace(self.card.query_program(batch, tokens))

    def folded(self) -> dict[str, Static]:
        """The weights as they are uploaded."""
        if self._folded is None:
            card = self.card
            if isinstance(card, PaperCard):
                self._folded = fold_paper(self.weights, card)
            else:
                assert self._calibration is not None
                self._folded = fold(self.weights, self.config, card.widths(self.config.positions), self._calibration[1])
                if not self.private_table:
                    del self._folded["word"]
        return self._folded

    def handed_out_words(self) -> Tensor | None:
        """The word table the client gets where the provider hands it out."""
        if self.private_table:
            return None
        return centred_words(self.weights) if self.suite.ours else self.weights.word.double()

    def _plain(self, batch: Batch) -> Tensor:
        """The suite's own model in float64: its twin."""
        return twins.forward(self.weights, self.config, batch, self.suite, self._deflation).result

    def _simulate(self, batch: Batch) -> Tensor:
        card = self.card
        static = {name: _plain_wire(part) for name, part in self.folded().items()}
        query = plain_query(card, batch, self.handed_out_words())
        result = Simulating().run(card.query_program(*batch.ids.shape), {**static, **query})["result"]
        assert isinstance(result, Shared)
        return finish(card, batch, decode(result.share, result.scale, result.width))

    def _warn_of_length(self, batch: Batch) -> None:
        """On this side only: a longer text than any calibrated one may leave the ranges, and a secure run cannot tell."""
        if self._calibration is None:
            return
        longest, calibrated = int(batch.lengths.max()), self._calibration[0].longest
        if longest > calibrated:
            warnings.warn(
                f"a text of {longest} tokens is longer than any this model was calibrated on ({calibrated}): "
                "calibrate with texts of such length",
                stacklevel=3,
            )

    def _prediction(self, batch: Batch, result: Tensor) -> Prediction:
        if self.config.head == "classification" and not self.config.multi_label:
            return Prediction(result, [self.config.labels[index] for index in result.argmax(-1).tolist()])
        if self.config.head == "tokens":
            result = result[:, : batch.ids.shape[1]].masked_fill(~batch.mask[..., None], 0.0)
            rows = zip(result.argmax(-1).tolist(), batch.lengths.tolist(), strict=True)
            return Prediction(result, [[self.config.labels[index] for index in row[:count]] for row, count in rows])
        return Prediction(result, None)

    def _batch(self, texts: Sequence[str], pairs: Sequence[str] | None, cut: bool = False) -> Batch:
        return tokenise(self._tokenizer, self.config, texts, pairs, cut=cut)

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

        folded = model.folded()  # an uncalibrated model is refused before anything starts
        progress("starting S0, S1 and T")
        self._servers = launch(replace(model.settings, threads=model.settings.threads or 1)).__enter__()
        try:
            self._model = model
            self._name = secrets.token_hex(8)
            progress("uploading the weights, shared and masked")
            weights = {
                name: Weight(static.ring, static.scale, static.width, "bits" if static.boolean else "shared")
                for name, static in folded.items()
            }
            serves = {"encoder": {"card": model.card.to_json()}}
            self.upload = Provider(self._servers.settings).upload(self._name, weights, serves)
            self._client = Client(self._servers.settings)
        except BaseException:
            self.close()
            raise

    def query(self, batch: Batch, progress: Callable[[str], None]) -> Any:
        from secformer.parties.messages import Job

        card = self._model.card
        shape = {"batch": batch.ids.shape[0], "tokens": batch.ids.shape[1]}
        query = share_query(card, batch, self._model.handed_out_words())
        inputs: dict[str, Any] = dict(query.shares)
        if query.keys is not None:
            inputs["onehot"] = query.keys
        progress("agreeing on the plan")
        job = Job("encoder", {"card": card.to_json(), **shape}, uses=self._name)
        layers = self._model.config.layers
        return self._client.run(job, inputs, lambda step: progress(f"{step} of {layers}" if "layer" in step else step))

    def close(self) -> None:
        self._servers.__exit__(None, None, None)


def _for_suite(config: ModelConfig, suite: Suite) -> ModelConfig:
    """The checkpoint's config with the Softmax the suite computes. A distilled student brings 2Quad and its c."""
    if suite.softmax_kind == config.softmax:
        return config
    if config.softmax == "2quad":
        raise SettingsError(f"this checkpoint was distilled for 2Quad, suite {suite.name} has Softmax: use 'fast'")
    if not suite.ours:
        return config  # the paper's suites replace Softmax themselves
    return replace(config, softmax="2quad", quad_shift=suite.shift)


def _spread(texts: Sequence[str], count: int) -> list[int]:
    """Up to `count` of the texts, from the shortest to the longest."""
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    last, steps = len(order) - 1, max(count - 1, 1)
    return order if len(order) <= count else [order[place * last // steps] for place in range(count)]


def _plain_wire(static: Static) -> Masked | MaskedBits:
    absent = torch.empty(static.ring.shape, dtype=torch.int64, device="meta")
    if static.boolean:
        return MaskedBits(static.ring, absent, static.width).as_static()
    return Masked(static.ring, absent, static.width, static.scale).as_static()
