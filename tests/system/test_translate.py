"""Translating lines through the command: as many come out as go in, whatever they hold."""

import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.running import (
    COMMAND,
    WORDS,
    Trained,
    assert_plain,
    command,
    environment,
    sentences,
    write_config,
    write_task,
)

LINES = [" ".join(row) for row in sentences(50, 77)]


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_batch_size_changes_nothing(trained: Trained, batch: int) -> None:
    text = "".join(f"{line}\n" for line in LINES).encode()
    options = ("--n-best", "2", "--format", "jsonl", "--batch-size")
    ours, alone = (trained.translate(*options, str(size), stdin=text) for size in (batch, 16))
    assert ours.stdout.count("\n") == 50
    for one, other in zip(*(map(json.loads, done.stdout.splitlines()) for done in (ours, alone)), strict=True):
        assert one["line"] == other["line"]
        for mine, theirs in zip(one["translations"], other["translations"], strict=True):
            assert mine["text"] == theirs["text"]
            assert mine["score"] == pytest.approx(theirs["score"], abs=1e-4)


@pytest.mark.parametrize("form", ["text", "moses", "jsonl"])
def test_blank_lines_stay_blank(trained: Trained, form: str) -> None:
    done = trained.translate("--format", form, stdin="ba\n\n \ndo\n\u2028\n".encode())
    assert done.returncode == 0
    rows = done.stdout.split("\n")[:-1]
    if form == "jsonl":
        records = [json.loads(row) for row in rows]
        assert [record["line"] for record in records] == [1, 2, 3, 4, 5]
        rows = [record["translations"][0]["text"] for record in records]
    elif form == "moses":
        fields = [row.split(" ||| ") for row in rows]
        assert [field[0] for field in fields] == ["0", "1", "2", "3", "4"]
        rows = [field[1] for field in fields]
    assert rows == ["ba", "", "", "do", ""]
    assert "5 lines, empty 3" in done.stderr


def test_nothing_in_nothing_out(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "none").write_bytes(b"")
    done = trained.translate("--input", tmp_path / "none", "--output", tmp_path / "out")
    assert (done.returncode, done.stdout, (tmp_path / "out").read_bytes()) == (0, "", b"")


@pytest.mark.parametrize("count", [1, 8, 17])
def test_no_line_is_lost(trained: Trained, count: int) -> None:
    text = "\n".join(LINES[:count])  # the last one without its line feed
    done = trained.translate("--batch-size", "8", stdin=text.encode())
    assert done.stdout.count("\n") == count


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


def test_printed_score_is_the_formula(trained: Trained) -> None:
    for form, divisor in (("none", lambda n: 1), ("average", lambda n: n), ("gnmt", lambda n: ((5 + n) / 6) ** 0.5)):
        done = trained.translate("--format", "jsonl", "--length-penalty", form, "--alpha", "0.5", stdin=b"ba do fi\n")
        best = json.loads(done.stdout)["translations"][0]
        assert best["score"] == pytest.approx(best["log_probability"] / divisor(best["length"]), rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--beam-size", "4", "--n-best", "10"), "n_best (search options): found 10, wanted at most beam_size (4)"),
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


def test_beam_wider_than_the_vocabulary(trained: Trained) -> None:
    done = trained.translate("--beam-size", "90", "--n-best", "90", "--format", "jsonl", stdin=b"ba do\n")
    assert done.returncode == 0
    assert len({item["text"] for item in json.loads(done.stdout)["translations"]}) > 10


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


def test_a_pipe_is_answered_line_by_line(trained: Trained) -> None:
    line = [*COMMAND, "translate", "--model", str(trained.model)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(line, env=environment(), **pipes) as process:
        assert process.stdin and process.stdout
        for text, answer in ((b"ba do\n", b"do ba\n"), (b"\n", b"\n"), (b"fi\n", b"fi\n")):
            process.stdin.write(text)
            process.stdin.flush()
            assert process.stdout.readline() == answer
        process.stdin.close()
        assert process.wait(60) == 0


def test_a_reader_that_leaves_is_no_error(trained: Trained) -> None:
    text = "".join(f"{line}\n" for line in LINES * 400)
    line = " ".join([*COMMAND, "translate", "--model", str(trained.model), "--beam-size", "1"])
    shell = f"{line} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", shell], input=text.encode(), capture_output=True, timeout=200, env=environment()
    )
    first, code = done.stdout.decode().split("\n")[:2]
    assert sorted(first.split()) == sorted(LINES[0].split()) and code == "0"
    assert_plain(done.stderr.decode())
    assert b"BrokenPipe" not in done.stderr


def test_lines_that_are_too_long_are_told_of(tmp_path: Path) -> None:
    write_task(tmp_path)
    write_config(
        tmp_path, model={"positions": "learned", "max_positions": 11}, training={"max_tokens": 11, "max_steps": 1}
    )
    assert command("train", "-c", "c.yaml", cwd=tmp_path).returncode == 0
    long = " ".join(WORDS * 5)
    cut = ("translate", "-m", "run", "--long-lines", "cut")
    done = command(*cut, cwd=tmp_path, stdin=f"ba\n{long}\ndo\n".encode())
    assert done.returncode == 0 and done.stdout.count("\n") == 3
    assert "warning: line 2: source cut " in done.stderr and "→10 pieces (" in done.stderr
    assert "source cut 1" in done.stderr
    quiet = command(*cut, "--quiet", "--strict", cwd=tmp_path, stdin=f"do\n{long}\n".encode())
    assert "warning: line 2" in quiet.stderr and "pieces/s" not in quiet.stderr
    assert quiet.returncode == 1 and "--strict: source cut 1 (line 2)" in quiet.stderr
    whole = command("translate", "-m", "run", "--report", "report", cwd=tmp_path, stdin=f"do\n{long}\n".encode())
    pieces, parts = re.search(r"line 2: (\d+) pieces, translated in (\d+) parts \(", whole.stderr).groups()
    assert int(parts) >= int(pieces) / 10 and "source cut" not in whole.stderr
    assert json.loads((tmp_path / "report").read_text())["line_numbers"]["in_parts"] == [2]


def test_length_limit_is_told(tmp_path: Path) -> None:
    write_task(tmp_path)
    write_config(
        tmp_path, training={"max_steps": 1}, decoding={"max_length": {"factor": 0, "extra": 1}, "min_length": 2}
    )
    assert command("train", "-c", "c.yaml", cwd=tmp_path).returncode == 0
    done = command("translate", "-m", "run/model", "--format", "jsonl", cwd=tmp_path, stdin=b"ba do\n")
    assert done.returncode == 0 and "hit length limit 1" in done.stderr
    assert json.loads(done.stdout)["translations"][0]["length"] == 2


def test_files_are_read_while_they_are_written(trained: Trained, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("ba do\n")
    done = trained.translate("--input", path, "--output", path)
    assert done.returncode == 0 and path.read_text() == "do ba\n"
    begin = time.monotonic()
    assert trained.translate("--input", "/dev/null").returncode == 0
    assert time.monotonic() - begin < 60
