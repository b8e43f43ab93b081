"""The plan of the updates and how their rows are dealt out (fidelity item 9: the budget is global, of both sides)."""

import numpy as np
import pytest

from transformer_mt.data import batching
from transformer_mt.data.batching import Batch, Mixture, deal, epoch_batches, mix, passes_needed

FROZEN = [16294208416658607535, 10451216379200822465, 13608149317741381227, 16171810823986729605, 15020427595393229491]
PLAN = [[5], [3, 7], [2], [4, 1, 6, 0]]


def lengths_of(count: int, longest: int = 60, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, longest + 1, (count, 2)).astype(np.int32)


def numbers(batches: list[Batch]) -> list[int]:
    return [int(number) for batch in batches for number in batch.pairs]


def same(one: list[Batch], other: list[Batch]) -> bool:
    return len(one) == len(other) and all(np.array_equal(a.pairs, b.pairs) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("budget", [60, 500, 25_000])
def test_item_9_both_sides_fit_the_budget_padding_included(budget: int) -> None:
    lengths = lengths_of(10_000)
    batches = list(epoch_batches(lengths, budget, 1, 0))
    for batch in batches:
        source, target = lengths[batch.pairs].max(0)
        assert (batch.source_length, batch.target_length) == (source, target)
        assert len(batch.pairs) * max(source, target) <= budget
        assert batch.target_tokens == lengths[batch.pairs, 1].sum()
    assert sorted(numbers(batches)) == list(range(10_000))


def test_batches_are_full() -> None:
    """A batch ends only where one pair more would be too much, and similar lengths leave little padding."""
    lengths = lengths_of(10_000)
    sides = lengths.max(1)
    ranks = sides * 1000 + (lengths[:, 0] - lengths[:, 1]) * np.where(sides % 2, -1, 1)
    batches = sorted(epoch_batches(lengths, 1000, 1, 0), key=lambda batch: ranks[batch.pairs[[0, -1]]].tolist())
    longest = np.sort(sides)
    start = 0
    for batch in batches[:-1]:
        end = start + len(batch.pairs)
        assert (len(batch.pairs) + 1) * longest[end] > 1000
        start = end
    padded = sum(len(batch.pairs) * max(batch.source_length, batch.target_length) for batch in batches)
    assert padded < 1.05 * longest.sum()


def test_neither_side_has_much_padding() -> None:
    """A long source with a short target is no neighbour of a short source with a long target."""
    lengths = lengths_of(200_000, 30)
    batches = list(epoch_batches(lengths, 1000, 1, 0))
    for side, longest in enumerate(("source_length", "target_length")):
        padded = sum(len(batch.pairs) * getattr(batch, longest) for batch in batches)
        assert padded < 1.03 * lengths[:, side].sum()


@pytest.mark.parametrize("count", [*range(0, 70), 255, 256, 257])
def test_each_pair_comes_once_an_epoch(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    lengths = lengths_of(count, 9)
    for window in (1, 2, 16, 64, 1 << 20):
        monkeypatch.setattr(batching, "WINDOW_PAIRS", window)
        for epoch in (0, 1):
            assert sorted(numbers(list(epoch_batches(lengths, 30, 1, epoch)))) == list(range(count))


def test_windows_are_no_larger_than_they_may_be_and_come_from_the_whole_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "WINDOW_PAIRS", 100)
    seen = []
    original = batching._cut
    monkeypatch.setattr(batching, "_cut", lambda pairs, *rest: seen.append(pairs) or original(pairs, *rest))
    list(epoch_batches(lengths_of(1050), 300, 1, 0))
    assert len(seen) == 11 and all(len(pairs) <= 100 for pairs in seen)
    assert all(pairs.min() < 11 and pairs.max() >= 1050 - 22 for pairs in seen)


def test_the_plan_is_a_function_of_its_arguments() -> None:
    lengths = lengths_of(500)
    plan = list(epoch_batches(lengths, 400, 1, 3))
    np.random.seed(5)
    assert same(plan, list(epoch_batches(lengths.copy(), 400, 1, 3)))
    assert not same(plan, list(epoch_batches(lengths, 400, 2, 3)))
    assert not same(plan, list(epoch_batches(lengths, 400, 1, 4)))


def test_orders_differ_between_epochs_on_a_sorted_corpus_too() -> None:
    lengths = np.sort(lengths_of(2000), axis=0)
    epochs = [list(epoch_batches(lengths, 300, 1, epoch)) for epoch in range(2)]
    assert numbers(epochs[0]) != numbers(epochs[1])
    assert {tuple(batch.pairs) for batch in epochs[0]} != {tuple(batch.pairs) for batch in epochs[1]}
    for batches in epochs:
        tenth = numbers(batches[: len(batches) // 10])
        assert min(tenth) < 1000 <= max(tenth)


def test_a_pair_larger_than_the_budget_has_an_update_of_its_own() -> None:
    batches = list(epoch_batches(np.array([[3, 3], [50, 2], [3, 3]], np.int32), 10, 1, 0))
    assert sorted(len(batch.pairs) for batch in batches) == [1, 2]


@pytest.mark.parametrize("rows", [1, 2, 5, 12, 13, 100])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("passes", [1, 2, 5])
def test_shares_are_disjoint_equal_and_the_whole(rows: int, ranks: int, passes: int) -> None:
    """Fewer rows than shares: some shares are empty, and every rank has as many passes all the same."""
    batch = Batch(np.arange(100, 100 + rows), 9, 9, 9)
    shares = [deal(batch, passes, ranks, rank) for rank in range(ranks)]
    assert all(len(share) == passes for share in shares)
    parts = [part for share in shares for part in share]
    assert sorted(int(number) for part in parts for number in part) == list(range(100, 100 + rows))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_shares_are_alike_in_length_too() -> None:
    lengths = np.sort(lengths_of(400), axis=0)
    batch = Batch(np.arange(400), 60, 60, int(lengths[:, 1].sum()))
    sums = [int(lengths[part].sum()) for rank in range(4) for part in deal(batch, 2, 4, rank)]
    assert max(sums) < 1.05 * min(sums)


@pytest.mark.parametrize("device_tokens", [1, 59, 60, 61, 128, 1000, 30_000])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_no_pass_holds_more_than_a_device_may(device_tokens: int, ranks: int) -> None:
    lengths = lengths_of(2000)
    for batch in epoch_batches(lengths, 2500, 1, 0):
        passes = passes_needed(batch, device_tokens, ranks)
        parts = [part for rank in range(ranks) for part in deal(batch, passes, ranks, rank)]
        for part in parts:
            assert len(part) <= 1 or len(part) * int(lengths[part].max()) <= device_tokens
        if passes > 1:  # one pass fewer would be too few
            rows = -(-len(batch.pairs) // ((passes - 1) * ranks))
            assert rows > 1 and rows * max(batch.source_length, batch.target_length) > device_tokens


def test_the_hash_never_changes() -> None:
    """Checkpoints name a batch by its place in the order: another hash would resume with other data."""
    assert [int(value) for value in (mix(0), mix(1), mix(1, 2), mix(2, 1), mix(1, 2, 3))] == FROZEN
    assert mix(7, np.arange(3, dtype=np.uint64)).tolist() == [int(mix(7, number)) for number in range(3)]
    lengths = np.array([[2, 3], [3, 2], [9, 9], [4, 4], [2, 2], [8, 9], [3, 3], [5, 5]], np.int32)
    assert [batch.pairs.tolist() for batch in epoch_batches(lengths, 12, 1, 0)] == PLAN


def test_hashes_are_even() -> None:
    values = mix(1, 2, np.arange(1 << 16, dtype=np.uint64))
    assert len(np.unique(values)) == 1 << 16
    bits = (values[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    assert np.abs(bits.mean(0) - 0.5).max() < 0.02
    assert np.abs(np.corrcoef(bits.T.astype(float)) - np.eye(64)).max() < 0.05


def test_a_mixture_has_pairs_as_often_as_their_weights_say() -> None:
    """The third weight is for 7 pairs: 17 and 18 turns by turns."""
    mixture = Mixture((5, 12, 32), (1.0, 2.5, 0.3))
    assert not mixture.even and [mixture.turns(epoch) for epoch in range(4)] == [28, 29, 28, 29]
    seen = np.zeros(32, np.int64)
    for epoch in range(20):
        pairs = mixture.pairs(np.arange(mixture.turns(epoch)), epoch)
        assert pairs.tolist() == sorted(pairs.tolist())
        times = np.bincount(pairs, minlength=32)
        assert times[:5].tolist() == [1] * 5
        assert set(times[5:12].tolist()) == {2, 3} and times[5:12].sum() == 17 + epoch % 2
        assert times[12:].max() == 1 and times[12:].sum() == 6
        seen += times
    assert seen[5:].tolist() == [50] * 7 + [6] * 20  # all have had their turns


def test_a_source_of_one_pair_has_its_turns_too() -> None:
    mixture = Mixture((1, 2), (0.1, 1.0))
    assert [mixture.turns(epoch) for epoch in range(20)] == ([1] * 9 + [2]) * 2


def test_copies_of_a_pair_are_not_in_one_update() -> None:
    lengths = np.full((1000, 2), 10, np.int32)
    batches = list(epoch_batches(lengths, 200, 1, 0, None, Mixture((1000,), (2.0,))))
    together = sum(len(batch.pairs) - len(set(batch.pairs.tolist())) for batch in batches)
    assert together < 60  # of a thousand; by chance about 10


def test_turns_are_asked_for_in_any_portions() -> None:
    mixture = Mixture((50, 90), (0.7, 1.4))
    turns = np.arange(mixture.turns(3))
    whole = mixture.pairs(turns, 3)
    parts = [mixture.pairs(turns[start::3], 3) for start in range(3)]
    assert np.array_equal(np.sort(np.concatenate(parts)), whole)


def test_batches_of_a_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = np.random.default_rng(0).integers(2, 9, (200, 2)).astype(np.int32)
    mixture = Mixture((120, 200), (0.5, 2.0))
    for window in (1 << 20, 64):
        monkeypatch.setattr(batching, "WINDOW_PAIRS", window)
        epochs = [list(epoch_batches(lengths, 60, 1, epoch, None, mixture)) for epoch in (0, 1, 0)]
        counted = [np.bincount(np.concatenate([batch.pairs for batch in batches]), minlength=200) for batches in epochs]
        for times in counted:
            assert times[:120].sum() == 60 and times[:120].max() == 1 and times[120:].tolist() == [2] * 80
        assert np.array_equal(counted[0], counted[2]) and not np.array_equal(counted[0], counted[1])
        assert (counted[0] + counted[1])[:120].tolist() == [1] * 120
    even = epoch_batches(lengths, 60, 1, 0, None, Mixture((120, 200), (1.0, 1.0)))
    plain = epoch_batches(lengths, 60, 1, 0)
    assert [batch.pairs.tolist() for batch in even] == [batch.pairs.tolist() for batch in plain]
