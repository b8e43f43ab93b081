"""The search of CTranslate2 on our model, and other precisions, through the command."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.running import Trained, assert_plain, inside, ranks, sentences
from transformer_mt.commands.translate import _has_bfloat16

LINES = [*(" ".join(row) for row in sentences(30, 79)), "", "ba " * 40]


@pytest.fixture(scope="module")
def trained(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A copy of the run, since a conversion is kept in its model folder."""
    folder = tmp_path_factory.mktemp("converted") / "folder"
    shutil.copytree(trained.folder, folder, symlinks=True)
    return replace(trained, folder=folder)


def test_it_translates_alike_and_converts_once(trained: Trained, tmp_path: Path) -> None:
    ours, done = trained.lines(tmp_path, LINES)
    assert done.exit_code == 0
    theirs, first = trained.lines(tmp_path, LINES, "--engine", "ctranslate2", "--report", "report")
    assert first.exit_code == 0 and "converted and checked" in first.stderr, first.stderr
    assert "engine: ctranslate2, another search than ours" in first.stderr
    assert theirs[:-1] == ours[:-1] and len(theirs) == len(LINES) and theirs[-2] == ""
    assert json.loads((tmp_path / "report").read_text())["line_numbers"]["empty"] == [31]
    again, second = trained.lines(tmp_path, LINES, "--engine", "ctranslate2", "--n-best", "2", "--format", "jsonl")
    assert second.exit_code == 0 and "convert" not in second.stderr.split("engine:")[0]
    rows = [json.loads(row)["translations"] for row in again]
    assert [found[0]["text"] for found in rows] == theirs
    for best, *others in rows[:30]:
        divisor = ((5 + best["length"]) / 6) ** 0.6
        assert best["score"] == pytest.approx(best["log_probability"] / divisor, rel=1e-5)
        assert all(other["score"] <= best["score"] for other in others)
    small, third = trained.lines(tmp_path, LINES, "--engine", "ctranslate2", "--precision", "int8", "--alignments", "a")
    assert third.exit_code == 0 and len(small) == len(LINES), third.stderr
    assert (tmp_path / "a").read_text().count("\n") == len(LINES)


def test_ranks_share_the_lines(trained: Trained, tmp_path: Path) -> None:
    alone, done = trained.lines(tmp_path, LINES, "--engine", "ctranslate2")
    assert done.exit_code == 0
    shared = ranks("translate", "-m", trained.model, "-i", "in", "--engine", "ctranslate2", "-o", "both", cwd=tmp_path)
    assert shared.returncode == 0, shared.stderr
    assert (tmp_path / "both").read_text().split("\n")[:-1] == alone


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--sample",), "sampling"),
        (("--keep", "tags"), "--keep does not go together with --engine ctranslate2"),
        (("--target-prefix", "in"), "--target-prefix does not go together with --engine ctranslate2"),
        (("--precision", "int3"), "--precision int3"),
    ],
)
def test_what_it_lacks_is_refused_by_name(
    trained: Trained, tmp_path: Path, options: tuple[str, ...], told: str
) -> None:
    found, done = trained.lines(tmp_path, ["ba"], "--engine", "ctranslate2", *options)
    assert done.exit_code == 2 and told in done.stderr and found == []
    assert_plain(done.stderr)


def test_scores_of_a_run_by_the_other_engine(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept apart from those of our own: another search is another result."""
    done = inside(trained.folder, "evaluate", "-c", "c.yaml", "--engine", "ctranslate2", "--json")
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["engine"] == "ctranslate2" and report["bleu"] > 50
    with monkeypatch.context() as patched:  # not what the model's card tells of
        patched.setattr("transformer_mt.commands.evaluate.with_scores", pytest.fail)
        for options in (("--engine", "ctranslate2"), ("--beam-size", "1")):
            assert inside(trained.folder, "evaluate", "-c", "c.yaml", *options).exit_code == 0
    ours = json.loads(inside(trained.folder, "evaluate", "-c", "c.yaml", "--json").stdout)
    assert ours["engine"] == "native" and ours["inputs"] != report["inputs"]


def test_half_precision_says_nearly_the_same(trained: Trained, tmp_path: Path) -> None:
    exact, _ = trained.lines(tmp_path, LINES[:8])
    found, done = trained.lines(tmp_path, LINES[:8], "--precision", "bfloat16")
    assert done.exit_code == 0 and sum(map(str.__eq__, exact, found)) >= 6
    assert ("this processor has no instructions for it" in done.stderr) != _has_bfloat16()
