"""Checkpoints: what is kept, which is best, what is averaged, which one is found again."""

import math
from pathlib import Path

import pytest
import torch

from transformer_mt.config import Config
from transformer_mt.errors import RunError, UserError
from transformer_mt.train import checkpoint
from transformer_mt.train.averaging import average
from transformer_mt.train.checkpoint import Progress
from transformer_mt.train.signals import ECHO_SECONDS, StopFlag


def save(folder: Path, step: int, value: float = 1.0, **shapes: int) -> Path:
    tensors = {name: torch.full((size,), value) for name, size in (shapes or {"w": 3}).items()}
    record = {"config": {}, "machine": {}}
    return checkpoint.save(folder, tensors, {"w.exp_avg": torch.zeros(3)}, Progress(step=step, batch=2), record)


def names(folder: Path) -> list[int]:
    return [checkpoint.step_of(path) for path in checkpoint.checkpoints(folder)]


def test_newest_gives_back_what_was_saved(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path) == (None, [])
    save(tmp_path, 5, 2.0)
    saved, warnings = checkpoint.newest(tmp_path)
    assert saved and warnings == []
    assert saved.progress == Progress(step=5, batch=2)
    assert saved.tensors["w"].tolist() == [2.0] * 3 and saved.moments["w.exp_avg"].shape == (3,)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["cut", "gone", "empty"])
def test_a_damaged_one_is_passed_over(tmp_path: Path, name: str, damage: str) -> None:
    save(tmp_path, 5)
    path = save(tmp_path, 10) / name
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: 20 if damage == "cut" else 0])
    saved, warnings = checkpoint.newest(tmp_path)
    assert saved and saved.progress.step == 5
    assert len(warnings) == 1 and "step-000000010 cannot be resumed from" in warnings[0]
    (tmp_path / "step-000000005" / name).write_bytes(b"")
    with pytest.raises(RunError, match="--fresh"):
        checkpoint.newest(tmp_path)


def test_prune(tmp_path: Path) -> None:
    for step in range(10, 70, 10):
        save(tmp_path, step)
    (tmp_path / ".step-000000070.partial").mkdir()
    assert checkpoint.prune(tmp_path, 3, 2, [20]) == ["step-000000010", "step-000000030"]
    assert names(tmp_path) == [20, 40, 50, 60]
    resumable = [path.parent.name for path in sorted(tmp_path.glob("*/optimizer.safetensors"))]
    assert resumable == ["step-000000050", "step-000000060"]
    assert not list(tmp_path.glob(".step*"))
    assert checkpoint.prune(tmp_path, 3, 2, [20]) == []


def test_best_link_moves(tmp_path: Path) -> None:
    for step in (5, 10):
        save(tmp_path, step)
        checkpoint.mark_best(tmp_path, step)
        assert (tmp_path / "best").resolve().name == checkpoint.name_of(step)
    assert not (tmp_path / "best").readlink().is_absolute()


@pytest.mark.parametrize(
    ("metric", "values", "best"),
    [
        ("bleu", [0.1, 0.2, 0.15], 2),
        ("loss", [3, 2, 2.5], 2),
        ("chrf", [1, 1, 1], 1),
        ("ppl", [math.nan, 4, 4], 2),
        ("nll", [0.3, 0.2, 0.1], 3),
    ],
)
def test_best_steps_know_the_direction(metric: str, values: list[float], best: int) -> None:
    events = [{"step": step, metric: value} for step, value in enumerate(values, 1)]
    assert checkpoint.best_steps(events, metric, 1) == [best]
    assert checkpoint.best_steps([{"step": 1}], metric, 1) == []


def test_average(tmp_path: Path) -> None:
    paths = [save(tmp_path, step, value) for step, value in ((5, 1.0), (10, 2.0), (15, 6.0))]
    for order in (paths, paths[::-1]):
        found = average(order)
        assert found["w"].dtype == torch.float32 and found["w"].tolist() == [3.0] * 3
    alone = average(paths[:1])
    assert torch.equal(alone["w"], torch.ones(3))
    for other in ({"w": 4}, {"v": 3}, {"w": 3, "v": 3}):
        with pytest.raises(UserError, match="another model"):
            average([paths[0], save(tmp_path, 20, 1.0, **other)])


def test_average_of_many_small_differences(tmp_path: Path) -> None:
    paths = [save(tmp_path, step, 1 + step * 1e-7) for step in range(1, 21)]
    exact = sum(float(torch.tensor(1 + step * 1e-7)) for step in range(1, 21)) / 20
    assert average(paths)["w"][0] == torch.tensor(exact, dtype=torch.float64).float()


def config(**training: object) -> Config:
    return Config.model_validate(
        {
            "name": "x",
            "languages": {"source": "en", "target": "de"},
            "data": {split: [{"demo": "english-german"}] for split in ("train", "validation")},
            "training": {"max_steps": 5, **training},
        }
    )


def test_keep_or_reset_takes_whole_groups() -> None:
    saved = config(learning_rate={"factor": 2.0}, seed=3, optimizer={"beta2": 0.9}).model_dump(mode="json")
    now = config(learning_rate={"peak": 1e-3}, seed=4, max_steps=9)
    kept, lines = checkpoint.keep_or_reset(now, saved, [])
    assert (kept.training.learning_rate.factor, kept.training.learning_rate.peak) == (2.0, None)
    assert (kept.training.seed, kept.training.optimizer.beta2, kept.training.max_steps) == (3, 0.9, 9)
    assert len(lines) == 4 and all("(--reset " in line for line in lines)
    changed, lines = checkpoint.keep_or_reset(now, saved, ["schedule", "data"])
    assert (changed.training.learning_rate.peak, changed.training.seed) == (1e-3, 4)
    assert changed.training.optimizer.beta2 == 0.9
    assert "training.seed: config 4, checkpoint 3, using 4" in lines
    assert checkpoint.keep_or_reset(now, now.model_dump(mode="json"), []) == (now, [])


def test_an_echo_of_a_signal_is_no_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []
    clock = [100.0]
    monkeypatch.setattr("transformer_mt.train.signals.os._exit", left.append)
    monkeypatch.setattr("transformer_mt.train.signals.time.monotonic", lambda: clock[0])
    flag = StopFlag(echoes=2)
    for number in (2, 15, 2):
        flag.handle(number, None)
    assert flag.signal_number == 2 and left == []
    flag.handle(2, None)
    assert left == [130]
    late = StopFlag(echoes=2)
    late.handle(2, None)
    clock[0] += ECHO_SECONDS + 0.1
    late.handle(15, None)
    assert left == [130, 143]


def test_without_a_launcher_a_second_signal_leaves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []
    monkeypatch.setattr("transformer_mt.train.signals.os._exit", left.append)
    flag = StopFlag()
    flag.handle(15, None)
    assert flag.asked() and left == []
    flag.handle(2, None)
    assert left == [130]
