"""Several models together, and which words belong together, through the command."""

import json
from pathlib import Path

import pytest

from tests.running import Trained, assert_plain, inside, last_checkpoint, sentences, write_config, write_task

LINES = [" ".join(row) for row in sentences(40, 78)]


def test_a_model_and_itself_are_that_model(trained: Trained, tmp_path: Path) -> None:
    for options in (("--n-best", "3"), ("--temperature", "3", "--n-best", "2")):
        found = []
        for models in ((), ("-m", trained.model)):
            rows, done = trained.lines(tmp_path, LINES, *models, *options, "--format", "jsonl")
            assert done.exit_code == 0, done.stderr
            found.append([item for row in rows for item in json.loads(row)["translations"]])
        assert [item["text"] for item in found[0]] == [item["text"] for item in found[1]]
        assert [item["score"] for item in found[0]] == pytest.approx([item["score"] for item in found[1]], abs=1e-5)


def test_two_models_score_between_them(trained: Trained, tmp_path: Path) -> None:
    """And what they find has the score that they give it when asked."""
    other = last_checkpoint(trained.run)
    rows, done = trained.lines(tmp_path, LINES, "-m", other, "--format", "jsonl", "--beam-size", "1")
    assert done.exit_code == 0 and "model:" not in done.stderr
    found = [json.loads(row)["translations"][0] for row in rows]
    (tmp_path / "target").write_text("".join(f"{item['text']}\n" for item in found))
    totals = []
    for models in ((trained.model,), (other,), (trained.model, other), (other, trained.model)):
        chosen = [option for model in models for option in ("-m", model)]
        done = inside(tmp_path, "score", *chosen, "-i", "in", "-t", "target", "-o", "scores")
        assert done.exit_code == 0, done.stderr
        totals.append([float(line.split("\t")[0]) for line in (tmp_path / "scores").read_text().splitlines()])
    for one, two, both, again, item in zip(*totals, found, strict=True):
        assert min(one, two) - 1e-5 <= both <= max(one, two) + 1e-5
        assert both == pytest.approx(again, abs=1e-5)
        assert both == pytest.approx(item["log_probability"], abs=1e-4)
    assert totals[0] != totals[1]


def test_models_of_other_vocabularies_are_refused_by_name(trained: Trained, tmp_path: Path) -> None:
    write_task(tmp_path, 40)
    write_config(tmp_path, tokenizer={"vocabulary_size": 50}, training={"max_steps": 1})
    assert inside(tmp_path, "train", "-c", "c.yaml").exit_code == 0
    (tmp_path / "in").write_text("ba\n")
    for command in (("translate", "-o", "out"), ("score", "-t", "in", "-o", "out")):
        done = inside(tmp_path, *command, "-i", "in", "-m", trained.model, "-m", "run/model")
        assert done.exit_code == 2 and not (tmp_path / "out").exists()
        assert f"{trained.model} and run/model have different vocabularies" in done.stderr
        assert_plain(done.stderr)


def test_engines_of_one_model_take_no_several(trained: Trained, tmp_path: Path) -> None:
    _, done = trained.lines(tmp_path, ["ba"], "-m", trained.model, "--engine", "ctranslate2")
    assert done.exit_code == 2 and "does not go together with several models" in done.stderr


def test_alignments_are_those_of_the_task(trained: Trained, tmp_path: Path) -> None:
    """The source from last word to first."""
    lines = [*LINES, "", "ba do", " \t", "fi"]
    rows, done = trained.lines(tmp_path, lines, "--alignments", "links")
    links = (tmp_path / "links").read_text().split("\n")[:-1]
    assert done.exit_code == 0 and len(links) == len(rows) == len(lines)
    assert links[-4:] == ["", "1-0 0-1", "", "0-0"]
    expected = [" ".join(f"{len(line.split()) - 1 - n}-{n}" for n in range(len(line.split()))) for line in LINES]
    assert sum(one == other for one, other in zip(links, expected, strict=False)) > len(LINES) / 2
    assert trained.lines(tmp_path, lines)[0] == rows
    several, _ = trained.lines(tmp_path, lines, "--alignments", "again", "--n-best", "2", "--format", "moses")
    assert (tmp_path / "again").read_text().split("\n")[:-1] == links and len(several) == 2 * len(rows) - 2


def test_alignments_of_sentences_are_numbered_through(trained: Trained, tmp_path: Path) -> None:
    """What reads the joined line finds the links of each sentence moved to where it stands."""
    parts = ["Ba  do. ", "Fi gu ka. ", "Do"]
    trained.lines(tmp_path, ["".join(parts)], "--split-sentences", "--alignments", "links")
    together = (tmp_path / "links").read_text().split()
    rows, _ = trained.lines(tmp_path, parts, "--alignments", "links")
    expected, sources, targets = [], 0, 0
    for part, row, links in zip(parts, rows, (tmp_path / "links").read_text().splitlines(), strict=True):
        pairs = [map(int, link.split("-")) for link in links.split()]
        expected += [f"{source + sources}-{target + targets}" for source, target in pairs]
        sources, targets = sources + len(part.split()), targets + len(row.split())
    assert together == expected


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--alignments", "links", "--alignment-layer", "2"), "alignment_layer: found 2, the decoder has 1"),
        (("--alignments", "out"), "--output and --alignments are one file: out"),
        (("--alignments", "links", "--report", "./links"), "--alignments and --report are one file: links"),
        (("--alignments", "no/links"), "folder no of --alignments does not exist"),
        (("--alignments", "."), "--alignments . is a folder; wanted a file"),
    ],
)
def test_alignments_that_cannot_be(trained: Trained, tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    rows, done = trained.lines(tmp_path, ["ba"], *options)
    assert done.exit_code == 2 and f"error: {told}\n" in done.stderr and rows == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_alignments_may_go_where_the_output_goes(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("ba do\n")
    devices = ("-o", "/dev/null", "--alignments", "/dev/null")
    assert inside(tmp_path, "translate", "-m", trained.model, "-i", "in", *devices).exit_code == 0
