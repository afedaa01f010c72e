"""The models a gateway offers: fetched from the servers, and kept up with them.

A bare name follows its newest version; name@version stays with that one. Every minute the servers are asked, so that a new
version, or servers that are gone, are noticed without a query. An `Offer` never changes: texts that were tokenised for one
version are answered by that version.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from threading import Event, Lock, Thread
from typing import NamedTuple

from secformer.errors import MissingModelError, SecFormerError
from secformer.gateway.answers import Answer, answers
from secformer.gateway.failures import RETRY, Failure, of_session
from secformer.models.tokens import Tokens, encode, length_class, pad
from secformer.parties.client import Client
from secformer.parties.library import Fetched, Library
from secformer.settings import Settings
from secformer.transport.network import Network

_log = logging.getLogger(__name__)

REFRESH = 60.0
"""Seconds between two looks at the servers; RETRY while something is wrong."""


class Offer:
    """One version of a model, ready to be asked."""

    def __init__(self, network: Network, settings: Settings, fetched: Fetched) -> None:
        self.name, self.config = fetched.name, fetched.card.config
        self._tokenizer, self._lock = fetched.tokenizer(), Lock()  # which fast tokenizers need: a call changes them
        self._client = Client(network, settings, fetched.name, fetched.card, self._tokenizer)
        self._limits = network.limits

    def encode(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, prompt: str | None = None, cut: bool = False
    ) -> list[Tokens]:
        """Token ids; a text that is too long is an error, unless it may be cut or the model's author cuts."""
        cut = cut or bool(self.config.max_tokens)
        with self._lock:
            return encode(self._tokenizer, self.config, texts, pairs, cut=cut, prompts=(prompt,))

    def padded(self, row: Tokens) -> int:
        """The length that servers see."""
        return length_class(len(row.ids), self.config.positions)

    def room(self, tokens: int) -> int:
        """Texts of this padded length that a query may hold."""
        by_scores = self._limits.job_scores // (tokens * tokens * self.config.heads)
        return max(1, min(self._limits.job_tokens // tokens, by_scores))

    def ask(self, rows: Sequence[Tokens]) -> list[Answer]:
        """One session."""
        batch = pad(rows, self.config)
        tokens = length_class(batch.ids.shape[1], self.config.positions)
        return answers(self._client.predict_batch(batch), batch.lengths.tolist(), tokens)


class Listed(NamedTuple):
    """A model as the operator named it, and what is known of it."""

    name: str
    offer: Offer | None
    trouble: Failure | None


class Offers:
    """`choose` gives the offer for a request; a thread keeps all of them up to date."""

    def __init__(self, names: Sequence[str], network: Network, settings: Settings) -> None:
        self._names, self._network, self._settings = tuple(dict.fromkeys(names)), network, settings
        self._library = Library(network, settings)
        self._offers: dict[str, Offer] = {}
        self._troubles: dict[str, Failure] = {}
        self._looked = Event()
        self._wake, self._stopping = Event(), Event()
        self._thread = Thread(target=self._keep, name="gateway-offers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()

    def listed(self) -> list[Listed]:
        return [Listed(name, self._offers.get(name), self._troubles.get(name)) for name in self._names]

    @property
    def healthy(self) -> bool:
        """Whether every model was there when the servers were asked last."""
        return all(one.offer is not None and one.trouble is None for one in self.listed())

    def wait(self, seconds: float) -> None:
        """Until the servers were asked for the first time."""
        self._looked.wait(seconds)

    def choose(self, wanted: str | None, heads: Sequence[str], purpose: str) -> Offer:
        """The model of that name, or else the first that serves this purpose."""
        if wanted is not None:
            offer = self._named(wanted)
            if offer.config.head not in heads:
                raise Failure(422, "input", f"{offer.name} is no model for {purpose}: its head is {offer.config.head}")
            return offer
        fitting = [one.offer for one in self.listed() if one.offer and one.offer.config.head in heads]
        if fitting:
            return fitting[0]
        missing = [one.name for one in self.listed() if one.offer is None]
        if missing:
            raise self._not_yet(missing[0])
        raise Failure(404, MissingModelError.code, f"no model for {purpose} is offered here")

    def _named(self, wanted: str) -> Offer:
        for one in self.listed():
            if one.offer is not None and wanted in (one.name, one.offer.name):
                return one.offer
            if wanted == one.name:
                raise self._not_yet(wanted)
        raise Failure(404, MissingModelError.code, f"no such model is offered here: choose {', '.join(self._names)}")

    def _not_yet(self, name: str) -> Failure:
        trouble = self._troubles.get(name)
        return trouble or Failure(503, "gateway.starting", f"{name} is still being fetched from the servers", RETRY)

    # Keeping up

    def failed(self, error: BaseException) -> None:
        """A session failed: look at the servers now, not in a minute."""
        if isinstance(error, SecFormerError):
            self._wake.set()

    def _keep(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            for name in self._names:
                self._look(name)
            self._looked.set()
            self._wake.wait(REFRESH if self.healthy else RETRY)
            self._stopping.wait(0.2)  # however many sessions fail, servers are not asked more often than this

    def _look(self, name: str) -> None:
        try:
            fetched = self._library.fetch(name)
            old = self._offers.get(name)
            if old is None or old.name != fetched.name:
                self._offers[name] = Offer(self._network, self._settings, fetched)
                _log.info("%s is offered", fetched.name)
        except SecFormerError as error:
            if self._stopping.is_set():
                return
            if name not in self._troubles:
                _log.warning("%s cannot be offered: [%s] %s", name, error.code, error)
            self._troubles[name] = of_session(error)
            return
        if self._troubles.pop(name, None):
            _log.info("%s is offered again", name)
