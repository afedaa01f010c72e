"""Every case of `secformer-lab paper functions` on real shares: its row, its error, its figures."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from secformer.errors import SettingsError
from secformer_lab.paper.figures import FIGURES, draw
from secformer_lab.paper.function_cases import function_cases
from secformer_lab.paper.functions import FunctionRow, compare, measure, measure_functions

LIMITS = {  # largest error allowed, relative for inverse_sqrt and division
    "gelu": {"puma": 2.1e-2, "secformer": 2.1e-2, "crypten": 6e-3, "mpcformer": 1e-4, "exact": 6e-4},
    "inverse_sqrt": {"exact": 6e-4},
    "division": {"crypten": 0.1, "secformer": 3e-3, "exact": 6e-4},
    "softmax": {"exact": 5e-4},
    "2quad": {"mpcformer": 2e-4, "secformer": 3e-4, "fast": 1e-4},
    "2relu": {"mpcformer": 5e-4},
    "layernorm": {"exact": 4e-3},
}


@pytest.mark.parametrize("case", function_cases(), ids=lambda case: f"{case.function} {case.suite}")
def test_case(case):
    row = measure(case, 128 if case.row == 1 else 256)
    assert row.max_error <= LIMITS.get(case.function, {}).get(case.suite, 1e-2)
    assert 0 <= row.mean_error <= row.max_error
    assert row.rounds > 0 and row.online_bytes > 0 and row.seconds > 0


def test_json_keys():
    (row,) = measure_functions([128], only=["2relu"])
    keys = "function suite elements seconds rounds online_bytes dealer_bytes mean_error max_error"
    assert list(asdict(row)) == keys.split()


def test_our_rows_meet_their_promises():
    rows = {(row.function, row.suite): row for row in measure_functions([256], only=["gelu", "2quad"])}
    ours = rows["gelu", "exact"]
    assert ours.rounds == 1 and ours.online_bytes * 8 / ours.elements <= 50
    assert ours.online_bytes < rows["gelu", "secformer"].online_bytes / 100
    assert rows["2quad", "fast"].rounds == 3


def fake(function: str, suite: str, elements: int, seconds: float, sent: int) -> FunctionRow:
    return FunctionRow(function, suite, elements, seconds, 3, sent, 5, 0.0, 0.0)


def test_comparison_at_the_largest_size():
    rows = [fake("gelu", "puma", 10, 9.0, 9), fake("gelu", "puma", 20, 8.0, 160)]
    rows += [fake("gelu", "secformer", 20, 4.0, 100), fake("gelu", "exact", 20, 1.0, 1)]
    (line,) = compare(rows)
    assert (line.title, line.claimed_time, line.time, line.traffic) == ("GeLU, PUMA", "1.6", 2.0, 1.6)
    assert (line.ours_time, line.ours_traffic) == (4.0, 100.0)


def test_figures(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [
        fake(function, suite, size, size * 1e-6, size)
        for _, pairs in FIGURES.values()
        for function, suite in pairs
        for size in (128, 256)
    ]
    files = draw(rows, tmp_path / "figures")
    assert [file.name for file in files] == [f"{name}.png" for name in FIGURES]
    assert all(file.stat().st_size > 5000 for file in files)


@pytest.mark.parametrize(
    ("sizes", "only", "words"), [([100], ["gelu"], "multiples of a row"), ([128], ["erf"], "no function 'erf'")]
)
def test_refusals(sizes, only, words):
    with pytest.raises(SettingsError, match=words):
        measure_functions(sizes, only=only)
