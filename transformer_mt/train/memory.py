"""How many tokens one forward pass may hold: found before the first update, and halved after one that was too large."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transformer_mt.atomic import read_json, write_json
from transformer_mt.config.training import Training
from transformer_mt.data.batching import Batch, epoch_batches, passes_needed
from transformer_mt.data.sampling import SampledStore
from transformer_mt.distributed import Process, fail_together, largest
from transformer_mt.errors import RunError
from transformer_mt.train.loop import Trainer
from transformer_mt.train.signals import StopFlag

CPU_TOKENS = 4096
"""What `device_tokens: auto` means on a CPU, where larger passes are no faster."""
FREE_SHARE = 0.1
"""What has to stay free of a GPU's memory where `auto` chooses."""
RECORD = "out_of_memory.json"
Machine = Mapping[str, Any]
"""The record of what updates are made on."""


def first_choice(settings: Training, process: Process, stored: int) -> int:
    """Tokens of a pass, to be tried first: the config's, else what was found before, else by the device."""
    if settings.device_tokens != "auto":
        return settings.device_tokens
    if stored or process.device.type != "cuda":
        return stored or CPU_TOKENS
    return max(settings.max_tokens, -(-settings.batch_tokens // process.ranks))  # an update in one pass


def after_failure(run: Path, tokens: int, settings: Training, machine: Machine) -> int:
    """Half of the tokens, if a session of this run on such a machine found no memory for them.

    With `auto` that holds for more of them too; another number that the config gives is taken as it is.
    """
    record = read_json(run / RECORD) or {}
    failed = record.get("device_tokens", 0)
    same = {key: machine[key] for key in ("device", "ranks")}.items() <= record.items()
    met = tokens >= failed if settings.device_tokens == "auto" else tokens == failed
    return failed // 2 if same and met else tokens


def note_failure(run: Path, tokens: int, rank: int, machine: Machine) -> None:
    """Keeps for the next session that a pass of so many tokens found no memory; any rank may be the one that knows."""
    own = run / f".{RECORD}.rank-{rank}"
    write_json(own, {"device_tokens": tokens, "device": machine["device"], "ranks": machine["ranks"]})
    os.replace(own, run / RECORD)


def largest_pass(batches: Iterable[Batch], tokens: int, ranks: int) -> tuple[Batch, int]:
    """The batch whose largest pass has the most tokens, source, target and padding together, and its passes."""

    def size(batch: Batch) -> tuple[int, int]:
        rows = -(-len(batch.pairs) // (passes_needed(batch, tokens, ranks) * ranks))
        length = batch.source_length + batch.target_length
        return rows * length, length  # of equal ones the longest: attention grows with its square

    batch = max(batches, key=size)
    return batch, passes_needed(batch, tokens, ranks)


def fitting_tokens(trainer: Trainer, tokens: int, stop: StopFlag) -> int:
    """Tokens of a pass, at most `tokens`, whose largest pass of an epoch runs here, forward and backward.

    A number that the config gives has to fit, or RunError names the key; with `auto` it is halved until it fits. All
    ranks come to the same.
    """
    settings, ranks = trainer.settings, trainer.process.ranks
    if isinstance(trainer.store, SampledStore):
        trainer.store.release()  # the trial is made with pairs as they are on disk
    lengths = trainer.store.lengths()
    while True:
        batches = epoch_batches(lengths, settings.batch_tokens, settings.seed, 0)
        batch, passes = largest_pass(batches, tokens, ranks)
        free = FREE_SHARE if settings.device_tokens == "auto" else 0.0
        if not largest(int(not trainer.rehearse(batch, passes, stop, free))):
            return tokens
        if settings.device_tokens != "auto" or passes * ranks >= len(batch.pairs):
            shown = f"training.device_tokens {tokens}" if passes * ranks < len(batch.pairs) else "one pair of the data"
            fail_together(
                RunError(
                    f"out of memory before the first update: {shown} does not fit on {trainer.process.device} (lower "
                    "training.device_tokens, training.max_tokens or the size of the model)"
                )
            )
        tokens //= 2
        trainer.warn(f"out of memory in a trial: training.device_tokens is {tokens} now")
