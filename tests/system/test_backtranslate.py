"""Translating back, driven as a person drives it: whatever happens on the way, the pairs are those of a quiet run."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import yaml
from typer.testing import Result

from tests.running import (
    Trained,
    assert_plain,
    command,
    environment,
    inside,
    patched,
    ranks,
    sentences,
    settings,
    start,
    write_task,
)
from transformer_mt import progress
from transformer_mt.commands import backtranslate as work
from transformer_mt.config import Languages, TsvSource
from transformer_mt.data import sources
from transformer_mt.data.clean import normalize
from transformer_mt.data.tokenizer import SPECIAL_PIECES, Tokenizer, write_vocabulary
from transformer_mt.decode.translator import Translator

LINES = [" ".join(row) for row in sentences(44, 5)]
ODD = {3: "", 17: " \u200b\u00a0", 21: "ba " * 1100, 30: "  ba\t do\u2028fi "}
"""Lines, from 0, that need a second look: two empty ones, one that is too long, one with other white space."""
TEXT = [ODD.get(number, line) for number, line in enumerate(LINES)]
PAIRS = len(TEXT) - 3
BLOCKS = ("--shard-lines", "12")
"""Four blocks, the last one of eight lines."""


def write_text(folder: Path, lines: list[str] = TEXT) -> None:
    (folder / "mono.de").write_text("".join(f"{line}\n" for line in lines), "utf-8")


def arguments(trained: Trained, *more: str | Path, model: Path | None = None) -> list[str | Path]:
    given = ["-i", "mono.de", "-o", "bt.tsv", *BLOCKS, *more]
    return ["backtranslate", "-m", model or trained.model, *given]


def made(trained: Trained, folder: Path, *more: str | Path) -> Result:
    """A call that ends well."""
    done = inside(folder, *arguments(trained, *more))
    assert done.exit_code == 0 and done.stdout == "", done.output
    return done


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def rows(folder: Path) -> list[list[str]]:
    lines = (folder / "bt.tsv").read_text("utf-8").split("\n")
    assert lines.pop() == ""
    return [line.split("\t") for line in lines]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    write_text(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def quiet_run(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("quiet")
    write_text(folder)
    made(trained, folder)
    assert names(folder) == ["bt.tsv", "bt.tsv.json", "mono.de"]
    return {name: (folder / name).read_bytes() for name in names(folder)}


def check_as_in_a_quiet_run(folder: Path, quiet_run: dict[str, bytes]) -> None:
    for name, content in quiet_run.items():
        assert (folder / name).read_bytes() == content, name
    left = [name for name in names(folder) if name not in (*quiet_run, "patch")]
    assert left == []


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first lines of the blocks that are translated, of which no line is too long."""
    found: list[int] = []

    def translate(
        self: Translator, lines: list[str], *given: Any, translate: Any = Translator.translate, **more: Any
    ) -> Any:
        found.append(more["first"])
        assert max(map(len, lines)) < 100
        return translate(self, lines, *given, **more)

    monkeypatch.setattr(Translator, "translate", translate)
    return found


def test_pairs_are_the_translations_and_their_lines(trained: Trained, text: Path) -> None:
    translations, _ = trained.lines(text, TEXT)
    done = made(trained, text)
    wanted = [[there, line] for there, line in zip(translations, LINES, strict=True)]
    wanted[30] = [translations[30], "ba do fi"]
    assert rows(text) == [row for number, row in enumerate(wanted) if number not in (3, 17, 21)]
    assert sum(there.split() == line.split()[::-1] for there, line in rows(text)) > PAIRS * 0.9
    assert f"{PAIRS} pairs of 44 lines (left out: empty line 2, too long 1)" in done.stderr
    assert "from en to de" in done.stderr
    made(trained, text, "-o", "greedy.tsv", "--beam-size", "1")
    greedy, _ = trained.lines(text, TEXT, "--beam-size", "1")
    found = (text / "greedy.tsv").read_text("utf-8")
    assert [row.split("\t")[0] for row in found.splitlines()] == [
        line for line in greedy if line and line != greedy[21]
    ]


def test_what_is_left_out_is_counted_by_reason(trained: Trained, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = iter(["\t\u200b ", "a\tb\u2028c", ""])

    def decode(self: Tokenizer, *given: Any, decode: Any = Tokenizer.decode) -> str:
        return next(outputs, "") or decode(self, *given)

    monkeypatch.setattr(Tokenizer, "decode", decode)
    done = made(trained, text)
    told = json.loads((text / "bt.tsv.json").read_text("utf-8"))
    counts = {"lines": 44, "pairs": PAIRS - 1, "empty_line": 2, "too_long": 1, "empty_translation": 1}
    assert {key: told[key] for key in counts} == counts and told["hit_length_limit"] == 0
    assert "left out: empty line 2, too long 1, empty translation 1" in done.stderr
    assert len(rows(text)) == PAIRS - 1 and {len(row) for row in rows(text)} == {2}
    assert "a b c" in [row[0] for row in rows(text)]


def test_a_translation_that_came_to_its_limit_is_told_of(trained: Trained, text: Path) -> None:
    limit = ("--set", "decoding.max_length.extra=0", "--set", "decoding.max_length.factor=0.5")
    config = ("--config", trained.folder / "c.yaml", "--set", f"output={trained.run}", *limit)
    done = made(trained, text, *config)
    told = json.loads((text / "bt.tsv.json").read_text("utf-8"))
    assert told["hit_length_limit"] > 30 and f"; hit length limit {told['hit_length_limit']}\n" in done.stderr


def test_nothing_but_empty_lines(trained: Trained, text: Path) -> None:
    write_text(text, ["", " ", ""])
    done = made(trained, text, "--quiet")
    assert (text / "bt.tsv").read_bytes() == b"" and re.fullmatch("warning: .* has no pair\n", done.stderr)


def test_the_output_is_a_source(trained: Trained, quiet_run: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "bt.tsv").write_bytes(quiet_run["bt.tsv"])
    source, counts = TsvSource(tsv=tmp_path / "bt.tsv", tag="<bt>", weight=2), Counter[str]()
    languages = Languages(source="en", target="de")
    assert sources.check(source, languages) == []
    pairs = [[pair.source, pair.target] for pair in sources.read(source, languages, "error", counts)]
    assert pairs == rows(tmp_path) and not +counts


def test_compressed_text_and_lines_of_windows(trained: Trained, quiet_run: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "mono.de").write_bytes(gzip.compress(quiet_run["mono.de"].replace(b"\n", b"\r\n")))
    made(trained, tmp_path)
    assert (tmp_path / "bt.tsv").read_bytes() == quiet_run["bt.tsv"]


# Stopping and going on

KILLED = """
import os, signal
from transformer_mt.commands import backtranslate
calls = []
def sync(path, sync=backtranslate.sync):
    calls.append(path)
    if len(calls) == {call}:
        os.kill(os.getpid(), signal.SIGKILL)
    sync(path)
backtranslate.sync = sync
"""
# Each thing that is put in its place is forced to the disk first, and its folder afterwards.
MOMENTS = {
    "before anything is there": (1, [0, 12, 24, 36]),
    "while a block is written": (7, [24, 36]),
    "when a block is in its place": (8, [36]),
    "while the output is written": (11, []),
    "while the record is written": (12, []),
    "when the record is there and the output is not": (13, []),
    "when the output is there and the blocks are too": (14, []),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_and_run_again(
    trained: Trained, text: Path, quiet_run: dict[str, bytes], asked: list[int], moment: str
) -> None:
    call, rest = MOMENTS[moment]
    killed = command(*arguments(trained), cwd=text, env=patched(text, KILLED.format(call=call)))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (text / "bt.tsv").exists() == (call == 14) and (text / "bt.tsv.parts").is_dir()
    done = made(trained, text)
    assert asked == rest
    assert ("is there already" in done.stderr) == (call == 14)
    check_as_in_a_quiet_run(text, quiet_run)


HALF = """
import os, signal
from pathlib import Path
calls = []
def write_bytes(self, content, write_bytes=Path.write_bytes):
    calls.append(self)
    if len(calls) == 4:
        write_bytes(self, content[: len(content) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    write_bytes(self, content)
Path.write_bytes = write_bytes
"""


def test_killed_with_half_a_block_on_the_disk(
    trained: Trained, text: Path, quiet_run: dict[str, bytes], asked: list[int]
) -> None:
    killed = command(*arguments(trained), cwd=text, env=patched(text, HALF))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(list((text / "bt.tsv.parts").glob(".*.partial"))) == 1
    made(trained, text)
    assert asked == [24, 36]
    check_as_in_a_quiet_run(text, quiet_run)


def test_terminated_and_run_again(trained: Trained, text: Path, quiet_run: dict[str, bytes], asked: list[int]) -> None:
    code = KILLED.replace("SIGKILL", "SIGTERM").format(call=7)
    stopped = command(*arguments(trained), cwd=text, env=patched(text, code))
    assert (stopped.returncode, stopped.stderr.splitlines()[-1]) == (143, "terminated")
    assert names(text / "bt.tsv.parts") == ["00000000.part", "00000001.part", "basis.json"]
    made(trained, text)
    assert asked == [24, 36]
    check_as_in_a_quiet_run(text, quiet_run)


def test_what_is_done_is_not_done_again(
    trained: Trained, text: Path, quiet_run: dict[str, bytes], asked: list[int]
) -> None:
    for _ in range(2):
        done = made(trained, text)
    assert asked == [0, 12, 24, 36] and "nothing to do" in done.stderr
    check_as_in_a_quiet_run(text, quiet_run)


# Shares


@pytest.mark.parametrize("order", ["123", "312", "231"])
def test_shares_in_any_order(
    trained: Trained, text: Path, quiet_run: dict[str, bytes], asked: list[int], order: str
) -> None:
    shares = [f"{share}/3" for share in order]
    for share in shares[:2]:
        done = made(trained, text, "--shard", share)
        assert not (text / "bt.tsv").exists() and "blocks are made" in done.stderr
    assert made(trained, text, "--shard", shares[0]).exit_code == 0
    assert asked == [first for share in order[:2] for first in {"1": [0, 36], "2": [12], "3": [24]}[share]]
    made(trained, text, "--shard", shares[2])
    check_as_in_a_quiet_run(text, quiet_run)
    made(trained, text, "--shard", shares[1])
    check_as_in_a_quiet_run(text, quiet_run)


def test_a_call_without_a_share_makes_the_rest(
    trained: Trained, text: Path, quiet_run: dict[str, bytes], asked: list[int]
) -> None:
    made(trained, text, "--shard", "2/2")
    made(trained, text)
    assert asked == [12, 36, 0, 24]
    check_as_in_a_quiet_run(text, quiet_run)
    made(trained, text, "-o", "empty-share.tsv", "--shard", "9/9")
    assert names(text / "empty-share.tsv.parts") == ["basis.json"]


def test_several_at_once_on_the_same_blocks(trained: Trained, text: Path, quiet_run: dict[str, bytes]) -> None:
    processes = [start(*arguments(trained), cwd=text) for _ in range(3)]
    for process in processes:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
        assert_plain(said)
    check_as_in_a_quiet_run(text, quiet_run)


@pytest.mark.parametrize("change", [lambda text: text[: len(text) // 3], lambda text: text + "ba\n"])
def test_a_text_that_changes_while_it_is_read(
    trained: Trained, text: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[str], str]
) -> None:
    """What is kept must be of the text whose digest is told."""
    whole, begun = (text / "mono.de").read_text("utf-8"), []

    def translate(*given: Any, translate: Any = Translator.translate, **more: Any) -> Any:
        begun.append(more["first"])
        if begun == [0]:
            (text / "mono.de").write_text(change(whole), "utf-8")
        return translate(*given, **more)

    monkeypatch.setattr(Translator, "translate", translate)
    done = inside(text, *arguments(trained))
    assert done.exit_code == 1 and "error: mono.de changed while it was read" in done.stderr
    assert begun == [0] and not (text / "bt.tsv").exists()


def test_another_process_makes_the_output_while_this_one_does(
    trained: Trained, text: Path, quiet_run: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its blocks are gone when it wants to read them."""
    calls = []

    def append(self: work.Blocks, *given: Any, append: Any = work.Blocks._append) -> Any:
        calls.append(given[0])
        if calls == [0, 1]:
            self.join({"languages": {"source": "en", "target": "de"}})
        return append(self, *given)

    monkeypatch.setattr(work.Blocks, "_append", append)
    made(trained, text)
    assert calls[:6] == [0, 1, 0, 1, 2, 3]
    check_as_in_a_quiet_run(text, quiet_run)


def test_another_process_makes_the_output_while_a_block_is_made(
    trained: Trained, text: Path, quiet_run: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is gone when the block is to be put there, and no other block is begun."""
    begun = []

    def translate(*given: Any, translate: Any = Translator.translate, **more: Any) -> Any:
        begun.append(more["first"])
        if begun == [0]:
            made(trained, text)
        return translate(*given, **more)

    monkeypatch.setattr(Translator, "translate", translate)
    made(trained, text)
    assert begun == [0, 0, 12, 24, 36]
    check_as_in_a_quiet_run(text, quiet_run)


def test_two_ranks_share_each_block(trained: Trained, text: Path, quiet_run: dict[str, bytes]) -> None:
    done = ranks(*arguments(trained), cwd=text)
    assert done.returncode == 0 and done.stdout == "", done.stderr
    assert done.stderr.count("pairs of 44 lines") == 1
    check_as_in_a_quiet_run(text, quiet_run)


# Sampling


def test_what_is_drawn_depends_on_seed_and_line_number_alone(trained: Trained, text: Path) -> None:
    drawn = ("--sample", "--temperature", "6", "--seed", "7")
    translations, _ = trained.lines(text, TEXT, *drawn)
    made(trained, text, *drawn)
    found = (text / "bt.tsv").read_bytes()
    wanted = [normalize(line) for number, line in enumerate(translations) if number not in (3, 17, 21)]
    assert [row[0] for row in rows(text)] == wanted
    made(trained, text, *drawn, "-o", "again.tsv", "--shard-lines", "5")
    assert (text / "again.tsv").read_bytes() == found
    made(trained, text, *drawn, "-o", "shared.tsv", "--shard", "2/2")
    made(trained, text, *drawn, "-o", "shared.tsv", "--batch-size", "1")
    assert (text / "shared.tsv").read_bytes() == found
    made(trained, text, *drawn[:-1], "8", "-o", "other.tsv")
    assert (text / "other.tsv").read_bytes() != found


# What cannot be


def refused(trained: Trained, folder: Path, *more: str | Path, model: Path | None = None) -> str:
    done = inside(folder, *arguments(trained, *more, model=model))
    assert done.exit_code == 2 and done.stdout == "", done.output
    assert_plain(done.stderr)
    assert len([line for line in done.stderr.splitlines() if line.startswith("error: ")]) == 1
    return done.stderr


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--beam-size", "2"), "beam_size was 4, is 2"),
        (("--sample",), "sampling was null, is {"),
        (("--shard-lines", "13"), "shard_lines was 12, is 13"),
        (("--precision", "float64"), "precision was float32, is float64"),
    ],
)
def test_blocks_of_other_settings_are_refused(
    trained: Trained, text: Path, asked: list[int], more: tuple[str, ...], told: str
) -> None:
    made(trained, text, "--shard", "1/2")
    before = names(text / "bt.tsv.parts")
    said = refused(trained, text, *more)
    assert told in said and "bt.tsv.parts was begun in another way" in said and "another --output" in said
    assert names(text / "bt.tsv.parts") == before and asked == [0, 24]


def test_blocks_of_another_text_or_model_are_refused(trained: Trained, text: Path, quiet_run: dict[str, bytes]) -> None:
    made(trained, text, "--shard", "1/2")
    checkpoint = trained.run / "checkpoints" / "best"
    assert re.search("model_sha256 was [0-9a-f]{12}, is [0-9a-f]{12};", refused(trained, text, model=checkpoint))
    write_text(text, [*TEXT[:-1], "ba"])
    assert re.search("input_sha256 was [0-9a-f]{12}, is [0-9a-f]{12};", refused(trained, text))
    write_text(text)
    made(trained, text, "--batch-size", "3")
    check_as_in_a_quiet_run(text, quiet_run)


def test_a_block_that_was_put_there_by_another_work_is_found(trained: Trained, text: Path) -> None:
    """As when two calls with different settings begin at the same moment."""
    made(trained, text, "--shard", "1/4", "-o", "other.tsv", "--beam-size", "1")
    made(trained, text, "--shard", "2/4")
    other = text / "other.tsv.parts" / "00000000.part"
    other.rename(text / "bt.tsv.parts" / other.name)
    assert "00000000.part was made in another way" in refused(trained, text)


def test_a_damaged_block_is_found_and_made_anew(trained: Trained, text: Path, quiet_run: dict[str, bytes]) -> None:
    made(trained, text, "--shard", "1/2")
    block = text / "bt.tsv.parts" / "00000002.part"
    block.write_bytes(block.read_bytes()[:-1] + b"a\n")
    assert "00000002.part is damaged" in refused(trained, text)
    block.write_bytes(b"")
    assert "00000002.part is damaged" in refused(trained, text)
    assert not (text / "bt.tsv").exists()
    block.unlink()
    made(trained, text)
    check_as_in_a_quiet_run(text, quiet_run)


def test_what_is_in_the_way_stays(trained: Trained, text: Path) -> None:
    (text / "bt.tsv").write_text("mine")
    assert "bt.tsv is there already: give another --output" in refused(trained, text)
    (text / "bt.tsv").rename(text / "bt.tsv.json")
    assert "bt.tsv.json is in the way" in refused(trained, text)
    (text / "bt.tsv.json").rename(text / "bt.tsv.parts")
    assert "bt.tsv.parts is a file" in refused(trained, text)
    (text / "bt.tsv.parts").unlink()
    (text / "bt.tsv.parts").mkdir()
    (text / "bt.tsv.parts" / "mine").touch()
    assert "bt.tsv.parts has mine and no basis.json" in refused(trained, text)
    assert names(text) == ["bt.tsv.parts", "mono.de"] and names(text / "bt.tsv.parts") == ["mine"]


def test_an_output_that_was_changed_is_not_taken_for_ours(trained: Trained, text: Path) -> None:
    made(trained, text)
    assert "is there already" in refused(trained, text, "--beam-size", "1")
    (text / "bt.tsv").write_text("mine")
    assert "is there already" in refused(trained, text)
    assert (text / "bt.tsv").read_text() == "mine"


def test_an_output_that_comes_from_elsewhere_on_the_way(
    trained: Trained, text: Path, quiet_run: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays, and so do the blocks."""

    def keep(self: work.Blocks, number: int, *given: Any, keep: Any = work.Blocks.keep) -> None:
        keep(self, number, *given)
        if number == 1:
            self.output.write_text("mine")

    monkeypatch.setattr(work.Blocks, "keep", keep)
    assert "has come in the meantime, from elsewhere" in refused(trained, text)
    monkeypatch.undo()
    assert (text / "bt.tsv").read_text() == "mine"
    (text / "bt.tsv").unlink()
    assert "of 4 blocks 2 are to be made here" in made(trained, text).stderr
    check_as_in_a_quiet_run(text, quiet_run)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--input", "nowhere.de"), "nowhere.de does not exist"),
        (("--input", "."), ". is a folder; wanted a file"),
        (("--input", "bytes.de"), "bytes.de, line 2: byte 0xE9"),
        (("--input", "empty.de"), "empty.de has no line"),
        (("--input", "page.de"), "page.de looks like a page of HTML"),
        (("--output", "no/bt.tsv"), "folder no of --output does not exist"),
        (("--output", "."), "--output . is a folder"),
        (("--shard", "0/2"), "--shard 0/2: wanted I/N"),
        (("--shard", "3/2"), "--shard 3/2: wanted I/N"),
        (("--shard", "half"), "--shard half: wanted I/N"),
        (("--sample", "--beam-size", "2"), "--beam-size does not go together with sampling"),
        (("--top-p", "1.5"), "top_p (search options): found '1.5', wanted at most 1"),
        (("--engine", "odd"), "--engine odd"),
        (("--precision", "int8"), "--precision int8"),
    ],
)
def test_what_cannot_be_is_told_at_once(trained: Trained, text: Path, more: tuple[str, ...], told: str) -> None:
    (text / "bytes.de").write_bytes(b"ba\ncaf\xe9\n")
    (text / "empty.de").touch()
    (text / "page.de").write_text("<!doctype html>\n")
    before = names(text)
    assert told in refused(trained, text, *more)
    assert names(text) == before


def test_without_a_model(text: Path) -> None:
    done = inside(text, "backtranslate", "-i", "mono.de", "-o", "bt.tsv")
    assert done.exit_code == 2 and "give --model or --config" in done.stderr
    for missing in (["-i", "mono.de"], ["-o", "bt.tsv"]):
        assert inside(text, "backtranslate", "-m", "run", *missing).exit_code == 2
    assert names(text) == ["mono.de"]


def test_progress_is_told_now_and_then(trained: Trained, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(trained, text, "--shard", "1/4")
    assert " lines, " not in re.sub(r".* to de; .*\n", "", made(trained, text, "--shard", "2/4").stderr)
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.0)
    done = made(trained, text)
    counts = [int(found) for found in re.findall(r"^mono\.de: (\d+) lines, \d+ a second, ", done.stderr, re.M)]
    assert counts == sorted(counts) and counts[0] == 1 and counts[-1] == 20
    assert made(trained, text, "-o", "other.tsv", "--quiet").stderr == ""


def test_what_asks_for_a_language_is_no_part_of_the_text(trained: Trained, text: Path) -> None:
    """A model of several languages is told by the line which one is wanted."""
    model = text / "several"
    model.mkdir()
    for path in trained.model.iterdir():
        names_there = ("source.model", "target.model") if path.name == "spm.model" else (path.name,)
        for name in names_there:
            (model / name).write_bytes(path.read_bytes())
    spm = sentencepiece.SentencePieceProcessor(str(model / "source.model"))
    pieces = [spm.id_to_piece(number) for number in range(spm.get_piece_size())]
    unused = next(piece for piece in reversed(pieces) if len(piece) == 1)
    pieces[pieces.index(unused)] = ">>eng<<"
    write_vocabulary(model / "vocabulary.json", [[*SPECIAL_PIECES, *pieces[4:]]])
    write_text(text, [">>eng<< ba do", ">>eng<<", "fi gu"])
    done = inside(text, *arguments(trained, model=model))
    assert done.exit_code == 0, done.output
    assert [row[1] for row in rows(text)] == ["ba do", "fi gu"]
    assert "2 pairs of 3 lines (left out: empty line 1)" in done.stderr


# The recipe of the documentation

DOCUMENTATION = (Path(__file__).parents[2] / "docs" / "backtranslation.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", DOCUMENTATION, re.MULTILINE | re.DOTALL)


def test_the_recipe_runs(tmp_path: Path) -> None:
    """In its order, with a tiny model; nothing of the test sets is in the text, and the tag is where it belongs."""
    write_task(tmp_path)
    for language in ("en", "de"):
        (tmp_path / f"valid.{language}").rename(tmp_path / f"dev.{language}")
    held_out = [(tmp_path / f"{name}.de").read_text("utf-8").splitlines() for name in ("dev", "test")]
    (tmp_path / "raw.de").write_text("".join(f"{line}\n" for line in [*held_out[1], *LINES, LINES[0]]), "utf-8")
    for place, name in enumerate(("reverse", "forward")):
        recipe = yaml.safe_load(blocks("yaml")[place])
        assert recipe["name"] == name
        tiny = {key: settings()[key] for key in ("tokenizer", "model", "training", "decoding")}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({**recipe, **tiny}), "utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for line in [line for block in blocks("sh") for line in block.splitlines()]:
        done = subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, env=environment(PATH=path), capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, f"{line}\n{done.stderr}"
    assert set((tmp_path / "mono.de").read_text("utf-8").splitlines()) == set(LINES) - {*held_out[0], *held_out[1]}
    corpus = (tmp_path / "runs" / "forward" / "corpus" / "train.en").read_text("utf-8").splitlines()
    tagged = [line for line in corpus if line.startswith("<bt> ")]
    assert tagged and tagged == corpus[-len(tagged) :]
    for name in ("forward", "baseline"):
        assert (tmp_path / "runs" / name / "scores" / "test.json").is_file()
