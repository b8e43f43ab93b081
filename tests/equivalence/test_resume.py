"""Training that was interrupted, by a signal, a crash or a limit, equals training that was not, to the bit."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.running import (
    assert_plain,
    command,
    digests,
    end,
    events,
    last_checkpoint,
    ranks,
    start,
    wait_for,
    write_config,
    write_task,
)
from transformer_mt.data.batching import epoch_batches
from transformer_mt.data.store import Store

# Two passes and more an update, dropout on, an epoch of seven updates: 5 and 9 lie inside one, 7 at a border.
TRAINING: dict[str, Any] = {
    "batch_tokens": 400,
    "device_tokens": 130,
    "log_every_steps": 3,
    "checkpoint": {"every_steps": 4, "average": 5},
}


def configure(folder: Path, **training: Any) -> None:
    write_config(folder, training={**TRAINING, "max_steps": 16, **training})


def prepared(folder: Path) -> Path:
    write_task(folder, 200)
    configure(folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = prepared(tmp_path_factory.mktemp("undisturbed"))
    assert command("train", "-c", "c.yaml", cwd=folder).returncode == 0
    assert last_checkpoint(folder / "run").name == "step-000000016"
    return folder


def assert_same(folder: Path, other: Path) -> None:
    """Weights and moments to the bit, every event but for the clock, and the model made of them."""
    one, two = folder / "run", other / "run"
    for kind in ("train", "validation"):
        assert events(one, kind) == events(two, kind)
        assert events(one, kind)
    names = ("model.safetensors", "optimizer.safetensors")
    for name in names:
        assert (last_checkpoint(one) / name).read_bytes() == (last_checkpoint(two) / name).read_bytes()
    assert (one / "model" / "model.safetensors").read_bytes() == (two / "model" / "model.safetensors").read_bytes()


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
    for steps in (5, 7, 16):
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
    assert positions[0][1] > 0


def test_epoch_border(undisturbed: Path, tmp_path: Path) -> None:
    """A checkpoint written after the last update of an epoch goes on with the first of the next."""
    batches = epoch_batches(Store(undisturbed / "run" / "ids", "train").lengths(), TRAINING["batch_tokens"], 1, 0)
    length = len(list(batches))
    assert 1 < length < 16
    folder = prepared(tmp_path)
    configure(folder, checkpoint={"every_steps": length}, max_steps=length)
    assert command("train", "-c", "c.yaml", cwd=folder).returncode == 0
    assert epoch_and_batch(folder / "run") == (0, length)
    configure(folder)
    assert command("train", "-c", "c.yaml", cwd=folder).returncode == 0
    assert (last_checkpoint(folder / "run") / "optimizer.safetensors").read_bytes() == (
        last_checkpoint(undisturbed / "run") / "optimizer.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_signals(undisturbed: Path, tmp_path: Path, number: int) -> None:
    folder = prepared(tmp_path)
    process = start("train", "-c", "c.yaml", cwd=folder)
    wait_for(process, r"^step 6/")
    code, rest = end(process, number)
    assert code == (143 if number == signal.SIGTERM else -9)
    assert_plain(rest)
    again = command("train", "-c", "c.yaml", cwd=folder)
    assert again.returncode == 0 and "resuming at step" in again.stderr
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
