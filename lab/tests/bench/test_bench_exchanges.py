"""Rounds between two processes, measured by the size of their frames."""

from secformer_lab.bench import exchanges
from secformer_lab.bench.measured import kind_of


def test_every_size_is_exchanged_as_often_as_said():
    row = exchanges.measure(3, sizes=(100, 300_000, 2_000_000), repetitions=4)
    assert kind_of(row) == "exchanges" and row["connections"] == 3
    assert list(row["milliseconds"]) == ["100", "300000", "2000000"]
    assert all(milliseconds > 0 for milliseconds in row["milliseconds"].values())
