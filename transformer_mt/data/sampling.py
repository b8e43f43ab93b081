"""Training pairs that are cut into pieces anew in each epoch, one window of the plan after the other.

What comes out is a function of (seed, epoch, pairs of the window): never of what was drawn before, nor of the number
of threads.
"""

import mmap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_mt.config import Config
from transformer_mt.data.batching import Integers, mix
from transformer_mt.data.store import Store, gathered, mapped
from transformer_mt.data.tokenizer import THREADS, Tokenizer, seeded
from transformer_mt.errors import RunError

CHUNK_PAIRS = 4096
"""Pairs that one thread cuts at a time. Another number is another sample."""
VAIN_LINES = 64
MOST_THREADS = 16


@dataclass
class _Side:
    """One language's ids of some pairs, end to end, and how many each pair has."""

    ids: NDArray[Any]
    lengths: Integers

    def __post_init__(self) -> None:
        self.first = np.cumsum(self.lengths) - self.lengths


class SampledStore(Store):
    """The training pairs of a run; `padded` serves those of the window that was last given to `segment`.

    `lengths` and `pair` tell of the ids on disk, without sampling, which `padded` serves too while there is no window.
    """

    def __init__(self, config: Config, run: Path, tokenizer: Tokenizer, threads: int = min(THREADS, MOST_THREADS)):
        super().__init__(run / "ids", "train")
        self._tokenizer, self._training, self._threads = tokenizer, config.training, threads
        path = run / "ids" / "train.text"
        if not path.is_file() or path.stat().st_size != 16 * len(self):
            raise RunError(f"{path} does not belong to the ids beside it, or is not there")
        self._places: Integers = np.asarray(mapped(path, np.dtype("<i8"), 2 * len(self))).reshape(-1, 2)
        languages = (config.languages.source, config.languages.target)
        self._texts = [_mapped_text(run / "corpus" / f"train.{language}") for language in languages]
        self._pairs: Integers
        self._sides: list[_Side]
        self.release()

    def segment(self, pairs: Integers, epoch: int) -> NDArray[np.int32]:
        """Cuts these pairs, in ascending order, anew for an epoch (from 0) and keeps their ids.

        Returns lengths (N, 2) of source and target, each with its `</s>`; none is above training.max_tokens.
        """
        chunks = [pairs[start : start + CHUNK_PAIRS] for start in range(0, len(pairs), CHUNK_PAIRS)]
        sides = [0] * len(chunks) + [1] * len(chunks)
        seed = int(mix(self._training.seed, epoch, *pairs[:1].tolist()))
        with seeded(seed), ThreadPoolExecutor(self._threads) as workers:
            parts = list(workers.map(self._cut, chunks * 2, sides))
        self._pairs = pairs
        self._sides = [_joined(side, self._ids.dtype) for side in (parts[: len(chunks)], parts[len(chunks) :])]
        return np.stack([side.lengths + 1 for side in self._sides], 1).astype(np.int32)

    def release(self) -> None:
        """Forgets the window: until the next one, pairs are as they are on disk."""
        self._pairs, self._sides = np.zeros(0, np.int64), []

    def _cut(self, pairs: Integers, side: int) -> _Side:
        """One side of a chunk. What comes out too long for a pass is as it is on disk, so that nothing is lost."""
        lines = list(self._lines(pairs, side))
        # All chunks of a window draw the same numbers; lines cut in vain bring each of them to another place.
        vain = int(mix(int(pairs[0]), side)) % min(VAIN_LINES, len(lines))
        sampled = self._tokenizer.sample(side, lines[:vain] + lines, self._training.subword_sampling)[vain:]
        for row, ids in enumerate(sampled):
            if len(ids) >= self._training.max_tokens:
                sampled[row] = self.pair(int(pairs[row]))[side].tolist()
        lengths = np.fromiter(map(len, sampled), np.int64, len(sampled))
        return _Side(np.fromiter(chain.from_iterable(sampled), self._ids.dtype, int(lengths.sum())), lengths)

    def _lines(self, pairs: Integers, side: int) -> Iterator[str]:
        text = self._texts[side]
        for first in self._places[pairs, side].tolist():
            end = text.find(b"\n", first)
            yield text[first : end if end >= 0 else len(text)].decode()

    def _side(self, numbers: Integers, side: int) -> tuple[NDArray[Any], Integers]:
        if not self._sides:
            return super()._side(numbers, side)
        rows = np.searchsorted(self._pairs, numbers)
        if not np.array_equal(self._pairs[rows[rows < len(self._pairs)]], numbers):
            raise ValueError(f"pairs {numbers.tolist()}: not all of them are in the window that was segmented last")
        window = self._sides[side]
        return gathered(window.ids, window.first[rows], window.lengths[rows]), window.lengths[rows]


def training_store(config: Config, run: Path, tokenizer: Tokenizer) -> Store:
    """The training pairs of a run folder: as they are on disk, or cut anew where `training.subword_sampling` asks."""
    sampled = config.training.subword_sampling > 0
    return SampledStore(config, run, tokenizer) if sampled else Store(run / "ids", "train")


def _joined(parts: list[_Side], kind: np.dtype[Any]) -> _Side:
    """One after the other; no parts at all are no ids."""
    ids, lengths = np.zeros(0, kind), np.zeros(0, np.int64)
    return _Side(
        np.concatenate([ids, *(part.ids for part in parts)]),
        np.concatenate([lengths, *(part.lengths for part in parts)]),
    )


def _mapped_text(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
