"""Reading text files, TSV, JSON lines and Parquet: what is kept, what is refused, and in which words."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from tests.reading import ENGLISH_GERMAN, check, read, refused, two_files
from transformer_mt.config import (
    JsonlSource,
    ParquetSource,
    TsvSource,
)
from transformer_mt.data import sources
from transformer_mt.data.sources import Pair

ROOT = Path(__file__).parents[2]


def test_only_a_line_feed_ends_a_record(tmp_path: Path) -> None:
    source = two_files(tmp_path, b"Arbeitszeit.\r Plan ;\r\nzwei\r\n", b"Working hours. Plan ;\ntwo\n")
    assert read(source) == [("Arbeitszeit.  Plan ;", "Working hours. Plan ;"), ("zwei", "two")]
    assert sources.check(source, ENGLISH_GERMAN) == []


@pytest.mark.parametrize("character", "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e\t")
def test_no_other_character_ends_a_record(tmp_path: Path, character: str) -> None:
    source = two_files(tmp_path, f"a{character}b\nc\n".encode(), b"x\ny\n")
    assert read(source) == [(f"a{character}b", "x"), ("c", "y")]


def test_line_numbers_count_from_one(tmp_path: Path) -> None:
    pairs = sources.read(two_files(tmp_path, b"a\nb\n", b"x\ny\n"), ENGLISH_GERMAN, "error", Counter())
    assert list(pairs) == [Pair("a", "x", 1), Pair("b", "y", 2)]


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (b"a\nb", b"x\ny\n", [("a", "x"), ("b", "y")]),  # no final line feed
        (b"a\r\nb\r\n", b"x\r\ny\r\n", [("a", "x"), ("b", "y")]),
        (b"\xef\xbb\xbfa\n", b"\xef\xbb\xbfx\n", [("a", "x")]),
        (b"a\xef\xbb\xbf\n", b"x\n", [("a\ufeff", "x")]),  # no mark of the file: cleaning drops it
        (b"a\n\n\n", b"\nx\n\n", [("a", ""), ("", "x"), ("", "")]),  # empty lines keep their place
        (b"a\0b\n", b"\x1b[31mx\n", [("a\0b", "\x1b[31mx")]),
        (b"a\n", b"x\r\r\n", [("a", "x ")]),
    ],
)
def test_what_is_accepted(tmp_path: Path, source: bytes, target: bytes, expected: list[tuple[str, str]]) -> None:
    files = two_files(tmp_path, source, target)
    assert sources.check(files, ENGLISH_GERMAN) == []
    assert read(files) == expected


@pytest.mark.parametrize(
    ("source", "target", "counts"),
    [
        (b"a\nb\nc\n", b"x\ny\nz\nw\n", ("3 lines", "4 lines")),
        (b"a\nb\nc\nd\n", b"x\n", ("4 lines", "1 line")),
        (b"a\nb\nc", b"x\ny\n", ("3 lines", "2 lines")),
        (b"a\nb\n", b"", ("2 lines", "0 lines")),
        (b"", b"x\n", ("0 lines", "1 line")),
        (b"", b"\n", ("0 lines", "1 line")),
    ],
)
def test_different_lengths_are_refused_with_both_counts(
    tmp_path: Path, source: bytes, target: bytes, counts: tuple[str, str]
) -> None:
    message = refused(two_files(tmp_path, source, target))
    assert f"{tmp_path}/train.en has {counts[0]} and {tmp_path}/train.de has {counts[1]};" in message
    assert "Only empty lines" not in message


def test_empty_lines_at_one_end_are_refused_and_named(tmp_path: Path) -> None:
    assert "3 lines and" in (message := refused(two_files(tmp_path, b"a\n\n\r\n", b"x\n")))
    assert "Only empty lines at the end differ" in message


def test_macintosh_line_ends_are_refused_and_named(tmp_path: Path) -> None:
    message = refused(two_files(tmp_path, b"a\nb\nc\n", b"x\ry\rz\r"))
    assert "train.de has 3 CR characters" in message


def test_bad_bytes_are_named_by_file_line_value_and_offset(tmp_path: Path) -> None:
    source = two_files(tmp_path, b"one\ncaf\xe9\n", b"eins\nzwei\n")
    message = refused(source)
    assert f"{tmp_path}/train.en, line 2: byte 0xE9 at byte offset 3" in message
    assert "UTF-8" in message and "data.on_bad_bytes: skip_pair" in message
    assert "train.de, line 1: byte 0xFC" in refused(two_files(tmp_path, b"over\n", "über".encode("latin1")))


def test_bad_bytes_can_be_left_out_on_both_sides(tmp_path: Path) -> None:
    source = two_files(tmp_path, b"one\ncaf\xe9\nthree\nfour\n", b"eins\nzwei\ndr\xffi\nvier\n")
    counts: Counter[str] = Counter()
    pairs = list(sources.read(source, ENGLISH_GERMAN, "skip_pair", counts))
    assert pairs == [Pair("one", "eins", 1), Pair("four", "vier", 4)]
    assert counts == {"bad_bytes": 2}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_other_unicode_encodings_are_named(tmp_path: Path, encoding: str) -> None:
    content = "Grüße aus Köln.\nNoch ein Satz.\n".encode(encoding)
    source = two_files(tmp_path, b"Greetings from Cologne.\nAnother one.\n", content)
    name = encoding[:6].upper()
    assert f"train.de looks like {name} text; wanted UTF-8" in check(source)
    assert f"looks like {name}" in refused(source)


def test_the_locale_decides_nothing(tmp_path: Path) -> None:
    source = two_files(tmp_path, "Grüße 你好\n".encode(), b"x\n", ("Grüße.en", "Grüße.de"))
    code = (
        "import os, sys; from collections import Counter; from transformer_mt.config import TextSource, Languages\n"
        "from transformer_mt.data import sources\n"
        "source = TextSource(source=sys.argv[1], target=sys.argv[2]); languages = Languages(source='en', target='de')\n"
        "assert sources.check(source, languages) == []\n"
        "print(ascii(list(sources.read(source, languages, 'error', Counter()))[0].source))"
    )
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, os.fspath(source.source), os.fspath(source.target)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ascii("Grüße 你好")


def tsv(folder: Path, content: str, columns: tuple[int, int] = (0, 1)) -> TsvSource:
    (folder / "table.tsv").write_bytes(content.encode())
    return TsvSource(tsv=folder / "table.tsv", columns=columns)


def test_tsv(tmp_path: Path) -> None:
    assert read(tsv(tmp_path, 'a\tx\r\n"b\ty"\nc\t\n')) == [("a", "x"), ('"b', 'y"'), ("c", "")]
    assert read(tsv(tmp_path, "1\ta\tx\n2\tb\ty\n", (2, 1))) == [("x", "a"), ("y", "b")]
    assert read(tsv(tmp_path, "a\tx\tid\nb\ty\tid\n")) == [("a", "x"), ("b", "y")]


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ("a\tx\nb\n", "line 2: tab-separated columns: found 1, wanted 2 as in the first line"),
        ("a\tx\nb\ty\tz\n", "line 2: tab-separated columns: found 3, wanted 2"),
        ("a\tx\tz\nb\ty\n", "line 2: tab-separated columns: found 2, wanted 3"),
        ('source,target\n"a","x"\n', "line 1: tab-separated columns: found 1, wanted at least 2"),
        ("a\tx\n\n", "line 2:"),
    ],
)
def test_a_ragged_tsv_is_refused_by_line(tmp_path: Path, content: str, where: str) -> None:
    assert f"{tmp_path}/table.tsv, {where}" in refused(tsv(tmp_path, content))


def test_bad_bytes_in_tsv(tmp_path: Path) -> None:
    (tmp_path / "table.tsv").write_bytes(b"b\xffd\tx\na\ty\n")
    source = TsvSource(tsv=tmp_path / "table.tsv")
    assert "line 1: byte 0xFF at byte offset 1" in refused(source)
    assert read(source, "skip_pair") == [("a", "y")]


def jsonl(folder: Path, *records: Any, columns: tuple[str, str] | None = None) -> JsonlSource:
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    (folder / "lines.jsonl").write_text("\n".join(lines), "utf-8")
    return JsonlSource(jsonl=folder / "lines.jsonl", columns=columns)


def test_jsonl_by_language_code_translation_or_columns(tmp_path: Path) -> None:
    assert read(jsonl(tmp_path, {"de": "x", "en": "a"}, "", {"translation": {"de": "y", "en": "ü"}})) == [
        ("a", "x"), ("ü", "y"),
    ]  # fmt: skip
    assert read(jsonl(tmp_path, {"en": "no", "s": "a", "t": "x"}, columns=("s", "t"))) == [("a", "x")]


def test_jsonl_values_without_text_are_empty(tmp_path: Path) -> None:
    assert read(jsonl(tmp_path, {"de": "x"}, {"en": None, "de": "y"}, {"en": "c"})) == [("", "x"), ("", "y"), ("c", "")]


def test_line_breaks_in_values_become_blanks_and_are_counted(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    source = jsonl(tmp_path, {"en": "a\nb\r\nc\rd", "de": "x"}, {"en": "e", "de": "y"})
    assert next(sources.read(source, ENGLISH_GERMAN, "error", counts)) == Pair("a b c d", "x", 1)
    assert counts == {"line_break_in_value": 1}


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([{"en": "a", "de": "x"}] * 9 + ['{"en": "cut off'], "line 10: not a whole JSON object"),
        (["[1, 2]"], "line 1: found list, wanted a JSON object"),
        ([{"en": "a", "de": 7}], "line 1: found int (7), wanted text"),
        ([{"fr": "a", "es": "x"}], "line 1: found the keys fr, es; wanted en, de"),
        ([{"en": "a", "es": "x"}] * 2, "no line has the key de"),
        (["", " "], "no pairs in"),
        ([{"en": "a", "de": "x"}, '{"en": "\\ud83d", "de": "x"}'], "line 2: text that is not UTF-8"),
    ],
)
def test_faults_in_jsonl_are_named_by_line(tmp_path: Path, records: list[Any], message: str) -> None:
    assert message in (told := refused(jsonl(tmp_path, *records)))
    assert "lines.jsonl" in told


def test_half_a_surrogate_pair_can_be_left_out(tmp_path: Path) -> None:
    assert read(jsonl(tmp_path, '{"en": "\\ud83d", "de": "x"}', {"en": "a", "de": "y"}), "skip_pair") == [("a", "y")]


def parquet(folder: Path, columns: dict[str, Any], names: tuple[str, str] | None = None) -> ParquetSource:
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "rows.parquet")
    return ParquetSource(parquet=folder / "rows.parquet", columns=names)


def test_parquet_by_name_never_by_position(tmp_path: Path) -> None:
    rows = [{"de": "x", "en": "a\nb"}, {"de": None, "en": "c"}, None]
    assert read(parquet(tmp_path, {"translation": rows})) == [("a b", "x"), ("c", ""), ("", "")]
    assert read(parquet(tmp_path, {"de": ["x"], "en": ["a"]})) == [("a", "x")]
    assert read(parquet(tmp_path, {"t": ["x"], "en": ["-"], "s": ["a"]}, ("s", "t"))) == [("a", "x")]
    assert sources.check(ParquetSource(parquet=tmp_path / "rows.parquet"), ENGLISH_GERMAN) == []


def test_a_column_that_is_there_twice(tmp_path: Path) -> None:
    table = pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 3, names=["en", "de", "de"])
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    told = refused(ParquetSource(parquet=tmp_path / "rows.parquet"))
    assert "rows.parquet has the columns en, de, de: de more than once" in told


def test_parquet_of_many_batches_keeps_its_order(tmp_path: Path) -> None:
    numbers = [str(number) for number in range(2500)]
    source = parquet(tmp_path, {"en": numbers, "de": numbers})
    pairs = list(sources.read(source, ENGLISH_GERMAN, "error", Counter()))
    assert pairs == [Pair(number, number, int(number) + 1) for number in numbers]


def test_faults_in_parquet(tmp_path: Path) -> None:
    assert "has the columns fr, de; wanted en, de" in refused(parquet(tmp_path, {"fr": ["a"], "de": ["x"]}))
    inner = refused(parquet(tmp_path, {"translation": [{"fr": "a", "de": "x"}]}))
    assert "translation.fr" in inner and "wanted en, de" in inner
    assert "row 1: found int (1), wanted text" in refused(parquet(tmp_path, {"en": [1], "de": ["x"]}))
    assert "no pairs in" in refused(parquet(tmp_path, {"en": pyarrow.array([], "string"), "de": []}))
    assert "no pairs" in refused(parquet(tmp_path, {"en": [], "de": []}))
    (tmp_path / "rows.parquet").write_bytes(b"a,b\n")
    assert "rows.parquet looks like text; wanted a Parquet file" in check(
        ParquetSource(parquet=tmp_path / "rows.parquet")
    )
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 and no more")
    assert "cannot be read as Parquet" in refused(ParquetSource(parquet=tmp_path / "rows.parquet"))


def test_bad_bytes_in_parquet(tmp_path: Path) -> None:
    texts = pyarrow.array([b"a", b"caf\xe9", b"c"]).view(pyarrow.string())
    source = parquet(tmp_path, {"en": texts, "de": ["x", "y", "z"]})
    assert "rows.parquet, row 2: text that is not UTF-8" in refused(source)
    assert read(source, "skip_pair") == [("a", "x"), ("c", "z")]


def test_one_column_for_both_sides_is_refused(tmp_path: Path) -> None:
    assert "column 1 is given for both sides" in check(tsv(tmp_path, "a\tx\n", (1, 1)))
    assert "column s is given for both sides" in check(jsonl(tmp_path, {"s": "a"}, columns=("s", "s")))
