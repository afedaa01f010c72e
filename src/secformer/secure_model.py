"""`SecureModel`: a checkpoint folder in, private predictions out.

    model = SecureModel.from_pretrained("path/to/checkpoint", suite="exact")
    model.calibrate(texts)
    with model:
        model.predict(["a private text"], mode="secure")

The convenience that plays provider and client on one machine. Three modes, one model: `plain` is the suite's model in
float64, `simulate` the same fixed point as the servers use with every range checked, `secure` three servers, each a process
over TLS or (`servers="threads"`) a thread of this one. Weights are uploaded once, with the first secure query. A client
without weights uses `parties.client.Client`, with the card and tokenizer its provider gave it.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, Self

from torch import Tensor

from secformer.engine.sharing import Encoded
from secformer.engine.simulating import Simulating
from secformer.engine.tracing import Plan, trace
from secformer.engine.values import Disclosed, Shared
from secformer.errors import CalibrationError, InputError, TransportError
from secformer.models import plain, records
from secformer.models.config import ModelConfig
from secformer.models.huggingface import load_weights
from secformer.models.query import check_query, plain_query
from secformer.models.system import Calibration, Card, System
from secformer.models.tokens import Batch, check_texts, for_query, load_tokenizer, tokenise
from secformer.models.weights import Weights
from secformer.ring.fixed_point import decode
from secformer.roles import CLIENT, PROVIDER
from secformer.settings import Settings, load_settings
from secformer.systems import suite_named

if TYPE_CHECKING:
    from secformer.parties.client import Client
    from secformer.parties.prediction import Prediction

Mode = Literal["plain", "simulate", "secure"]
Servers = Literal["processes", "threads"]
CALIBRATION_BATCH = 8
LONG_TEXT = 1000
"""Characters from which a text is measured alone: its scores fill the memory."""


class SecureModel:
    """A checkpoint under a suite, with its own servers on this machine. Make one with `from_pretrained`."""

    def __init__(
        self, config: ModelConfig, weights: Weights, tokenizer: Any, system: System, settings: Settings
    ) -> None:
        self.config = config
        self.weights = weights
        self.system = system
        self.settings = settings
        self.private_table = True
        self.servers: Servers = "processes"
        self.tokenizer = tokenizer
        self._calibration: Calibration | None = None
        self._folded: dict[str, Encoded] | None = None
        self._service: _Service | None = None
        self._starting = Lock()

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        suite: str = "exact",
        *,
        calibration: str | Path | None = None,
        private_table: bool = True,
        servers: Servers = "processes",
        settings: Settings | None = None,
        uncalibrated: bool = False,
    ) -> Self:
        """Read config, weights and tokenizer. A calibration comes from `calibration`, or from the cache if it has one
        (`uncalibrated`: from neither, for whoever is about to make a new one)."""
        folder, system = Path(folder), suite_named(suite)
        config = system.adapt(ModelConfig.from_folder(folder))
        weights = load_weights(folder, config)
        model = cls(config, weights, load_tokenizer(folder, config), system, settings or load_settings())
        model.private_table, model.servers = private_table, servers
        path = Path(calibration) if calibration else model.calibration_path
        if not uncalibrated and (calibration or path.is_file()):
            model._calibration = records.load(path, weights, config, system)
        return model

    # -- calibration --------------------------------------------------------------------------------------------------

    @property
    def calibration_path(self) -> Path:
        return records.default_path(Path(self.settings.cache_folder), self.weights, self.config, self.system)

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
    ) -> Path:
        """Measure ranges on texts like those to come and choose the public constants; gives where they were kept.

        Never on a client's own texts: the constants are public. Texts longer than the model takes are cut. Servers that
        hold the weights as an earlier calibration folded them are stopped.
        """
        check_texts(texts, pairs)
        path = Path(out) if out else self.calibration_path
        self.close()
        self._folded = None
        batches = self._calibration_batches(texts, pairs, progress)
        self._calibration = self.system.calibrate(self.weights, self.config, batches)
        records.save(path, self._calibration, self.system)
        return path

    def _calibration_batches(
        self, texts: Sequence[str], pairs: Sequence[str] | None, progress: Callable[[int, int], None]
    ) -> Iterator[Batch]:
        """Like lengths together: little padding."""
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        done = 0
        while done < len(order):
            longest = len(texts[order[min(done + CALIBRATION_BATCH, len(order)) - 1]])
            part = order[done : done + (CALIBRATION_BATCH if longest < LONG_TEXT else 1)]
            yield self._batch([texts[i] for i in part], [pairs[i] for i in part] if pairs else None, cut=True)
            done += len(part)
            progress(done, len(order))

    def _need_calibration(self) -> Calibration:
        if self._calibration is None:
            raise CalibrationError("this model is not calibrated: call calibrate(texts) or run `secformer calibrate`")
        return self._calibration

    @property
    def card(self) -> Card:
        """What everybody may know of the model."""
        return self.system.card(self.config, self._need_calibration(), self.private_table)

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
        from secformer.parties.prediction import prediction

        batch = self._batch(texts, pairs)
        if mode == "plain":
            functions = self.system.functions(self.config, self._calibration)
            output = plain.forward(self.weights, self.config, batch, functions=functions)
            return prediction(self.config, batch, output.result)
        if mode not in ("simulate", "secure"):
            raise InputError(f"unknown mode {mode!r}: choose plain, simulate or secure")
        self._warn_of_length(batch)
        if mode == "simulate":
            return prediction(self.config, batch, self._simulate(for_query(batch, self.config)))
        with self._starting:  # several threads may ask first: one of them starts the servers
            if self._service is None:
                self._service = _Service(self, progress)
            service = self._service
        try:
            return service.client.predict_batch(batch, progress)
        except TransportError:
            self._give_up(service)
            raise

    def check(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> None:
        """Raise InputError for texts this model cannot take."""
        self._batch(texts, pairs)

    def plan(self, tokens: int, batch: int = 1) -> Plan:
        """What a query of this shape costs, without running it."""
        check_query(self.config, batch, tokens)
        return trace(self.card.query_program(batch, tokens))

    def folded(self) -> dict[str, Encoded]:
        """The weights as they are uploaded."""
        if self._folded is None:
            self._folded = self.card.fold(self.system.source(self.weights, self._need_calibration()))
        return self._folded

    def handed_out_words(self) -> Tensor | None:
        """The word table the client gets where the provider hands it out."""
        if self.private_table:
            return None
        return self.card.embedding.words(self.system.source(self.weights, self._need_calibration()))

    def _simulate(self, batch: Batch) -> Tensor:
        card = self.card
        inputs = {**self.folded(), **plain_query(card.embedding, batch, self.handed_out_words())}
        outputs = Simulating().run(
            card.query_program(*batch.ids.shape), {name: encoded.plain() for name, encoded in inputs.items()}
        )
        result = outputs["result"]
        assert isinstance(result, Disclosed) and isinstance(result.value, Shared)
        return card.finish(batch, decode(result.value.share, result.value.scale, result.width))

    def _warn_of_length(self, batch: Batch) -> None:
        """On this side only: a longer text than any calibrated one may leave the ranges, and a secure run cannot tell."""
        longest, calibrated = int(batch.lengths.max()), self._need_calibration().longest
        if calibrated is not None and longest > calibrated:
            warnings.warn(
                f"a text of {longest} tokens is longer than any this model was calibrated on ({calibrated}): "
                "calibrate with texts of such length",
                stacklevel=3,
            )

    def _batch(self, texts: Sequence[str], pairs: Sequence[str] | None, cut: bool = False) -> Batch:
        return tokenise(self.tokenizer, self.config, texts, pairs, cut=cut)

    # -- life ---------------------------------------------------------------------------------------------------------

    def _give_up(self, service: _Service) -> None:
        """A server may be gone: the next query starts them anew."""
        with self._starting:
            if self._service is service:
                self._service = None
        service.close()

    def close(self) -> None:
        """Stop the servers of this model, if any run."""
        with self._starting:
            service, self._service = self._service, None
        if service is not None:
            service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Service:
    """Three local servers with the model uploaded, and a client of theirs."""

    client: Client

    def __init__(self, model: SecureModel, progress: Callable[[str], None]) -> None:
        from secformer.parties.client import Client
        from secformer.parties.launch import in_memory, launch
        from secformer.parties.messages import ANYBODY
        from secformer.parties.provider import Provider

        card, folded = model.card, model.folded()  # an uncalibrated model is refused before anything starts
        progress("starting S0, S1 and T")
        with ExitStack() as stack:
            start = launch if model.servers == "processes" else in_memory
            threads = model.settings.threads or (1 if model.servers == "processes" else 0)
            servers = stack.enter_context(start(replace(model.settings, threads=threads)))
            name, settings = secrets.token_hex(8), servers.settings
            progress("uploading the weights, shared and masked")
            provider = Provider(servers.network(PROVIDER), settings)
            self.upload = provider.upload(name, card, folded, readers=[ANYBODY])
            words = model.handed_out_words()
            self.client = Client(servers.network(CLIENT), settings, name, card, model.tokenizer, words)
            self._stack = stack.pop_all()

    def close(self) -> None:
        self._stack.close()
