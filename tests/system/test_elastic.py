"""What the launcher starts again goes on by itself: a worker that was killed, one that found no memory."""

import re
from pathlib import Path

import pytest

from tests.running import (
    TORCHRUN,
    assert_plain,
    command,
    events,
    last_checkpoint,
    patched,
    ranks,
    start_ranks,
    write_config,
    write_task,
)

RESTARTING = [*TORCHRUN, "--max-restarts", "2", "-m", "transformer_mt"]
TRAINING = {"device_tokens": 60, "max_steps": 12, "checkpoint": {"every_steps": 3, "average": 2}}

# Once, in the eighth update of the second rank.
ONCE = """
import os, pathlib, signal
if os.environ.get("RANK") == "1":
    import torch
    from transformer_mt.train.loop import Trainer
    original, done = Trainer._pass, pathlib.Path("done")
    def once(self, pairs, batch):
        if self.optimizer.adam.state[next(self.model.parameters())]["step"] == 7 and not done.exists():
            done.touch()
            {what}
        return original(self, pairs, batch)
    Trainer._pass = once
"""
KILLED = ONCE.format(what="os.kill(os.getpid(), signal.SIGKILL)")
NO_MEMORY = ONCE.format(what='raise torch.OutOfMemoryError("no room")')


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    write_task(folder)
    write_config(folder, training=TRAINING)
    assert ranks("train", "-c", "c.yaml", cwd=folder).returncode == 0
    return folder / "run"


def test_a_killed_worker(undisturbed: Path, task: Path) -> None:
    write_config(task, training=TRAINING)
    done = command("train", "-c", "c.yaml", cwd=task, prefix=RESTARTING, env=patched(task, KILLED))
    assert done.returncode == 0, done.stderr
    assert "resuming at step 6," in done.stderr and (task / "done").exists()
    assert re.search(r"^rank 0: left, since the connection to another rank is lost$", done.stderr, re.M)
    for name in ("model.safetensors", "optimizer.safetensors"):
        ours, theirs = (last_checkpoint(run) / name for run in (task / "run", undisturbed))
        assert ours.read_bytes() == theirs.read_bytes()
    assert events(task / "run") == events(undisturbed)


def test_a_worker_without_memory(task: Path) -> None:
    """Goes on with half the tokens a pass: the same updates but for rounding and dropout."""
    write_config(task, training=TRAINING)
    done = command("train", "-c", "c.yaml", cwd=task, prefix=RESTARTING, env=patched(task, NO_MEMORY))
    assert done.returncode == 0, done.stderr
    (told,) = re.findall(r"^(?:rank \d: )?error: (.*)$", done.stderr, re.M)
    assert told.startswith("out of memory in an update of ") and "training.device_tokens 60" in told
    assert "the run goes on with 30" in told
    assert '"device_tokens": 30' in (last_checkpoint(task / "run") / "state.json").read_text()


def test_the_first_error_is_told_once_and_all_leave(task: Path) -> None:
    write_config(task, training=TRAINING)
    patch = ONCE.format(what='raise ValueError("out of luck")')
    processes = start_ranks("train", "-c", "c.yaml", cwd=task, **patched(task, patch))
    said = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [1, 1]
    assert said[1].splitlines()[-1] == "rank 1: error: ValueError: out of luck (--debug shows where)"
    assert said[0].splitlines()[-1] == "rank 0: left, since the connection to another rank is lost"
    assert_plain("".join(said))
    assert last_checkpoint(task / "run").name == "step-000000006"
