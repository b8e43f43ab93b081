"""What can be said about a source before it is read, its names, and the demo."""

import gzip
import io
import json
import os
import sys
import types
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import sentencepiece

import transformer_mt.data
from tests.reading import ENGLISH_GERMAN, check, read, refused, two_files
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
)
from transformer_mt.data import sources


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    source = TextSource(source=tmp_path / "none.en", target=tmp_path)
    missing, folder = sources.check(source, ENGLISH_GERMAN)
    assert missing == f"{tmp_path}/none.en does not exist"
    assert folder == f"{tmp_path} is a folder; wanted a file"
    assert "none.en cannot be read: No such file" in refused(source)


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.en")
    (tmp_path / "train.de").write_bytes(b"x\n")
    assert "pipe.en is a pipe" in check(TextSource(source=tmp_path / "pipe.en", target=tmp_path / "train.de"))


def test_an_unreadable_file_is_named_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = two_files(tmp_path, b"a\n", b"x\n")
    source.target.chmod(0)
    if os.geteuid() == 0:  # root may read everything
        monkeypatch.setattr("transformer_mt.data.files.open", _denying(source.target), raising=False)
    assert check(source) == f"{tmp_path}/train.de cannot be read: Permission denied"


def _denying(denied: Path) -> Any:
    def open_or_deny(path: Path, *rest: Any) -> Any:
        if path == denied:
            raise PermissionError(13, "Permission denied")
        return open(path, *rest)

    return open_or_deny


def test_one_file_for_both_sides_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.en").write_bytes(b"a\n")
    (tmp_path / "link.de").symlink_to("train.en")
    for target in ("train.en", "link.de"):
        source = TextSource(source=tmp_path / "train.en", target=tmp_path / target)
        assert "are the same file" in check(source)


def test_empty_files(tmp_path: Path) -> None:
    source = two_files(tmp_path, b"", b"")
    assert "no pairs in" in check(source) and "no pairs in" in refused(source)
    message = check(two_files(tmp_path, b"a\n" * 20, b""))
    assert "train.en has 20 lines and" in message and "train.de has 0 lines" in message
    assert "the file is empty" in check(TsvSource(tsv=source.target))
    assert "no pairs in" in refused(JsonlSource(jsonl=source.target))
    # Compressed nothing is nothing too.
    assert "no pairs in" in refused(two_files(tmp_path, gzip.compress(b""), gzip.compress(b"")))


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"PK\x03\x04rest", "a zip archive"),
        (b"PAR1rest", "a Parquet file"),
        (b"%PDF-1.7\n", "a PDF file"),
        (b"\x80\x04\x95rest", "a Python pickle"),
        (b"<?xml version='1.0'?>\n", "an XML file"),
        (b"<!DOCTYPE html>\n<html>", "a page of HTML"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (gzip.compress(b"a.en".ljust(257, b"\0") + b"ustar\0" + bytes(300), mtime=0), "a tar archive"),
    ],
)
def test_other_kinds_of_file_are_named(tmp_path: Path, content: bytes, found: str) -> None:
    message = check(two_files(tmp_path, b"a\n", content))
    assert f"{tmp_path}/train.de looks like {found}" in message or found in message
    assert "wanted UTF-8 text, one sentence a line" in message


def test_a_sentencepiece_model_is_no_corpus(tmp_path: Path) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c", "b c d"] * 9), model_writer=model, vocab_size=9, minloglevel=2, pad_id=0,
        unk_id=1, bos_id=2, eos_id=3, hard_vocab_limit=False,
    )  # fmt: skip
    assert "train.de looks like a SentencePiece model; wanted" in check(two_files(tmp_path, b"a\n", model.getvalue()))


@pytest.mark.parametrize("name", ["memory.tmx", "messages.po", "table.csv", "table.tsv", "lines.jsonl.gz"])
def test_other_formats_are_told_by_their_names(tmp_path: Path, name: str) -> None:
    assert f"{name} looks like" in check(two_files(tmp_path, b"a\n", b"x\n", (name, "train.de")))


@pytest.mark.parametrize("name", ["with blank", "Grüße", "a,b", "quote'd", "$HOME", "über alles, 1 & 2"])
def test_names_may_hold_anything(tmp_path: Path, name: str) -> None:
    source = two_files(tmp_path, b"a\n", b"x\n", (f"{name}.en", f"{name}.de"))
    assert sources.check(source, ENGLISH_GERMAN) == []
    assert read(source) == [("a", "x")]
    assert f"{name}.de has 2 lines" in refused(two_files(tmp_path, b"a\n", b"x\n\n", (f"{name}.en", f"{name}.de")))


@pytest.fixture
def demo_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the grammar, whose sentences are told apart by language and number."""

    def generate(name: str, pairs: int, seed: int) -> Iterator[tuple[str, str]]:
        for number in range(pairs):
            yield f"{name} en {number + seed}", f"{name} de {number + seed}"

    stub = types.ModuleType("transformer_mt.data.demo")
    stub.__dict__.update(generate=generate, LANGUAGE_PAIRS={"english-german": ("en", "de")}, MOST_PAIRS=50)
    monkeypatch.setitem(sys.modules, stub.__name__, stub)
    monkeypatch.setattr(transformer_mt.data, "demo", stub, raising=False)


@pytest.mark.usefixtures("demo_grammar")
def test_the_demo_follows_the_languages() -> None:
    source = DemoSource(demo="english-german", pairs=2, seed=5)
    forward = [("english-german en 5", "english-german de 5"), ("english-german en 6", "english-german de 6")]
    assert read(source) == forward
    german_english = Languages(source="de", target="en")
    assert read(source, languages=german_english) == [(german, english) for english, german in forward]
    assert sources.check(source, german_english) == []


@pytest.mark.usefixtures("demo_grammar")
def test_the_demo_has_no_other_languages() -> None:
    english_french = Languages(source="en", target="fr")
    source = DemoSource(demo="english-german", pairs=2)
    assert "has en and de; languages are en and fr" in check(source, english_french)
    assert "has en and de" in refused(source, languages=english_french)


@pytest.mark.usefixtures("demo_grammar")
def test_the_demo_has_no_more_sentences_than_it_has() -> None:
    assert "gives at most 50 pairs; found pairs: 51" in check(DemoSource(demo="english-german", pairs=51))
    assert sources.check(DemoSource(demo="english-german", pairs=50), ENGLISH_GERMAN) == []


def test_the_demo_itself_can_be_read() -> None:
    source = DemoSource(demo="english-german", pairs=20)
    english = [pair[0] for pair in read(source)]
    assert len(set(english)) == 20
    assert [pair[1] for pair in read(source, languages=Languages(source="de", target="en"))] == english


def test_describe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert sources.describe(TextSource(source=Path("data/a.en"), target=Path("/b.de"))) == "data/a.en + /b.de"
    assert sources.describe(HubSource(hub="wmt/wmt14", subset="de-en")) == "wmt/wmt14 de-en train"
    assert sources.describe(DemoSource(demo="english-german", pairs=9)) == "demo english-german (9 pairs, seed 1)"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (HubSource(hub="wmt/wmt14", split="test", name="newstest2014"), "newstest2014"),
        (HubSource(hub="wmt/wmt14", split="validation"), "validation"),
        (HubSource(hub="wmt/wmt14", split="train[:1000]"), "train_1000"),
        (TextSource(source=Path("x/newstest2014.en.gz"), target=Path("y.de")), "newstest2014"),
        (TextSource(source=Path("new test.en"), target=Path("y.de")), "new_test"),
        (TextSource(source=Path(".en"), target=Path(".de")), "en"),
        (TsvSource(tsv=Path("?.tsv")), "fallback"),
        (DemoSource(demo="english-german"), "fallback"),
    ],
)
def test_name_of(source: Source, expected: str) -> None:
    assert sources.name_of(source, "fallback") == expected


def test_patterns_and_lists_stand_for_files_in_order(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        (tmp_path / f"part-{number}.en").write_text(f"s{number}\n", "utf-8")
        (tmp_path / f"part-{number}.de").write_text(f"t{number}\n", "utf-8")
    (tmp_path / "part-0.en").mkdir()
    pattern = TextSource(source=tmp_path / "part-*.en", target=tmp_path / "part-*.de", tag="<bt>", weight=2)
    assert read_lines(pattern) == [("s1", "t1", 1), ("s10", "t10", 1), ("s2", "t2", 1)]
    assert sources.check(pattern, ENGLISH_GERMAN) == []
    assert {(part.tag, part.weight) for part in sources.parts(pattern)} == {("<bt>", 2)}
    order = [2, 1, 2]
    listed = TextSource(
        source=tuple(tmp_path / f"part-{number}.en" for number in order),
        target=tuple(tmp_path / f"part-{number}.de" for number in order),
    )
    assert [pair[0] for pair in read_lines(listed)] == ["s2", "s1", "s2"]
    mixed = TextSource(source=(tmp_path / "part-1*.en",), target=tmp_path / "part-[1]*.de")
    assert [pair[0] for pair in read_lines(mixed)] == ["s1", "s10"]


@pytest.mark.parametrize("kind", ["text", "gzip", "tsv", "jsonl", "parquet", "tmx", "demo"])
def test_how_much_is_read_is_told_on_the_way(tmp_path: Path, kind: str) -> None:
    """It only grows, is little at the beginning and all, or nearly, at the end."""
    rows = [(f"word number {number} of many", f"Wort Nummer {number} von vielen") for number in range(20_000)]
    (tmp_path / "a.en").write_text("".join(f"{one}\n" for one, _ in rows), "utf-8")
    (tmp_path / "a.de").write_text("".join(f"{other}\n" for _, other in rows), "utf-8")
    given: Source
    if kind == "text":
        given = TextSource(source=tmp_path / "a.en", target=tmp_path / "a.de")
    elif kind == "gzip":
        for name in ("a.en", "a.de"):
            (tmp_path / f"{name}.gz").write_bytes(gzip.compress((tmp_path / name).read_bytes()))
        given = TextSource(source=tmp_path / "a.en.gz", target=tmp_path / "a.de.gz")
    elif kind == "tsv":
        (tmp_path / "a.tsv").write_text("".join(f"{one}\t{other}\n" for one, other in rows), "utf-8")
        given = TsvSource(tsv=tmp_path / "a.tsv")
    elif kind == "jsonl":
        lines = [json.dumps({"en": one, "de": other}) + "\n" for one, other in rows]
        (tmp_path / "a.jsonl").write_text("".join(lines), "utf-8")
        given = JsonlSource(jsonl=tmp_path / "a.jsonl")
    elif kind == "parquet":
        table = pyarrow.table({"en": [one for one, _ in rows], "de": [other for _, other in rows]})
        pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
        given = ParquetSource(parquet=tmp_path / "a.parquet")
    elif kind == "tmx":
        variant = '<tuv xml:lang="{}"><seg>{}</seg></tuv>'
        units = [f"<tu>{variant.format('en', one)}{variant.format('de', other)}</tu>" for one, other in rows]
        (tmp_path / "a.tmx").write_text(f'<tmx version="1.4"><body>{"".join(units)}</body></tmx>', "utf-8")
        given = TmxSource(tmx=tmp_path / "a.tmx")
    else:
        given = DemoSource(demo="english-german", pairs=2000)
    tally = sources.Tally("error", Counter())
    shares = [tally.share_read for _ in sources.pairs_of(given, ENGLISH_GERMAN, tally)]
    assert shares == sorted(shares) and shares[0] < 0.2 and 0.2 < shares[len(shares) // 2] < 0.8 and shares[-1] > 0.9


def read_lines(source: Source) -> list[tuple[str, str, int]]:
    return [tuple(pair) for pair in sources.read(source, ENGLISH_GERMAN, "error", Counter())]


def test_a_name_may_look_like_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "a[1].tsv").write_text("one\teins\n", "utf-8")
    (tmp_path / "a1.tsv").write_text("two\tzwei\n", "utf-8")
    assert read(TsvSource(tsv=tmp_path / "a[1].tsv")) == [("one", "eins")]
    (tmp_path / "br [1]").mkdir()
    (tmp_path / "a1.tsv").rename(tmp_path / "br [1]" / "a1.tsv")
    assert read(TsvSource(tsv=tmp_path / "br [1]" / "a*.tsv")) == [("two", "zwei")]


def test_patterns_that_fit_nothing_or_unequally_are_told(tmp_path: Path) -> None:
    (tmp_path / "1.en").write_text("a\n", "utf-8")
    (tmp_path / "2.en").write_text("b\n", "utf-8")
    (tmp_path / "1.de").write_text("c\n", "utf-8")
    assert check(TsvSource(tsv=tmp_path / "*.tsv")) == f"{tmp_path}/*.tsv matches no file"
    unequal = check(TextSource(source=tmp_path / "*.en", target=tmp_path / "*.de"))
    shown = f"{tmp_path}/1.en, {tmp_path}/1.de, ..."
    assert unequal == f"found 2 source files and 1 target files ({shown}), wanted as many of each"
    (tmp_path / "2.de").write_bytes(b"")
    assert "2.en has 1 lines and" in check(TextSource(source=tmp_path / "*.en", target=tmp_path / "*.de"))


def test_every_file_of_a_pattern_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "1.tsv").write_text("a\tb\n", "utf-8")
    (tmp_path / "2.tsv").write_bytes(b"PK\x03\x04")
    (tmp_path / "3.tsv").write_bytes(b"")
    assert "2.tsv looks like a zip archive" in check(TsvSource(tsv=tmp_path / "*.tsv"))
    for name in ("1.tsv", "2.tsv"):
        (tmp_path / name).write_bytes(b"")
    assert check(TsvSource(tsv=tmp_path / "*.tsv")).endswith("all 3 parts are empty (0 bytes)")


def test_translation_memories_and_catalogues_are_sources(tmp_path: Path) -> None:
    (tmp_path / "m.tmx").write_text(
        '<tmx version="1.4"><header/><body><tu><tuv xml:lang="EN-US"><seg>one</seg></tuv>'
        '<tuv xml:lang="de"><seg>eins</seg></tuv></tu></body></tmx>',
        "utf-8",
    )
    (tmp_path / "m.po").write_text('msgid ""\nmsgstr ""\n\nmsgid "one"\nmsgstr "eins"\n', "utf-8")
    for source in (TmxSource(tmx=tmp_path / "m.tmx"), PoSource(po=tmp_path / "m.po")):
        assert sources.check(source, ENGLISH_GERMAN) == [] and read(source) == [("one", "eins")]
    problems = sources.check(TextSource(source=tmp_path / "m.tmx", target=tmp_path / "m.po"), ENGLISH_GERMAN)
    assert ["write {tmx: FILE}" in problems[0], "write {po: FILE}" in problems[1]] == [True, True]
    assert check(TmxSource(tmx=tmp_path / "m.po")).endswith("m.po looks like text; wanted a translation memory (TMX)")
    unknown = sources.check(SacrebleuSource(sacrebleu="wmt1"), ENGLISH_GERMAN)
    assert len(unknown) == 1 and "wmt1" in unknown[0]
    assert sources.name_of(SacrebleuSource(sacrebleu="wmt14/full"), "x") == "wmt14_full"


def test_files_of_patterns_are_paired_by_what_the_stars_stand_for(tmp_path: Path) -> None:
    """Sorted by whole names, a.dev.en comes before a.en, and a.de before a.dev.de."""
    for name in ("a", "a.dev"):
        (tmp_path / f"{name}.en").write_text(f"{name} s\n", "utf-8")
        (tmp_path / f"{name}.de").write_text(f"{name} t\n", "utf-8")
    source = TextSource(source=tmp_path / "a*.en", target=tmp_path / "a*.de")
    assert read_lines(source) == [("a s", "a t", 1), ("a.dev s", "a.dev t", 1)]
    (tmp_path / "ab.en").write_text("x\n", "utf-8")
    (tmp_path / "ac.de").write_text("x\n", "utf-8")
    assert "has no partner among the files of" in check(source)


def test_text_that_begins_as_bzip2_does_is_text(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("BZh is a magic\tBZh\n", "utf-8")
    assert read(TsvSource(tsv=tmp_path / "t.tsv")) == [("BZh is a magic", "BZh")]
