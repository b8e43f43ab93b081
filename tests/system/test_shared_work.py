"""Two ranks that start from nothing: one of them writes, both translate, and they wait for each other."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.recording import PAIRS, WRITES, kept_updates, written
from tests.running import (
    TORCHRUN,
    WORDS,
    assert_plain,
    command,
    events,
    files,
    last_checkpoint,
    patched,
    start_ranks,
    write_config,
    write_pairs,
    write_task,
)

SLOW_SECONDS = 8

# The second rank begins to translate late; each says what it translates, and how long it is ready to wait.
LATE = """
import time
import torch.distributed as dist
from transformer_mt.decode.models import ModelSteps
begun = []
def late(self, slots, numbers, admit=ModelSteps.admit):
    print("TRANSLATED", rank, len(numbers), file=sys.stderr, flush=True)
    if rank == "1" and not begun:
        begun.append(True)
        time.sleep({seconds})
    return admit(self, slots, numbers)
def joined(*arguments, join=dist.init_process_group, **options):
    print("WAITS", options["timeout"].total_seconds(), file=sys.stderr, flush=True)
    join(*arguments, **options)
ModelSteps.admit, dist.init_process_group = late, joined
"""


@dataclass
class Started:
    """A run by two ranks in a folder that had nothing but its texts: exit codes, and what was said."""

    folder: Path
    codes: list[int]
    said: str


def both(folder: Path, patch: str) -> Started:
    """Starts two ranks and waits for their end."""
    processes = start_ranks("train", "-c", "c.yaml", cwd=folder, **patched(folder, patch))
    said = "".join(process.communicate(timeout=100)[1] for process in processes)
    return Started(folder, [process.returncode for process in processes], said)


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Started:
    folder = tmp_path_factory.mktemp("late")
    write_task(folder)
    validation = {"every_steps": 4, "translate": True, "metric": "loss"}
    write_config(folder, training={"max_steps": 6, "validation": validation}, decoding={"batch_size": 8})
    return both(folder, WRITES + LATE.format(seconds=SLOW_SECONDS))


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Started:
    """Five pairs of equal length, two of which fill a batch, twice."""
    folder = tmp_path_factory.mktemp("few")
    write_task(folder)
    write_pairs(folder, "few", [[WORDS[(2 * row + word) % 12] for word in range(4)] for row in range(5)])
    write_config(
        folder,
        data={"train": files("few"), "validation": files("few"), "cleaning": {"remove_test_overlap": False}},
        tokenizer={"vocabulary_size": 21},
        training={"batch_tokens": 26, "max_tokens": 20, "max_steps": None, "max_epochs": 2, "log_every_steps": 1},
    )
    return both(folder, WRITES + PAIRS)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Started:
    folder = tmp_path_factory.mktemp("plain")
    write_task(folder)
    write_config(folder, training={"max_steps": 3})
    prefix = [*TORCHRUN, "-m", "transformer_mt"]
    done = command("train", "-c", "c.yaml", cwd=folder, prefix=prefix, env=patched(folder, WRITES))
    return Started(folder, [done.returncode], done.stderr)


@pytest.mark.parametrize("name", ["late", "few", "plain"])
def test_from_nothing_one_rank_makes_everything_once(name: str, request: pytest.FixtureRequest) -> None:
    started: Started = request.getfixturevalue(name)
    run, said = started.folder / "run", started.said
    assert set(started.codes) == {0}, said
    assert_plain(said)
    assert not [path for path in written(started.folder, 1) if path.split("/")[0] == "run"]
    made = {path for path in written(started.folder, 0) if path.split("/")[0] == "run"}
    assert {"run/train.log", "run/metrics.jsonl"} <= made
    names = [path.relative_to(run).as_posix() for path in run.rglob("*")]
    for once in ("config.yaml", "train.log", "metrics.jsonl", "train.bin", "train.idx"):
        found = [path for path in names if path.rsplit("/", 1)[-1] == once and not path.startswith("model/")]
        assert len(found) == 1, found
    log = (run / "train.log").read_text()
    lines = log.splitlines()
    for line in lines:
        assert lines.count(line) == said.splitlines().count(line) == 1, line
    assert len(re.findall("million parameters", log)) == 1
    steps = [event["step"] for event in events(run)]
    assert steps and steps == sorted(set(steps))


def test_a_rank_that_is_late_in_a_validation_is_waited_for(late: Started) -> None:
    """Seconds here; days are what they would wait."""
    assert late.codes == [0, 0], late.said
    run = late.folder / "run"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    seconds = {row["step"]: row["seconds"] for row in rows if row["event"] == "validation"}
    assert sorted(seconds) == [4, 6] and seconds[4] >= SLOW_SECONDS > seconds[6]
    assert last_checkpoint(run).name == "step-000000006"
    waits = [float(text) for text in re.findall(r"^WAITS (\S+)$", late.said, re.M)]
    assert len(waits) == 2 and min(waits) >= 24 * 3600


def test_translating_a_validation_is_shared(late: Started) -> None:
    """Forty lines, twice, at most eight of them at once."""
    shares = [list(map(int, re.findall(rf"^TRANSLATED {rank} (\d+)$", late.said, re.M))) for rank in (0, 1)]
    assert [sum(share) for share in shares] == [40, 40] and all(max(share) == 8 for share in shares)


def test_batches_that_ranks_cannot_share_evenly(few: Started) -> None:
    """Three updates an epoch on both ranks, the last of a single pair, and an end."""
    assert few.codes == [0, 0], few.said
    updates, others = (kept_updates(few.folder, rank) for rank in (0, 1))
    assert updates == others and sorted(updates) == [1, 2, 3, 4, 5, 6]
    for epoch in (0, 1):
        batches = [row["pairs"] for row in updates.values() if row["epoch"] == epoch]
        assert sorted(map(len, batches)) == [1, 2, 2]
        assert sorted(pair for batch in batches for pair in batch) == [0, 1, 2, 3, 4]
    assert [event["step"] for event in events(few.folder / "run")] == [1, 2, 3, 4, 5, 6]
