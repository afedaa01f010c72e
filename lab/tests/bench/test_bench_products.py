"""Ring products against float64 limbs: rows for the documents, and none without the same bits."""

from __future__ import annotations

import pytest
import torch

from secformer.errors import KernelError
from secformer.ring.kernels import float64
from secformer_lab.bench import measured, products, roofline

CPU = torch.device("cpu")
CEILINGS = {"int8_operations_a_second": 2e15}


@pytest.mark.parametrize("shape, batch", [((3, 40, 5), 1), ((2, 3, 40, 5), 2)])
def test_a_row_says_what_both_took(shape, batch):
    row = products.measure(shape, 35, CPU)
    assert (row["batch"], row["rows"], row["inner"], row["columns"], row["width"]) == (batch, 3, 40, 5, 35)
    assert row["int8_ms"] > 0 and row["float64_ms"] > 0


def test_products_that_differ_are_not_measured(monkeypatch):
    wrong = lambda *arguments: float64.matmul(*arguments) + 1  # noqa: E731
    monkeypatch.setattr(products, "step", lambda name, device: wrong)
    with pytest.raises(KernelError, match="different products"):
        products.measure((3, 40, 5), 64, CPU)


def test_a_row_takes_the_place_of_an_older_one_and_is_rendered():
    old = {"rows": 512, "inner": 768, "columns": 3072, "width": 64, "float64_ms": 0.4, "int8_ms": 0.2}
    heads = {**old, "batch": 12, "rows": 512, "inner": 64, "columns": 512}
    data = {"products": [old, heads]}
    measured.add(data, [{**old, "batch": 1, "int8_ms": 0.05}])
    assert [each["int8_ms"] for each in data["products"]] == [0.2, 0.05]
    lines = roofline.products(data["products"], CEILINGS).splitlines()
    assert lines[2].startswith("| 12 of 512 × 64 × 512 | 64 | 36 / ") and " | 2.0 | " in lines[2]
    assert lines[3].startswith("| 512 × 768 × 3072 | 64 | 36 / 6 | 0.05 | 0.4 | 8.0 | 1739 | 87% |  |")
