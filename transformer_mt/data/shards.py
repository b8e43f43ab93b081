"""Preparing text on many machines: each makes every n-th chunk, and one puts them together as if it had made them all.

A folder that all of them see holds a file for each chunk, whole or absent, and what each machine has done. So a job of
an array that was killed goes on where it was.
"""

import json
import os
import re
import uuid
import zlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar
from zipfile import BadZipFile

import numpy as np

from transformer_mt.atomic import partial_of, read_json, sync, write_json
from transformer_mt.errors import RunError, UserError

Chunk = TypeVar("Chunk")
Result = TypeVar("Result")
MADE_FROM = "made-from.json"


@dataclass(frozen=True)
class Share:
    """One of `count` equal shares of the work; `number` counts from 1."""

    number: int
    count: int

    @staticmethod
    def parse(text: str) -> "Share":
        """What `--shard 2/8` means."""
        found = re.fullmatch(r"([1-9]\d{0,8})/([1-9]\d{0,8})", text)
        if not found or int(found[1]) > int(found[2]):
            raise UserError(f"--shard {text}: wanted I/N, such as 1/4 for the first of four shares")
        return Share(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


class SharedChunks:
    """The chunks of a stage that several machines make."""

    def __init__(self, folder: Path, made_from: dict[str, Any]) -> None:
        """`made_from` says what the results depend on; chunks of something else are refused.

        Raises:
            UserError: the folder holds chunks that were made from something else.
        """
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / MADE_FROM).exists():
            own = folder / f"{MADE_FROM}.{uuid.uuid4().hex}"
            write_json(own, made_from)
            with suppress(FileExistsError):  # another share began in this moment: its word holds
                os.link(own, folder / MADE_FROM)
            own.unlink()
        if read_json(folder / MADE_FROM) != json.loads(json.dumps(made_from)):
            raise UserError(f"{folder} holds shares made with other settings, inputs or number of shares: delete it")
        self._waiting: deque[int] = deque()
        self._found = 0

    def own(self, chunks: Iterable[Chunk], share: Share) -> Iterator[Chunk]:
        """The chunks of a share that are not made yet; what is made of them is given to `save`, in their order."""
        for number, chunk in enumerate(chunks):
            self._found = number + 1
            if number % share.count == share.number - 1 and not self._path(number).is_file():
                self._waiting.append(number)
                yield chunk

    def save(self, result: Any) -> None:
        """Writes what was made of the next chunk that `own` gave."""
        path = self._path(self._waiting.popleft())
        with partial_of(path).open("wb") as file:
            np.savez(file, **_packed(result))
        sync(partial_of(path))
        partial_of(path).replace(path)

    def finish(self, share: Share) -> None:
        """Notes that a share is done."""
        write_json(self._done(share), {"chunks": self._found})

    def results(self, kind: type[Result], count: int) -> Iterator[Result]:
        """What all shares have made, in the order of the chunks.

        Raises:
            UserError: shares are missing.
            RunError: what a share made is damaged.
        """
        shares = [Share(number, count) for number in range(1, count + 1)]
        found = {share: read_json(self._done(share)) for share in shares}
        if missing := [str(share) for share, done in found.items() if done is None]:
            raise UserError(f"{self.folder} lacks the shares {', '.join(missing)}: run them, or delete the folder")
        chunks = {int(done["chunks"]) for done in found.values()}
        if len(chunks) > 1:
            raise RunError(f"{self.folder}: shares found {sorted(chunks)} chunks; delete the folder")
        for number in range(chunks.pop()):
            try:
                with np.load(self._path(number)) as packed:
                    result = _unpacked(kind, packed)
            except (OSError, EOFError, ValueError, KeyError, TypeError, BadZipFile, zlib.error) as failure:
                share = Share(number % count + 1, count)
                raise RunError(
                    f"{self._path(number)} is missing or damaged ({type(failure).__name__}): delete it, and run "
                    f"share {share} again"
                ) from failure
            yield result

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:07}.npz"

    def _done(self, share: Share) -> Path:
        return self.folder / f"done-{share.number}-of-{share.count}.json"


def _packed(result: Any) -> dict[str, Any]:
    """A dataclass as arrays: those it has, bytes, and everything else as JSON."""
    arrays: dict[str, Any] = {}
    for field in fields(result):
        value = getattr(result, field.name)
        if isinstance(value, np.ndarray):
            arrays[field.name] = value
        else:
            content = value if isinstance(value, bytes) else json.dumps(value).encode()
            arrays[f"{'bytes' if isinstance(value, bytes) else 'json'}:{field.name}"] = np.frombuffer(content, np.uint8)
    return arrays


def _unpacked(kind: type[Result], packed: Any) -> Result:
    values: dict[str, Any] = {}
    for name in packed.files:
        form, _, key = name.rpartition(":")
        value = packed[name]
        if form:
            value = value.tobytes()
        values[key] = json.loads(value) if form == "json" else value
        if isinstance(values[key], dict):
            values[key] = Counter(values[key])
    return kind(**values)
