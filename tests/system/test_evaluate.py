"""Scores: of test sets, of given files, never without a signature, never made twice for nothing."""

import gzip
import json
import shutil
from pathlib import Path

import pytest

from tests.running import Trained, assert_plain, command, digests, times


@pytest.fixture
def copy(trained: Trained, tmp_path: Path) -> Path:
    shutil.copytree(trained.folder, tmp_path / "copy", symlinks=True)
    return tmp_path / "copy"


def files(folder: Path, hypotheses: list[str], references: list[str]) -> tuple[str, ...]:
    for name, lines in (("hyp", hypotheses), ("ref", references)):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return "evaluate", "--hypothesis", "hyp", "--reference", "ref"


def test_a_second_call_translates_nothing(copy: Path) -> None:
    before = times(copy / "run")
    done = command("evaluate", "-c", "c.yaml", "--json", cwd=copy)
    assert done.returncode == 0 and "up to date" in done.stderr
    assert times(copy / "run") == before
    report = json.loads(done.stdout)
    assert report == json.loads((copy / "run/scores/test.json").read_text())
    assert "version:" in report["signature"] and report["segments"] == 40
    assert {"bleu", "chrf", "ter", "length_ratio", "chrf_signature", "ter_signature"} <= report.keys()
    assert all(score["signature"] for score in report["scores"])


def test_another_search_is_another_score(copy: Path) -> None:
    first = command("evaluate", "-c", "c.yaml", "--beam-size", "2", "--json", cwd=copy)
    assert first.returncode == 0 and "up to date" not in first.stderr
    assert json.loads(first.stdout)["search"]["beam_size"] == 2
    (copy / "run/translations/test.de").write_text("spoilt\n" * 40)
    again = command("evaluate", "-c", "c.yaml", "--beam-size", "2", "--json", cwd=copy)
    assert "up to date" not in again.stderr
    assert json.loads(again.stdout) == json.loads(first.stdout)


def test_another_model(copy: Path) -> None:
    newest = max((copy / "run/checkpoints").glob("step-*"))
    done = command("evaluate", "-c", "c.yaml", "-m", newest, "--json", cwd=copy)
    assert done.returncode == 0 and "up to date" not in done.stderr
    assert json.loads(done.stdout)["model"] == newest.name


def test_an_empty_reference_is_kept_and_told(tmp_path: Path) -> None:
    arguments = files(
        tmp_path,
        ["the cat sat on the mat", "it is a fine day", "x y z"],
        ["the cat sat on the mat", "it is a fine day", ""],
    )
    done = command(*arguments, "--target-language", "en", "--json", cwd=tmp_path)
    report = json.loads(done.stdout)
    assert report["segments"] == 3 and 0 < report["bleu"] < 100
    assert "warning: ref: 1 empty reference" in done.stderr


def test_chinese_is_segmented(tmp_path: Path) -> None:
    arguments = files(tmp_path, ["猫坐在垫子上。今天天气不错。"], ["猫坐在垫子上。今天天气很好。"])
    report = json.loads(command(*arguments, "--target-language", "zh", "--json", cwd=tmp_path).stdout)
    assert round(report["bleu"], 2) == 77.44 and "tok:zh" in report["signature"]


def test_references_reach_the_metric_untouched(tmp_path: Path) -> None:
    raw = ["½ … two  blanks “q”", "plain line of text", "a\tb c d e", "one\u2028two three four"]
    same = json.loads(command(*files(tmp_path, raw, raw), "--target-language", "de", "--json", cwd=tmp_path).stdout)
    assert same["bleu"] == 100 and same["segments"] == 4
    other = [line.replace("…", "...") for line in raw]
    less = json.loads(command(*files(tmp_path, other, raw), "--target-language", "de", "--json", cwd=tmp_path).stdout)
    assert less["reference_sha256"] == same["reference_sha256"] and less["bleu"] < 100


def test_what_cannot_be_scored(tmp_path: Path) -> None:
    cases = {
        (*files(tmp_path, ["a", "b"], ["a"]), "--target-language", "de"): "hyp has 2 lines, ref has 1",
        files(tmp_path, ["a", "b"], ["a"]): "--target-language",
        ("evaluate", "--hypothesis", "hyp"): "go together",
        ("evaluate", "--hypothesis", "none", "--reference", "ref", "--target-language", "de"): "none",
        ("evaluate",): "--config",
    }
    for arguments, told in cases.items():
        done = command(*arguments, cwd=tmp_path)
        assert done.returncode == 2 and told in done.stderr, done.stderr
        assert_plain(done.stderr)
    (tmp_path / "ref").write_bytes(b"a\n\xff\n")
    done = command("evaluate", "--hypothesis", "hyp", "--reference", "ref", "--target-language", "de", cwd=tmp_path)
    assert done.returncode == 2 and all(told in done.stderr for told in ("ref", "line 2", "0xFF"))


def test_a_byte_order_mark_and_compression_are_no_part_of_a_reference(tmp_path: Path) -> None:
    arguments = files(tmp_path, ["a b c d e"], ["a b c d e"])
    (tmp_path / "ref").write_bytes(gzip.compress(b"\xef\xbb\xbfa b c d e\r\n"))
    done = command(*arguments, "--target-language", "de", cwd=tmp_path)
    assert "BLEU 100.00" in done.stdout, done.stderr


def test_other_test_sets_than_the_run_has_are_refused(trained: Trained, tmp_path: Path) -> None:
    before = digests(trained.folder / "run" / "scores")
    other = "data.test=[{source: valid.en, target: valid.de}]"
    done = command("evaluate", "-c", "c.yaml", "--set", other, cwd=trained.folder)
    assert done.returncode == 2 and "run/corpus is not this configuration's" in done.stderr
    assert digests(trained.folder / "run" / "scores") == before


def test_run_prints_json_and_nothing_else(trained: Trained) -> None:
    done = command("run", "-c", "c.yaml", "--json", cwd=trained.folder)
    assert json.loads(done.stdout)["bleu"] > 90


def test_before_there_is_a_model(task: Path) -> None:
    done = command("evaluate", "-c", "c.yaml", cwd=task)
    assert done.returncode == 2 and "run" in done.stderr
    assert not (task / "run" / "scores").exists()
