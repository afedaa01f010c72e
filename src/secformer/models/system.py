"""The interface of a system of private inference: every suite stands behind it.

A *suite* (`exact`, `crypten`, …) is an instance of a system with its parameters. Everything particular to it is asked of
that instance; nobody else knows which system it is. A part that a new system forgets is an error when it is made.

    adapt        the model as the suite computes it: which Softmax, which activations it has
    functions    its approximations in the clear, for plain.forward: the reference of a secure result
    calibrate    the constants it needs, from batches like those to come
    card         what everybody may know of a model: with it each party builds the program
    fold         the weights as they are uploaded
    preset       a card for a shape without weights, to plan with
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from secformer.engine.form import Form
from secformer.engine.program import Program
from secformer.engine.sharing import Encoded
from secformer.models.config import ModelConfig
from secformer.models.embedding import Embedding
from secformer.models.evidence import RangeEvidence
from secformer.models.plain import Functions
from secformer.models.statics import Source, Static, fold, forms_of
from secformer.models.tokens import Batch
from secformer.models.weights import Weights

RESULT, EVIDENCE = "result", "evidence"
"""What a query gives the client."""


class Calibration(ABC):
    """A suite's constants for one model, as the provider keeps them: public ones, and what stays secret."""

    digest: str
    """Of the weights they were measured on."""
    longest: int | None
    """Tokens of the longest text measured, where the constants depend on it."""

    @abstractmethod
    def to_data(self) -> dict[str, Any]:
        """Everything, for the provider's own record: what was measured too, so that more texts can be added to it."""

    @abstractmethod
    def check(self, config: ModelConfig) -> None:
        """Raise CalibrationError unless this can be a calibration of such a model."""


@dataclass(frozen=True)
class Card(ABC):
    """What everybody may know of a model under a suite: its shape and its public constants."""

    config: ModelConfig
    suite: str
    private_table: bool

    @abstractmethod
    def constants(self) -> Any:
        """The public constants, as JSON has them."""

    @property
    @abstractmethod
    def embedding(self) -> Embedding: ...

    @abstractmethod
    def statics(self) -> Mapping[str, Static]:
        """The tensors of an upload: fixed by the card, not by a query's length."""

    @abstractmethod
    def query_program(self, batch: int, tokens: int, asked: int = 1) -> Program:
        """`asked` tokens of each text, where the model is a language model."""

    @abstractmethod
    def finish(self, batch: Batch, raw: Tensor) -> Tensor:
        """From what the servers return to what the model gives."""

    def places(self) -> tuple[tuple[str, str], ...]:
        """What the counts of the range evidence stand for, if the suite has any: (layer, kind)."""
        return ()

    def evidence(self, outputs: Mapping[str, Tensor]) -> RangeEvidence | None:
        """From a query's results, by name."""
        return RangeEvidence(outputs[EVIDENCE], self.places()) if self.places() else None

    def entropy(self) -> float | None:
        """Bits that the public constants may tell about the weights at the most, where the suite bounds them."""
        return None

    def static_forms(self) -> dict[str, Form]:
        return forms_of(self.statics())

    def fold(self, source: Source) -> dict[str, Encoded]:
        return fold(self.statics(), source)

    def to_json(self) -> str:
        """The same text for equal cards."""
        content = {
            "suite": self.suite,
            "config": asdict(self.config),
            "constants": self.constants(),
            "private_table": self.private_table,
        }
        return json.dumps(content, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True)
class System(ABC):
    name: str

    @property
    def measures_documents(self) -> bool:
        """Are a calibration's texts joined to long documents, too? For ranges that need not fit one length alone."""
        return False

    @abstractmethod
    def adapt(self, config: ModelConfig) -> ModelConfig:
        """The checkpoint's model as this suite computes it; SettingsError or ModelError where it cannot."""

    @abstractmethod
    def functions(self, config: ModelConfig, calibration: Calibration | None) -> Functions: ...

    @abstractmethod
    def calibrate(
        self, weights: Weights, config: ModelConfig, batches: Iterable[Batch], earlier: Calibration | None = None
    ) -> Calibration:
        """Constants from these batches, and from all that an `earlier` calibration of the same weights has seen. Weights
        may come in float32, and with the batches on a GPU; what is given back is on the CPU."""

    @abstractmethod
    def read_calibration(self, data: Mapping[str, Any]) -> Calibration:
        """The inverse of `Calibration.to_data`; KeyError, TypeError or ValueError for anything else."""

    @abstractmethod
    def card(self, config: ModelConfig, calibration: Calibration, private_table: bool = True) -> Card: ...

    @abstractmethod
    def read_card(self, config: ModelConfig, constants: Any, private_table: bool) -> Card:
        """A card from what `Card.to_json` wrote; KeyError, TypeError or ValueError for anything else."""

    @abstractmethod
    def preset(self, config: ModelConfig) -> Card: ...

    @abstractmethod
    def source(self, weights: Weights, calibration: Calibration) -> Source:
        """What `Card.fold` makes the uploaded tensors from."""
