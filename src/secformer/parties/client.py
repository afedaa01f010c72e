"""The client: card, tokenizer and servers in, private predictions out. It needs no weights.

client = Client(network, settings, name="sentiment@3f2a9c41b0d7", card=card, tokenizer=tokenizer)
client.predict(["a private text"]).labels

A name with a version is answered by that version or not at all; with a bare name, `outcome.model` tells which one it was.
`parties/library.py` fetches card and tokenizer from the servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from secformer.models.batches import MEMORY
from secformer.models.query import private_query
from secformer.models.system import RESULT, Card
from secformer.models.tokens import Batch, Tokens, for_query, prepared
from secformer.parties.caller import Caller, Progress, Result
from secformer.parties.planner import query_job
from secformer.parties.prediction import Prediction, in_parts, prediction
from secformer.settings import Settings
from secformer.transport.network import Network


class Client(Caller):
    """Asks a model that servers elsewhere hold, without its weights. `parties.library.Library` fetches card and tokenizer.

    `words` is the word table, where the provider hands it out instead of keeping it secret.
    """

    def __init__(
        self, network: Network, settings: Settings, name: str, card: Card, tokenizer: Any, words: Tensor | None = None
    ) -> None:
        super().__init__(network, settings)
        self.name, self.card = name, card
        self._tokenizer, self._words = tokenizer, words

    def predict(
        self,
        texts: Iterable[Any],
        pairs: Iterable[Any] | None = None,
        progress: Progress = lambda step: None,
        *,
        prompt: str | None = None,
        truncate: bool = False,
        memory: int = MEMORY,
    ) -> Prediction:
        """What the model gives for these texts; nobody else learns it, or them. `prompt` names one of the model's own.

        All of them in one session, if a server can do with `memory` bytes for it; otherwise in several.
        """
        return self.predict_tokens(self.tokens(texts, pairs, prompt, truncate), memory=memory, progress=progress)

    def tokens(
        self,
        texts: Iterable[Any],
        pairs: Iterable[Any] | None = None,
        prompt: str | None = None,
        truncate: bool = False,
    ) -> list[Tokens]:
        """The texts as the model takes them; InputError for those it does not take."""
        return prepared(self._tokenizer, self.card.config, texts, pairs, prompt, truncate)

    def predict_tokens(
        self,
        rows: Sequence[Tokens],
        *,
        memory: int = MEMORY,
        alike: bool = False,
        progress: Progress = lambda step: None,
    ) -> Prediction:
        """`predict` for texts that are tokenised. With `alike` only texts of like length share a session: less padding,
        and the servers see the lengths of more of them."""
        return in_parts(rows, self.card.config, self.predict_batch, memory, alike, progress)

    def predict_batch(self, batch: Batch, progress: Progress = lambda step: None) -> Prediction:
        """One session for a whole batch."""
        query = for_query(batch, self.card.config)
        outcome = self.query(query, progress)
        result = self.card.finish(query, outcome.outputs[RESULT])
        evidence = self.card.evidence(outcome.outputs)
        return prediction(self.card.config, batch, result, outcome, evidence, tokenizer=self._tokenizer)

    def query(self, batch: Batch, progress: Progress) -> Result:
        """One session: shares of the batch in, the raw result out."""
        config, job = self.card.config, query_job(self.card.to_json(), self.name, *batch.shape)
        progress("agreeing on the plan")

        def step(name: str) -> None:
            progress(f"{name} of {config.layers}" if name.startswith("layer") else name)

        return self.run(job, private_query(self.card.embedding, batch, self._words), step)
