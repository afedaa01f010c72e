"""A query's public description, from which every party builds the same program.

What travels is small: the model's shape, the calibration record, the batch and the padded length. Nothing in it is code,
and each party derives widths, tables and tape from it by itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from secformer.engine.program import InputSpec, Outputs, Program
from secformer.engine.runtime import Runtime
from secformer.engine.values import Bits, Shared, Value
from secformer.errors import ModelError, SettingsError
from secformer.models import settings as s
from secformer.models.calibration import Calibration
from secformer.models.config import ModelConfig
from secformer.models.embedding import Embedding
from secformer.models.encoder import Encoder
from secformer.models.paper_job import PaperCard
from secformer.models.settings import EncoderSetting, encoder_setting


@dataclass(frozen=True)
class ModelCard:
    """What everybody may know of a model under our own suites: its shape and its calibration."""

    config: ModelConfig
    calibration: Calibration
    private_table: bool = True

    def __post_init__(self) -> None:
        if not self.calibration.fits(self.config):
            raise ModelError("the calibration was made for another model: calibrate this one")

    def to_json(self) -> str:
        # Without the digest of the weights: whoever holds a candidate could tell that it is the one.
        calibration = {**json.loads(self.calibration.to_json()), "digest": ""}
        content = {"config": asdict(self.config), "calibration": calibration, "private": self.private_table}
        return json.dumps(content, sort_keys=True, separators=(",", ":"))

    @staticmethod
    def from_data(data: Mapping) -> ModelCard:
        try:
            config = ModelConfig(**{**data["config"], "labels": tuple(data["config"]["labels"])})
            return ModelCard(config, Calibration.from_json(json.dumps(data["calibration"])), bool(data["private"]))
        except (KeyError, TypeError, ValueError) as error:
            raise SettingsError(f"this is no description of a model ({type(error).__name__})") from None

    def widths(self, tokens: int) -> EncoderSetting:
        return encoder_setting(self.calibration, self.config, tokens)

    @property
    def embedding(self) -> Embedding:
        return Encoder(self.config, self.widths(self.config.positions), 1, 1, self.private_table).embedding

    def static_specs(self) -> dict[str, InputSpec]:
        """The forms of all uploaded tensors, as `folding.fold` makes them: fixed by the card, not by a query's length."""
        specs = self.embedding.static_specs()
        for index, layer in enumerate(self.widths(self.config.positions).layers):
            for name, (shape, width, scale) in _layer_forms(self.config, layer).items():
                specs[f"{index}.{name}"] = InputSpec("masked", shape, width, scale)
        specs.update(_head_specs(self.config))
        return specs

    def query_program(self, batch: int, tokens: int) -> Program:
        """The program of one query."""
        encoder = Encoder(self.config, self.widths(tokens), batch, tokens, self.private_table)
        return encoder.program(self.static_specs(), self.to_json())


def _layer_forms(config: ModelConfig, layer: s.LayerSetting) -> dict[str, tuple[tuple[int, ...], int, int]]:
    """Shape, width and scale of every tensor of a layer."""
    hidden, inner = config.hidden, config.intermediate
    return {
        "qkv": ((hidden + 1, 3 * hidden), layer.hidden_width, s.WEIGHT_SCALE),
        "in.gain": ((hidden,), layer.hidden_width, s.WEIGHT_SCALE),
        "in.mean": ((hidden, 1), layer.hidden_width, s.MEAN_SCALE),
        "out": ((hidden + 1, hidden), layer.context_width, s.WEIGHT_SCALE),
        "up": ((hidden + 1, inner), layer.middle_width, s.WEIGHT_SCALE),
        "middle.gain": ((hidden,), layer.middle_width, s.WEIGHT_SCALE),
        "middle.mean": ((hidden, 1), layer.middle_width, s.MEAN_SCALE),
        "down": ((inner + 1, hidden), layer.activation_width, s.WEIGHT_SCALE),
    }


def _head_specs(config: ModelConfig) -> dict[str, InputSpec]:
    hidden, labels = config.hidden, len(config.labels)
    if config.head == "embedding":
        return {
            "final.gain": InputSpec("masked", (hidden,), 64, s.WEIGHT_SCALE),
            "final.bias": InputSpec("masked", (1, hidden), 64, s.WEIGHT_SCALE),
        }
    specs = {"classifier": InputSpec("masked", (hidden + 1, labels), 64, s.WEIGHT_SCALE)}
    if config.has_pooler:
        specs["pooler"] = InputSpec("masked", (hidden + 1, hidden), 64, s.WEIGHT_SCALE)
    return specs


Card = ModelCard | PaperCard


def card_from_json(text: str) -> Card:
    """Either kind of card, whatever party sent it."""
    try:
        data = json.loads(text)
    except ValueError:
        raise SettingsError("this is no description of a model (not JSON)") from None
    if not isinstance(data, dict):
        raise SettingsError("this is no description of a model (not an object)")
    return PaperCard.from_data(data["paper"]) if "paper" in data else ModelCard.from_data(data)


def check_query(config: ModelConfig, batch: int, tokens: int) -> None:
    if not 1 <= tokens <= config.positions:
        raise SettingsError(f"a query has 1 to {config.positions} tokens, not {tokens}")
    if batch < 1:
        raise SettingsError(f"a query has at least one text, not {batch}")


def upload_program(card: Card) -> Program:
    """Open every weight once under its static mask; the wires stay with the servers, the masks with T."""

    def body(runtime: Runtime, inputs: Mapping[str, Value]) -> Outputs:
        outputs: Outputs = {}
        with runtime.scope("upload"):
            for name in sorted(inputs):
                value = inputs[name]
                assert isinstance(value, Shared | Bits)
                outputs[name] = runtime.open(value)[0].as_static()
        return outputs

    forms = {"masked": "shared", "masked_bits": "bits"}
    inputs = {
        name: InputSpec(forms[spec.kind], spec.shape, spec.width, spec.scale)
        for name, spec in card.static_specs().items()
    }
    return Program("upload", body, inputs, card.to_json())
