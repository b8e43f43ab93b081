"""Which pairs make up which update: a pure function of (lengths, batch_tokens, seed, epoch).

It knows nothing of devices, so one device and sixty-four make the same updates; `deal` then gives each forward
pass of each rank its rows. All orders come from our own integer hash, never from a generator's state.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Segment = Callable[[Integers, int], NDArray[np.int32]]
"""Cuts pairs, in ascending order, into pieces anew for an epoch; their lengths (N, 2), each with its `</s>`."""

WINDOW_PAIRS = 1 << 20
"""Pairs that are sorted by length together: memory stays the same for any size of corpus."""
SAMPLED_WINDOW_PAIRS = 1 << 16
"""The same where text is segmented anew: ids of a whole window are kept in memory, and updates wait for them."""


def mix(*counters: int | NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hashes counters, or arrays of them, to 64 bits (the finaliser of splitmix64, applied counter by counter)."""
    state: NDArray[np.uint64] = np.zeros((), np.uint64)
    with np.errstate(over="ignore"):
        for counter in counters:
            value = np.asarray(counter, np.uint64)
            state = (state ^ value) + np.uint64(0x9E3779B97F4A7C15)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state = state ^ (state >> np.uint64(31))
    return state


@dataclass(frozen=True)
class Mixture:
    """How often an epoch has the pairs of each source: some more than once, of some only a share, another each time.

    A weight of 2.5 has each pair twice, and half of them once more; the shares of following epochs go round the source,
    in an order that is spread over it, so that all its pairs have had the same number of turns after enough of them.
    """

    ends: tuple[int, ...]
    """Where the pairs of each source end."""
    weights: tuple[float, ...]

    @property
    def even(self) -> bool:
        """Whether an epoch has each pair once."""
        return all(weight == 1 for weight in self.weights)

    def turns(self, epoch: int) -> int:
        """How many pairs an epoch has, those counted anew that it has more than once."""
        return sum(whole * size + more for size, whole, _, more in self._sizes(epoch))

    def _sizes(self, epoch: int) -> Iterator[tuple[int, int, int, int]]:
        """Of each source: pairs, turns that each has, further turns of earlier epochs, further turns of this one."""
        for begin, end, weight in zip((0, *self.ends[:-1]), self.ends, self.weights, strict=True):
            share = (weight - int(weight)) * (end - begin)
            before = int(epoch * share + 1e-6)  # of 0.1 x 10 pairs that a float has as 0.9999...
            yield end - begin, int(weight), before, int((epoch + 1) * share + 1e-6) - before

    def pairs(self, turns: Integers, epoch: int) -> Integers:
        """The pairs of some turns of an epoch, both counted from 0: (N,) -> (N,), ascending."""
        found, first_turn, first_pair = [np.zeros(0, np.int64)], 0, 0
        for size, whole, before, more in self._sizes(epoch):
            own = turns[(turns >= first_turn) & (turns < first_turn + whole * size + more)] - first_turn
            regular, further = own[own < whole * size], own[own >= whole * size] - whole * size
            spread = (before + further) % max(1, size) * _coprime_step(size) % max(1, size)
            found += [first_pair + regular // max(1, whole), first_pair + spread]
            first_turn, first_pair = first_turn + whole * size + more, first_pair + size
        return np.sort(np.concatenate(found))


def _coprime_step(size: int) -> int:
    """A step of about 0.618 of `size` that reaches all places of a circle of so many."""
    step = max(1, round(size * 0.6180339887))
    while math.gcd(step, size) > 1:
        step += 1
    return step


@dataclass(frozen=True)
class Batch:
    """One update: numbers of its pairs, shorter ones first, and what is known of them before any forward pass."""

    pairs: Integers
    source_length: int
    target_length: int
    target_tokens: int
    """Labels to predict, `</s>` included: the divisor of the loss."""


def epoch_batches(
    lengths: NDArray[np.int32],
    batch_tokens: int,
    seed: int,
    epoch: int,
    segment: Segment | None = None,
    mixture: Mixture | None = None,
) -> Iterator[Batch]:
    """The updates of one epoch in their order; each pair is in exactly one of them, or as often as `mixture` says.

    lengths (N, 2): tokens of source and target, each with its `</s>`. In a batch, rows x longest source and
    rows x longest target are at most batch_tokens. Windows of a million pairs, each drawn from the whole corpus,
    are planned one after the other. With `segment`, windows are smaller and it says how long their pairs are this
    time; all batches of a window have been asked for before it is given the next one.
    """
    mixture = None if mixture is None or mixture.even else mixture
    turns = len(lengths) if mixture is None else mixture.turns(epoch)
    windows = max(1, -(-turns // (SAMPLED_WINDOW_PAIRS if segment else WINDOW_PAIRS)))
    for window in range(windows):
        pairs = _window(turns, windows, window, seed, epoch)
        pairs = pairs if mixture is None else mixture.pairs(pairs, epoch)
        in_window = segment(pairs, epoch) if segment else np.asarray(lengths[pairs])
        batches = _cut(pairs, in_window, batch_tokens, (seed, epoch))
        order = np.argsort(mix(seed, epoch, window, np.arange(len(batches), dtype=np.uint64)), kind="stable")
        for index in order:
            yield batches[index]


def _window(count: int, windows: int, window: int, seed: int, epoch: int) -> Integers:
    """One pair of each `windows` consecutive ones, which of them is hashed: a fair sample, disjoint from the others."""
    blocks = np.arange(-(-count // windows), dtype=np.uint64)
    shift = mix(seed, epoch, blocks) % np.uint64(windows)
    pairs = blocks * np.uint64(windows) + (shift + np.uint64(window)) % np.uint64(windows)
    return pairs[pairs < count].astype(np.int64)


def _cut(pairs: Integers, lengths: NDArray[np.int32], batch_tokens: int, key: tuple[int, int]) -> list[Batch]:
    """Sorts a window by length, equal lengths in hashed order, and cuts it where batch_tokens are full.

    Pairs of one longest side follow each other from the shortest source to the shortest target, and those of the next
    one the other way round: so neighbours have both sides of nearly the same lengths.
    """
    if not len(pairs):
        return []
    hashes, copies = mix(*key, pairs.astype(np.uint64)), np.arange(len(pairs)) - np.searchsorted(pairs, pairs)
    again = copies > 0  # copies of a pair are of one length; they go into updates of their own
    hashes[again] = mix(*key, pairs[again].astype(np.uint64), copies[again].astype(np.uint64))
    longest = lengths.max(1)
    surplus = (lengths[:, 0] - lengths[:, 1]) * (1 - 2 * (longest % 2))
    order = np.lexsort((hashes, surplus, longest))
    pairs, lengths, longest = pairs[order], lengths[order], longest[order]
    batches, start = [], 0
    while start < len(pairs):
        end = _largest_end(longest, start, batch_tokens)
        source, target = lengths[start:end, 0], lengths[start:end, 1]
        batches.append(Batch(pairs[start:end], int(source.max()), int(target.max()), int(target.sum())))
        start = end
    return batches


def _largest_end(longest: NDArray[np.int32], start: int, batch_tokens: int) -> int:
    """The largest end for which rows x longest fits; at least one row, since the product only grows with the end."""
    low, high = start + 1, min(len(longest), start + max(1, batch_tokens // int(longest[start])))
    while low < high:
        middle = (low + high + 1) // 2
        if (middle - start) * int(longest[middle - 1]) <= batch_tokens:
            low = middle
        else:
            high = middle - 1
    return low


def passes_needed(batch: Batch, device_tokens: int, ranks: int) -> int:
    """Forward passes that each rank needs so that none holds more than device_tokens, padding included."""
    longest = max(batch.source_length, batch.target_length)
    rows = max(1, device_tokens // longest)
    return -(-len(batch.pairs) // (rows * ranks))


def deal(batch: Batch, passes: int, ranks: int, rank: int) -> list[Integers]:
    """A rank's rows in each of its passes: every share gets as many rows, and as long ones, as the others."""
    return [batch.pairs[share :: passes * ranks] for share in range(rank, passes * ranks, ranks)]
