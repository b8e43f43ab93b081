"""Files as people bring them, with one fault each: what `clean` and `config check` make of them, row by row."""

import gzip
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.running import assert_plain, inside

ENGLISH = "the house of the man is not in the town and it was sold for the price that you have seen"
GERMAN = "das Haus von dem Mann ist nicht in der Stadt und es wurde zu dem Preis verkauft den ihr kennt"
SPACES = ["", " ", "\t", "\xa0", "\u3000", "\u2003"]
BREAKS = ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e"]
SCRIPTS = ["\U0001f468\u200d\U0001f469", "中文", "\u0627\u0628", "ελ", "\U0001d400", "e\u0301\u0323"]
SPECIAL = ["<unk>", "<s>", "</s>", "<pad>", "\u2581", "@@", "<2de>", "[MASK]"]
INVISIBLE = ["\u200b", "\u200d", "\ufeff", "\xad", "\u200e", "\u2060"]


def lines(count: int, words: str, seed: int) -> list[str]:
    """Different sentences."""
    generator = random.Random(seed)
    return [f"{' '.join(generator.sample(words.split(), 8))} {number}" for number in range(count)]


EN, DE = lines(60, ENGLISH, 1), lines(60, GERMAN, 2)


def plain(rows: list[str], end: str = "\n") -> bytes:
    return "".join(row + end for row in rows).encode()


def changed(rows: list[str], changes: dict[int, str]) -> list[str]:
    """The rows with some of them, counted from 1, replaced."""
    return [changes.get(number, row) for number, row in enumerate(rows, 1)]


@dataclass
class Case:
    """Two files (or one of another kind) and what becomes of them."""

    name: str
    files: dict[str, bytes]
    pairs: int = 60
    dropped: dict[str, int] = field(default_factory=dict)
    said: tuple[str, ...] = ()
    """What is told: warnings, or, where no pairs are left, why it is refused."""
    source: dict[str, Any] | None = None


def two(name: str, en: bytes, de: bytes, **keys: Any) -> Case:
    return Case(name, {"t.en": en, "t.de": de}, **keys)


def every(rows: list[str], marks: list[str], form: str) -> bytes:
    """A mark in the middle of each row, put in by a form of two halves and a mark."""
    split = [(row[:9], marks[number % len(marks)], row[9:]) for number, row in enumerate(rows)]
    return plain([form.format(*parts) for parts in split])


CASES = [
    two("good", plain(EN), plain(DE)),
    two("misaligned", plain(EN), plain(DE[:57]), pairs=0, said=("t.en has 60 lines and", "t.de has 57 lines")),
    two("no final newline", plain(EN), plain(DE)[:-1]),
    two("trailing blanks", plain(EN) + b"\n\n\n", plain(DE), pairs=0, said=("63", "60", "Only empty lines at the end")),
    two("CRLF", plain(EN), plain(DE, "\r\n")),
    two("CR only", plain(EN), plain(DE, "\r"), pairs=0, said=("60", "1 line", "old Macintosh line ends")),
    two("BOM", b"\xef\xbb\xbf" + plain(EN), b"\xef\xbb\xbf" + plain(DE)),
    two("Latin 1", plain(EN), "für\n".encode("latin-1") * 60, pairs=0, said=("t.de, line 1: byte 0xFC", "UTF-8")),
    two("one bad byte", plain(EN), plain(DE).replace(b" 16\n", b" \xfc 16\n"), pairs=0, said=("line 17: byte 0xFC",)),
    two("UTF-16", plain(EN), "\n".join(DE).encode("utf-16"), pairs=0, said=("t.de looks like UTF-16 text",)),
    two("mojibake", plain(EN), plain([f"fÃ¼r {row}" for row in DE])),
    two("NFD", plain(EN), plain([f"u\u0308ber {row}" for row in DE])),
    two("separators", plain(EN), every(DE, BREAKS, "{0}{1}{2}")),
    two("NUL", every(EN, ["\0"], "{0}{1}{2}"), plain(DE)),
    two("control", every(EN, ["\x01", "\x08", "\x1b[31m"], "{0}{1}{2}"), plain(DE)),
    two("empty lines", plain(changed(EN, {3: "", 17: "", 44: ""})), plain(changed(DE, {9: "", 44: ""})), pairs=56,
        dropped={"empty_source": 3, "empty_target": 1}),
    two("white space", plain(EN), plain(changed(DE, dict(enumerate(SPACES, 4)))), pairs=54,
        dropped={"empty_target": 6}),
    two("tabs", every(EN, ["\t"], "{1}{0}{1}{2}{1}"), every(DE, ["\t"], "{0}{1}{2}{1}")),
    two("invisible", every(EN, INVISIBLE, "{0}{1}{2}"), every(DE, ["\xa0", "\u202f", "\u2009"], "{0}{1}{2}")),
    two("identical", plain(EN), plain(EN), said=("warning: all 60 pairs are identical on both sides",)),
    two("swapped", plain(DE), plain(EN), said=("warning: 100% of the pairs", "have their sides swapped")),
    two("partly swapped", plain(EN[:30] + DE[30:]), plain(DE[:30] + EN[30:]), said=("50% of the pairs", "swapped")),
    two("duplicates", plain(EN[:4] * 15), plain(DE[:4] * 15), pairs=4, dropped={"duplicate": 56},
        said=("only 4 distinct pairs of 60",)),
    two("one line", plain(EN[:1]), plain(DE[:1]), pairs=1),
    two("shifted", plain(EN), plain(DE[-1:] + DE[:-1])),
    two("length ratio", plain([f"{row} and so on" for row in EN]),
        plain(changed(DE, dict.fromkeys(range(1, 60, 6), "ja"))), pairs=50, dropped={"length_ratio": 10}),
    two("long line", gzip.compress(plain(EN)), gzip.compress(plain(changed(DE, {10: "wort " * 20_000}))),
        pairs=59, dropped={"too_many_characters": 1}),
    two("long token", plain(EN), plain(changed(DE, {10: "x" * 40_000})), pairs=59,
        dropped={"too_many_characters": 1}),
    two("scripts", every(EN, SCRIPTS, "{0} {1} {2}"), plain(DE)),
    two("special tokens", every(EN, SPECIAL, "{0} {1} {2}"), plain(DE)),
    Case("two columns", {"t.tsv": plain([f"{a}\t{b}" for a, b in zip(EN, DE, strict=True)])}, source={"tsv": "t.tsv"}),
    Case("three columns", {"t.tsv": plain([f"{a}\t{b}\tid" for a, b in zip(EN, DE, strict=True)])},
         source={"tsv": "t.tsv"}),
    Case("ragged", {"t.tsv": plain(["a\tb", "a\tb\tc"])}, pairs=0, said=("line 2", "found 3, wanted 2"),
         source={"tsv": "t.tsv"}),
    Case("CSV", {"t.csv": b'en,de\r\n"say ""a""","sage ""b"""\r\n"two\nlines",zwei\r\n'}, pairs=2,
         source={"url": "file://{folder}/t.csv"}, said=()),
    Case("CSV as text", {"t.csv": plain(EN), "t.de": plain(DE)}, pairs=0, source={"source": "t.csv", "target": "t.de"},
         said=("t.csv looks like comma-separated values",)),
    Case("JSON lines", {"t.jsonl": b'{"en": "a", "de": "b"}\n{"en": "a", "d'}, pairs=0, source={"jsonl": "t.jsonl"},
         said=("line 2: not a whole JSON object",)),
    Case("truncated gzip", {"t.en": gzip.compress(plain(EN))[:-60], "t.de": gzip.compress(plain(DE))}, pairs=0,
         said=("t.en is incomplete",)),
    Case("not gzip", {"t.en.gz": plain(EN), "t.de.gz": plain(DE)}, source={"source": "t.en.gz", "target": "t.de.gz"}),
    Case("gzip without a suffix", {"t.en": gzip.compress(plain(EN)), "t.de": gzip.compress(plain(DE))}),
    two("empty", b"", b"", pairs=0, said=("no pairs in t.en + t.de",)),
    two("half empty", plain(EN[:20]), b"", pairs=0, said=("20", "0 lines")),
    two("only newlines", b"\n" * 20, b"\n" * 20, pairs=0, said=("no usable training pair: 20 read, empty_source 20",)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_dirty_file(tmp_path: Path, case: Case) -> None:
    for name, content in case.files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "valid.tsv").write_text("something else\tanderes\n", "utf-8")
    source = {key: value.format(folder=tmp_path) for key, value in (case.source or {}).items()}
    source = source or {"source": "t.en", "target": "t.de"}
    data = {"train": [source], "validation": [{"tsv": "valid.tsv"}]}
    plain_config = {"name": "x", "output": "run", "languages": {"source": "en", "target": "de"}, "data": data}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(plain_config), "utf-8")
    done = inside(tmp_path, "clean", "-c", "c.yaml", "--json")
    assert_plain(done.stderr)
    for words in case.said:
        assert words in done.stderr
    assert ("warning" in done.stderr) == (bool(case.said) and case.pairs > 0)
    corpus = tmp_path / "run" / "corpus"
    if not case.pairs:
        assert done.exit_code == 2 and not corpus.exists()
        return
    assert done.exit_code == 0, done.stderr
    train = json.loads(done.stdout)["train"]
    assert (train["pairs"], train["dropped"]) == (case.pairs, case.dropped)
    sides = [(corpus / f"train.{language}").read_text("utf-8") for language in ("en", "de")]
    for side in sides:
        assert len(side.splitlines()) == side.count("\n") == case.pairs
        assert not set(side) & {"\0", "\r", "\x1b", "\t", "\ufeff", "\u200b", "\xad", "\xa0", "\u0308"}
    if case.pairs >= 50 and case.name not in ("identical", "swapped", "partly swapped", "shifted"):
        for one, other in zip(*(side.split("\n")[:-1] for side in sides), strict=True):
            assert one.split()[-1].isdecimal() or one.endswith("on")
            assert other.split()[-1] in (one.split()[-1], "ja") or one.endswith("on")  # never shifted
