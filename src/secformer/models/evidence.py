"""What a result says of itself: how many rows of each text left the ranges the model was calibrated for.

Outside its range a value comes out wrong, and a secure run cannot look. So the servers count, in shares, and the client alone
gets the counts. A result without any is right within the stated error; one that has some is *marked*.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

ADVICE = (
    "this result may be wrong: ask the provider to calibrate with texts like this one (`secformer calibrate --add`), or "
    "shorten or split the text"
)


@dataclass(frozen=True, repr=False)
class RangeEvidence:
    """`counts` (texts, places): rows that left the range at each place, a pair such as ("layer 3", "scores")."""

    counts: Tensor
    places: tuple[tuple[str, str], ...]

    @property
    def marked(self) -> list[bool]:
        """By text: did anything leave its range?"""
        return (self.counts != 0).any(1).tolist()

    def together(self, rows: int) -> RangeEvidence:
        """Of questions of so many rows each."""
        return RangeEvidence(self.counts.unflatten(0, (-1, rows)).sum(1), self.places)

    def of(self, text: int) -> dict[str, int]:
        """What left its range, by place."""
        row = zip(self.places, self.counts[text].tolist(), strict=True)
        return {f"{layer}, {kind}": round(count) for (layer, kind), count in row if count}

    def describe(self, text: int) -> str:
        """A sentence for people; empty if the result is not marked."""
        found = self.of(text)
        if not found:
            return ""
        places = "; ".join(f"{place}: {count} rows" for place, count in found.items())
        return f"ranges were left ({places}): {ADVICE}"

    def __repr__(self) -> str:
        return f"RangeEvidence({len(self.counts)} texts, {sum(self.marked)} marked)"
