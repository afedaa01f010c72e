"""The ledger: what a run costs, by scope ("layer 3/gelu"), counted from the tape.

Online bytes are the packed openings; one server sends them and receives as many. Dealer bytes are the corrections
that T sends to S1 (S0's halves come from a seed). An opening is charged to the scope in which it is opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from secformer.engine.form import Form


@dataclass
class Cost:
    """Rounds, bits opened each way, the same packed to bytes, and the dealer's bits and bytes. Of a server's own work, what does
    not grow with these: products of matrix entries, and words of secret tables that are combined."""

    rounds: int = 0
    opened_bits: int = 0
    opened_bytes: int = 0
    dealer_bits: int = 0
    dealer_bytes: int = 0
    products: int = 0
    combined_words: int = 0

    @property
    def online_bits(self) -> int:
        """Both directions."""
        return 2 * self.opened_bits

    @property
    def online_bytes(self) -> int:
        """Sent plus received by one server."""
        return 2 * self.opened_bytes

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def add_work(self, products: int, combined_words: int) -> None:
        self.products += products
        self.combined_words += combined_words

    def add_opening(self, form: Form) -> None:
        self.opened_bits += form.bits
        self.opened_bytes += form.packed_bytes

    def add_dealt(self, form: Form) -> None:
        self.dealer_bits += form.bits
        self.dealer_bytes += form.packed_bytes


@dataclass
class Ledger:
    """Costs by scope path."""

    scopes: dict[str, Cost] = field(default_factory=dict)

    def at(self, scope: str) -> Cost:
        return self.scopes.setdefault(scope, Cost())

    @property
    def total(self) -> Cost:
        return sum(self.scopes.values(), Cost())

    def grouped(self, part: int = -1) -> dict[str, Cost]:
        """Costs by one component of the scope path: -1 the operation, 0 the layer."""
        groups: dict[str, Cost] = {}
        for scope, cost in self:
            key = scope.split("/")[part] or "other"
            groups[key] = groups.get(key, Cost()) + cost
        return groups

    def __iter__(self) -> Iterator[tuple[str, Cost]]:
        return iter(self.scopes.items())
