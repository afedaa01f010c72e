"""Where a calibration comes from: part of the provider's own record, never of the card that everybody sees."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from secformer.errors import InputError
from secformer.models.tokens import Tokens
from secformer.version import __version__

Origin = Literal["own", "sample"]
FEWEST_TEXTS = 32
"""Of the provider's own, for a calibration that can be relied on."""


@dataclass(frozen=True)
class Source:
    """Texts that were measured at one time: the provider's own, or the sample that comes with SecFormer."""

    origin: Origin
    texts: int
    tokens: int
    longest: int
    date: str
    version: str
    digest: str
    """Of the token ids, to notice texts that are added a second time."""

    def __str__(self) -> str:
        kind = "of your own" if self.origin == "own" else "of the built-in sample"
        return f"{_counted(self.texts)} {kind}, {self.tokens:,} tokens, the longest {self.longest} ({self.date}, {self.version})"


def _counted(texts: int) -> str:
    return f"{texts} text{'' if texts == 1 else 's'}"


def source_of(origin: Origin, rows: Sequence[Tokens]) -> Source:
    lengths = [len(row.ids) for row in rows]
    today = datetime.now(UTC).date().isoformat()
    return Source(origin, len(rows), sum(lengths), max(lengths), today, __version__, _digest(rows))


def _digest(rows: Iterable[Tokens]) -> str:
    state = hashlib.sha256()
    for row in rows:
        state.update(f"{row.ids} {row.types}\n".encode())
        if row.patches is not None:
            state.update(row.patches.numpy().tobytes())
    return state.hexdigest()


@dataclass(frozen=True)
class Provenance:
    """Every source of a calibration, in the order in which they were added."""

    sources: tuple[Source, ...] = ()

    @property
    def texts(self) -> int:
        return sum(source.texts for source in self.sources)

    @property
    def weakness(self) -> str | None:
        """What whoever uses such a calibration must know; None if it was made of enough texts of the provider's own."""
        own = sum(source.texts for source in self.sources if source.origin == "own")
        if own >= FEWEST_TEXTS:
            return None
        parts = [f"{_counted(own)} of your own"] if own else []
        parts += ["the built-in sample"] if own < self.texts else []
        return (
            f"this model is calibrated on {' and '.join(parts)} only: other texts may leave its ranges. Calibrate on texts "
            "like those to come: `secformer calibrate FOLDER --data FILE`"
        )

    def check_number(self, few: bool) -> None:
        """Raise InputError for too few texts, unless few are meant."""
        if self.texts < FEWEST_TEXTS and not few:
            raise InputError(
                f"{_counted(self.texts)} will not do to calibrate on, {FEWEST_TEXTS} like those to come are the least: "
                "give more, or none for the built-in sample; --few (few=True) takes them all the same, for a test"
            )

    def and_also(self, source: Source) -> Provenance:
        """Another source. The same texts twice would only make margins narrower, which follow from their number."""
        if any(source.digest == other.digest for other in self.sources):
            raise InputError("these texts are part of the calibration already: add others")
        return Provenance((*self.sources, source))

    def to_data(self) -> list[dict[str, Any]]:
        return [asdict(source) for source in self.sources]

    @classmethod
    def from_data(cls, data: Sequence[Mapping[str, Any]]) -> Provenance:
        """The inverse; KeyError, TypeError or ValueError for anything else."""
        sources = tuple(Source(**source) for source in data)
        if not sources or any(source.origin not in get_args(Origin) for source in sources):
            raise ValueError("a record without its sources")
        return cls(sources)
