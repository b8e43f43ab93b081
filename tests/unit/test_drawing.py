"""Some of many, drawn evenly."""

from collections import Counter
from itertools import combinations

import pytest

from transformer_mt.data import drawing
from transformer_mt.data.drawing import drawn_evenly


@pytest.mark.parametrize(("count", "most"), [(1000, 1), (1000, 250), (1000, 999), (70_000, 300)])
def test_so_many_are_drawn_in_their_order(count: int, most: int) -> None:
    drawn = list(drawn_evenly(range(count), count, most, 1))
    assert len(set(drawn)) == most and drawn == sorted(drawn)
    assert drawn == list(drawn_evenly(iter(range(count)), count, most, 1))
    assert drawn != list(drawn_evenly(range(count), count, most, 2))


def test_all_where_there_are_no_more() -> None:
    for most in (5, 6, 1 << 70):
        assert list(drawn_evenly("abcde", 5, most, 1)) == list("abcde")
    assert list(drawn_evenly([], 0, 3, 1)) == []


def test_never_more_than_asked_for_whatever_the_count_was() -> None:
    assert len(list(drawn_evenly(range(500), 100, 10, 1))) == 10
    assert len(list(drawn_evenly(range(50), 100, 10, 1))) <= 10


def test_every_choice_is_equally_likely() -> None:
    """Two of five: ten choices. Chi-squared with nine degrees of freedom is above 33.7 once in ten thousand times."""
    trials = 4000
    found = Counter(tuple(drawn_evenly(range(5), 5, 2, seed)) for seed in range(trials))
    expected = trials / 10
    assert set(found) == set(combinations(range(5), 2))
    assert sum((number - expected) ** 2 / expected for number in found.values()) < 33.7


def test_no_part_of_many_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten parts of ten thousand, with hashes made in several blocks."""
    monkeypatch.setattr(drawing, "_HASHED", 999)
    found = Counter(item // 1000 for seed in range(20) for item in drawn_evenly(range(10_000), 10_000, 500, seed))
    assert sum((found[part] - 1000) ** 2 / 1000 for part in range(10)) < 33.7
