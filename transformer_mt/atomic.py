"""Files and folders that appear whole or not at all, and the lock that keeps two runs out of one folder."""

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from transformer_mt.errors import RunError, UserError


def sync(path: Path) -> None:
    """Forces a file or a folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def partial_of(final: Path) -> Path:
    """Where something is written before it gets its name: hidden, in the same folder."""
    return final.with_name(f".{final.name}.partial")


def taken(folder: Path) -> str:
    """Why a new folder cannot have this name: something is there, and it is no empty folder, or it lies in a file."""
    for parent in folder.absolute().parents:
        if parent.exists() and not parent.is_dir():
            return f"{folder}: {parent} is a file, wanted a folder"
    free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    return "" if free else f"{folder} is there already: give a new folder"


@contextmanager
def new_folder(final: Path, *, replace: bool = True) -> Iterator[Path]:
    """A folder to fill. When the context ends well it is forced to the disk and takes its place, else it is gone.

    Without `replace` there may be nothing in that place, or an empty folder: else UserError.
    """
    if not replace and (problem := taken(final)):
        raise UserError(problem)
    final = final.resolve() if final.is_symlink() else final  # which may lie on a larger disk
    partial, old = partial_of(final), final.with_name(f".{final.name}.old")
    for leftover in (partial, old):
        if leftover.is_symlink() or leftover.is_file():
            leftover.unlink()
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        for path in [*partial.rglob("*"), partial]:
            sync(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if final.exists():
        final.rename(old)
    partial.rename(final)
    sync(final.parent)
    shutil.rmtree(old, ignore_errors=True)


_OF_A_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Lets an error of the system name the file (or folder) that it is about, which those of an open file do not."""
    try:
        yield
    except OSError as error:
        if error.errno not in _OF_A_DISK or error.filename:  # of a network or of memory, say; or it names one
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


def write_text(path: Path, text: str) -> None:
    """Writes a UTF-8 file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_of(path)
    try:
        with naming(path):
            partial.write_bytes(text.encode())
            sync(partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write that gets its name when the context ends well; a pipe or a device is written to as it is.

    Raises:
        RunError: the reader of a pipe left before the end.
    """
    given, path = path, path.resolve()
    # /dev/stdout may be a file, which others write to as well; /dev/shm/x is a file like any other.
    device = str(given.absolute().parent) in ("/dev", "/dev/fd", "/proc/self/fd")
    if device or (path.exists() and not path.is_file()):
        try:
            with given.open("ab") as file:
                yield file
        except BrokenPipeError:
            raise RunError(f"{given}: its reader left before the end") from None
        return
    partial = partial_of(path)
    try:
        with naming(path):
            with partial.open("wb") as file:
                yield file
            sync(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Writes plain data as JSON for people and programs, in one step."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Plain data from a JSON file, None where there is none or it cannot be read."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None


LOCK = ".lock"
"""The file that every run folder has."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other processes that write out of a run folder; the lock goes with the process, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise UserError(f"{folder} is in use by another process ({file.read().strip() or 'unknown'})") from None
        file.truncate(0)
        file.write(f"process {os.getpid()}")
        file.flush()
        yield


@contextmanager
def in_turn(path: Path) -> Iterator[None]:
    """Lets one process at a time into the context, the others wait; `path` is a file that is made for it and stays.

    Where no file can be made there is nothing to wait for: nobody writes there.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            fcntl.flock(stack.enter_context(path.open("a")), fcntl.LOCK_EX)
        yield


def sha256(path: Path) -> str:
    """Digest of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
