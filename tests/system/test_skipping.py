"""Updates without a finite loss, seen from outside: left out and counted, told with what is known, at last given up."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.recording import kept_updates, record_pairs
from tests.running import assert_plain, command, events, inside, last_checkpoint, patched, train, write_config
from transformer_mt.train.loop import LossOf
from transformer_mt.train.optimizer import Adam
from transformer_mt.train.schedule import learning_rate

RULES = {"every_steps": 2, "average": 1}
STEPS = {"max_steps": 10, "log_every_steps": 1, "checkpoint": RULES}
RATE = {"warmup_steps": 10, "peak": 1e-3}

# The loss of the training passes whose number, from 1 on and without the trial, the condition holds for.
POISON = """
from transformer_mt.train.loop import LossOf
number = [-1]
def poisoned(self, *tensors, forward=LossOf.forward):
    loss, nll = forward(self, *tensors)
    number[0] += self.training
    return (loss * float("nan") if self.training and {condition} else loss), nll
LossOf.forward = poisoned
"""


def poison(patch: pytest.MonkeyPatch, condition: Callable[[int], bool], value: float) -> None:
    """The same inside this process, with any value to multiply by."""
    forward, passes = LossOf.forward, [-1]

    def poisoned(self: LossOf, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        loss, nll = forward(self, *tensors)
        passes[0] += self.training
        return (loss * value if self.training and condition(passes[0]) else loss), nll

    patch.setattr(LossOf, "forward", poisoned)


def progress_of(folder: Path) -> dict[str, object]:
    state: dict[str, dict[str, object]] = json.loads((last_checkpoint(folder / "run") / "state.json").read_text())
    return state["progress"]


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """The rate that each update is made with, by its number."""
    found: dict[int, float] = {}
    step = Adam.step

    def noted(self: Adam, rate: float, number: int, scaler: torch.amp.GradScaler) -> None:
        found[number] = rate
        step(self, rate, number, scaler)

    monkeypatch.setattr(Adam, "step", noted)
    return found


def assert_rates(folder: Path, rates: dict[int, float], steps: int) -> None:
    """Each update has the rate of its own number, as if none had been left out, and the log says so."""
    assert rates == {step: learning_rate(step, model_size=32, **RATE) for step in range(1, steps + 1)}
    assert rates == {event["step"]: event["learning_rate"] for event in events(folder / "run")}


def test_one_update_without_a_number(task: Path, monkeypatch: pytest.MonkeyPatch, rates: dict[int, float]) -> None:
    write_config(task, training={**STEPS, "learning_rate": RATE})
    record_pairs(monkeypatch)
    poison(monkeypatch, lambda number: number == 5, math.nan)
    said = train(task)
    (told,) = re.findall(r"^warning: an update was skipped.*$", said, re.M)
    rate = f"{learning_rate(5, model_size=32, **RATE):.3g}"
    assert f"at step 4, learning rate {rate}, gradient norm nan, epoch 1, pairs " in told
    assert told in (task / "run" / "train.log").read_text()
    # The batch is used up: its pairs are in none of the updates of the epoch.
    named = set(map(int, re.findall(r"\d+", told.rsplit("pairs ", 1)[1])))
    made = kept_updates(task)
    first = [pair for row in made.values() if row["epoch"] == 0 for pair in row["pairs"]]
    assert named and not named & set(first) and len(first) == len(set(first))
    assert sorted(made) == list(range(1, 11))
    assert [event["skipped"] for event in events(task / "run")] == [0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    assert_rates(task, rates, 10)
    progress = progress_of(task)
    assert (progress["step"], progress["skipped"], progress["skipped_in_row"]) == (10, 1, 0)
    for name in ("model.safetensors", "optimizer.safetensors"):
        for tensor in load_file(last_checkpoint(task / "run") / name).values():
            assert tensor.isfinite().all()


def test_one_bad_update_after_another(task: Path) -> None:
    write_config(task, training={**STEPS, "max_skipped": 2})
    failed = command("train", "-c", "c.yaml", cwd=task, env=patched(task, POISON.format(condition="number[0] >= 5")))
    assert failed.returncode == 1, failed.stderr
    assert_plain(failed.stderr)
    assert len(re.findall(r"^warning: an update was skipped, .* at step 4, .* pairs \d+", failed.stderr, re.M)) == 2
    told = failed.stderr.splitlines()[-1]
    assert re.match(r"error: 3 updates in a row had a non-finite loss or gradient at step 4, learning rate ", told)
    assert re.search(r"learning rate [\d.e-]+, gradient norm nan, epoch 1, pairs \d+, .*clip_norm\)$", told)
    assert last_checkpoint(task / "run").name == "step-000000004"
    assert not (task / "run" / "model").exists()
    # What was kept is good: it translates, and training goes on from it once the cause is gone.
    done = inside(task, "translate", "-m", last_checkpoint(task / "run"), "-i", "test.en", "-o", "out")
    assert done.exit_code == 0 and (task / "out").read_text().count("\n") == 40
    assert "resuming at step 4," in train(task)
    assert last_checkpoint(task / "run").name == "step-000000010"


def test_looking_for_the_scale_of_float16_is_counted_and_no_failure(
    task: Path, monkeypatch: pytest.MonkeyPatch, rates: dict[int, float]
) -> None:
    """Three overflows, more than may follow each other: rates are those of the updates that were made."""
    training = {**STEPS, "learning_rate": RATE, "precision": "float16", "max_skipped": 1}
    write_config(task, training={**training, "max_steps": 4})
    with monkeypatch.context() as patch:
        poison(patch, lambda number: number in (1, 2, 3), math.inf)
        said = train(task)
    assert "float16" in said and "warning" not in said
    assert [event["skipped"] for event in events(task / "run")] == [3, 0, 0, 0]
    assert re.search(r"^step 1/4 .*  skipped 3 ", said, re.M)
    assert_rates(task, rates, 4)
    progress = progress_of(task)
    assert (progress["step"], progress["skipped"], progress["skipped_in_row"], progress["batch"]) == (4, 3, 0, 7)
    assert progress["loss_scale"]["scale"] == 65536 / 8  # type: ignore[index]
    # The scale that was found is kept: the next session looks for none.
    write_config(task, training={**training, "max_steps": 6})
    assert "skipped" not in train(task)
    assert_rates(task, rates, 6)
    progress = progress_of(task)
    assert (progress["step"], progress["skipped"]) == (6, 3)
    assert progress["loss_scale"]["scale"] == 65536 / 8  # type: ignore[index]
    weights = load_file(last_checkpoint(task / "run") / "model.safetensors").values()
    assert all(tensor.dtype == torch.float32 and tensor.isfinite().all() for tensor in weights)
