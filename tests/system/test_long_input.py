"""Paragraphs, limits and options that do not go together, through the command."""

import json
from pathlib import Path

import pytest

from tests.running import Trained, assert_plain


@pytest.mark.parametrize(
    ("line", "sentences", "joints"),
    [
        ("Ba do. Fi gu!  Ka", ["Ba do.", "Fi gu!", "Ka"], ["", " ", "  ", ""]),
        ("  Ba do.\u3000\tFi gu! ", ["Ba do.", "Fi gu!"], ["  ", "\u3000\t", " "]),
        ("Ba  do. Fi\u00a0gu!\u2028Ka\r", ["Ba do.", "Fi gu!", "Ka"], ["", " ", " ", ""]),
        ("\u2029Ba.\x85\u2028 Fi \u2029gu! Ka\v", ["Ba.", "Fi gu!", "Ka"], ["", "  ", " ", ""]),
        (" Ba do ", ["Ba do"], [" ", " "]),
        ("Ba.Fi gu", ["Ba.Fi gu"], ["", ""]),
    ],
)
def test_a_paragraph_is_its_sentences_and_the_white_space_between(
    trained: Trained, tmp_path: Path, line: str, sentences: list[str], joints: list[str]
) -> None:
    """But no line break stays: one line in, one line out."""
    (row,), done = trained.lines(tmp_path, [line], "--split-sentences", "--quiet")
    assert done.exit_code == 0 and done.stderr == ""
    alone, _ = trained.lines(tmp_path, sentences)
    assert row == "".join(joint + text for joint, text in zip(joints, [*alone, ""], strict=True))


def test_sums_of_the_sentences_and_one_entry_a_line(trained: Trained, tmp_path: Path) -> None:
    lines = ["Ba do. Fi gu! Ka", "", "mi", " . "]
    rows, done = trained.lines(tmp_path, lines, "--split-sentences", "--format", "jsonl", "--report", "report")
    found = [json.loads(row)["translations"] for row in rows]
    assert done.exit_code == 0 and [len(each) for each in found] == [1] * 4
    alone, _ = trained.lines(tmp_path, ["Ba do.", "Fi gu!", "Ka"], "--format", "jsonl")
    for name in ("log_probability", "length", "score"):
        total = sum(json.loads(row)["translations"][0][name] for row in alone)
        assert found[0][0][name] == pytest.approx(total, abs=1e-4)
    told = json.loads((tmp_path / "report").read_text())["line_numbers"]
    assert told["in_parts"] == [1] and told["empty"] == [2]


def test_lengths_of_outputs(trained: Trained, tmp_path: Path) -> None:
    def lengths(*options: str) -> list[int]:
        rows, done = trained.lines(tmp_path, ["ba do fi gu", "ba do", "mi"], "--format", "jsonl", *options)
        assert done.exit_code == 0, done.stderr
        assert ("hit length limit" in done.stderr) == ("0.5" in options)
        return [json.loads(row)["translations"][0]["length"] - 1 for row in rows]

    assert lengths() == [4, 2, 1]
    assert lengths("--max-length-factor", "0.5", "--max-length-extra", "0") == [2, 1, 1]
    assert lengths("--max-length-factor", "0", "--max-length-extra", "5") == [4, 2, 1]
    assert lengths("--min-length", "3") == [4, 3, 3]
    assert max(lengths("--min-length", "3", "--split-sentences")) == 4


def test_all_problems_are_told_at_once_and_nothing_is_written(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "begin").write_text("ba\n")
    (tmp_path / "terms").write_text("ba\tdo\n")
    options = (
        "--interactive", "--split-sentences", "--target-prefix", "begin", "--terms", "terms", "--sample",
        "--no-repeat-ngram", "2", "--n-best", "1", "--report", "no/where", "--alignments", "out",
        "--alignment-layer", "7",
    )  # fmt: skip
    rows, done = trained.lines(tmp_path, ["ba", "do"], *options)
    assert done.exit_code == 2 and rows == []
    assert [line.removeprefix("error: ") for line in done.stderr.splitlines()] == [
        "folder no of --report does not exist",
        "--output and --alignments are one file: out",
        "in has 2 lines, begin has 1",
        "--terms does not go together with sampling (--sample, --temperature, --top-k, --top-p)",
        "--terms does not go together with --no-repeat-ngram, which may forbid what has to appear",
        "--target-prefix does not go together with --split-sentences: it would begin the first sentence alone",
        "alignment_layer: found 7, the decoder has 1",
        "--interactive does not go together with --input: it is for a pipe that waits for each answer",
    ]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--split-sentences", "--n-best", "2"), "n_best (search options): found 2, wanted 1 with split_sentences"),
        (("--split-sentences", "--sample", "--n-best", "2"), "found 2, wanted 1 with split_sentences"),
        (("--n-best", "2", "--format", "text"), "n_best 2 needs moses or jsonl"),
        (("--interactive",), "--interactive does not go together with --input"),
        (("--long-lines", "drop"), "--long-lines drop: wanted split, cut"),
    ],
)
def test_pairs_that_cannot_be(trained: Trained, tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    rows, done = trained.lines(tmp_path, ["ba"], *options)
    assert done.exit_code == 2 and rows == [] and told in done.stderr
    assert_plain(done.stderr)


def test_what_of_several_hypotheses_a_line_in_parts_keeps(trained: Trained, tmp_path: Path) -> None:
    """A line that is too long has one, whatever is asked for: no part of it has a second one that fits the others."""
    lines = ["ba do", " ".join(["ba do."] * 800), "mi"]
    rows, done = trained.lines(tmp_path, lines, "--n-best", "2", "--beam-size", "2", "--max-length-extra", "2")
    assert done.exit_code == 0 and [row.split(" ||| ")[0] for row in rows] == ["0", "0", "1", "2", "2"]


@pytest.mark.parametrize("long_lines", ["split", "cut"])
def test_a_sentence_of_a_paragraph_that_is_too_long(trained: Trained, tmp_path: Path, long_lines: str) -> None:
    limit = ("--config", trained.folder / "c.yaml", "--set", "decoding.max_source_tokens=8")
    options = (*limit, "--set", f"output={trained.run}", "--split-sentences", "--long-lines", long_lines)
    line = "Ba do. Fi gu ka lo mi nu pa so ti vu. Ba"
    rows, done = trained.lines(tmp_path, [line], *options, "--format", "jsonl", "--report", "report", "--strict")
    told = json.loads((tmp_path / "report").read_text())["line_numbers"]
    assert told["in_parts"] == [1] and told["source_cut"] == ([1] if long_lines == "cut" else [])
    assert done.exit_code == (1 if long_lines == "cut" else 0)
    assert ("source cut" in done.stderr) == (long_lines == "cut") and len(rows) == 1
