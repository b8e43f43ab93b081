"""Training pairs that are cut into pieces anew in each epoch, one window of the plan after the other.

What comes out for a pair is a function of (seed, epoch, pair): never of what was drawn before, nor of the window, the
process or the machine.
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_mt.config import Config
from transformer_mt.data.batching import Integers, mix
from transformer_mt.data.bpe_dropout import BpeDropout
from transformer_mt.data.clean import normalize
from transformer_mt.data.store import Store, gathered, mapped
from transformer_mt.data.tokenizer import Tokenizer
from transformer_mt.errors import RunError

CHUNK_PAIRS = 1 << 14
"""Pairs that are cut at a time: fewer are slower, more take more memory."""


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

    def __init__(self, config: Config, run: Path, tokenizer: Tokenizer) -> None:
        super().__init__(run / "ids", "train")
        self._training = config.training
        self._models = _dropouts(tokenizer)
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
        starts = range(0, len(pairs), CHUNK_PAIRS)
        chunks = [pairs[start : start + CHUNK_PAIRS] for start in starts]
        self._sides = [_joined([self._cut(chunk, epoch, side) for chunk in chunks], self._ids.dtype) for side in (0, 1)]
        self._pairs = pairs
        return np.stack([side.lengths + 1 for side in self._sides], 1).astype(np.int32)

    def release(self) -> None:
        """Forgets the window: until the next one, pairs are as they are on disk."""
        self._pairs, self._sides = np.zeros(0, np.int64), []

    def _cut(self, pairs: Integers, epoch: int, side: int) -> _Side:
        """One side of a chunk. What comes out too long for a pass is as it is on disk, so that nothing is lost."""
        training, model = self._training, self._models[side]
        # A line that is too long in whatever pieces would take long to cut: the time of a word grows with its square.
        most = training.max_tokens * model.longest
        lines = [line if len(line) < most else None for line in map(normalize, self._lines(pairs, side))]
        keys = mix(training.seed, epoch, pairs.astype(np.uint64), side)
        ids, lengths = model.segment([line or "" for line in lines], keys, training.subword_sampling)
        too_long = (lengths >= training.max_tokens) | np.asarray([line is None for line in lines])
        first = np.cumsum(lengths) - lengths
        on_disk, sizes = super()._side(pairs[too_long], side)
        first[too_long] = len(ids) + np.cumsum(sizes) - sizes
        lengths[too_long] = sizes
        return _Side(gathered(np.append(ids.astype(self._ids.dtype), on_disk), first, lengths), lengths)

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


def _dropouts(tokenizer: Tokenizer) -> list[BpeDropout]:
    """Of source and target, one and the same where they share a model."""
    source, target = tokenizer.models
    first = BpeDropout(source)
    return [first, first if target is source else BpeDropout(target)]


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
