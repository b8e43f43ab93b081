"""The `clean` command: the table, the file of what was dropped, and nothing written where nothing is wanted."""

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.running import COMMAND, assert_plain, command, digests, inside, patched, times, write_config, write_task


@pytest.fixture
def spoiled(tmp_path: Path) -> Path:
    """A task of 100 pairs, ten of them no good and five the same on both sides."""
    write_task(tmp_path, 100)
    rows = [(tmp_path / f"train.{language}").read_text("utf-8").split("\n")[:100] for language in ("en", "de")]
    rows[1] = [f"{line} zu" for line in rows[1]]
    rows[0][:4] = [""] * 4
    rows[1][10:13] = [" "] * 3
    rows[0][20:23], rows[1][20:23] = rows[0][30:33], rows[1][30:33]
    rows[0][40:45] = rows[1][40:45] = [f"ba same {number}" for number in range(5)]
    for language, side in zip(("en", "de"), rows, strict=True):
        (tmp_path / f"train.{language}").write_text("".join(f"{line}\n" for line in side), "utf-8")
    write_config(tmp_path)
    return tmp_path


def test_the_table(spoiled: Path) -> None:
    before = digests(spoiled)
    done = inside(spoiled, "clean", "-c", "c.yaml", "--dry-run")
    assert done.exit_code == 0, done.stderr
    assert_plain(done.stderr)
    assert digests(spoiled) == before and not (spoiled / "run").exists()
    rows = {line.split()[0]: line.split() for line in done.stdout.split("\n") if "%" in line}
    assert rows["100"] == ["100", "pairs", "read,", "90", "kept", "(90.00%)"]
    assert rows["empty_source"] == ["empty_source", "always", "on", "4", "4.00%"]
    assert rows["empty_target"][-2:] == ["3", "3.00%"] and rows["too_many_words"][-2:] == ["0", "0.00%"]
    assert rows["duplicate"] == ["duplicate", "deduplicate", "true", "3", "3.00%"]
    assert rows["identical"] == ["identical", "remove_identical", "false:", "would", "drop", "5", "5.00%"]
    examples = done.stdout.partition("\nidentical:\n")[2].split("\n")[:9]
    assert examples[::3] == [f"  train.en + train.de, line {number}" for number in (41, 42, 43)]
    assert examples[1] == examples[2] == "    ba same 0"
    assert "direction: " in done.stdout


def test_overlap_is_told_where_it_stays(spoiled: Path) -> None:
    """A pair of the training data is tested on; another one's target is."""
    rows = {side: (spoiled / f"train.{side}").read_text("utf-8").split("\n") for side in ("en", "de")}
    (spoiled / "test.en").write_text(f"{rows['en'][50]}\nanother\n", "utf-8")
    (spoiled / "test.de").write_text(f"another\n{rows['de'][51]}\n", "utf-8")
    off = inside(spoiled, "clean", "-c", "c.yaml", "--dry-run", "--set", "data.cleaning.remove_test_overlap=false")
    assert "100 pairs read, 90 kept" in off.stdout
    row = next(line for line in off.stdout.split("\n") if line.startswith("test_overlap"))
    assert row.split() == ["test_overlap", "remove_test_overlap", "false:", "would", "drop", "2", "2.00%"]
    assert "88 kept" in inside(spoiled, "clean", "-c", "c.yaml", "--dry-run").stdout


def test_without_dry_run_the_corpus_is_made_and_told_again(spoiled: Path) -> None:
    first = inside(spoiled, "clean", "-c", "c.yaml")
    assert first.exit_code == 0 and (spoiled / "run/corpus/train.en").is_file()
    before = times(spoiled)
    again = inside(spoiled, "clean", "-c", "c.yaml")
    assert again.stdout == first.stdout and "up to date" in again.stderr and times(spoiled) == before
    record = json.loads(inside(spoiled, "clean", "-c", "c.yaml", "--json").stdout)
    assert record["train"]["dropped"] == {"empty_source": 4, "empty_target": 3, "duplicate": 3}
    kept = (spoiled / "run/corpus/train.en").read_text("utf-8").count("\n")
    assert kept == record["train"]["pairs"] == 90
    done = inside(spoiled, "clean", "-c", "c.yaml", "--set", "data.cleaning.remove_identical=true")
    assert "85 kept" in done.stdout and "remove_identical true" in done.stdout


def test_what_is_dropped_is_kept_with_its_reason(spoiled: Path) -> None:
    rejected = spoiled / "rejected.jsonl"
    rejected.write_text("{}\n", "utf-8")
    done = inside(spoiled, "clean", "-c", "c.yaml", "--dry-run", "--rejected", str(rejected))
    assert done.exit_code == 0, done.stderr
    rows = [json.loads(line) for line in rejected.read_text("utf-8").split("\n")[:-1]]
    assert [(row["reason"], row["line"]) for row in rows] == [
        *(("empty_source", line) for line in range(1, 5)), *(("empty_target", line) for line in range(11, 14)),
        *(("duplicate", line) for line in range(31, 34)),
    ]  # fmt: skip
    assert rows[0]["target"] and rows[0]["file"] == "train.en + train.de"
    (spoiled / "train.de").write_bytes(b"\xff\n" * 100)
    failed = inside(spoiled, "clean", "-c", "c.yaml", "--dry-run", "--rejected", str(rejected))
    assert failed.exit_code == 2 and len(rejected.read_text("utf-8").split("\n")) == 11
    assert not list(spoiled.glob(".*partial"))
    for place, words in [
        (spoiled, "is a folder"), (spoiled / "no/r.jsonl", "there is no folder"),
        (spoiled / "train.en", "train.en is one of the sources"),
    ]:  # fmt: skip
        done = inside(spoiled, "clean", "-c", "c.yaml", "--rejected", str(place))
        assert done.exit_code == 2 and words in done.stderr
    assert not (spoiled / "run").exists()


def test_what_formats_leave_out_is_kept_and_shown_too(spoiled: Path) -> None:
    units = [("en", "One.", "fr", "Un."), ("en", "Two.", "de", "Zwei."), ("en", "Three.", "de", " ")]
    variant = '<tuv xml:lang="{}"><seg>{}</seg></tuv>'
    rows = "".join(f"<tu>{variant.format(*unit[:2])}{variant.format(*unit[2:])}</tu>" for unit in units)
    (spoiled / "m.tmx").write_text(f'<tmx version="1.4"><body>{rows}</body></tmx>', "utf-8")
    entry = 'msgid "{}"\nmsgstr "{}"\n\n'
    catalogue = entry.format("Open", "") + "#, fuzzy\n" + entry.format("Close", "Auf") + entry.format("Four", "Vier")
    (spoiled / "m.po").write_text(catalogue, "utf-8")
    (spoiled / "m.tsv").write_bytes(b"Five\tF\xfcnf\nSix\tSechs\n")
    (spoiled / "m.jsonl").write_text('{"en": "Seven", "de": "\\ud800"}\n{"en": "Eight", "de": "Acht"}\n', "utf-8")
    sources = [{kind: f"m.{kind}"} for kind in ("tmx", "po", "tsv", "jsonl")]
    write_config(spoiled, data={"train": sources, "on_bad_bytes": "skip_pair"})
    done = inside(spoiled, "clean", "-c", "c.yaml", "--rejected", "r.jsonl")
    assert done.exit_code == 0, done.stderr
    rows = [json.loads(line) for line in (spoiled / "r.jsonl").read_text("utf-8").split("\n")[:-1]]
    assert [(row["file"], row["reason"], row["line"], row["source"], row["target"]) for row in rows] == [
        ("m.tmx", "missing_language", 1, "One.", ""),
        ("m.tmx", "empty_segment", 3, "Three.", " "),
        ("m.po", "untranslated", 1, "Open", ""),
        ("m.po", "fuzzy", 4, "Close", "Auf"),
        ("m.tsv", "bad_bytes", 1, r"Five	F\xfcnf".replace(r"\t", "\t"), ""),
        ("m.jsonl", "bad_bytes", 1, "Seven", r"\ud800"),
    ]
    examples = done.stdout.partition("\nbad_bytes:\n")[2].split("\n")
    assert examples[0] == "  m.tsv, line 1" and "xfcnf" in examples[1]


def test_rejects_replace_nothing_but_rejects(spoiled: Path) -> None:
    rows = "".join(f"word {number},Wort {number}\n" for number in range(50))
    (spoiled / "t.csv").write_text("en,de\n" + rows, "utf-8")
    write_config(spoiled, "u.yaml", data={"train": [{"url": f"file://{spoiled}/t.csv"}]})
    before = digests(spoiled)
    for place, words in (("t.csv", "t.csv is one of the sources"), ("u.yaml", "holds something else than dropped")):
        done = inside(spoiled, "clean", "-c", "u.yaml", "--rejected", place)
        assert done.exit_code == 2 and words in done.stderr
    assert digests(spoiled) == before


def test_rejects_on_a_pipe_and_on_a_full_disk(spoiled: Path) -> None:
    os.mkfifo(spoiled / "pipe")
    with subprocess.Popen(["cat", spoiled / "pipe"], stdout=subprocess.PIPE) as reader:
        done = command("clean", "-c", "c.yaml", "--rejected", "pipe", cwd=spoiled)
        assert done.returncode == 0 and reader.stdout and reader.stdout.read().count(b'"reason"') == 10
    many = [{"source": "long.en", "target": "long.de"}]
    for language in ("en", "de"):
        (spoiled / f"long.{language}").write_text("".join(f"{'x' * 5000}\n" for _ in range(100)) + "ba\n", "utf-8")
    write_config(spoiled, "many.yaml", data={"train": many})
    with subprocess.Popen(["head", "-c", "1", spoiled / "pipe"], stdout=subprocess.DEVNULL):
        done = command("clean", "-c", "many.yaml", "--rejected", "pipe", cwd=spoiled)
    assert done.returncode == 1 and "error: pipe: its reader left before the end" in done.stderr
    small = patched(spoiled, "from transformer_mt.data import corpus\ncorpus.CHUNK_PAIRS = 20\n")
    for after in ("/dev/full", "none/../full.jsonl"):
        limited = f"ulimit -f 2; exec {shlex.join(COMMAND)} clean -c many.yaml --workers 2 --rejected {after}"
        (spoiled / "none").mkdir(exist_ok=True)
        done = command("-c", limited, cwd=spoiled, prefix=["bash"], env=small)
        assert done.returncode == 1 and done.stderr.count("error: [Errno ") == 1, done.stderr
