"""What comes back for one text, with all that is known of it: result, range evidence, cost, and what each party saw.

Several texts, of one request or of many, may have shared a session: cost and views are the session's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from secformer.models.config import ModelConfig
from secformer.parties.caller import Result
from secformer.parties.prediction import Prediction
from secformer.roles import CLIENT, DEALER, PROVIDER, SERVER0, SERVER1


@dataclass(frozen=True)
class Shared:
    """The session that answered."""

    texts: int
    """Texts that shared it."""
    tokens: int
    """The padded length, which is public."""
    result: Result

    @property
    def model(self) -> str:
        return self.result.model

    def cost(self) -> dict[str, Any]:
        result = self.result
        return {
            "texts_in_session": self.texts,
            "rounds": result.rounds,
            "online_bytes": result.online_bytes,
            "dealer_bytes": result.dealer_bytes,
            "client_bytes": result.sent + result.received,
            "seconds": round(result.seconds, 4),
            "online_seconds": round(result.online_seconds, 4),
        }

    def views(self) -> dict[str, list[str]]:
        """What each party saw of this session, in words and counted bytes."""
        reports, shape = self.result.reports, f"{self.texts} × {self.tokens} tokens, padding included"
        public = [f"that this client asked {self.model}", f"the shape: {shape}"]
        between = reports[SERVER0].links[SERVER1]
        opened = f"{between.payload_received:,} bytes of masked values in {between.rounds} rounds, uniform to it"
        dealt = reports[DEALER].links[SERVER1].payload_sent
        share = "one share of the text, uniform by itself; its own share of the result, made anew"
        return {
            CLIENT: ["the text, the result and the range evidence"],
            SERVER0: [*public, share, opened],
            SERVER1: [*public, share, opened, f"{dealt:,} bytes of corrections from the dealer, uniform to it"],
            DEALER: [*public, f"nothing else: it sent {dealt:,} bytes, and received no byte that depends on the text"],
            PROVIDER: ["nothing"],
        }


@dataclass(frozen=True, repr=False)
class Answer:
    """`result` is a vector, logits, or for a token classifier logits by token."""

    result: Tensor
    label: Any
    """The winner of a classifier; None for vectors and numbers."""
    marked: bool
    evidence: dict[str, int] | None
    """Where ranges were left, and by how many rows; None where the suite does not count."""
    advice: str
    session: Shared

    def __repr__(self) -> str:
        return f"Answer({tuple(self.result.shape)}{', marked' if self.marked else ''})"


def answers(prediction: Prediction, lengths: Sequence[int], tokens: int) -> list[Answer]:
    """A session's prediction, text by text; rows of padding and of special tokens are left out of a token classifier's."""
    assert prediction.outcome is not None
    session, evidence = Shared(len(lengths), tokens, prediction.outcome), prediction.evidence
    found = []
    for place, (row, length, marked) in enumerate(zip(prediction.result, lengths, prediction.marked, strict=True)):
        tokens_of = prediction[place].tokens
        found.append(
            Answer(
                row[[token.index for token in tokens_of]] if tokens_of else row[:length] if row.ndim == 2 else row,
                prediction.labels[place] if prediction.labels else None,
                marked,
                evidence.of(place) if evidence else None,
                evidence.describe(place) if evidence else "",
                session,
            )
        )
    return found


def unit(vector: Tensor) -> Tensor:
    """The vector at length 1; one of zeros stays."""
    return vector / vector.norm().clamp_min(1e-12)


def scores(config: ModelConfig, logits: Tensor, raw: bool) -> list[tuple[str, float]]:
    """Labels with their scores, the highest first: probabilities, unless `raw`; a regression's number is given as it is."""
    if not raw and config.head == "classification":
        logits = torch.sigmoid(logits) if config.multi_label or len(logits) == 1 else torch.softmax(logits, -1)
    pairs = zip(config.labels, logits.tolist(), strict=True)
    return sorted(pairs, key=lambda pair: -pair[1])
