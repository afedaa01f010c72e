"""The model provider: brings the weights once, in shares; they stay with the servers as wires."""

from __future__ import annotations

from collections.abc import Mapping

from secformer.engine.sharing import Encoded
from secformer.models.system import Card
from secformer.parties.caller import Caller, Progress, Result
from secformer.parties.messages import Job
from secformer.parties.planner import UPLOAD


class Provider(Caller):
    def upload(
        self, name: str, card: Card, folded: Mapping[str, Encoded], progress: Progress = lambda step: None
    ) -> Result:
        """Share the folded weights (`card.fold`) and leave them with the servers as the model `name`.

        Everybody may then query the model by this card, with a batch and length of their own, and by nothing else.
        """
        shares = {part: Encoded(encoded.form.as_share(), encoded.ring) for part, encoded in folded.items()}
        return self.run(Job(UPLOAD, {"card": card.to_json()}, stores=name), shares, progress)
