"""Pairs out of text files, TSV, JSON lines and Arrow tables.

A record ends at a line feed and nothing else, and the two sides are never shifted against each other: a difference
is an error.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from transformer_mt.data import files
from transformer_mt.errors import UserError

BATCH_ROWS = 1000
_OR_SKIP = ", or leave such pairs out with data.on_bad_bytes: skip_pair"


class Pair(NamedTuple):
    """A source text and its translation; `line` is the number, from 1, of its line or row in the file or split."""

    source: str
    target: str
    line: int


LeftOut = tuple[str, int, str, str]
"""Reason, line and both sides of a pair that is left out."""


class Tally:
    """Counts what is changed or left out on the way, and knows whether text that is not UTF-8 may be left out."""

    def __init__(self, on_bad_bytes: str, counts: Counter[str], keep: float = 0) -> None:
        """`keep`: how many of those left out for one reason to remember with their text."""
        self._may_skip, self._keep = on_bad_bytes == "skip_pair", keep
        self._counts = counts
        self._left_out: list[LeftOut] = []
        self.share_read = 0.0
        """How much of the file that is being read has been read, 0 to 1, as far as its reader knows."""

    def count(self, reason: str) -> None:
        """Notes something that is changed or passed over."""
        self._counts[reason] += 1

    def leave_out(self, reason: str, line: int, source: object = "", target: object = "") -> None:
        """Notes a pair that is left out; bytes of it that are no text are shown as such."""
        self._counts[reason] += 1
        if self._counts[reason] <= self._keep:
            self._left_out.append((reason, line, _readable(source), _readable(target)))

    def taken(self) -> list[LeftOut]:
        """What was remembered of pairs left out since this was asked before."""
        left_out, self._left_out = self._left_out, []
        return left_out

    def read_so_far(self, share: float) -> None:
        """Notes how much of a file has been read."""
        self.share_read = share

    def skips_bad_bytes(self, line: int, source: object, target: object = "") -> bool:
        """Whether a pair with bad bytes is left out (it is counted then) or is an error."""
        if self._may_skip:
            self.leave_out("bad_bytes", line, source, target)
        return self._may_skip

    def value(self, value: object) -> str:
        """The text of a JSON or Arrow value, each line break in it a blank; nothing is empty text.

        Raises:
            TypeError: it is something else than text.
            UnicodeError: bytes that are not UTF-8, or text that cannot be written as UTF-8.
        """
        if value is None:
            return ""
        if isinstance(value, bytes):
            value = value.decode()
        if not isinstance(value, str):
            raise TypeError(f"found {type(value).__name__} ({value!r:.40}), wanted text")
        if not value.isascii():
            value.encode()  # JSON can hold half a surrogate pair
        if "\n" in value or "\r" in value:
            self._counts["line_break_in_value"] += 1
            value = value.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")
        return value


def _readable(value: object) -> str:
    """A line, or a value, with what cannot be written as UTF-8 escaped."""
    content = value if isinstance(value, bytes) else str(value or "").encode(errors="backslashreplace")
    return content.decode(errors="backslashreplace").rstrip("\r\n")


def text_pairs(one: Path, other: Path, tally: Tally) -> Iterator[Pair]:
    """Line N of one file with line N of the other."""
    left, right = files.lines(one, tally.read_so_far), files.lines(other)
    text_of = files.text_of
    for number, (source_line, target_line) in enumerate(zip_longest(left, right), start=1):
        if source_line is None or target_line is None:
            longer, line = (right, target_line) if source_line is None else (left, source_line)
            _refuse_counts((one, other), number, chain([line or b""], longer), target_is_longer=longer is right)
        try:
            pair = Pair(text_of(source_line), text_of(target_line), number)
        except UnicodeDecodeError as failure:
            if tally.skips_bad_bytes(number, source_line, target_line):
                continue
            path = one if failure.object == source_line else other
            raise files.bad_bytes(path, number, failure, _OR_SKIP) from None
        yield pair


def _refuse_counts(
    paths: tuple[Path, Path], number: int, surplus: Iterable[bytes], *, target_is_longer: bool
) -> NoReturn:
    """One side ended before line `number`, where the other's `surplus` begins: tells both counts, and why."""
    total, only_empty = number - 1, True
    for line in surplus:
        total += 1
        only_empty = only_empty and not line.strip()
    lengths = (number - 1, total) if target_is_longer else (total, number - 1)
    sides = dict(zip(paths, lengths, strict=True))
    found = " and ".join(f"{path} has {length} line{'s'[length == 1 :]}" for path, length in sides.items())
    raise UserError(f"{found}; line N of one must translate line N of the other{_hint(sides, only_empty)}")


def _hint(sides: dict[Path, int], only_empty: bool) -> str:
    for path, length in sides.items():
        if length == 1 and (returns := next(files.lines(path)).count(b"\r")) > 1:
            return f". {path} has {returns} CR characters: old Macintosh line ends? convert them to LF"
    return ". Only empty lines at the end differ: delete them" if only_empty and min(sides.values()) else ""


def decoded_lines(path: Path, tally: Tally) -> Iterator[tuple[int, str]]:
    """Numbers and texts of a file's lines."""
    return _decoded(files.lines(path, tally.read_so_far), path, tally)


def lines_at(url: str, tally: Tally) -> Iterator[tuple[int, str]]:
    """Numbers and texts of the lines of text files wherever fsspec can read, one after the other."""
    with _explained_at(url):
        yield from _decoded((line for stream in _streams(url) for line in stream), url, tally)


def _streams(url: str) -> Iterator[io.BufferedReader]:
    """Opens what a URL, or a pattern, stands for: decompressed, without a byte order mark."""
    import fsspec

    for opened in fsspec.open_files(url, "rb", compression=None, expand=True):
        with opened as raw:
            stream = files.decompressed(io.BufferedReader(raw), url)
            if kind := files.kind_of_head(stream.peek(1 << 12)):
                raise UserError(f"{url} looks like {kind}; wanted {files.ENCODING} text")
            if stream.peek(3).startswith(files.BYTE_ORDER_MARK):
                stream.read(3)
            yield stream


@contextmanager
def _explained_at(url: str) -> Iterator[None]:
    """Turns what storages and unpackers raise into one line."""
    try:
        with files.explained(url):
            yield
    except (ImportError, ValueError) as failure:  # a storage lacks its package, or does not know the URL
        words = f"{type(failure).__name__}: {failure}".split("\n", 1)[0]
        raise UserError(f"{url} cannot be read: {words}") from None


def _decoded(lines: Iterable[bytes], path: Path | str, tally: Tally) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines, start=1):
        try:
            text = files.text_of(line)
        except UnicodeDecodeError as failure:
            if tally.skips_bad_bytes(number, line):
                continue
            raise files.bad_bytes(path, number, failure, _OR_SKIP) from None
        yield number, text


def tsv_pairs(path: Path, chosen: tuple[int, int], tally: Tally) -> Iterator[Pair]:
    """Two of the columns; others are passed over, but every line must have as many as the first."""
    first, second = chosen
    least, wanted = max(first, second) + 1, 0
    for number, text in decoded_lines(path, tally):
        columns = text.split("\t")
        found = len(columns)
        if found < least or (wanted and found != wanted):
            expected = f"{wanted} as in the first line" if wanted else f"at least {least}"
            raise UserError(f"{path}, line {number}: tab-separated columns: found {found}, wanted {expected}")
        wanted = found
        yield Pair(columns[first], columns[second], number)


def jsonl_pairs(
    lines: Iterable[tuple[int, str]], path: Path | str, keys: Sequence[str], *, named: bool, tally: Tally
) -> Iterator[Pair]:
    """One object a line. Blank lines are passed over: an object holds both sides, so nothing can shift.

    `named` keys were given by the person, and are not looked for in a `translation` object.
    """
    unseen = set(keys)
    for number, text in lines:
        if not text or text.isspace():
            continue
        where = f"{path}, line {number}"
        record = _record(where, text, inner=not named)
        if not any(key in record for key in keys):
            raise UserError(f"{where}: found the keys {_listed(record)}; wanted {_listed(keys)}")
        unseen.difference_update(record)
        pair = _pair(where, [record.get(key) for key in keys], number, tally)
        if pair:
            yield pair
    if len(unseen) == 1:  # both absent means that there was no record at all
        raise UserError(f"{path}: no line has the key {_listed(unseen)}")


def _record(where: str, text: str, *, inner: bool) -> dict[str, Any]:
    """The object on a line; with `inner`, the one under its `translation` if it has such."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as failure:
        raise UserError(f"{where}: not a whole JSON object ({failure})") from None
    if inner and isinstance(record, dict) and isinstance(record.get("translation"), dict):
        record = record["translation"]
    if not isinstance(record, dict):
        raise UserError(f"{where}: found {type(record).__name__}, wanted a JSON object")
    return record


def _pair(where: str, values: list[object], number: int, tally: Tally) -> Pair | None:
    """The pair of two values, or None where it is left out for its bad bytes."""
    try:
        return Pair(tally.value(values[0]), tally.value(values[1]), number)
    except UnicodeError:
        if tally.skips_bad_bytes(number, *values):
            return None
        raise UserError(
            f"{where}: text that is not {files.ENCODING}, the encoding expected; mend it, or leave such pairs out "
            "with data.on_bad_bytes: skip_pair"
        ) from None
    except TypeError as failure:
        raise UserError(f"{where}: {failure}") from None


def _listed(names: Iterable[object]) -> str:
    return ", ".join(map(str, names)) or "(none)"


def csv_pairs(url: str, keys: Sequence[str], tally: Tally) -> Iterator[Pair]:
    """Two columns of CSV (with quoting) or TSV files (without) wherever fsspec can read; each has a heading.

    A record may have line breaks in quoted values; rows are counted with the heading left out.
    """
    tabs = ".tsv" in url.rpartition("/")[2]
    form: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {"strict": True}
    csv.field_size_limit(1 << 30)
    number = 0
    with _explained_at(url):
        for stream in _streams(url):
            # Bytes that are no text stay recognisable, for the tally to judge row by row.
            rows = csv.reader(io.TextIOWrapper(stream, "utf-8", "surrogateescape", newline=""), **form)
            try:
                heading = next(rows, [])
                if any(heading.count(key) != 1 for key in keys):
                    raise UserError(f"{url} has the columns {_listed(heading)}; wanted {_listed(keys)}, each once")
                places = [heading.index(key) for key in keys]
                for row in rows:
                    number += 1
                    if len(row) != len(heading):
                        wanted = f"wanted {len(heading)} as in the heading"
                        raise UserError(f"{url}, row {number}: found {len(row)} fields, {wanted}")
                    if pair := _pair(f"{url}, row {number}", [row[place] for place in places], number, tally):
                        yield pair
            except csv.Error as failure:
                raise UserError(f"{url}, row {number + 1}: {failure}") from None


def parquet_tables(path: Path, tally: Tally) -> Iterator[Any]:
    """The file's rows as pyarrow tables of at most BATCH_ROWS rows."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for number, batch in enumerate(file.iter_batches(BATCH_ROWS)):
                tally.read_so_far(min(1.0, number * BATCH_ROWS / max(1, file.metadata.num_rows)))
                yield pyarrow.Table.from_batches([batch])
    except (pyarrow.ArrowException, OSError) as failure:
        raise UserError(f"{path} cannot be read as Parquet: {failure}") from None


def table_pairs(tables: Iterator[Any], name: str, columns: list[str], *, named: bool, tally: Tally) -> Iterator[Pair]:
    """Two columns of Arrow tables.

    `name` is the source's in messages. `columns` are the language codes, to be found in a `translation` column
    or as columns of their own; or, when `named`, columns that the person named.
    """
    number = 0
    for table in tables:
        sides = [_values(table, path) for path in _column_paths(table.schema, name, columns, named)]
        for values in zip(*sides, strict=True):
            number += 1
            pair = _pair(f"{name}, row {number}", list(values), number, tally)
            if pair:
                yield pair


def _column_paths(schema: Any, name: str, columns: list[str], named: bool) -> list[list[str]]:
    """Where the two texts are: told by names, never by position."""
    found = list(schema.names)
    if twice := [column for column in (*columns, "translation") if found.count(column) > 1]:
        raise UserError(f"{name} has the columns {_listed(found)}: {twice[0]} more than once")
    if set(columns) <= set(found):
        return [[column] for column in columns]
    kind = schema.field("translation").type if "translation" in found and not named else None
    if kind is not None:
        inner = [kind.field(index).name for index in range(kind.num_fields)]
        if set(columns) <= set(inner):
            return [["translation", column] for column in columns]
        found = [f"translation.{field}" for field in inner] or found
    raise UserError(f"{name} has the columns {_listed(found)}; wanted {_listed(columns)}")


def _values(table: Any, path: list[str]) -> list[object]:
    """A column's values; as bytes where text is not UTF-8, so that one bad row does not hide the others."""
    import pyarrow
    import pyarrow.compute

    column = table.column(path[0])
    if path[1:]:
        column = pyarrow.compute.struct_field(column, path[1:])
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        return list(column.cast(pyarrow.large_binary()).to_pylist())
