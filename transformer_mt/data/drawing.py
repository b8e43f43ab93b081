"""Some of many lines, drawn evenly."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np

from transformer_mt.data.batching import mix

Item = TypeVar("Item")
_HASHED = 1 << 16


def drawn_evenly(items: Iterable[Item], count: int, most: int, seed: int) -> Iterator[Item]:
    """`most` of `count` items, in their order, or all if there are no more.

    Every choice of so many items is equally likely, and which one it is depends on the numbers given alone: a hash of
    an item's number decides whether it is taken, by Knuth's algorithm S (The Art of Computer Programming 2, 3.4.2).
    """
    if count <= most:
        yield from items
        return
    left = most
    for number, item in enumerate(items):
        if number % _HASHED == 0:
            block = np.arange(number, min(count, number + _HASHED), dtype=np.uint64)
            hashes = mix(seed, block).tolist()
        if hashes[number % _HASHED] * (count - number) < left << 64:
            yield item
            left -= 1
            if not left:
                return
