"""What everybody may know of a model under our suites, from which every party builds the same program."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from secformer.engine.program import Program
from secformer.models.embedding import Embedding, embedding_of
from secformer.models.statics import Static
from secformer.models.system import EVIDENCE, RESULT, Card
from secformer.models.tokens import Batch
from secformer.wires import widths as w
from secformer.wires.constants import Constants
from secformer.wires.encoder import Encoder
from secformer.wires.statics import encoder_statics
from secformer.wires.widths import EncoderSetting, encoder_setting


@dataclass(frozen=True)
class WiresCard(Card):
    public: Constants

    def __post_init__(self) -> None:
        self.public.check(self.config)

    def constants(self) -> Any:
        return asdict(self.public)

    def entropy(self) -> float:
        return self.public.entropy(self.config)

    def widths(self, tokens: int) -> EncoderSetting:
        return encoder_setting(self.public, self.config, tokens)

    @property
    def embedding(self) -> Embedding:
        setting = self.widths(self.config.positions)
        sizes = (w.EMBEDDING_SCALE, setting.embedding_width, setting.word_bits)
        return embedding_of(self.config, *sizes, self.private_table, centred=True)

    def statics(self) -> dict[str, Static]:
        return _statics(self)

    def encoder(self, tokens: int) -> Encoder:
        return Encoder(self.config, self.widths(tokens), self.embedding, self.public.pooler)

    def places(self) -> tuple[tuple[str, str], ...]:
        return self.encoder(self.config.positions).places

    def query_program(self, batch: int, tokens: int, asked: int = 1) -> Program:
        forms = {**self.static_forms(), **self.embedding.query_forms(batch, tokens, asked)}
        results = {RESULT: w.RESULT_SCALE, EVIDENCE: 0}
        return Program("encoder", self.encoder(tokens).body, forms, results, self.to_json())

    def finish(self, batch: Batch, raw: Tensor) -> Tensor:
        """A sentence's sum to its mean, and its norm if asked for."""
        if self.config.head != "embedding":
            return raw
        whole = self.config.pooling == "cls" or self.config.dense_activation
        pooled = raw if whole else raw / batch.lengths[:, None].to(raw.dtype)
        return torch.nn.functional.normalize(pooled, dim=-1) if self.config.normalise else pooled


@lru_cache(maxsize=16)
def _statics(card: WiresCard) -> dict[str, Static]:
    return encoder_statics(card.config, card.widths(card.config.positions), card.embedding)
