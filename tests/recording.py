"""What tests record of a run, the pairs of each update and who writes; and the command without its start."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from transformer_mt.train.loop import Trainer

torch.set_num_threads(1)  # as in the processes that are started, so that both make the same numbers

# Every update that counts adds a line to a file of its rank in the folder that the command runs in.
PAIRS = """
import json
from transformer_mt.train.loop import Trainer
def recorded(self, batch, progress, stop, update=Trainer.update):
    before = progress.step
    asked = update(self, batch, progress, stop)
    if progress.step > before:
        row = {"step": progress.step, "epoch": progress.epoch, "pairs": batch.pairs.tolist()}
        with open(f"updates.{self.process.rank}.jsonl", "a") as file:
            file.write(json.dumps(row) + "\\n")
    return asked
Trainer.update = recorded
"""

# Every file opened for writing, folder made and name given adds a line to a file of its rank.
WRITES = """
import os, sys
def told(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        flags = arguments[2] or 0
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            note(arguments[0])
    elif event in ("os.mkdir", "os.remove", "os.rmdir"):
        note(arguments[0])
    elif event in ("os.rename", "os.symlink"):
        note(arguments[1])
def note(path):
    os.write(written, os.fsencode(os.path.abspath(os.fsdecode(path))) + b"\\n")
rank = os.environ.get("RANK", "0")
written = os.open(f"written.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
sys.addaudithook(told)
"""


def kept_updates(folder: Path, rank: int = 0) -> dict[int, dict[str, Any]]:
    """What was recorded of the updates by their number; one that was made again is the same as it was before."""
    found: dict[int, dict[str, Any]] = {}
    for line in (folder / f"updates.{rank}.jsonl").read_text().splitlines():
        row = json.loads(line)
        assert found.setdefault(row["step"], row) == row
    return found


def written(folder: Path, rank: int) -> set[str]:
    """What a rank wrote below a folder, relative to it."""
    paths = {Path(line) for line in (folder / f"written.{rank}").read_text().splitlines()}
    return {path.relative_to(folder).as_posix() for path in paths if path.is_relative_to(folder)}


def record_pairs(patch: pytest.MonkeyPatch) -> None:
    """Lets `PAIRS` work inside this process for as long as the patch lasts."""
    patch.setattr(Trainer, "update", Trainer.update)
    exec(PAIRS, {})
