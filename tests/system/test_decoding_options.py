"""Options of `translate` and `score`, driven as a person drives them."""

import json
import math
from pathlib import Path

import pytest

from tests.running import Trained, assert_plain, command, ranks

LINES = ["ba do", "gu ka lo", "", "mi", "so ti vu pa"]


@pytest.fixture
def task_input(tmp_path: Path) -> Path:
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in LINES))
    return tmp_path


def test_sampling_depends_on_seed_and_line_number_alone(trained: Trained, task_input: Path) -> None:
    """And so do alignments, also on two ranks."""

    drawn = ("--temperature", "6")

    def sampled(*options: str) -> list[str]:
        rows, done = trained.lines(task_input, LINES, *drawn, *options)
        assert done.exit_code == 0, done.stderr
        return rows

    plain = sampled()
    assert len(plain) == 5 and plain[2] == ""
    assert sampled("--batch-size", "1", "--alignments", "links") == plain
    shared = ("translate", "-m", trained.model, "-i", "in", *drawn, "--alignments", "links-of-two")
    done = ranks(*shared, cwd=task_input)
    assert done.returncode == 0 and done.stdout.split("\n")[:-1] == plain, done.stderr
    links = (task_input / "links").read_text()
    assert links.count("\n") == 5 and (task_input / "links-of-two").read_text() == links
    assert sampled("--seed", "2") != plain
    best = sampled("--top-k", "1")
    assert best == trained.lines(task_input, LINES, "--beam-size", "1")[0]
    several = [line.split(" ||| ") for line in sampled("--n-best", "6")]
    assert [row[0] for row in several] == ["0"] * 6 + ["1"] * 6 + ["2"] + ["3"] * 6 + ["4"] * 6
    scores = [float(row[2]) for row in several[:6]]
    assert scores == sorted(scores, reverse=True)


def test_options_that_do_not_go_together(trained: Trained, task_input: Path) -> None:
    for options, told in (
        (["--sample", "--beam-size", "2"], "--beam-size does not go together with sampling"),
        (["--top-p", "1.5"], "top_p (search options): found '1.5', wanted at most 1"),
        (["--target-prefix", "none"], "prefix file none not found"),
        (["--report", "no/where"], "folder no of --report does not exist"),
    ):
        rows, done = trained.lines(task_input, LINES, *options)
        assert done.exit_code == 2 and rows == [] and told in done.stderr, done.stderr
        assert_plain(done.stderr)
    assert not (task_input / "out").exists()


def test_prefixes_and_the_report(trained: Trained, task_input: Path) -> None:
    (task_input / "begin").write_text("\nti\n\nvu\n\n")
    arguments = ("-i", task_input / "in", "--target-prefix", task_input / "begin", "--report", task_input / "report")
    done = trained.translate(*arguments, "--no-repeat-ngram", "1")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")
    free = trained.translate("-i", task_input / "in").stdout.split("\n")
    assert lines[0] == free[0] == "do ba" and lines[2] == "" and lines[4] == free[4]
    assert lines[1].startswith("ti") and lines[3].startswith("vu")
    report = json.loads((task_input / "report").read_text())
    assert report["lines"] == 5 and report["line_numbers"]["empty"] == [3]
    reasons = {"empty", "source_cut", "in_parts", "hit_length_limit", "required_text_missing", "unknown", "repeats"}
    assert set(report["line_numbers"]) == reasons
    (task_input / "begin").write_text("\n" * 4)
    short = trained.translate("-i", task_input / "in", "--target-prefix", task_input / "begin")
    assert short.returncode == 2 and "has 5 lines" in short.stderr and "has 4" in short.stderr


def test_scores_of_given_translations(trained: Trained, task_input: Path) -> None:
    """Those of the search for its own outputs; less for worse ones; the same in any batches and on two ranks."""
    made = trained.translate("-i", task_input / "in", "--format", "jsonl", "--beam-size", "1")
    found = [json.loads(line)["translations"][0] for line in made.stdout.splitlines()]
    (task_input / "out").write_text("".join(f"{best['text']}\n" for best in found))
    (task_input / "bad").write_text("".join(f"{line}\n" for line in LINES))
    arguments = ["score", "-m", trained.model, "-i", "in", "-t", "out"]
    done = command(*arguments, cwd=task_input)
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    for row, best in zip(rows, found, strict=True):
        assert float(row[0]) == pytest.approx(best["log_probability"], abs=1e-4)
        assert int(row[1]) == best["length"] and float(row[2]) == pytest.approx(best["score"], abs=1e-4)
    total, pieces = sum(float(row[0]) for row in rows), sum(int(row[1]) for row in rows)
    assert f"5 lines, {pieces} pieces, perplexity {math.exp(-total / pieces):.4f}" in done.stderr
    shared = ranks(*arguments, "--format", "jsonl", "--batch-size", "2", "-o", "scores", cwd=task_input)
    assert shared.returncode == 0, shared.stderr
    again = [json.loads(line) for line in (task_input / "scores").read_text().splitlines()]
    assert [row["log_probability"] for row in again] == pytest.approx([float(row[0]) for row in rows], abs=1e-4)
    worse = command("score", "-m", trained.model, "-i", "in", "-t", "bad", cwd=task_input)
    assert float(worse.stdout.split("\t")[0]) < float(rows[0][0]) - 1
    (task_input / "bad").write_text("one\n")
    uneven = command("score", "-m", trained.model, "-i", "in", "-t", "bad", cwd=task_input)
    assert uneven.returncode == 2 and "in has 5 lines, bad has 1" in uneven.stderr
