"""Where pairs of sentences come from: files of many formats, the hub, known test sets and the demo grammar.

Every source yields its text as it is; only what the end of a record demands is changed (see `readers.py`).
"""

import glob
import os
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from transformer_mt.config import (
    DemoSource,
    HubSource,
    JsonlSource,
    Languages,
    ParquetSource,
    PoSource,
    SacrebleuSource,
    Source,
    TextSource,
    TmxSource,
    TsvSource,
    UrlSource,
)
from transformer_mt.data import catalogue, files, hub, readers, test_sets, tmx
from transformer_mt.data.readers import Pair, Tally
from transformer_mt.errors import UserError

__all__ = [
    "Pair",
    "Tally",
    "check",
    "describe",
    "name_of",
    "no_pairs",
    "pairs_of",
    "parts",
    "paths_of",
    "read",
    "reasons",
]

# What a side of a text pair is not, whatever its bytes look like.
_OTHER_FORMATS = {
    ".tsv": "tab-separated columns (write {tsv: FILE})",
    ".jsonl": "JSON lines (write {jsonl: FILE})",
    ".tmx": "a translation memory (write {tmx: FILE})",
    ".xliff": "XLIFF (which is not read)",
    ".xlf": "XLIFF (which is not read)",
    ".po": "a gettext catalogue (write {po: FILE})",
    ".pot": "a gettext template (POT, which holds no translations)",
    ".csv": "comma-separated values (CSV, which is not read)",
}
PATHS = ("source", "target", "tsv", "jsonl", "parquet", "tmx", "po")
"""Keys of a source that name files."""
_WILDCARD = r"(\*\*/|\*+|\?)"
_PACKED_SUFFIXES = (".gz", ".xz", ".bz2", ".zst")
_WANTED = {
    "source": f"{files.ENCODING} text, one sentence a line",
    "tsv": f"{files.ENCODING} text with tab-separated columns",
    "jsonl": f"{files.ENCODING} text with one JSON object a line",
    "parquet": "a Parquet file",
    "tmx": "a translation memory (TMX)",
    "po": "a gettext catalogue (PO)",
}


def parts(source: Source) -> list[Source]:
    """The sources of single files that a source stands for: patterns matched and sorted, lists taken apart.

    Raises:
        UserError: a pattern that matches no file, or source and target files that do not pair up.
    """
    keys = [key for key in PATHS if hasattr(source, key)]
    if not keys:
        return [source]
    found = [_matched(getattr(source, key)) for key in keys]
    if len(set(map(len, found))) > 1:
        counts = " and ".join(f"{len(paths)} {key} files" for key, paths in zip(keys, found, strict=True))
        raise UserError(f"found {counts} ({_shown(found[0][0])}, {_shown(found[1][0])}, ...), wanted as many of each")
    given = [_listed(getattr(source, key)) for key in keys]
    shapes = [[re.findall(_WILDCARD, str(path)) for path in paths] for paths in given]
    alike = (
        len(keys) == 2
        and shapes[0] == shapes[1]
        and len(shapes[0]) == 1
        and not any("[" in str(path) for paths in given for path in paths)
    )
    if alike and len(found[0]) > 1:
        found = list(_paired(source, given[0][0], given[1][0], *found))
    return [source.model_copy(update=dict(zip(keys, paths, strict=True))) for paths in zip(*found, strict=True)]


def _paired(
    source: Source, one: Path, other: Path, left: list[Path], right: list[Path]
) -> tuple[list[Path], list[Path]]:
    """Files of two patterns that belong together: those of which the patterns' stars stand for the same."""
    keyed = [
        {_stars(str(pattern), str(path)): path for path in paths} for pattern, paths in ((one, left), (other, right))
    ]
    if alone := set(keyed[0]) ^ set(keyed[1]):
        name = sorted(alone)[0]
        path = keyed[0].get(name) or keyed[1][name]
        raise UserError(f"{_shown(path)} has no partner among the files of {describe(source)}")
    names = sorted(keyed[0])
    return [keyed[0][name] for name in names], [keyed[1][name] for name in names]


def _stars(pattern: str, path: str) -> tuple[str, ...]:
    """What the wildcards of a pattern stand for in a path."""
    forms = {"**/": "(.*?/|)", "**": "([^/]*)", "*": "([^/]*)", "?": "([^/])"}
    tokens = re.split(_WILDCARD, pattern)
    found = re.fullmatch("".join(forms.get(token, re.escape(token)) for token in tokens), path)
    return found.groups() if found else (path,)


def _listed(given: Path | tuple[Path, ...]) -> tuple[Path, ...]:
    return given if isinstance(given, tuple) else (given,)


def _matched(given: Path | tuple[Path, ...]) -> list[Path]:
    paths: list[Path] = []
    for path in _listed(given):
        if path.exists() or not glob.has_magic(str(path)):  # a name may hold brackets
            paths.append(path)
            continue
        base = next(parent for parent in path.parents if parent.is_dir() or parent == parent.parent)
        pattern = Path(glob.escape(str(base))) / path.relative_to(base)  # a folder's name may hold brackets too
        found = [Path(name) for name in sorted(glob.glob(str(pattern), recursive=True))]
        if not (found := [name for name in found if not name.is_dir()]):
            raise UserError(f"{path} matches no file")
        paths += found
    return paths


def read(source: Source, languages: Languages, on_bad_bytes: str, counts: Counter[str]) -> Iterator[Pair]:
    """The pairs of a source, in its order; line numbers begin anew with each of its files.

    `counts` gains what is left out or changed, by reason: "bad_bytes" where `on_bad_bytes` is skip_pair,
    "line_break_in_value", a line break inside a value that became a blank, and what the formats add to these.

    Raises:
        UserError: a fault in the data, named by file and line, or no pair at all. Pairs may have been yielded
            before it, so whoever writes them must do so in a place that is thrown away on failure.
    """
    for _, pairs in read_lists(source, languages, on_bad_bytes, counts, 1000):
        yield from pairs


def read_lists(
    source: Source, languages: Languages, on_bad_bytes: str, counts: Counter[str], size: int
) -> Iterator[tuple[Source, list[Pair]]]:
    """The same in lists of at most `size` pairs, each with the part of the source that its lines are of."""
    empty, before = True, counts.copy()
    for part in parts(source):
        pairs = pairs_of(part, languages, Tally(on_bad_bytes, counts))
        while chunk := list(islice(pairs, size)):
            empty = False
            yield part, chunk
    if empty:
        raise no_pairs(source, counts - before)


def no_pairs(source: Source, counts: Counter[str]) -> UserError:
    """What to tell of a source that has none; `counts` says what was left out."""
    return UserError(f"no pairs in {describe(source)}{reasons(counts)}")


def reasons(counts: Counter[str]) -> str:
    """What was left out or changed, to be put behind what was read."""
    return "".join(f", {reason} {number}" for reason, number in sorted(counts.items()) if number)


def pairs_of(part: Source, languages: Languages, tally: Tally) -> Iterator[Pair]:
    """The pairs of one of a source's `parts`, if it has any."""
    columns = getattr(part, "columns", None)
    match part:
        case TextSource(source=Path() as one, target=Path() as other):
            return readers.text_pairs(one, other, tally)
        case TsvSource(tsv=Path() as path):
            return readers.tsv_pairs(path, part.columns, tally)
        case TmxSource(tmx=Path() as path):
            return tmx.tmx_pairs(path, languages, tally)
        case PoSource(po=Path() as path):
            return catalogue.po_pairs(path, tally)
        case SacrebleuSource():
            return test_sets.test_set_pairs(part.sacrebleu, languages)
        case DemoSource():
            return _demo_pairs(part, languages, tally)
    named = columns is not None
    columns = list(columns or (languages.source, languages.target))
    match part:
        case JsonlSource(jsonl=Path() as path):
            lines = readers.decoded_lines(path, tally)
            return readers.jsonl_pairs(lines, path, columns, named=named, tally=tally)
        case ParquetSource(parquet=Path() as path):
            tables = readers.parquet_tables(path, tally)
        case HubSource():
            tables = hub.load(part, languages, tally.read_so_far)
        case UrlSource(url=url) if _form_at(url) == "csv":
            return readers.csv_pairs(url, columns, tally)
        case UrlSource(url=url) if _form_at(url) == "json":
            return readers.jsonl_pairs(readers.lines_at(url, tally), url, columns, named=named, tally=tally)
        case UrlSource(url=url) if _form_at(url):
            tables = hub.stream(part)
        case UrlSource(url=url):
            raise UserError(f"{url}: {_FORMS_WANTED}")
        case _:
            raise ValueError(f"{part} is no single part")
    return readers.table_pairs(tables, describe(part), columns, named=named, tally=tally)


_FORMS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".csv": "csv", ".tsv": "csv"}
_FORMS_WANTED = f"wanted a name that ends in {', '.join(_FORMS)}, packed or not"


def _form_at(url: str) -> str | None:
    """The form of files at a URL, by the suffixes of its name; None where there is none."""
    suffixes = Path(url.partition("?")[0]).suffixes[-2:]
    return next((_FORMS[suffix] for suffix in suffixes if suffix in _FORMS), None)


def _demo_pairs(source: DemoSource, languages: Languages, tally: Tally) -> Iterator[Pair]:
    from transformer_mt.data import demo

    if problem := _demo_problem(source, languages):
        raise UserError(problem)
    forward = (languages.source, languages.target) == demo.LANGUAGE_PAIRS[source.demo]
    for number, (one, other) in enumerate(demo.generate(source.demo, source.pairs, source.seed), start=1):
        tally.read_so_far(number / source.pairs)
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
    """The files that a source reads, in order: of each part two, one or none. Raises UserError as `parts` does."""
    return [path for part in parts(source) for key in PATHS if isinstance(path := getattr(part, key, None), Path)]


def check(source: Source, languages: Languages) -> list[str]:
    """Sentences about everything that can be seen to be wrong before any work; [] when nothing is."""
    try:
        found = parts(source)
    except UserError as failure:
        return list(failure.messages)
    problems = [problem for part in found for problem in _problems_of_part(part, alone=len(found) == 1)]
    if len(found) > 1 and not problems and not any(path.stat().st_size for path in paths_of(source)):
        problems.append(f"no pairs in {describe(source)}: all {len(found)} parts are empty (0 bytes)")
    columns = getattr(source, "columns", None)
    if columns and columns[0] == columns[1]:
        problems.append(f"{describe(source)}: column {columns[0]} is given for both sides")
    if isinstance(source, UrlSource) and not _form_at(source.url):
        problems.append(f"{source.url}: {_FORMS_WANTED}")
    if isinstance(source, DemoSource) and (problem := _demo_problem(source, languages)):
        problems.append(problem)
    if isinstance(source, SacrebleuSource) and (problem := test_sets.problem(source.sacrebleu, languages)):
        problems.append(problem)
    return problems


def _problems_of_part(part: Source, *, alone: bool) -> list[str]:
    problems = [problem for path in dict.fromkeys(paths_of(part)) if (problem := _file_problem(part, path, alone))]
    match part:
        case TextSource(source=Path() as one, target=Path() as other) if not problems:
            return _sides_problems(one, other, alone=alone)
        case PoSource(po=Path() as path) if not problems and (problem := catalogue.problem(path)):
            return [problem]
    return problems


def _file_problem(part: Source, path: Path, alone: bool) -> str | None:
    if problem := files.path_problem(path):
        return problem
    if path.stat().st_size == 0:
        # One empty side of two is a difference in length, told with both counts; of many parts some may be empty.
        refused = alone and not isinstance(part, TextSource)
        return f"no pairs in {path}: the file is empty (0 bytes)" if refused else None
    try:
        kind = files.kind_of(path)
    except UserError as failure:
        return str(failure)
    if isinstance(part, TextSource):
        kind = kind or _OTHER_FORMATS.get(_bare_name(path).suffix.lower())
    for own, wanted_kind in ((ParquetSource, files.PARQUET), (TmxSource, files.XML)):
        if isinstance(part, own):
            kind = None if kind == wanted_kind else kind or "text"
    if isinstance(part, TmxSource) and kind and kind.startswith("UTF-"):  # the XML parser tells these
        kind = None
    wanted = next(words for key, words in _WANTED.items() if hasattr(part, key))
    return f"{path} looks like {kind}; wanted {wanted}" if kind else None


def _bare_name(path: Path) -> Path:
    """The file's name without the suffix of a compression."""
    return Path(path.stem if path.suffix.lower() in _PACKED_SUFFIXES else path.name)


def _sides_problems(one: Path, other: Path, *, alone: bool) -> list[str]:
    if os.path.samefile(one, other):
        return [f"{one} and {other} are the same file: one side must translate the other"]
    sizes = (one.stat().st_size, other.stat().st_size)
    if sizes == (0, 0):
        return [f"no pairs in {_shown(one)} + {_shown(other)}: both files are empty (0 bytes)"] if alone else []
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
    if isinstance(source, UrlSource):
        return source.url
    if isinstance(source, SacrebleuSource):
        return f"sacreBLEU's {source.sacrebleu}"
    sides = [_listed(getattr(source, key)) for key in PATHS if hasattr(source, key)]
    return " + ".join(", ".join(map(_shown, paths[:3])) + ", ..." * (len(paths) > 3) for paths in sides)


def _shown(path: Path) -> str:
    """Relative to the current folder where it lies in it; as text that can be written, whatever bytes a name has."""
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return os.fsencode(shown).decode(files.ENCODING, "backslashreplace")


def name_of(source: Source, default: str) -> str:
    """The source's name, else its split's or file's without suffixes, fit to be a file's name; else `default`."""
    if source.name:
        return source.name
    paths = [path for key in PATHS if hasattr(source, key) for path in _listed(getattr(source, key))]
    stem = _bare_name(paths[0]).stem if paths else default
    if isinstance(source, HubSource):
        stem = source.split
    if isinstance(source, SacrebleuSource):
        stem = source.sacrebleu
    if isinstance(source, UrlSource):
        stem = _bare_name(Path(source.url)).stem
    return re.sub(r"[^\w.-]+", "_", stem).strip("._") or default
