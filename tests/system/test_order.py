"""The order of the data and all that is drawn are functions of seed and epoch, in any process."""

import json
import platform
from pathlib import Path

import pytest
import torch

import transformer_mt
from tests.recording import PAIRS, kept_updates, record_pairs
from tests.running import (
    command,
    events,
    last_checkpoint,
    patched,
    sentences,
    train,
    write_config,
    write_pairs,
    write_task,
)
from transformer_mt.data.store import Store
from transformer_mt.train.session import UPDATES

RARELY = {"every_steps": 100}
TRAINING = {
    "batch_tokens": 40, "max_epochs": 2, "max_steps": None, "log_every_steps": 5,
    "checkpoint": {**RARELY, "average": 1}, "validation": {**RARELY, "translate": False, "metric": "loss"},
}  # fmt: skip


@pytest.fixture(scope="module")
def two_epochs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a corpus that is sorted by length, shortest first."""
    folder = tmp_path_factory.mktemp("order")
    write_task(folder)
    write_pairs(folder, "train", sorted(sentences(600, 7), key=lambda row: len(" ".join(row))))
    write_config(folder, training=TRAINING)
    with pytest.MonkeyPatch.context() as patch:
        record_pairs(patch)
        train(folder)
    return folder


def epochs(folder: Path) -> list[list[list[int]]]:
    """Pairs of the updates of both epochs."""
    rows = kept_updates(folder).values()
    return [[row["pairs"] for row in rows if row["epoch"] == epoch] for epoch in (0, 1)]


def test_epochs_have_orders_of_their_own(two_epochs: Path) -> None:
    corpus = (two_epochs / "run" / "corpus" / "train.en").read_text().splitlines()
    assert [len(line) for line in corpus] == sorted(len(line) for line in corpus) and len(corpus) > 500
    one, two = epochs(two_epochs)
    assert {tuple(batch) for batch in one} != {tuple(batch) for batch in two}
    # Not only are pairs of equal lengths exchanged: short and long batches follow each other in another way.
    lengths = Store(two_epochs / "run" / "ids", "train").lengths()
    shapes = [[(len(batch), int(lengths[batch].sum())) for batch in batches] for batches in (one, two)]
    assert shapes[0] != shapes[1] and sorted(shapes[0]) == sorted(shapes[1])
    for batches in (one, two):
        assert sorted(pair for batch in batches for pair in batch) == list(range(len(corpus)))
        first = [pair for batch in batches[: len(batches) // 10] for pair in batch]
        assert min(first) < len(corpus) // 2 <= max(first)


def test_another_process_makes_the_same_run(two_epochs: Path, tmp_path: Path) -> None:
    """To the last digit, in another order of sets and another time zone."""
    for name in ("train", "valid", "test"):
        for side in ("en", "de"):
            (tmp_path / f"{name}.{side}").write_bytes((two_epochs / f"{name}.{side}").read_bytes())
    write_config(tmp_path, training=TRAINING)
    environment = {**patched(tmp_path, PAIRS), "PYTHONHASHSEED": "77", "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    done = command("train", "-c", "c.yaml", cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert kept_updates(tmp_path) == kept_updates(two_epochs)
    for kind in ("train", "validation"):
        assert events(tmp_path / "run", kind) == events(two_epochs / "run", kind)
    assert len(events(tmp_path / "run")) > 20
    weights = [last_checkpoint(folder / "run") / "model.safetensors" for folder in (tmp_path, two_epochs)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_another_seed_makes_another_run(two_epochs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("train", "valid", "test"):
        for side in ("en", "de"):
            (tmp_path / f"{name}.{side}").write_bytes((two_epochs / f"{name}.{side}").read_bytes())
    write_config(tmp_path, training={**TRAINING, "max_epochs": None, "max_steps": 10, "seed": 2})
    record_pairs(monkeypatch)
    train(tmp_path)
    ours, theirs = (kept_updates(folder) for folder in (tmp_path, two_epochs))
    assert all(ours[step]["pairs"] != theirs[step]["pairs"] for step in (1, 2, 3))
    losses = [[event["loss"] for event in events(folder / "run")[:2]] for folder in (tmp_path, two_epochs)]
    assert not set(losses[0]) & set(losses[1])


def test_a_run_says_what_it_was_made_on(two_epochs: Path) -> None:
    state = json.loads((last_checkpoint(two_epochs / "run") / "state.json").read_text())
    assert state["machine"] == {
        "transformer_mt": transformer_mt.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": f"cpu {platform.machine()}",
        "threads": 1,
        "ranks": 1,
        "updates": UPDATES,
    }
    assert state["config"]["training"]["seed"] == 1
