"""`exact` and `fast`: our system behind the interface of models/system.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch

from secformer.errors import SettingsError
from secformer.models.config import QUAD_SHIFT, ModelConfig, Softmax
from secformer.models.plain import Functions, exact_functions
from secformer.models.statics import Source
from secformer.models.system import Calibration, System
from secformer.models.tokens import Batch
from secformer.models.weights import Weights
from secformer.wires.calibration import WiresCalibration, calibrate
from secformer.wires.card import WiresCard
from secformer.wires.constants import Constants, Secrets
from secformer.wires.presets import preset_constants, read
from secformer.wires.ranges import RangeRecord, centre

CENTRED = 3
"""The longest batches, in which every kind of row is found, are those that scores are centred by."""


@dataclass(frozen=True)
class Wires(System):
    """GeLU and LayerNorm with one opening each; Softmax exact, or 2Quad."""

    softmax: Softmax

    @property
    def measures_documents(self) -> bool:
        """2Quad's row sums grow with the length: they are calibrated for texts of like lengths."""
        return self.softmax == "exact"

    def adapt(self, config: ModelConfig) -> ModelConfig:
        if config.softmax == self.softmax:
            return config
        if config.softmax == "2quad":
            raise SettingsError(f"this checkpoint was distilled for 2Quad, suite {self.name} has Softmax: use 'fast'")
        return replace(config, softmax="2quad", quad_shift=QUAD_SHIFT)

    def functions(self, config: ModelConfig, calibration: Calibration | None) -> Functions:
        return exact_functions(config)

    def calibrate(
        self, weights: Weights, config: ModelConfig, batches: Iterable[Batch], earlier: Calibration | None = None
    ) -> WiresCalibration:
        given = list(batches)
        if earlier is None:
            movable = not (
                config.rotary_base or config.distance_span
            )  # keys that turn, or meet distances, have no centre
            centred = config.softmax == "exact" and movable
            centres = centre(weights, config, given[-CENTRED:]) if centred else None
            record = RangeRecord(weights.digest, centres)
        else:
            assert isinstance(earlier, WiresCalibration)
            record = deepcopy(earlier.record)
        return calibrate(record.measure(weights, config, given), weights.to(torch.device("cpu")), config)

    def read_calibration(self, data: Mapping[str, Any]) -> WiresCalibration:
        constants, secrets = read(data["constants"], Constants), read(data["secrets"], Secrets)
        return WiresCalibration(str(data["digest"]), constants, secrets, RangeRecord.from_data(data["record"]))

    def card(self, config: ModelConfig, calibration: Calibration, private_table: bool = True) -> WiresCard:
        assert isinstance(calibration, WiresCalibration)
        return WiresCard(config, self.name, private_table, calibration.constants)

    def read_card(self, config: ModelConfig, constants: Any, private_table: bool) -> WiresCard:
        return WiresCard(config, self.name, private_table, read(constants, Constants))

    def preset(self, config: ModelConfig) -> WiresCard:
        config = self.adapt(config)
        return WiresCard(config, self.name, True, preset_constants(config))

    def source(self, weights: Weights, calibration: Calibration) -> Source:
        assert isinstance(calibration, WiresCalibration)
        return Source(weights, calibration.secrets, calibration.secrets.norm_factors[0])


EXACT = Wires("exact", "exact")
FAST = Wires("fast", "2quad")
