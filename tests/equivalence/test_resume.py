"""Training that was interrupted, by a signal, a crash or a limit, equals training that was not, to the bit.

With dropout, sampled subwords, several passes an update and validations that translate; the pairs of each update too.
"""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.recording import PAIRS, kept_updates
from tests.running import (
    assert_plain,
    command,
    digests,
    end,
    events,
    inside,
    last_checkpoint,
    patched,
    ranks,
    start,
    wait_for,
    write_config,
    write_task,
)

TRAINING: dict[str, Any] = {
    "batch_tokens": 240,
    "device_tokens": 80,
    "log_every_steps": 3,
    "subword_sampling": 0.1,
    "checkpoint": {"every_steps": 4, "average": 5},
    "validation": {"every_steps": 4, "translate": True, "metric": "loss"},
}
DECODING = {"beam_size": 2, "batch_size": 8, "max_length": {"extra": 5}}
EPOCH = 5
"""Updates of the first epoch: 5 is at a border, 7 inside the second one."""

# Letting sentences into the search takes its time, so that a signal falls into a validation.
SLOW_TRANSLATING = """
import sys, time
from transformer_mt.decode.models import ModelSteps
def slow(self, slots, numbers, admit=ModelSteps.admit):
    print("TRANSLATING", file=sys.stderr, flush=True)
    time.sleep(0.3)
    return admit(self, slots, numbers)
ModelSteps.admit = slow
"""

# Between the two files of a checkpoint's tensors there is time to be killed.
SLOW_SAVING = """
import sys, time
from transformer_mt.train import checkpoint
def slow(tensors, path, save=checkpoint.save_tensors):
    save(tensors, path)
    print("SAVED", path.name, path.parent.name, file=sys.stderr, flush=True)
    time.sleep(0.5)
checkpoint.save_tensors = slow
"""


def configure(folder: Path, **training: Any) -> None:
    write_config(folder, training={**TRAINING, "max_steps": 16, **training}, decoding=DECODING)


def prepared(folder: Path) -> Path:
    write_task(folder, 200)
    configure(folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = prepared(tmp_path_factory.mktemp("undisturbed"))
    done = command("train", "-c", "c.yaml", cwd=folder, env=patched(folder, PAIRS))
    assert done.returncode == 0, done.stderr
    assert last_checkpoint(folder / "run").name == "step-000000016"
    return folder


def assert_same(folder: Path, other: Path) -> None:
    """Weights and moments to the bit, every event but for the clock, the model, and where recorded the data's order."""
    one, two = folder / "run", other / "run"
    for kind in ("train", "validation"):
        assert events(one, kind) == events(two, kind)
        assert events(one, kind)
    names = ("model.safetensors", "optimizer.safetensors")
    for name in names:
        assert (last_checkpoint(one) / name).read_bytes() == (last_checkpoint(two) / name).read_bytes()
    assert digests(one / "model") == digests(two / "model")
    if (folder / "updates.0.jsonl").exists():
        assert kept_updates(folder) == kept_updates(other)
        assert sorted(kept_updates(folder)) == list(range(1, 17))


def epoch_and_batch(run: Path) -> tuple[int, int]:
    progress = json.loads((last_checkpoint(run) / "state.json").read_text())["progress"]
    return progress["epoch"], progress["batch"]


def test_two_undisturbed_runs_are_equal(undisturbed: Path, tmp_path: Path) -> None:
    assert command("train", "-c", "c.yaml", cwd=prepared(tmp_path)).returncode == 0
    assert_same(tmp_path, undisturbed)
    assert {"corpus", "ids"} <= {name.split("/")[0] for name in digests(tmp_path / "run")}


def test_going_on_from_a_lower_max_steps(undisturbed: Path, tmp_path: Path) -> None:
    folder = prepared(tmp_path)
    positions = []
    for steps in (EPOCH, 7, 16):
        configure(folder, max_steps=steps)
        assert command("train", "-c", "c.yaml", cwd=folder).returncode == 0
        positions.append(epoch_and_batch(folder / "run"))
    # A session that ends at its last update logs and validates there; those lines are all that may be more.
    rows = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    assert {json.loads(row)["step"] for row in rows} == {3, 4, 5, 6, 7, 8, 9, 12, 15, 16}
    for name in ("model.safetensors", "optimizer.safetensors"):
        ours, theirs = (last_checkpoint(path / "run") / name for path in (folder, undisturbed))
        assert ours.read_bytes() == theirs.read_bytes()
    # Where a session ended is no part of the mean.
    ours, theirs = (path / "run" / "model" / "model.safetensors" for path in (folder, undisturbed))
    assert ours.read_bytes() == theirs.read_bytes()
    assert positions[:2] == [(1, 0), (1, 2)]


def test_epoch_border(undisturbed: Path, tmp_path: Path) -> None:
    """A checkpoint written after the last update of an epoch goes on with the first of the next."""
    assert [row["epoch"] for row in kept_updates(undisturbed).values()].count(0) == EPOCH
    folder = prepared(tmp_path)
    configure(folder, checkpoint={"every_steps": EPOCH}, max_steps=EPOCH)
    assert command("train", "-c", "c.yaml", cwd=folder).returncode == 0
    assert epoch_and_batch(folder / "run") == (0, EPOCH)
    configure(folder)
    assert command("train", "-c", "c.yaml", cwd=folder).returncode == 0
    assert (last_checkpoint(folder / "run") / "optimizer.safetensors").read_bytes() == (
        last_checkpoint(undisturbed / "run") / "optimizer.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_signals(undisturbed: Path, tmp_path: Path, number: int) -> None:
    folder = prepared(tmp_path)
    process = start("train", "-c", "c.yaml", cwd=folder, **patched(folder, PAIRS))
    wait_for(process, r"^step 6/")
    code, rest = end(process, number)
    assert code == (143 if number == signal.SIGTERM else -9)
    assert_plain(rest)
    again = command("train", "-c", "c.yaml", cwd=folder, env=patched(folder, PAIRS))
    assert again.returncode == 0 and "resuming at step" in again.stderr
    assert_same(folder, undisturbed)


def test_a_signal_while_validating(undisturbed: Path, tmp_path: Path) -> None:
    """It falls into the translations of update 8, of which nothing is left but the wish to make them."""
    folder = prepared(tmp_path)
    process = start("train", "-c", "c.yaml", cwd=folder, **patched(folder, PAIRS + SLOW_TRANSLATING))
    wait_for(process, r"^validation at step 4 ")
    wait_for(process, r"^TRANSLATING")
    code, rest = end(process, signal.SIGTERM)
    assert code == 143 and rest.count("TRANSLATING") < 4
    assert_plain(rest)
    assert "interrupted, saved at update 8\n" in rest
    assert [event["step"] for event in events(folder / "run", "validation")] == [4]
    again = command("train", "-c", "c.yaml", cwd=folder, env=patched(folder, PAIRS))
    assert again.returncode == 0, again.stderr
    assert again.stderr.index("resuming at step 8,") < again.stderr.index("validation at step 8 ")
    assert_same(folder, undisturbed)


def test_killed_while_saving(undisturbed: Path, tmp_path: Path) -> None:
    """Of update 8 there are weights and no moments: what has a final name is the checkpoint before."""
    folder = prepared(tmp_path)
    process = start("train", "-c", "c.yaml", cwd=folder, **patched(folder, PAIRS + SLOW_SAVING))
    wait_for(process, r"^validation at step 4 ")
    wait_for(process, r"^SAVED model.safetensors")
    code, _ = end(process, signal.SIGKILL)
    assert code == -signal.SIGKILL
    checkpoints = folder / "run" / "checkpoints"
    assert [path.name for path in checkpoints.glob("step-*")] == ["step-000000004"]
    assert [path.name for path in checkpoints.glob(".*/*")] == ["model.safetensors"]
    done = inside(folder, "translate", "-m", "run", "-i", "test.en", "-o", "out")
    assert done.exit_code == 0 and "step-000000004" in done.stderr, done.stderr
    again = command("train", "-c", "c.yaml", cwd=folder, env=patched(folder, PAIRS))
    assert again.returncode == 0 and "resuming at step 4," in again.stderr, again.stderr
    assert not list(checkpoints.glob(".*"))
    assert_same(folder, undisturbed)


def crashed(undisturbed: Path, folder: Path) -> Path:
    """A copy as it is after a crash between saving step 16 and validating it."""
    shutil.copytree(undisturbed, folder, symlinks=True)
    run = folder / "run"
    rows = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = [row for row in rows if not ('"validation"' in row and json.loads(row)["step"] == 16)]
    assert len(kept) == len(rows) - 1
    (run / "metrics.jsonl").write_text("".join(kept) + '{"event": "val')
    shutil.rmtree(run / "model")
    (run / "checkpoints" / "best").unlink()
    return run


def test_pending_validation_is_done(undisturbed: Path, tmp_path: Path) -> None:
    run = crashed(undisturbed, tmp_path / "copy")
    assert command("train", "-c", "c.yaml", cwd=run.parent).returncode == 0
    assert_same(run.parent, undisturbed)
    assert (run / "checkpoints" / "best").resolve().name == (undisturbed / "run/checkpoints/best").resolve().name


def test_a_model_older_than_the_last_checkpoint_is_made_again(undisturbed: Path, tmp_path: Path) -> None:
    run = crashed(undisturbed, tmp_path / "copy")
    shutil.copytree(undisturbed / "run" / "model", run / "model")
    settings = run / "model" / "config.yaml"
    settings.write_text(settings.read_text().replace("- 16\n", "- 8\n"))
    assert command("train", "-c", "c.yaml", cwd=run.parent).returncode == 0
    assert settings.read_text() == (undisturbed / "run" / "model" / "config.yaml").read_text()
    assert_same(run.parent, undisturbed)


def test_damaged_newest_checkpoint(undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(undisturbed, folder, symlinks=True)
    weights = last_checkpoint(folder / "run") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    again = command("train", "-c", "c.yaml", cwd=folder)
    assert again.returncode == 0
    assert "warning: checkpoint" in again.stderr and "step-000000016 cannot be resumed from" in again.stderr
    assert "resuming at step 12," in again.stderr
    assert_same(folder, undisturbed)


def test_all_checkpoints_damaged(undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(undisturbed, folder, symlinks=True)
    for state in (folder / "run" / "checkpoints").glob("step-*/state.json"):
        state.write_text(state.read_text()[:40])
    before = digests(folder, without=["config.yaml"])
    again = command("train", "-c", "c.yaml", cwd=folder)
    assert again.returncode == 1
    assert "no checkpoint in" in again.stderr and "--fresh" in again.stderr
    assert_plain(again.stderr)
    assert digests(folder, without=["config.yaml"]) == before


def test_two_ranks(tmp_path: Path) -> None:
    whole, parted = prepared(tmp_path / "whole"), prepared(tmp_path / "parted")
    done = ranks("train", "-c", "c.yaml", cwd=whole)
    assert done.returncode == 0, done.stderr
    configure(parted, max_steps=8)
    assert ranks("train", "-c", "c.yaml", cwd=parted).returncode == 0
    configure(parted)
    done = ranks("train", "-c", "c.yaml", cwd=parted)
    assert done.returncode == 0 and "resuming at step 8" in done.stderr
    for name in ("model.safetensors", "optimizer.safetensors"):
        ours, theirs = (last_checkpoint(path / "run") / name for path in (whole, parted))
        assert ours.read_bytes() == theirs.read_bytes()
    theirs_after = [event for event in events(parted / "run") if event["step"] > 9]
    assert theirs_after == [event for event in events(whole / "run") if event["step"] > 9]
