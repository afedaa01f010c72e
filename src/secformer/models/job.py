"""A query's public description, from which every party builds the same program.

What travels is small: the model's shape, the calibration record, the batch and the padded length. Nothing in it is code,
and each party derives widths, tables and tape from it by itself.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields

from secformer.engine.program import InputSpec, Outputs, Program
from secformer.engine.runtime import Runtime
from secformer.engine.values import Bits, Shared
from secformer.errors import ModelError, SettingsError
from secformer.models import settings as s
from secformer.models.calibration import Calibration
from secformer.models.config import ModelConfig
from secformer.models.encoder import Encoder
from secformer.models.settings import EncoderSetting, encoder_setting


@dataclass(frozen=True)
class ModelCard:
    """What everybody may know of a model: its shape and its calibration."""

    config: ModelConfig
    calibration: Calibration
    private_table: bool = True

    def __post_init__(self) -> None:
        if len(self.calibration.layers) != self.config.layers or self.calibration.softmax != self.config.softmax:
            raise ModelError("the calibration was made for another model: calibrate this one")

    def to_json(self) -> str:
        config = asdict(self.config)
        return json.dumps(
            {"config": config, "calibration": json.loads(self.calibration.to_json()), "private": self.private_table},
            sort_keys=True,
            separators=(",", ":"),
        )

    @staticmethod
    def from_json(text: str) -> ModelCard:
        try:
            data = json.loads(text)
            known = {field.name for field in fields(ModelConfig)}
            settings = {name: value for name, value in data["config"].items() if name in known}
            settings["labels"] = tuple(settings["labels"])
            config = ModelConfig(**settings)
            return ModelCard(config, Calibration.from_json(json.dumps(data["calibration"])), bool(data["private"]))
        except (KeyError, TypeError, ValueError) as error:
            raise SettingsError(f"this is no description of a model ({type(error).__name__})") from None


def widths_of(card: ModelCard, tokens: int) -> EncoderSetting:
    return encoder_setting(card.calibration, card.config, tokens)


def static_specs(card: ModelCard) -> dict[str, InputSpec]:
    """The forms of all uploaded tensors, as `folding.fold` makes them: fixed by the card, not by a query's length."""
    config, setting = card.config, widths_of(card, card.config.positions)
    hidden, inner = config.hidden, config.intermediate
    specs = Encoder(config, setting, 1, 1, card.private_table).embedding.static_specs()
    for index, layer in enumerate(setting.layers):
        shapes = {
            "qkv": ((hidden + 1, 3 * hidden), layer.hidden_width, s.WEIGHT_SCALE),
            "in.gain": ((hidden,), layer.hidden_width, s.WEIGHT_SCALE),
            "in.mean": ((hidden, 1), layer.hidden_width, s.MEAN_SCALE),
            "out": ((hidden + 1, hidden), layer.context_width, s.WEIGHT_SCALE),
            "up": ((hidden + 1, inner), layer.middle_width, s.WEIGHT_SCALE),
            "middle.gain": ((hidden,), layer.middle_width, s.WEIGHT_SCALE),
            "middle.mean": ((hidden, 1), layer.middle_width, s.MEAN_SCALE),
            "down": ((inner + 1, hidden), layer.activation_width, s.WEIGHT_SCALE),
        }
        for name, (shape, width, scale) in shapes.items():
            specs[f"{index}.{name}"] = InputSpec("masked", shape, width, scale)
    specs.update(_head_specs(config))
    return specs


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


def query_program(card: ModelCard, batch: int, tokens: int) -> Program:
    """The program of one query."""
    if not 1 <= tokens <= card.config.positions:
        raise SettingsError(f"a query has 1 to {card.config.positions} tokens, not {tokens}")
    if batch < 1:
        raise SettingsError(f"a query has at least one text, not {batch}")
    encoder = Encoder(card.config, widths_of(card, tokens), batch, tokens, card.private_table)
    return encoder.program(static_specs(card), card.to_json())


def upload_program(card: ModelCard) -> Program:
    """Open every weight once under its static mask; the wires stay with the servers, the masks with T."""

    def body(runtime: Runtime, inputs: dict) -> Outputs:
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
        for name, spec in static_specs(card).items()
    }
    return Program("upload", body, inputs, card.to_json())  # type: ignore[arg-type]
