"""Which of many keys came before: on disk, so that memory does not grow with their number, nor with that of copies."""

from contextlib import AbstractContextManager
from pathlib import Path
from shutil import rmtree
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

PARTITIONS = 256
"""Files that keys are dealt into, by their highest bits; of one of them the different keys are in memory at a time."""
BUFFERED = 1 << 18
"""Keys that are dealt out, or read, together."""
_RECORD = np.dtype([("key", "<u8"), ("number", "<u8")])


class Duplicates(AbstractContextManager["Duplicates"]):
    """Takes keys of 64 bits, numbered as they come, and tells at the end which of them repeat an earlier one."""

    def __init__(self, folder: Path) -> None:
        """The folder is made, filled with up to 17 bytes a key, and gone when the context ends."""
        self._folder = folder
        self._waiting: list[NDArray[np.uint64]] = []
        self._size = 0
        self._count = 0
        folder.mkdir()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        rmtree(self._folder)

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
        """(N,): whether each key came before; mapped from a file, which is there until the context ends."""
        self._deal()
        if not self._count:
            return np.zeros(0, np.bool_)
        again = np.memmap(self._folder / "again", np.bool_, "w+", shape=(self._count,))
        for path in filter(Path.exists, map(self._path, range(PARTITIONS))):
            self._mark(path, again)
            path.unlink()
        return again

    def _mark(self, path: Path, again: NDArray[np.bool_]) -> None:
        """Marks the keys of a partition that came before."""
        seen = np.zeros(0, np.uint64)
        with path.open("rb") as file:
            while len(records := np.fromfile(file, _RECORD, BUFFERED)):
                keys, first = np.unique(records["key"], return_index=True)  # the first place of each
                before = np.ones(len(records), np.bool_)
                places = np.searchsorted(seen, keys)
                known = np.zeros(len(keys), np.bool_)
                inside = places < len(seen)
                known[inside] = seen[places[inside]] == keys[inside]
                before[first[~known]] = False
                again[records["number"].astype(np.int64)] = before
                seen = np.insert(seen, places[~known], keys[~known])
