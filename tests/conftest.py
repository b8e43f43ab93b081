"""A small task on files, and one model trained on it that the system tests share."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running import Trained, command, end, kill_what_is_left, start, wait_for, write_config, write_task

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as of what a shell begins in the background; it is inherited
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    """Whatever a test started ends with it."""
    yield
    kill_what_is_left()


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A folder with the task's files and a configuration for twelve updates."""
    write_task(tmp_path)
    write_config(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The reversal task learned to the end, with a SIGTERM in the middle."""
    folder = tmp_path_factory.mktemp("trained")
    write_task(folder, 9000)
    training = {
        "batch_tokens": 1200,
        "max_steps": 700,
        "label_smoothing": 0.0,
        "learning_rate": {"warmup_steps": 80, "peak": 6e-3},
        "log_every_steps": 20,
        "checkpoint": {"every_steps": 100, "average": 2, "keep_last": 3},
        "validation": {"every_steps": 350},
    }
    model = {"model_size": 64, "feedforward_size": 128, "heads": 4, "dropout": 0.0}
    write_config(folder, model=model, training=training)
    process = start("run", "--config", "c.yaml", cwd=folder)
    before = wait_for(process, r"^step 120/")
    time.sleep(0.05)
    code, rest = end(process, signal.SIGTERM)
    saved = sorted(path.name for path in (folder / "run" / "checkpoints").glob("step-*"))
    again = command("run", "--config", "c.yaml", cwd=folder)
    assert again.returncode == 0, again.stderr
    return Trained(folder, code, saved, [before + rest, again.stderr], again.stdout)
