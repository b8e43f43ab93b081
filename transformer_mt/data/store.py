"""Token ids on disk, memory-mapped: `NAME.bin` holds the ids, `NAME.idx` where each side of each pair begins."""

import json
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_mt.atomic import read_json
from transformer_mt.data.batching import Mixture
from transformer_mt.errors import RunError

VERSION = 1
HEADER_BYTES = 32


class StoreWriter:
    """Writes pairs of id sequences, one after the other; memory use is constant. Use it as a context manager."""

    def __init__(self, folder: Path, name: str, vocabulary_size: int) -> None:
        self._type = np.dtype("<u2" if vocabulary_size <= 1 << 16 else "<u4")
        self._ids = (folder / f"{name}.bin").open("wb")
        self._offsets = (folder / f"{name}.idx").open("wb")
        self._position = 0
        self._offsets.write(_pack_header(self._type))

    def write(self, pairs: Iterable[tuple[list[int], list[int]]]) -> None:
        """Adds pairs of source and target ids, without `</s>`."""
        sides = [side for pair in pairs for side in pair]
        lengths = np.asarray([len(side) for side in sides], np.int64)
        self.write_arrays(np.fromiter(chain.from_iterable(sides), np.int64), lengths)

    def write_arrays(self, ids: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        """The same, of ids end to end and of how many each side (2 N,) has."""
        ends = self._position + np.cumsum(lengths, dtype="<i8")
        offsets = np.roll(ends, 1)
        offsets[:1] = self._position
        if len(ids) and int(ids.max()) > np.iinfo(self._type).max:
            raise ValueError(f"id {ids.max()} in a store for {self._type}")
        self._ids.write(ids.astype(self._type).tobytes())
        self._offsets.write(offsets.tobytes())
        self._position += len(ids)

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._offsets.write(np.asarray([self._position], "<i8").tobytes())
        self._ids.close()
        self._offsets.close()


def _pack_header(kind: np.dtype[np.generic]) -> bytes:
    """The first bytes of an index: the format's version and the type of the ids."""
    return json.dumps({"ids": kind.str, "version": VERSION}).encode().ljust(HEADER_BYTES)


def _unpack_header(path: Path) -> np.dtype[Any]:
    with path.open("rb") as file:
        try:
            header = json.loads(file.read(HEADER_BYTES))
            version, kind = header["version"], str(header["ids"])
        except (ValueError, KeyError, TypeError):
            raise RunError(f"{path} is no index of token ids") from None
    if version != VERSION:
        raise RunError(f"{path} has format version {version}, this program reads {VERSION}")
    return np.dtype(kind)


class Store:
    """The pairs of one data set, read from disk as they are asked for."""

    def __init__(self, folder: Path, name: str) -> None:
        index, ids = folder / f"{name}.idx", folder / f"{name}.bin"
        kind = _unpack_header(index)
        entries = (index.stat().st_size - HEADER_BYTES) // 8
        # Plain arrays over the mapped files: slices of a memmap object cost ten times as much.
        self._offsets: NDArray[np.int64] = np.asarray(mapped(index, np.dtype("<i8"), entries, HEADER_BYTES))
        if entries % 2 == 0 or int(self._offsets[-1]) * kind.itemsize != ids.stat().st_size:
            raise RunError(f"{index} and {ids} do not belong together, or one of them was cut off")
        self._ids: NDArray[Any] = np.asarray(mapped(ids, kind, int(self._offsets[-1])))
        origins = read_json(folder / f"{name}.sources.json") or []
        weights = tuple(float(origin.get("weight", 1.0)) for origin in origins)  # older corpora know none
        self.mixture = Mixture(tuple(int(origin["end"]) for origin in origins), weights)
        """How often an epoch has each pair; for `epoch_batches`."""
        if not origins:  # of validation pairs, and where the sources are not known
            self.mixture = Mixture((len(self),), (1.0,))

    def __len__(self) -> int:
        return len(self._offsets) // 2

    def lengths(self) -> NDArray[np.int32]:
        """(N, 2): tokens of source and target of each pair, each with the `</s>` that is added later."""
        lengths = np.subtract(self._offsets[1:], self._offsets[:-1], dtype=np.int32, casting="unsafe")
        lengths += 1
        return lengths.reshape(-1, 2)

    def pair(self, number: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Source and target ids of a pair, without `</s>`."""
        first, second, end = self._offsets[2 * number : 2 * number + 3]
        return self._ids[first:second], self._ids[second:end]

    def padded(self, numbers: NDArray[np.int64], pad: int, eos: int, start: int) -> tuple[NDArray[np.int64], ...]:
        """Source (B, S) with `</s>`, target input (B, T) with the start symbol, labels (B, T) with `</s>`."""
        source, source_lengths = self._side(numbers, 0)
        target, target_lengths = self._side(numbers, 1)
        return (
            _pad(source, source_lengths, pad, after=eos),
            _pad(target, target_lengths, pad, before=start),
            _pad(target, target_lengths, pad, after=eos),
        )

    def _side(self, numbers: NDArray[np.int64], side: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """One side's ids of some pairs, end to end, and how many each pair has."""
        first = self._offsets[2 * numbers + side]
        lengths = self._offsets[2 * numbers + side + 1] - first
        return gathered(self._ids, first, lengths), lengths


def gathered(ids: NDArray[Any], first: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[Any]:
    """Stretches of `ids`, end to end: as many from each place in `first` (N,) as `lengths` (N,) says."""
    skipped = first - (np.cumsum(lengths) - lengths)
    stretches: NDArray[Any] = ids[np.repeat(skipped, lengths) + np.arange(lengths.sum())]
    return stretches


def mapped(path: Path, kind: np.dtype[Any], count: int, offset: int = 0) -> NDArray[Any]:
    """A file's numbers, read when they are looked at; no file of length zero can be mapped."""
    return np.memmap(path, kind, "r", offset, (count,)) if count else np.zeros(0, kind)


def _pad(
    ids: NDArray[Any], lengths: NDArray[np.int64], pad: int, *, before: int | None = None, after: int | None = None
) -> NDArray[np.int64]:
    """Rows of one id more than the longest has, filled up with `pad`: `before` begins or `after` ends each of them."""
    table = np.full((len(lengths), 1 + int(lengths.max())), pad, np.int64)
    shift = 0 if before is None else 1
    columns = np.arange(table.shape[1])
    table[(columns >= shift) & (columns < lengths[:, None] + shift)] = ids
    if before is not None:
        table[:, 0] = before
    if after is not None:
        table[np.arange(len(lengths)), lengths] = after
    return table
