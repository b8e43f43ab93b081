"""Files as streams of bytes: decompressed, without a byte order mark, split at line feeds only.

Also what kind of file a person gave where text is wanted, told by its first bytes.
"""

import bz2
import gzip
import io
import lzma
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from transformer_mt.errors import UserError

ENCODING = "UTF-8"
PARQUET = "a Parquet file (write {parquet: FILE})"
XML = "an XML file (of a translation memory? write {tmx: FILE})"
COMPRESSIONS = {
    b"\x1f\x8b": "gzip",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
    b"\x28\xb5\x2f\xfd": "zstd",
    # A skippable frame: the parallel zstd tools write one first.
    b"\x50\x2a\x4d\x18": "zstd",
}
_BZIP2 = re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_HEAD = 4096  # bytes looked at to tell the kind of a file
_BLOCK = 1 << 16  # bytes of lines read together
_ZSTD_MISSING = (
    'is compressed with zstd, and reading that needs the extra [formats]: pip install "transformer-mt[formats]"'
)
_KINDS = (
    (rb"PAR1", PARQUET),
    (rb"PK\x03\x04", "a zip archive"),
    (rb"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (rb"%PDF-", "a PDF file"),
    (rb"\x89PNG|\xff\xd8\xff|GIF8", "an image"),
    (rb"\x7fELF", "a program"),
    (rb"\xd0\xcf\x11\xe0", "an old Office document"),
    (rb"SQLite format 3", "an SQLite database"),
    (rb"\x80[\x02-\x05]", "a Python pickle"),
    # A serialised message whose first field is a piece: its text, then its score (a float, tag 0x15).
    (rb"\n[\x05-\x7f]\n.[^\n]{1,100}?\x15", "a SentencePiece model"),
    (rb"version https://git-lfs", "a pointer that Git LFS left in the file's place (run git lfs pull)"),
    (rb"(?s).{257}ustar", "a tar archive"),
    (rb"\s*(<\?xml|<!--|<tmx|<!DOCTYPE tmx|<xliff)", XML),
    (rb"(?i)\s*<(!doctype )?html", "a page of HTML"),
    (rb"\xff\xfe\x00\x00|\x00\x00\xfe\xff", "UTF-32 text"),
    (rb"\xff\xfe|\xfe\xff", "UTF-16 text"),
)


class _PackedStream(io.RawIOBase):
    """Decompresses one stream after the other to the file's end. It notices where the last one is cut off, and where
    what follows is none: the libraries' own readers pass over either the one or the other."""

    def __init__(self, raw: BinaryIO, packing: str, path: object) -> None:
        self._raw, self._new, self._more_of = raw, *_unpacker(packing, path)
        self._frame = self._new()
        self._inside = False  # between a stream's first and last byte
        self._padded = packing == "xz"  # its streams may be followed by bytes of 0
        self._ready = b""

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fills the buffer; 0 at the end. Raises EOFError where the data end inside a stream."""
        view = memoryview(buffer)
        while not self._ready:
            block = self._frame.unused_data if self._frame.eof else b""
            if not block and (self._frame.eof or getattr(self._frame, "needs_input", True)):
                block = self._raw.read(1 << 16)
                if not block:
                    if self._inside:
                        raise EOFError
                    return 0
            if not self._inside and self._padded and not (block := block.lstrip(b"\0")):
                self._frame = self._new()
                continue
            if self._frame.eof:
                self._frame = self._new()
            self._ready = self._more_of(self._frame, block)
            self._inside = not self._frame.eof
        size = min(len(view), len(self._ready))
        view[:size], self._ready = self._ready[:size], self._ready[size:]
        return size


def _unpacker(packing: str, path: object) -> tuple[Callable[[], Any], Callable[[Any, bytes], bytes]]:
    """What makes a decompressor, and what gives it a block and takes text, not too much of it at a time."""
    if packing == "zstd":
        try:
            import zstandard
        except ImportError:
            raise UserError(f"{path} {_ZSTD_MISSING}") from None

        def decompress(frame: Any, block: bytes) -> bytes:
            try:
                return bytes(frame.decompress(block))
            except zstandard.ZstdError as failure:
                raise zlib.error(str(failure)) from None

        return zstandard.ZstdDecompressor().decompressobj, decompress
    if packing == "xz":
        return lzma.LZMADecompressor, lambda frame, block: bytes(frame.decompress(block, 1 << 20))

    def decompress_blocks(frame: Any, block: bytes) -> bytes:
        try:
            return bytes(frame.decompress(block, 1 << 20))
        except OSError as failure:  # of the data, not of a disk
            raise zlib.error(str(failure)) from None

    return bz2.BZ2Decompressor, decompress_blocks


def decompressed(raw: io.BufferedReader, path: object) -> io.BufferedReader:
    """The stream itself, or what is packed in it: told by its first bytes, since names lie."""
    head = raw.peek(8)
    packing = next((name for magic, name in COMPRESSIONS.items() if head.startswith(magic)), None)
    if packing == "bzip2" and not _BZIP2.match(raw.peek(10)):  # three letters that text may begin with
        packing = None
    if packing is None:
        return raw
    if packing == "gzip":
        return io.BufferedReader(gzip.open(raw), 1 << 17)
    return io.BufferedReader(_PackedStream(raw, packing, path), 1 << 17)


@contextmanager
def explained(path: object) -> Iterator[None]:
    """Turns what the decompressors raise into sentences.

    Raises:
        UserError: the file cannot be opened, or its compressed data are damaged or end too early.
    """
    try:
        yield
    except EOFError:
        raise UserError(f"{path} is incomplete: its compressed data end too early; fetch or make it again") from None
    except (zlib.error, lzma.LZMAError, gzip.BadGzipFile) as failure:
        raise UserError(f"{path} is damaged: {failure}") from None
    except OSError as failure:
        words = failure.strerror or f"{type(failure).__name__}: {failure}".split("\n", 1)[0]
        raise UserError(f"{path} cannot be read: {words}") from None


@contextmanager
def _opened(path: Path) -> Iterator[tuple[io.BufferedReader, io.BufferedReader]]:
    """The file as it is on disk, and its text: decompressed, without a byte order mark."""
    with explained(path), open(path, "rb") as raw, decompressed(raw, path) as stream:
        if stream.peek(3).startswith(BYTE_ORDER_MARK):
            stream.read(3)
        yield raw, stream


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """The file's bytes, decompressed, without a UTF-8 byte order mark at its start."""
    with _opened(path) as (_, stream):
        yield stream


@contextmanager
def opened_with_share(path: Path) -> Iterator[tuple[io.BufferedReader, Callable[[], float]]]:
    """The same, and a function that tells how much of the file has been read, 0 to 1."""
    with _opened(path) as (raw, stream):
        size = max(1, path.stat().st_size)
        yield stream, lambda: raw.tell() / size


def lines(path: Path, tell: Callable[[float], None] | None = None) -> Iterator[bytes]:
    """The file's lines as bytes, each with its LF (the last one may lack it): nothing else ends a line.

    `tell` is told now and then how much of the file has been read, 0 to 1.

    Raises:
        UserError: the file cannot be opened or is not whole.
    """
    with opened_with_share(path) as (stream, share):
        while block := stream.readlines(_BLOCK):
            yield from block
            if tell:
                tell(share())


def text_of(line: bytes) -> str:
    """A line's text: without its LF and one CR before that; any other CR is a blank.

    Raises:
        UnicodeDecodeError: the line is not UTF-8.
    """
    text = line.decode()
    if text[-1:] == "\n":
        text = text[:-1]
    if "\r" in text:
        text = text.removesuffix("\r").replace("\r", " ")
    return text


def text_lines(path: Path) -> Iterator[str]:
    """The lines of a text file, plain or compressed, as sources are read: ended by LF alone, otherwise untouched.

    Raises:
        UserError: no such file, or a line that is not UTF-8.
    """
    if problem := path_problem(path):
        raise UserError(problem)
    for number, line in enumerate(lines(path), start=1):
        try:
            yield text_of(line)
        except UnicodeDecodeError as failure:
            raise bad_bytes(path, number, failure) from None


def bad_bytes(path: Path | str, line: int, failure: UnicodeDecodeError, otherwise: str = "") -> UserError:
    """What to tell about a line that is not UTF-8 (`line` counts from 1), and what can be done but to convert it."""
    value = failure.object[failure.start]
    kind = kind_of(path) if isinstance(path, Path) else None
    found = f"; the file looks like {kind}" if kind else ""
    return UserError(
        f"{path}, line {line}: byte 0x{value:02X} at byte offset {failure.start} of the line is not {ENCODING}, "
        f"the encoding expected{found}; convert the file (iconv -t UTF-8){otherwise}"
    )


def kind_of(path: Path) -> str | None:
    """What the file looks like when it is not text, None when it may be text."""
    with opened(path) as stream:
        return kind_of_head(stream.read(_HEAD))


def kind_of_head(head: bytes) -> str | None:
    """The same by a file's first bytes."""
    for pattern, name in _KINDS:
        if re.match(pattern, head):
            return name
    # UTF-16 without a mark: in Western text every other byte is NUL.
    if len(head) >= 8 and max(head[::2].count(0), head[1::2].count(0)) > len(head) * 0.3:
        return "UTF-16 text"
    return None


def count_lines(path: Path) -> int:
    """How many lines the file has."""
    return sum(1 for _ in lines(path))


def path_problem(path: Path) -> str | None:
    """Why this path cannot be a data file at all (missing, a folder, a pipe, unreadable), or None."""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            return f"{path} is a folder; wanted a file"
        if not stat.S_ISREG(mode):
            return f"{path} is a pipe or a device; wanted a file, since it is read more than once"
        open(path, "rb").close()
    except FileNotFoundError:
        return f"{path} does not exist"
    except OSError as failure:
        return f"{path} cannot be read: {failure.strerror}"
    return None
