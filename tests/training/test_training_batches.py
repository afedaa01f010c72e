"""Batches: all rows once, like lengths together, the same order for the same seed."""

from __future__ import annotations

import torch

from secformer.training.batches import Places, Rows, epoch_batches, in_order, joined

LENGTHS = torch.randint(3, 60, (1000,), generator=torch.Generator().manual_seed(0))


def test_an_epoch_has_every_row_once_but_for_the_rest():
    batches = epoch_batches(LENGTHS, 32, 64, seed=1, epoch=0)
    rows = torch.cat([places.rows for places in batches])
    assert len(batches) == 31 and all(len(places.rows) == 32 for places in batches)
    assert len(rows.unique()) == len(rows) == 31 * 32


def test_little_is_padding_and_shapes_are_few():
    batches = epoch_batches(LENGTHS, 32, 64, seed=1, epoch=0)
    padded = sum(32 * places.length for places in batches)
    assert int(LENGTHS.sum()) / padded > 0.75  # in any order it would be about a half
    assert {places.length for places in batches} <= {16, 24, 32, 48, 64}
    assert all(int(LENGTHS[places.rows].max()) <= places.length for places in batches)


def test_the_order_is_a_function_of_seed_and_epoch():
    def order(seed, epoch):
        return torch.cat([places.rows for places in epoch_batches(LENGTHS, 32, 64, seed, epoch)]).tolist()

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1) and order(1, 0) != order(2, 0)


def test_fewer_rows_than_a_batch_are_one_batch():
    (places,) = epoch_batches(LENGTHS[:5], 32, 64, seed=1, epoch=0)
    assert sorted(places.rows.tolist()) == [0, 1, 2, 3, 4]


def test_a_batch_holds_the_tokens_of_its_rows():
    ids = torch.arange(12, dtype=torch.int32).reshape(3, 4)
    rows = Rows(ids, torch.zeros_like(ids), torch.tensor([4, 2, 3]), torch.tensor([0.0, 1.0, 2.0]))
    batch, targets = rows.select(Places(torch.tensor([2, 1]), 3))
    assert batch.ids.tolist() == [[8, 9, 10], [4, 5, 6]]
    assert batch.mask.tolist() == [[True, True, True], [True, True, False]]
    assert targets.tolist() == [2.0, 1.0]
    assert torch.cat([places.rows for places in in_order(rows.lengths, 2, 4)]).tolist() == [1, 2, 0]


def test_rows_of_several_tasks_one_after_the_other():
    def rows(longest, count):
        ids = torch.full((count, longest), longest, dtype=torch.int32)
        return Rows(ids, ids, torch.full((count,), longest), torch.full((count,), float(longest)))

    both = joined([rows(2, 3), rows(4, 1)])
    assert both.ids.tolist() == [[2, 2, 0, 0]] * 3 + [[4, 4, 4, 4]]
    assert both.lengths.tolist() == [2, 2, 2, 4] and both.targets.tolist() == [2.0, 2.0, 2.0, 4.0]
