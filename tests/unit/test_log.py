"""What training tells, and how what it told is taken back."""

import json
import math
from pathlib import Path

import pytest

from transformer_mt.train import log


def event(step: int, kind: str = "train") -> dict[str, object]:
    return {"event": kind, "step": step, "loss": 1.5}


def test_cut_metrics_keeps_what_was_before(tmp_path: Path) -> None:
    metrics = log.Metrics(tmp_path, enabled=True, tensorboard=False)
    for number in (2, 4, 6):
        metrics.write(event(number))
    metrics.write(event(4, "validation"))
    metrics.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "tra')
    assert [row["step"] for row in log.read_metrics(tmp_path)] == [2, 4, 6, 4]
    log.cut_metrics(tmp_path, 4)
    text = (tmp_path / "metrics.jsonl").read_text()
    assert [json.loads(line)["step"] for line in text.splitlines()] == [2, 4, 4] and text.endswith("\n")
    assert log.validations(log.read_metrics(tmp_path)) == [event(4, "validation")]


def test_other_ranks_write_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics, console = log.Metrics(tmp_path, enabled=False, tensorboard=False), log.Console(enabled=False)
    console.keep(tmp_path / "train.log")
    metrics.write(event(1))
    console.line("text")
    console.warning("text")
    metrics.close()
    console.close()
    assert list(tmp_path.iterdir()) == [] and capsys.readouterr() == ("", "")


def test_quiet_consoles_still_warn_and_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    console = log.Console(quiet=True)
    console.line("before")
    console.keep(tmp_path / "train.log")
    console.line("Grüße")
    console.warning("careful")
    console.close()
    assert capsys.readouterr() == ("", "warning: careful\n")
    assert (tmp_path / "train.log").read_text("utf-8") == "Grüße\nwarning: careful\n"


def test_train_event_is_per_token() -> None:
    sums = {
        "loss": 220.0,
        "nll": 100.0,
        "tokens": 100,
        "padded": 125,
        "norm": 6.0,
        "updates": 3,
        "seconds": 2.0,
        "skipped": 1,
    }
    found = log.train_event(7, sums, 1e-3, 0)
    assert (found["loss"], found["nll"], found["gradient_norm"]) == (2.2, 1.0, 2.0)
    assert found["ppl"] == pytest.approx(math.e)
    assert (found["tokens_per_second"], found["padding"], found["skipped"]) == (50, pytest.approx(0.2), 1)
    line = log.train_line(found, 10, 3661.4)
    assert line.startswith("step 7/10  epoch 1  loss 2.2000") and "skipped 1" in line and line.endswith("1:01:01 left")


def test_perplexity_has_no_overflow() -> None:
    assert log.perplexity(0.356675) == pytest.approx(1.428571, rel=1e-5)
    assert log.perplexity(1e6) == math.inf


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (3599, "59:59"), (7325, "2:02:05")])
def test_duration(seconds: float, text: str) -> None:
    assert log.duration(seconds) == text


def test_validation_line() -> None:
    row = {"step": 3, "loss": 1.0, "nll": 0.5, "ppl": 1.65, "bleu": 12.34}
    told = "validation at step 3  loss 1.0000  nll 0.5000  ppl 1.650  bleu 12.34"
    assert log.validation_line(row, best=True) == f"{told}  (best so far)"
    assert log.validation_line(row, best=False) == told
