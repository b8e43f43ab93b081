"""The script that kills and resumes: a few kills leave the run as it would be, and the script sees one that is not."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import save_file

from tests.running import environment

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/kill_and_resume.py"


def test_three_kills() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--kills", "3"], env=environment(), capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["identical"] and summary["differences"] == []
    assert summary["kills"] == sum(summary["fell_into"].values()) == 3
    assert summary["restarts"] == summary["ended_before_the_kill"] + 3


@pytest.fixture(scope="module")
def script() -> ModuleType:
    found = importlib.util.spec_from_file_location("kill_and_resume", SCRIPT)
    assert found and found.loader
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module  # dataclasses look there
    found.loader.exec_module(module)
    return module


def make_run(folder: Path) -> Path:
    """What a finished run holds, as far as it is compared."""
    last = folder / "checkpoints" / "step-000000005"
    for place in (last, folder / "model"):
        place.mkdir(parents=True)
        save_file({"weight": torch.arange(6.0)}, place / "model.safetensors")
    save_file({"step": torch.ones(1)}, last / "optimizer.safetensors")
    (last / "state.json").write_text(json.dumps({"format": 1, "progress": {"step": 5}}))
    (folder / "model" / "config.yaml").write_text("steps: [5]\n")
    rows = [{"event": "train", "step": step, "loss": 7.0 / step, "tokens_per_second": 1.0} for step in (2, 4)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    return make_run(tmp_path / "one"), make_run(tmp_path / "other")


def test_equal_runs_do_not_differ_but_for_the_clock(script: ModuleType, runs: tuple[Path, Path]) -> None:
    metrics = runs[1] / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"tokens_per_second": 1.0', '"tokens_per_second": 2.0'))
    assert script.differences(*runs) == []


@pytest.mark.parametrize(
    "name", ["checkpoints/step-000000005/model", "checkpoints/step-000000005/optimizer", "model/model"]
)
def test_one_byte_of_the_weights_is_a_difference(script: ModuleType, runs: tuple[Path, Path], name: str) -> None:
    path = runs[1] / f"{name}.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    [sentence] = script.differences(*runs)
    assert f"differs, first at byte {len(content) - 1}" in sentence and str(path) in sentence


def test_events_are_compared(script: ModuleType, runs: tuple[Path, Path]) -> None:
    metrics = runs[1] / "metrics.jsonl"
    first, second = metrics.read_text().splitlines(keepends=True)
    metrics.write_text(first + second.replace("1.75", "1.76"))
    assert ["differs" in sentence for sentence in script.differences(*runs)] == [True]
    metrics.write_text(first + second + second)
    sentences = script.differences(*runs)
    assert any("2 times of train at 4" in sentence for sentence in sentences)
    assert any("has 2 and 3 events" in sentence for sentence in sentences)


def test_a_run_that_did_not_end_is_a_difference(script: ModuleType, runs: tuple[Path, Path]) -> None:
    (runs[1] / "checkpoints" / "step-000000005").rename(runs[1] / "checkpoints" / "step-000000004")
    assert script.differences(*runs) == ["the last checkpoints are of update 5 and 4"]


def test_what_a_kill_must_not_leave_is_told(script: ModuleType, runs: tuple[Path, Path]) -> None:
    run = runs[0]
    progress = {"step": 5, "sums": {}}
    state = run / "checkpoints" / "step-000000005" / "state.json"
    state.write_text(json.dumps({"format": 1, "progress": progress}))
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"event": "tr')  # torn by the kill: what a run may leave
    assert script.damage(run) == []
    (run / "corpus").mkdir()
    (run / "corpus" / "train.en").touch()
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write("\n")
    weights = run / "checkpoints" / "step-000000005" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-3])
    (run / "checkpoints" / "best").symlink_to("step-000000004")
    told = "\n".join(script.damage(run))
    for part in ("train.en is empty", "line 3 is no JSON", "step-000000005 is not whole", "which is gone"):
        assert part in told
