"""Gettext catalogues: which entries are pairs, in which charset, and what is refused in which words."""

import gzip
import logging
import sys
import warnings
from collections import Counter
from pathlib import Path

import pytest
from translate.storage import pypo

from transformer_mt.data import catalogue
from transformer_mt.data.readers import Pair, Tally
from transformer_mt.errors import UserError

HEADER = r"""# German messages of an invented program.
#
msgid ""
msgstr ""
"Project-Id-Version: dirty 1.0\n"
"MIME-Version: 1.0\n"
"Content-Type: text/plain; charset=UTF-8\n"
"Content-Transfer-Encoding: 8bit\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\n"

"""
MESSAGES = r"""#: src/main.c:20
#, c-format
msgid "Cannot write to %s."
msgstr "In %s kann nicht geschrieben werden."

msgid ""
"This message is long, so the tools "
"wrapped it."
msgstr ""
"Diese Meldung ist lang, deshalb haben die Werkzeuge "
"sie verteilt."

msgid ""
"First line.\n"
"Second with a \"quoted\" word."
msgstr ""
"Erste Zeile.\n"
"Zweite mit einem »zitierten« Wort."

msgid "Path:\tC:\\temp\\new"
msgstr "Pfad:\tC:\\temp\\neu"

#, c-format
msgid "%d file was copied."
msgid_plural "%d files were copied."
msgstr[0] "%d Datei wurde kopiert."
msgstr[1] "%d Dateien wurden kopiert."

#, fuzzy, c-format
#| msgid "Delete the file %s?"
msgid "Delete the folder %s?"
msgstr "Die Datei %s löschen?"

msgid "Not translated yet."
msgstr ""

msgctxt "the month"
msgid "May"
msgstr "Mai"

msgctxt "the permission"
msgid "May"
msgstr "Darf"

# A comment of the translator
#. A comment for the translator
msgid "Version"
msgstr "Version"

#~ msgid "An old message."
#~ msgstr "Eine alte Meldung."

#, fuzzy
#~ msgid "%d old thing"
#~ msgid_plural "%d old things"
#~ msgstr[0] "%d altes Ding"
#~ msgstr[1] "%d alte Dinge"

# The end.
"""
SIZE = 'msgid "size"\nmsgstr "Größe"\n'


def read(folder: Path, content: str | bytes, on_bad_bytes: str = "error") -> tuple[list[tuple[str, str]], Counter[str]]:
    """The pairs, and what was counted."""
    counts: Counter[str] = Counter()
    pairs = list(catalogue.po_pairs(written(folder, content), Tally(on_bad_bytes, counts)))
    return [(pair.source, pair.target) for pair in pairs], counts


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "m.po"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refused(folder: Path, content: str | bytes) -> str:
    """The one sentence after the file's path with which reading ends."""
    with pytest.raises(UserError) as failure:
        read(folder, content)
    (message,) = failure.value.messages
    assert "\n" not in message
    assert message.startswith(f"{folder}/m.po")
    return message.removeprefix(f"{folder}/m.po")


def header(charset: str) -> str:
    return HEADER.replace("UTF-8", charset)


def test_translated_entries_are_pairs_and_others_are_counted(tmp_path: Path) -> None:
    pairs, counts = read(tmp_path, HEADER + MESSAGES)
    assert pairs == [
        ("Cannot write to %s.", "In %s kann nicht geschrieben werden."),
        (
            "This message is long, so the tools wrapped it.",
            "Diese Meldung ist lang, deshalb haben die Werkzeuge sie verteilt.",
        ),
        ('First line. Second with a "quoted" word.', "Erste Zeile. Zweite mit einem »zitierten« Wort."),
        ("Path:\tC:\\temp\\new", "Pfad:\tC:\\temp\\neu"),
        ("May", "Mai"),
        ("May", "Darf"),
        ("Version", "Version"),
    ]
    assert counts == {"plural": 1, "fuzzy": 1, "untranslated": 1, "obsolete": 2, "line_break_in_value": 2}


def test_the_line_is_the_one_where_the_entry_begins(tmp_path: Path) -> None:
    path = written(tmp_path, HEADER + "# comment\n" + SIZE + "\n" + SIZE.replace("size", "sizes"))
    pairs = list(catalogue.po_pairs(path, Tally("error", Counter())))
    assert pairs == [Pair("size", "Größe", 11), Pair("sizes", "Größe", 15)]


def test_a_catalogue_without_translations_has_no_pairs(tmp_path: Path) -> None:
    assert read(tmp_path, HEADER + 'msgid "size"\nmsgstr ""\n') == ([], {"untranslated": 1})
    assert read(tmp_path, "#, fuzzy\n" + HEADER) == ([], {})
    assert read(tmp_path, "\n") == ([], {})


def test_a_context_in_the_manner_of_kde_is_no_text(tmp_path: Path) -> None:
    assert read(tmp_path, 'msgid "_: a verb\\n"\n"Open"\nmsgstr "Öffnen"\n')[0] == [("Open", "Öffnen")]


@pytest.mark.parametrize(
    ("charset", "target"),
    [
        ("UTF-8", "Größe 你好"),
        ("ISO-8859-1", "Größe"),
        ("iso-8859-15", "Größe €"),
        ("koi8-r", "да"),
        ("SHIFT_JIS", "表示ソ"),  # whose second bytes can be those of a backslash
        ("GBK", "你好"),
    ],
)
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_the_charset_is_the_one_of_the_header(tmp_path: Path, charset: str, target: str, line_end: str) -> None:
    content = (header(charset) + f'msgid "text"\nmsgstr "{target}\\n"\n').replace("\n", line_end)
    (pair,) = catalogue.po_pairs(written(tmp_path, content.encode(charset)), Tally("error", Counter()))
    assert pair == Pair("text", target + " ", 11)
    assert read(tmp_path, gzip.compress(content.encode(charset)))[0] == [("text", target + " ")]


def test_a_charset_in_a_message_is_none_of_the_file(tmp_path: Path) -> None:
    message = 'msgid "Content-Type: text/plain; charset=koi8-r"\nmsgstr "Content-Type: charset=koi8-r; Größe"\n'
    expected = [("Content-Type: text/plain; charset=koi8-r", "Content-Type: charset=koi8-r; Größe")]
    assert read(tmp_path, message)[0] == expected
    assert read(tmp_path, HEADER + message)[0] == expected
    assert read(tmp_path, header("CHARSET") + message)[0] == expected


def test_a_header_on_one_line_is_read(tmp_path: Path) -> None:
    content = 'msgid ""\nmsgstr "Project: x\\nContent-Type: text/plain; charset=ISO-8859-1\\n"\n\n' + SIZE
    assert read(tmp_path, content.encode("latin1"))[0] == [("size", "Größe")]


def test_different_line_ends_in_one_file_hide_no_entry(tmp_path: Path) -> None:
    assert read(tmp_path, HEADER.replace("\n", "\r\n") + SIZE + SIZE)[0] == [("size", "Größe")] * 2


@pytest.mark.parametrize("charset", ["klingon", "hex"])
def test_an_unknown_charset_is_refused(tmp_path: Path, charset: str) -> None:
    assert f"its header names the charset '{charset}'" in refused(tmp_path, header(charset) + SIZE)


def test_bad_bytes_are_refused_with_the_entry_or_left_out_and_counted(tmp_path: Path) -> None:
    good = 'msgid "y"\nmsgstr "ü"\n\n'
    for head in (HEADER, ""):
        content = (head + "# Jos\xe9\n" + 'msgid "x"\nmsgstr "caf\xe9"\n\n').encode("latin1") + good.encode()
        line = head.count("\n") + 1
        expected = f", entry at line {line}: bytes that are not UTF-8"
        assert expected in (message := refused(tmp_path, content))
        assert "data.on_bad_bytes: skip_pair" in message
        assert read(tmp_path, content, "skip_pair") == ([("y", "ü")], {"bad_bytes": 1})


def test_bad_bytes_outside_the_texts_that_are_read_do_not_matter(tmp_path: Path) -> None:
    content = "# Jos\xe9\n#, fuzzy\nmsgid 'x'\n".replace("'", '"') + 'msgstr "caf\xe9"\n\n# caf\xe9\n'
    assert read(tmp_path, content.encode("latin1") + SIZE.encode()) == ([("size", "Größe")], {"fuzzy": 1})


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ('msgid "cut off"\n', " is incomplete"),
        ('msgctxt "cut off"\n', " is incomplete"),
        ('msgid "cut off', " is incomplete"),
        ('msgid "x"\nmsgstr "cut off', " cannot be read as a gettext catalogue: end-of-line within string on line 14"),
        ('msgid "x"\nmsgid "y"\nmsgstr "z"\n', " cannot be read as a gettext catalogue: Syntax error on line 14"),
        ('msgid "x"\nmsgid_plural "y"\nmsgstr[z] "z"\n', " cannot be read as a gettext catalogue"),
        ("Just text.\n", " cannot be read as a gettext catalogue: Syntax error on line 13"),
    ],
)
def test_what_is_no_whole_catalogue_is_refused(tmp_path: Path, end: str, words: str) -> None:
    assert words in refused(tmp_path, f"{HEADER}{SIZE}{end}")


def test_a_long_line_is_not_told_whole(tmp_path: Path) -> None:
    assert len(refused(tmp_path, "text " * 10_000)) < 300


def test_the_toolkit_is_kept_quiet_and_spared_the_charset(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    given: list[bytes] = []
    parse = pypo.pofile.parsestring

    def noisy(content: bytes) -> object:
        given.append(content)
        logging.getLogger("translate.storage.pypo").warning("noise")
        warnings.warn("noise", stacklevel=1)
        return parse(content)

    monkeypatch.setattr(pypo.pofile, "parsestring", noisy)
    assert read(tmp_path, (header("ISO-8859-1") + SIZE).encode("latin1"))[0] == [("size", "Größe")]
    assert given == [(HEADER + SIZE).encode()]
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_the_missing_extra_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, HEADER + SIZE)
    assert catalogue.problem(path) is None
    monkeypatch.setitem(sys.modules, "translate.storage.pypo", None)
    assert 'pip install "transformer-mt[formats]"' in refused(tmp_path, HEADER + SIZE)
    assert str(path) in (catalogue.problem(path) or "")


def test_entries_are_numbered_where_the_toolkit_knows_no_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pypo.pounit, "line_number", None, raising=False)
    path = written(tmp_path, HEADER + MESSAGES)
    assert [pair.line for pair in catalogue.po_pairs(path, Tally("error", Counter()))] == [1, 2, 3, 4, 8, 9, 10]
    bad = HEADER.encode() + SIZE.encode() + b'\nmsgid "x"\nmsgstr "caf\xe9"\n'
    assert ", entry 2: bytes that are not UTF-8" in refused(tmp_path, bad)
