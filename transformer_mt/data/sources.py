"""Where pairs of sentences come from: text files, TSV, JSON lines, Parquet, the hub and the demo grammar.

Every source yields its text as it is; only what the end of a record demands is changed (see `readers.py`).
"""

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from transformer_mt.config import (
    DemoSource,
    HubSource,
    JsonlSource,
    Languages,
    ParquetSource,
    Source,
    TextSource,
    TsvSource,
)
from transformer_mt.data import files, hub, readers
from transformer_mt.data.hub import resolve_hub
from transformer_mt.data.readers import Pair
from transformer_mt.errors import UserError

__all__ = ["Pair", "check", "describe", "name_of", "paths_of", "read", "resolve_hub"]

# What a side of a text pair is not, whatever its bytes look like.
_OTHER_FORMATS = {
    ".tsv": "tab-separated columns (write {tsv: FILE})",
    ".jsonl": "JSON lines (write {jsonl: FILE})",
    ".tmx": "a translation memory (TMX, which is not read)",
    ".xliff": "XLIFF (which is not read)",
    ".xlf": "XLIFF (which is not read)",
    ".po": "a gettext catalogue (PO, which is not read)",
    ".pot": "a gettext template (POT, which is not read)",
    ".csv": "comma-separated values (CSV, which is not read)",
}
_PACKED_SUFFIXES = (".gz", ".xz", ".bz2", ".zst")
_WANTED = {
    "source": f"{files.ENCODING} text, one sentence a line",
    "tsv": f"{files.ENCODING} text with tab-separated columns",
    "jsonl": f"{files.ENCODING} text with one JSON object a line",
    "parquet": "a Parquet file",
}


def read(source: Source, languages: Languages, on_bad_bytes: str, counts: Counter[str]) -> Iterator[Pair]:
    """The pairs of a source, in its order.

    `counts` gains "bad_bytes", pairs left out where `on_bad_bytes` is skip_pair, and "line_break_in_value",
    values of the hub, JSON lines or Parquet with a line break inside, which became a blank.

    Raises:
        UserError: a fault in the data, named by file and line, or no pair at all. Pairs may have been yielded
            before it, so whoever writes them must do so in a place that is thrown away on failure.
    """
    empty = True
    for pair in _pairs(source, languages, readers.Tally(on_bad_bytes, counts)):
        empty = False
        yield pair
    if empty:
        raise UserError(f"no pairs in {describe(source)}")


def _pairs(source: Source, languages: Languages, tally: readers.Tally) -> Iterator[Pair]:
    match source:
        case TextSource():
            return readers.text_pairs(source, tally)
        case TsvSource():
            return readers.tsv_pairs(source, tally)
        case JsonlSource():
            return readers.jsonl_pairs(source, languages, tally)
        case DemoSource():
            return _demo_pairs(source, languages)
    tables = hub.load(source, languages) if isinstance(source, HubSource) else readers.parquet_tables(source.parquet)
    columns = list(source.columns or (languages.source, languages.target))
    return readers.table_pairs(tables, describe(source), columns, named=source.columns is not None, tally=tally)


def _demo_pairs(source: DemoSource, languages: Languages) -> Iterator[Pair]:
    from transformer_mt.data import demo

    if problem := _demo_problem(source, languages):
        raise UserError(problem)
    forward = (languages.source, languages.target) == demo.LANGUAGE_PAIRS[source.demo]
    for number, (one, other) in enumerate(demo.generate(source.demo, source.pairs, source.seed), start=1):
        yield Pair(one, other, number) if forward else Pair(other, one, number)


def _demo_problem(source: DemoSource, languages: Languages) -> str | None:
    from transformer_mt.data import demo

    known, found = demo.LANGUAGE_PAIRS[source.demo], (languages.source, languages.target)
    if set(found) != set(known):
        return f"demo {source.demo} has {known[0]} and {known[1]}; languages are {found[0]} and {found[1]}"
    if source.pairs > demo.MOST_PAIRS:
        return f"demo {source.demo} gives at most {demo.MOST_PAIRS} pairs; found pairs: {source.pairs}"
    return None


def paths_of(source: Source) -> list[Path]:
    """The files a source reads: two, one or none."""
    match source:
        case TextSource():
            return [source.source, source.target]
        case TsvSource():
            return [source.tsv]
        case JsonlSource():
            return [source.jsonl]
        case ParquetSource():
            return [source.parquet]
    return []


def check(source: Source, languages: Languages) -> list[str]:
    """Sentences about everything that can be seen to be wrong before any work; [] when nothing is."""
    problems = [problem for path in dict.fromkeys(paths_of(source)) if (problem := _file_problem(source, path))]
    if isinstance(source, TextSource):
        problems = problems or _sides_problems(source)
    columns = None if isinstance(source, (TextSource, DemoSource)) else source.columns
    if columns and columns[0] == columns[1]:
        problems.append(f"{describe(source)}: column {columns[0]} is given for both sides")
    if isinstance(source, DemoSource) and (problem := _demo_problem(source, languages)):
        problems.append(problem)
    return problems


def _file_problem(source: Source, path: Path) -> str | None:
    if problem := files.path_problem(path):
        return problem
    if path.stat().st_size == 0:
        # One empty side of two is a difference in length, told with both counts.
        return None if isinstance(source, TextSource) else f"no pairs in {path}: the file is empty (0 bytes)"
    try:
        kind = files.kind_of(path)
    except UserError as failure:
        return str(failure)
    if isinstance(source, TextSource):
        kind = kind or _OTHER_FORMATS.get(_bare_name(path).suffix.lower())
    if isinstance(source, ParquetSource):
        kind = None if kind == files.PARQUET else kind or "text"
    wanted = next(words for key, words in _WANTED.items() if hasattr(source, key))
    return f"{path} looks like {kind}; wanted {wanted}" if kind else None


def _bare_name(path: Path) -> Path:
    """The file's name without the suffix of a compression."""
    return Path(path.stem if path.suffix.lower() in _PACKED_SUFFIXES else path.name)


def _sides_problems(source: TextSource) -> list[str]:
    one, other = source.source, source.target
    if os.path.samefile(one, other):
        return [f"{one} and {other} are the same file: one side must translate the other"]
    sizes = (one.stat().st_size, other.stat().st_size)
    if sizes == (0, 0):
        return [f"no pairs in {describe(source)}: both files are empty (0 bytes)"]
    if 0 in sizes:
        counts = [f"{path} has {files.count_lines(path)} lines" for path in (one, other)]
        return [" and ".join(counts) + ": one side is empty"]
    return []


def describe(source: Source) -> str:
    """A short name for people: `data/train.en + data/train.de`, `wmt/wmt14 de-en train`."""
    if isinstance(source, HubSource):
        return hub.describe(source)
    if isinstance(source, DemoSource):
        return f"demo {source.demo} ({source.pairs} pairs, seed {source.seed})"
    return " + ".join(map(_shown, paths_of(source)))


def _shown(path: Path) -> str:
    """Relative to the current folder where it lies in it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def name_of(source: Source, default: str) -> str:
    """The source's name, else its split's or file's without suffixes, fit to be a file's name; else `default`."""
    if source.name:
        return source.name
    paths = paths_of(source)
    stem = _bare_name(paths[0]).stem if paths else source.split if isinstance(source, HubSource) else default
    return re.sub(r"[^\w.-]+", "_", stem).strip("._") or default
