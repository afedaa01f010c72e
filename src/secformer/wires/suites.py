"""`exact` and `fast`: our system behind the interface of models/system.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from secformer.errors import SettingsError
from secformer.models.config import QUAD_SHIFT, ModelConfig, Softmax
from secformer.models.plain import Functions, exact_functions
from secformer.models.statics import Source
from secformer.models.system import Calibration, System
from secformer.models.tokens import Batch
from secformer.models.weights import Weights
from secformer.wires.calibration import Layout, WiresCalibration, calibrate
from secformer.wires.card import WiresCard
from secformer.wires.presets import preset_constants, read_constants
from secformer.wires.ranges import RangeRecord


@dataclass(frozen=True)
class Wires(System):
    """GeLU and LayerNorm with one opening each; Softmax exact, or 2Quad."""

    softmax: Softmax

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
        assert earlier is None or isinstance(earlier, WiresCalibration)
        record = RangeRecord(weights.digest) if earlier is None else deepcopy(earlier.ranges)
        words = weights["word"].double()
        magnitude = float((words - words.mean(-1, keepdim=True)).abs().max())
        return calibrate(record.measure(weights, config, batches), config, magnitude)

    def read_calibration(self, data: Mapping[str, Any]) -> WiresCalibration:
        orders = (tuple(tuple(order) for order in data["layout"][part]) for part in ("heads", "neurons"))
        constants = read_constants(data["constants"])
        ranges = RangeRecord.from_data(data["ranges"])
        return WiresCalibration(str(data["digest"]), constants, Layout(*orders), int(data["longest"]), ranges)

    def card(self, config: ModelConfig, calibration: Calibration, private_table: bool = True) -> WiresCard:
        assert isinstance(calibration, WiresCalibration)
        return WiresCard(config, self.name, private_table, calibration.constants)

    def read_card(self, config: ModelConfig, constants: Any, private_table: bool) -> WiresCard:
        return WiresCard(config, self.name, private_table, read_constants(constants))

    def preset(self, config: ModelConfig) -> WiresCard:
        config = self.adapt(config)
        return WiresCard(config, self.name, True, preset_constants(config))

    def source(self, weights: Weights, calibration: Calibration) -> Source:
        assert isinstance(calibration, WiresCalibration)
        return Source(weights, calibration.layout)


EXACT = Wires("exact", "exact")
FAST = Wires("fast", "2quad")
