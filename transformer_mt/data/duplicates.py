"""Which of many keys came before: in partitions on disk, so that memory does not grow with their number."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PARTITIONS = 256
"""Files that keys are dealt into, by their highest bits; one of them is in memory at a time."""
BUFFERED = 1 << 18
"""Keys that are dealt out together."""
_RECORD = np.dtype([("key", "<u8"), ("number", "<u8")])


class Duplicates:
    """Takes keys of 64 bits, numbered as they come, and tells at the end which of them repeat an earlier one."""

    def __init__(self, folder: Path) -> None:
        """The folder is made, filled with up to 16 bytes a key, and removed by `repeated`."""
        self._folder = folder
        self._waiting: list[NDArray[np.uint64]] = []
        self._size = 0
        self._count = 0
        folder.mkdir()

    def add(self, keys: NDArray[np.uint64]) -> None:
        """Keys (N,) in their order."""
        self._waiting.append(keys)
        self._size += len(keys)
        if self._size >= BUFFERED:
            self._deal()

    def _deal(self) -> None:
        records = np.empty(self._size, _RECORD)
        records["key"] = np.concatenate([np.zeros(0, np.uint64), *self._waiting])
        records["number"] = np.arange(self._count, self._count + self._size, dtype=np.uint64)
        self._count += self._size
        self._waiting, self._size = [], 0
        partitions = records["key"] // np.uint64((1 << 64) // PARTITIONS)
        records = records[np.argsort(partitions, kind="stable")]
        ends = np.cumsum(np.bincount(partitions.astype(np.int64), minlength=PARTITIONS))
        for number, part in enumerate(np.split(records, ends[:-1])):
            if len(part):
                with self._path(number).open("ab") as file:
                    file.write(part.tobytes())

    def _path(self, partition: int) -> Path:
        return self._folder / f"{partition:03}"

    def repeated(self) -> NDArray[np.bool_]:
        """(N,): whether each key came before. Takes a byte a key, and the largest partition."""
        self._deal()
        again = np.zeros(self._count, np.bool_)
        for path in filter(Path.exists, map(self._path, range(PARTITIONS))):
            records = np.fromfile(path, _RECORD)
            path.unlink()
            records = records[np.argsort(records["key"], kind="stable")]
            same = records["key"][1:] == records["key"][:-1]
            again[records["number"][1:][same].astype(np.int64)] = True
        self._folder.rmdir()
        return again
