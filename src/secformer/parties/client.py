"""The client: card, tokenizer and servers in, private predictions out. It needs no weights.

client = Client(network, settings, name="sentiment@3f2a9c41b0d7", card=card, tokenizer=tokenizer)
client.predict(["a private text"]).labels

A name with a version is answered by that version or not at all; with a bare name, `outcome.model` tells which one it was.
`parties/library.py` fetches card and tokenizer from the servers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from secformer.models.query import private_query
from secformer.models.system import RESULT, Card
from secformer.models.tokens import Batch, for_query, tokenise
from secformer.parties.caller import Caller, Progress, Result
from secformer.parties.messages import Job
from secformer.parties.planner import QUERY
from secformer.parties.prediction import Prediction, prediction
from secformer.parties.store import card_digest
from secformer.settings import Settings
from secformer.transport.network import Network


class Client(Caller):
    """`words` is the word table, where the provider hands it out instead of keeping it secret."""

    def __init__(
        self, network: Network, settings: Settings, name: str, card: Card, tokenizer: Any, words: Tensor | None = None
    ) -> None:
        super().__init__(network, settings)
        self.name, self.card = name, card
        self._tokenizer, self._words = tokenizer, words

    def predict(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        progress: Progress = lambda step: None,
        *,
        prompt: str | None = None,
    ) -> Prediction:
        """What the model gives for these texts; nobody else learns it, or them. `prompt` names one of the model's own."""
        batch = tokenise(self._tokenizer, self.card.config, texts, pairs, prompt=prompt)
        return self.predict_batch(batch, progress)

    def predict_batch(self, batch: Batch, progress: Progress = lambda step: None) -> Prediction:
        """The same for texts that are tokenised already."""
        query = for_query(batch, self.card.config)
        outcome = self.query(query, progress)
        result = self.card.finish(query, outcome.outputs[RESULT])
        return prediction(self.card.config, batch, result, outcome, self.card.evidence(outcome.outputs))

    def query(self, batch: Batch, progress: Progress) -> Result:
        """One session: shares of the batch in, the raw result out."""
        config, (size, tokens) = self.card.config, batch.ids.shape
        job = Job(QUERY, {"card": card_digest(self.card.to_json()), "batch": size, "tokens": tokens}, uses=self.name)
        progress("agreeing on the plan")

        def step(name: str) -> None:
            progress(f"{name} of {config.layers}" if name.startswith("layer") else name)

        return self.run(job, private_query(self.card.embedding, batch, self._words), step)
