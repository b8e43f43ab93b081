"""Translating lines through the command: as many come out as go in, whatever they hold."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.running import (
    Trained,
    assert_plain,
    command,
    sentences,
)

LINES = [" ".join(row) for row in sentences(50, 77)]


def test_odd_lines(trained: Trained) -> None:
    odd = [
        "ba\tdo",
        "ba  do",
        "ba\u2028do",
        "no\t \r",
        "no",
        "a </s> b <unk> <pad> <s>",
        "ba\x00do",
        "日本 ½",
        "ba " * 900,
        "do",
    ]
    done = trained.translate(stdin="".join(f"{line}\n" for line in odd).encode())
    assert done.returncode == 0
    rows = done.stdout.split("\n")[:-1]
    assert len(rows) == len(odd)
    assert rows[0] == rows[1] == rows[2] == "do ba"
    assert rows[3] == rows[4]
    assert rows[-1] == "do" and rows[5]
    assert "⁇" not in done.stdout
    assert "unknown pieces" in done.stderr
    assert_plain(done.stderr)


def test_moses_n_best(trained: Trained) -> None:
    done = trained.translate("--n-best", "3", "--beam-size", "5", stdin=b"ba do\nfi\n")
    rows = [row.split(" ||| ") for row in done.stdout.splitlines()]
    assert [row[0] for row in rows] == ["0"] * 3 + ["1"] * 3
    assert rows[0][1] == "do ba" and rows[3][1] == "fi"
    for block in (rows[:3], rows[3:]):
        found = [float(row[2]) for row in block]
        assert found == sorted(found, reverse=True) and len({row[1] for row in block}) == 3


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--n-best", "2", "--format", "text"), "--format text has one line a line: n_best 2 needs moses or jsonl"),
        (("--format", "xml"), "--format xml"),
        (("--length-penalty", "odd"), "odd"),
        (("--precision", "int8"), "int8"),
        (("--device", "quantum"), "quantum"),
        (("--input", "nowhere.txt"), "nowhere.txt"),
        (("--model", "nowhere"), "nowhere"),
    ],
)
def test_options_that_cannot_be(trained: Trained, tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
    done = command(
        "translate", "-m", trained.model, "--output", tmp_path / "out", *arguments, cwd=tmp_path, stdin=b"ba\n"
    )
    assert done.returncode == 2 and told in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert_plain(done.stderr)


def test_a_config_says_how_to_search_and_options_win(trained: Trained, tmp_path: Path) -> None:
    config = ("--config", trained.folder / "c.yaml", "--set", f"output={trained.folder / 'run'}")
    many = command("translate", *config, "--set", "decoding.n_best=3", cwd=tmp_path, stdin=b"ba do\n")
    assert many.returncode == 0 and many.stdout.count(" ||| ") == 6, many.stderr
    fewer = ("--set", "decoding.n_best=3", "--beam-size", "2", "--format", "jsonl")
    best = command("translate", *config, *fewer, cwd=tmp_path, stdin=b"ba do\n")
    assert len(json.loads(best.stdout)["translations"]) == 2, best.stderr
    alone = command("translate", "-m", trained.model, "--set", "decoding.beam_size=2", cwd=tmp_path, stdin=b"ba\n")
    assert alone.returncode == 2 and "give --config" in alone.stderr


def test_a_bad_line_of_a_file_costs_no_work(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"ba do\n" * 3 + b"caf\xe9\n")
    done = trained.translate("--input", tmp_path / "in", "--output", tmp_path / "out")
    assert done.returncode == 2 and all(told in done.stderr for told in ("line 4", "0xE9"))
    assert not (tmp_path / "out").exists()


def test_outputs_that_cannot_be(trained: Trained, tmp_path: Path) -> None:
    for output in (tmp_path, tmp_path / "none" / "out"):
        done = trained.translate("--output", output, stdin=b"ba\n")
        assert done.returncode == 2 and str(output.parent) in done.stderr
    done = command("translate", cwd=tmp_path)
    assert done.returncode == 2 and "give --model or --config" in done.stderr


def test_bad_bytes_on_standard_input(trained: Trained, tmp_path: Path) -> None:
    done = trained.translate("--output", tmp_path / "out", stdin=b"ba\ncaf\xe9\n")
    assert done.returncode == 2
    assert "standard input: line 2 is not UTF-8: byte 0xE9 at byte 4" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_output_appears_whole_and_devices_stay(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    assert trained.translate("--output", tmp_path / "link", stdin=b"ba do\n").returncode == 0
    assert (tmp_path / "real").read_text() == "do ba\n" and (tmp_path / "link").is_symlink()
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE)
    assert trained.translate("--output", tmp_path / "pipe", stdin=b"ba do\n").returncode == 0
    assert reader.communicate(timeout=20)[0] == b"do ba\n"
    assert (tmp_path / "pipe").is_fifo()
    full = trained.translate("--output", "/dev/full", stdin=b"ba do\n")
    assert full.returncode == 1 and "No space left" in full.stderr
    assert not Path("/dev/full").is_file()


def test_files_are_read_while_they_are_written(trained: Trained, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("ba do\n")
    done = trained.translate("--input", path, "--output", path)
    assert done.returncode == 0 and path.read_text() == "do ba\n"
    begin = time.monotonic()
    assert trained.translate("--input", "/dev/null").returncode == 0
    assert time.monotonic() - begin < 60
