"""A query to one of the paper's suites as a service: private embedding as ours, then models/baseline.py."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch

from secformer.engine.program import InputSpec, Outputs, Program
from secformer.engine.runtime import Runtime
from secformer.engine.values import Masked, Value
from secformer.errors import SettingsError
from secformer.models.baseline import EMBEDDING_TABLES, Baseline
from secformer.models.config import ModelConfig
from secformer.models.embedding import Embedding
from secformer.models.folding import Static
from secformer.models.weights import Weights
from secformer.protocols.beaver import FRACTION_BITS, RING_BITS
from secformer.protocols.embedding import table_words
from secformer.protocols.multiply import unmask
from secformer.protocols.suites import suite_named
from secformer.ring.fixed_point import encode

WORD_BITS = FRACTION_BITS + 4
"""Entries of a word table are below 8."""


@dataclass(frozen=True)
class PaperCard:
    """What everybody may know of a model under a paper suite: its shape, and η where the suite deflates."""

    config: ModelConfig
    suite: str
    deflation: tuple[tuple[str, float], ...] = ()
    private_table: bool = True

    @property
    def embedding(self) -> Embedding:
        return Embedding(self.config, FRACTION_BITS, RING_BITS, WORD_BITS, self.private_table)

    def to_json(self) -> str:
        return json.dumps({"paper": asdict(self)}, sort_keys=True, separators=(",", ":"))

    @staticmethod
    def from_data(data: Mapping) -> PaperCard:
        try:
            config = {**data["config"], "labels": tuple(data["config"]["labels"])}
            deflation = tuple((str(name), float(eta)) for name, eta in data["deflation"])
            return PaperCard(ModelConfig(**config), str(data["suite"]), deflation, bool(data["private_table"]))
        except (KeyError, TypeError, ValueError) as error:
            raise SettingsError(f"this is no description of a model ({type(error).__name__})") from None

    def static_specs(self) -> dict[str, InputSpec]:
        """Every weight is stored as a wire; biases are read back as shares."""
        specs = self.embedding.static_specs()
        for name, spec in self.model(1, 1).weight_specs().items():
            specs[name] = InputSpec("masked", spec.shape, spec.width, spec.scale)
        return specs

    def model(self, batch: int, tokens: int) -> Baseline:
        return Baseline(self.config, suite_named(self.suite), batch, tokens, deflation=dict(self.deflation))

    def query_program(self, batch: int, tokens: int) -> Program:
        model = self.model(batch, tokens)

        def body(runtime: Runtime, inputs: Mapping[str, Value]) -> Outputs:
            with runtime.scope("embedding"), runtime.scope("embedding"):
                embedded, padding = self.embedding.read(runtime, inputs)
            weights = {
                name: as_baseline(runtime, model, name, wire) for name, wire in inputs.items() if _is_weight(name)
            }
            mask = padding.share.map(lambda tensor: tensor.squeeze(-1))
            outputs = model.body(runtime, {**weights, "embedding": embedded, "mask": mask})
            return {"result": outputs["result"]}

        specs = {**self.static_specs(), **self.embedding.query_specs(batch, tokens)}
        return Program(f"paper {self.suite}", body, specs, self.to_json())


def _is_weight(name: str) -> bool:
    return name not in ("mask", "types", "onehot", "words", "word", "position", "type")


def as_baseline(runtime: Runtime, model: Baseline, name: str, wire: Value) -> Value:
    assert isinstance(wire, Masked)
    return unmask(runtime, wire) if model.weight_specs()[name].kind == "shared" else wire


def fold_paper(weights: Weights, card: PaperCard) -> dict[str, Static]:
    """The weights as they are, at 16 fraction bits; the first token type is added to the positions."""

    def ring(real: torch.Tensor) -> Static:
        return Static(encode(real.double(), FRACTION_BITS), RING_BITS, FRACTION_BITS)

    position = weights.position.double()
    folded: dict[str, Static] = {}
    if card.private_table:
        words = encode(weights.word.double(), FRACTION_BITS, WORD_BITS)
        folded["word"] = Static(table_words(words, WORD_BITS), 64, boolean=True)
    if weights.token_type is not None:
        types = weights.token_type.double()
        position = position + types[0]
        if len(types) > 1:
            folded["type"] = ring((types[1] - types[0])[None])
    folded["position"] = ring(position)
    for name, tensor in weights.named():
        if name not in EMBEDDING_TABLES:
            folded[name] = ring(tensor)
    return folded
