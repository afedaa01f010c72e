"""Rounding up to shares: nobody gets a narrower class than needed, and there are few outcomes."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secformer.wires.choices import (
    HEAD_SHARES,
    NEURON_CLASSES,
    NEURON_SHARES,
    WINDOW_BITS,
    bits_of,
    bits_of_counts,
    rounded_up,
    smallest,
)

SHARES = {"heads": HEAD_SHARES, "neurons": NEURON_SHARES}
shares = st.sampled_from(list(SHARES.values()))
needed = st.lists(st.integers(0, 400), min_size=5, max_size=5).filter(any)


def at_least(counts):
    """How many are in each class or a wider one."""
    return [sum(counts[number:]) for number in range(len(counts))]


@given(needed=needed, shares=shares)
def test_everybody_is_in_a_class_as_wide_as_needed(needed, shares):
    found = rounded_up(needed, shares)
    assert sum(found) == sum(needed) and len(found) == len(needed) and min(found) >= 0
    assert all(have >= want for have, want in zip(at_least(found), at_least(needed), strict=True))


@given(needed=needed, shares=shares)
def test_rounding_twice_is_rounding_once(needed, shares):
    found = rounded_up(needed, shares)
    assert rounded_up(found, shares) == found


@given(needed=needed, shares=shares, data=st.data())
def test_who_needs_more_gets_no_less(needed, shares, data):
    more = list(needed)
    for number in range(4):
        moved = data.draw(st.integers(0, more[number]))
        more[number], more[number + 1] = more[number] - moved, more[number + 1] + moved
    pairs = zip(at_least(rounded_up(more, shares)), at_least(rounded_up(needed, shares)), strict=True)
    assert all(larger >= smaller for larger, smaller in pairs)


@given(needed=needed, shares=shares)
def test_cumulated_sizes_are_shares_of_the_whole(needed, shares):
    total, whole = sum(needed), shares[0][-1]
    for have, options in zip(at_least(rounded_up(needed, shares))[1:], shares, strict=True):
        assert have in {math.ceil(option * total / whole) for option in options}


@pytest.mark.parametrize("name", SHARES)
def test_the_bits_of_counts_count_all_outcomes(name):
    """All that rounding makes of 12 heads or 256 neurons, by trying every cumulated need."""
    shares = SHARES[name]
    total = shares[0][-1]
    levels = [sorted({0, *options, *(option + 1 for option in options if option < total)}) for options in shares]
    outcomes = set()

    def extend(tails):
        if len(tails) == len(shares):
            sizes = [total, *tails, 0]
            outcomes.add(rounded_up([a - b for a, b in pairwise(sizes)], shares))
            return
        for tail in levels[len(tails)]:
            if tail <= (tails[-1] if tails else total):
                extend([*tails, tail])

    extend([])
    assert 2 ** bits_of_counts(shares) == pytest.approx(len(outcomes))


def test_menus_fit_their_shares():
    assert len(WINDOW_BITS) == len(HEAD_SHARES) + 1 and len(NEURON_CLASSES) == len(NEURON_SHARES) + 1
    for shares in SHARES.values():
        assert all(list(options) == sorted(set(options)) for options in shares)
        assert len({options[-1] for options in shares}) == 1  # all may be needed in any class


def test_the_smallest_option():
    assert smallest((5, 7, 9), 5) == 5 and smallest((5, 7, 9), 5.1) == 7 and smallest((5, 7, 9), -3) == 5
    assert smallest((5, 7, 9), 9.1) is None
    assert bits_of((1, 2, 3, 4)) == 2.0
