"""Token ids on disk, memory-mapped: `NAME.bin` holds the ids, `NAME.idx` where each side of each pair begins."""

import json
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

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
        offsets, ids = [], []
        for pair in pairs:
            for side in pair:
                offsets.append(self._position)
                ids.extend(side)
                self._position += len(side)
        self._ids.write(np.asarray(ids, self._type).tobytes())
        self._offsets.write(np.asarray(offsets, "<i8").tobytes())

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._offsets.write(np.asarray([self._position], "<i8").tobytes())
        self._ids.close()
        self._offsets.close()


def _pack_header(kind: np.dtype[np.generic]) -> bytes:
    """The first bytes of an index: the format's version and the type of the ids."""
    return json.dumps({"ids": kind.str, "version": VERSION}).encode().ljust(HEADER_BYTES)


def _unpack_header(path: Path) -> np.dtype[np.generic]:
    with path.open("rb") as file:
        header = json.loads(file.read(HEADER_BYTES))
    if header["version"] != VERSION:
        raise RunError(f"{path} has format version {header['version']}, this program reads {VERSION}")
    return np.dtype(header["ids"])


class Store:
    """The pairs of one data set, read from disk as they are asked for."""

    def __init__(self, folder: Path, name: str) -> None:
        index = folder / f"{name}.idx"
        kind = _unpack_header(index)
        self._offsets: NDArray[np.int64] = np.memmap(index, "<i8", "r", offset=HEADER_BYTES)
        empty = (folder / f"{name}.bin").stat().st_size == 0
        self._ids = np.zeros(0, kind) if empty else np.memmap(folder / f"{name}.bin", kind, "r")

    def __len__(self) -> int:
        return len(self._offsets) // 2

    def lengths(self) -> NDArray[np.int32]:
        """(N, 2): tokens of source and target of each pair, each with the `</s>` that is added later."""
        return (np.diff(self._offsets) + 1).astype(np.int32).reshape(-1, 2)

    def pair(self, number: int) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """Source and target ids of a pair, without `</s>`."""
        first, second, end = self._offsets[2 * number : 2 * number + 3]
        return self._ids[first:second], self._ids[second:end]

    def padded(self, numbers: NDArray[np.int64], pad: int, eos: int, start: int) -> tuple[NDArray[np.int64], ...]:
        """Source (B, S) with `</s>`, target input (B, T) with the start symbol, labels (B, T) with `</s>`."""
        sources, targets = zip(*(self.pair(int(number)) for number in numbers), strict=True)
        return (
            _pad(sources, pad, after=eos),
            _pad(targets, pad, before=start),
            _pad(targets, pad, after=eos),
        )


def _pad(
    rows: Iterable[NDArray[np.generic]], pad: int, *, before: int | None = None, after: int | None = None
) -> NDArray[np.int64]:
    rows = list(rows)
    shift = 0 if before is None else 1
    table = np.full((len(rows), 1 + max(map(len, rows))), pad, np.int64)
    for index, row in enumerate(rows):
        table[index, shift : shift + len(row)] = row
        if after is not None:
            table[index, len(row)] = after
    if before is not None:
        table[:, 0] = before
    return table
