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
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import torch
from torch import Tensor

from secformer.engine.sharing import Encoded
from secformer.engine.simulating import Simulating
from secformer.engine.tracing import Plan, trace
from secformer.engine.values import Disclosed, Masked, MaskedBits, Shared, Value
from secformer.errors import CalibrationError, InputError, TransportError
from secformer.models import plain, records
from secformer.models.batches import (
    MEMORY,
    MOST_TOKENS,
    MOST_TOKENS_ON_GPU,
    batched,
    calibration_tokens,
    documents,
    watched,
)
from secformer.models.config import ModelConfig
from secformer.models.config_json import load_config
from secformer.models.huggingface import load_weights
from secformer.models.provenance import Origin, Provenance, source_of
from secformer.models.query import check_query, plain_query
from secformer.models.sample_texts import sample
from secformer.models.system import RESULT, Calibration, Card, System
from secformer.models.tokens import Batch, Tokens, check_texts, for_query, listed, load_tokenizer, pad, prepared
from secformer.models.weights import Weights
from secformer.ring.devices import device_named
from secformer.ring.fixed_point import decode
from secformer.roles import CLIENT, PROVIDER
from secformer.settings import Settings, load_settings
from secformer.systems import suite_for

if TYPE_CHECKING:
    from secformer.parties.client import Client
    from secformer.parties.prediction import Prediction

Mode = Literal["plain", "simulate", "secure"]
Servers = Literal["processes", "threads"]
DIGEST_DIGITS = 12
MEASURED_IN = torch.float32
"""Ranges are measured in this precision: 1e-5 of a range, where the narrowest margin is a quarter of it."""


class SecureModel:
    """A checkpoint under a suite, with its own servers on this machine. Make one with `from_pretrained`.

        with SecureModel.from_pretrained("checkpoint") as model:
            model.calibrate(texts)  # once: the record is kept in the cache folder
            model.predict(["a private text"])[0].label

    Servers start with the first secure query and stop with `close`, or at the end of the block. Several threads may ask at once:
    they share the servers. One that is lost ends its query with a `TransportError`, and the next query starts new ones.
    """

    def __init__(
        self, config: ModelConfig, weights: Weights, tokenizer: Any, system: System, settings: Settings
    ) -> None:
        self.config = config
        self.weights = weights
        self.system = system
        self.settings = settings
        self.name = weights.digest[:DIGEST_DIGITS]
        """What its answers say they come from: the folder's name, and the beginning of the weights' hash."""
        self.private_table = True
        self.servers: Servers = "processes"
        self.tokenizer = tokenizer
        self._device = device_named(settings.device)
        self._placed: Weights | None = None
        self._record: records.Record | None = None
        self._folded: dict[str, Encoded] | None = None
        self._simulated: tuple[dict[str, Encoded], dict[str, Value]] | None = None
        self._service: _Service | None = None
        self._starting = Lock()
        self._making = RLock()

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        suite: str | None = None,
        *,
        calibration: str | Path | None = None,
        private_table: bool = True,
        servers: Servers = "processes",
        settings: Settings | None = None,
        uncalibrated: bool = False,
    ) -> Self:
        """Read config, weights and tokenizer. Without a suite it is `exact`, or `fast` for a model distilled for 2Quad. A
        calibration comes from `calibration`, or from the cache if it has one (`uncalibrated`: from neither, for whoever is about
        to make a new one)."""
        folder, read = Path(folder), load_config(folder)
        system = suite_for(read, suite)
        config = system.adapt(read)
        weights = load_weights(folder, config)
        model = cls(config, weights, load_tokenizer(folder, config), system, settings or load_settings())
        model.private_table, model.servers = private_table, servers
        model.name = f"{folder.resolve().name}@{model.name}"
        path = Path(calibration) if calibration else model.calibration_path
        if not uncalibrated and (calibration or path.is_file()):
            model._record = records.load(path, weights, config, system)
        return model

    def __repr__(self) -> str:
        calibrated = "calibrated" if self.calibrated else "not calibrated"
        return f"SecureModel({self.name}, {self.config.head}, suite {self.system.name}, {calibrated})"

    # -- calibration --------------------------------------------------------------------------------------------------

    @property
    def calibration_path(self) -> Path:
        return records.default_path(Path(self.settings.cache_folder), self.weights, self.config, self.system)

    @property
    def calibrated(self) -> bool:
        return self._record is not None

    @property
    def provenance(self) -> Provenance:
        """Where the calibration comes from. For the provider: no card has it."""
        return self._need_record().provenance

    def calibrate(
        self,
        texts: Iterable[Any] | None = None,
        pairs: Iterable[Any] | None = None,
        *,
        add: bool = False,
        few: bool = False,
        out: str | Path | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Path:
        """Measure ranges on texts like those to come and choose the public constants; gives where they were kept.

        Never on a client's own texts: the constants are public. Without texts the built-in sample serves for a first try.
        Fewer than 32 are refused unless `few` insists. With `add` they widen the calibration this model has. Texts longer
        than the model takes are cut. Servers that hold the weights as an earlier calibration folded them are stopped.
        """
        origin: Origin = "sample" if texts is None else "own"
        if texts is None and self.config.image_size:
            raise InputError("the built-in sample has no images: calibrate with some like those to come")
        texts = sample(long=self.config.softmax == "exact") if texts is None else listed(texts)
        pairs = None if pairs is None else listed(pairs)
        if not self.config.image_size:
            check_texts(texts, pairs)
        earlier = self._need_record() if add else None
        rows = calibration_tokens(self.tokenizer, self.config, texts, pairs)
        provenance = (earlier.provenance if earlier else Provenance()).and_also(source_of(origin, rows))
        provenance.check_number(few)
        path = Path(out) if out else self.calibration_path
        measured = self._measure(rows, earlier.calibration if earlier else None, progress)
        self.close()
        self._folded, self._simulated, self._record = None, None, records.Record(measured, provenance)
        records.save(path, self._record, self.system)
        return path

    def _measure(
        self, rows: Sequence[Tokens], earlier: Calibration | None, progress: Callable[[int, int], None]
    ) -> Calibration:
        joined = self.system.measures_documents and not self.config.image_size
        measured = [*rows, *documents(rows, self.config)] if joined else rows
        most = MOST_TOKENS_ON_GPU if self._device.type == "cuda" else MOST_TOKENS
        batches = watched(batched(measured, self.config, most), len(measured), progress)
        there = (batch.to(self._device) for batch in batches)
        return self.system.calibrate(self.weights.to(MEASURED_IN).to(self._device), self.config, there, earlier)

    def _need_record(self) -> records.Record:
        if self._record is None:
            raise CalibrationError("this model is not calibrated: call calibrate(texts) or run `secformer calibrate`")
        return self._record

    def _need_calibration(self) -> Calibration:
        return self._need_record().calibration

    @property
    def card(self) -> Card:
        """What everybody may know of the model."""
        return self.system.card(self.config, self._need_calibration(), self.private_table)

    # -- prediction ---------------------------------------------------------------------------------------------------

    def predict(
        self,
        texts: Iterable[Any],
        pairs: Iterable[Any] | None = None,
        mode: Mode = "secure",
        *,
        prompt: str | None = None,
        truncate: bool = False,
        memory: int = MEMORY,
        strict: bool = False,
        progress: Callable[[str], None] = lambda step: None,
    ) -> Prediction:
        """What the model gives for these texts, behind the model's own `prompt` of that name (its default for None, none
        for ""). Rows of a token classifier that belong to padding are zero.

        All of them in one session, if a server can do with `memory` bytes for it; otherwise in several. Too long a text is
        refused, or cut with `truncate`. A secure or simulated result says of itself whether ranges were left (`marked`);
        with `strict` a simulation raises.
        """
        rows = self.tokens(texts, pairs, prompt=prompt, truncate=truncate)
        return self.predict_tokens(rows, mode, memory=memory, strict=strict, progress=progress)

    def tokens(
        self,
        texts: Iterable[Any],
        pairs: Iterable[Any] | None = None,
        *,
        prompt: str | None = None,
        truncate: bool = False,
    ) -> list[Tokens]:
        """The texts as the model takes them; InputError for those it does not take."""
        return prepared(self.tokenizer, self.config, texts, pairs, prompt, truncate)

    def predict_tokens(
        self,
        rows: Sequence[Tokens],
        mode: Mode = "secure",
        *,
        memory: int = MEMORY,
        alike: bool = False,
        strict: bool = False,
        progress: Callable[[str], None] = lambda step: None,
    ) -> Prediction:
        """`predict` for texts that are tokenised. With `alike` only texts of like length share a session: less padding,
        and the servers see the lengths of more of them."""
        from secformer.parties.prediction import in_parts

        if mode not in get_args(Mode):
            raise InputError(f"unknown mode {mode!r}: choose plain, simulate or secure")
        return in_parts(rows, self.config, partial(self._predict_batch, mode, strict), memory, alike, progress)

    def _predict_batch(self, mode: Mode, strict: bool, batch: Batch, progress: Callable[[str], None]) -> Prediction:
        from secformer.parties.prediction import prediction

        if mode == "plain":
            return prediction(self.config, batch, self._plain(batch), tokenizer=self.tokenizer)
        if mode == "simulate":
            return self._simulate(batch, strict)
        with self._starting:  # several threads may ask first: one of them starts the servers
            if self._service is None:
                self._service = _Service(self, progress)
            service = self._service
        try:
            return service.client.predict_batch(batch, progress)
        except TransportError:
            self._give_up(service)
            raise

    def plan(self, tokens: int, batch: int = 1) -> Plan:
        """What a query of this shape costs, without running it."""
        check_query(self.config, batch, tokens)
        return trace(self.card.query_program(batch, tokens))

    def folded(self) -> dict[str, Encoded]:
        """The weights as they are uploaded."""
        with self._making:  # by one thread, for all
            if self._folded is None:
                self._folded = self.card.fold(self.system.source(self.weights, self._need_calibration()))
            return self._folded

    def _plain(self, batch: Batch) -> Tensor:
        if self._placed is None:
            self._placed = self.weights.to(self._device)
        functions = self.system.functions(self.config, self._record.calibration if self._record else None)
        return plain.forward(self._placed, self.config, batch.to(self._device), functions=functions).result.cpu()

    def _plain_weights(self) -> dict[str, Value]:
        """The weights as the simulation takes them, with what it derives from them."""
        with self._making:
            folded = self.folded()
            if self._simulated is None or self._simulated[0] is not folded:
                plain_wires = {name: encoded.plain(self._device) for name, encoded in folded.items()}
                kept: dict[str, Value] = {
                    name: wire.as_static() if isinstance(wire, Masked | MaskedBits) else wire
                    for name, wire in plain_wires.items()
                }
                self._simulated = (folded, kept)
            return self._simulated[1]

    def handed_out_words(self) -> Tensor | None:
        """The word table the client gets where the provider hands it out."""
        if self.private_table:
            return None
        return self.card.embedding.words(self.system.source(self.weights, self._need_calibration()))

    def _simulate(self, batch: Batch, strict: bool) -> Prediction:
        """What the servers would give, on plain numbers."""
        from secformer.parties.prediction import prediction

        card, query, simulating = self.card, for_query(batch, self.config), Simulating(self._device, strict)
        asked = plain_query(card.embedding, query, self.handed_out_words())
        inputs = {**self._plain_weights(), **{name: encoded.plain(self._device) for name, encoded in asked.items()}}
        outputs = simulating.run(card.query_program(*query.shape), inputs)
        found = {name: _decoded(value) for name, value in outputs.items()}
        result, evidence = card.finish(query, found[RESULT]), card.evidence(found)
        found = dict(evidence=evidence, departures=simulating.departures, tokenizer=self.tokenizer)
        return prediction(self.config, batch, result, **found)  # type: ignore[arg-type]

    def _batch(self, texts: Sequence[Any], pairs: Sequence[Any] | None = None, prompt: str | None = None) -> Batch:
        return pad(self.tokens(texts, pairs, prompt=prompt), self.config)

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


def _decoded(output: Any) -> Tensor:
    assert isinstance(output, Disclosed) and isinstance(output.value, Shared)
    return decode(output.value.share, output.value.scale, output.width).cpu()


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
            servers = stack.enter_context(start(replace(model.settings, threads=threads, suites=model.system.name)))
            name, settings = secrets.token_hex(8), servers.settings
            progress("uploading the weights, shared and masked")
            provider = Provider(servers.network(PROVIDER), settings)
            self.upload = provider.upload(name, card, folded, readers=[ANYBODY])
            words = model.handed_out_words()
            self.client = Client(servers.network(CLIENT), settings, name, card, model.tokenizer, words)
            self._stack = stack.pop_all()

    def close(self) -> None:
        self._stack.close()
