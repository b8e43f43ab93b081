"""How training's speed and memory grow: with the batch, the width, the vocabulary, threads, processes and the corpus.

One thing changes at a time, from the small model with 8,000 pieces and 4,096 tokens; all on made-up sentences. Run by
`scripts/benchmark.py growth`, `losses` and `planning`.
"""

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import benchmark_train as side
import numpy as np
import torch
from numpy.typing import NDArray

from transformer_mt.config import Training
from transformer_mt.data.batching import epoch_batches
from transformer_mt.data.store import Store, StoreWriter
from transformer_mt.data.tokenizer import BOS, EOS
from transformer_mt.distributed import Process
from transformer_mt.train.checkpoint import Progress
from transformer_mt.train.loop import NO_SUMS, Trainer, tensors_of
from transformer_mt.train.signals import StopFlag

CHANGES: dict[str, tuple[Any, ...]] = {
    "batch_tokens": (1024, 2048, 4096, 8192, 16384),
    "size": side.WIDTHS,
    "vocabulary": (2000, 8000, 37000),
    "threads": (1, 2),
    "processes": (1, 2),
}
CHUNK = 100_000
MEAN_LENGTH = 25


def growth(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Target tokens a second and MiB at the peak, for each value of each thing that changes."""
    made_up(folder, options.pairs, min(CHANGES["vocabulary"]))
    found: dict[str, Any] = {}
    for key, values in CHANGES.items():
        for value in values:
            if key in ("threads", "processes") and value > torch.get_num_threads():
                continue
            name = "ours float32, 2 processes" if (key, value) == ("processes", 2) else "ours float32"
            given = {**vars(options), "size": "256", **({key: value} if key in ("batch_tokens", "size") else {})}
            vocabulary = value if key == "vocabulary" else options.vocabulary
            threads = torch.get_num_threads()
            torch.set_num_threads(value if key == "threads" else threads)
            contender = side.Contender(name, argparse.Namespace(**given), folder, vocabulary)
            torch.set_num_threads(threads)
            contender.turn(range(side.WARM_UP))
            for turn in range(options.repeat):
                first = side.WARM_UP + turn * options.updates
                contender.turn(range(first, first + options.updates), counts=True)
            speed = sorted(contender.rates)[len(contender.rates) // 2]
            found[f"{key} {value}"] = {"tokens_per_second": round(speed), "peak_memory_mib": round(contender.end())}
            print(f"{key} {value}: {found[f'{key} {value}']}", file=sys.stderr, flush=True)
    return {"growth": found}


def planning(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Seconds and memory of planning an epoch of corpora of several sizes, and of reading its batches."""
    found = {}
    for pairs in (options.pairs // 100, options.pairs // 10, options.pairs):
        made_up(folder, pairs, options.vocabulary)
        here, there = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=_plan, args=(there, folder))
        process.start()
        found[f"{pairs} pairs"] = here.recv()
        process.join()
        print(f"{pairs} pairs: {found[f'{pairs} pairs']}", file=sys.stderr, flush=True)
    return {"planning": found}


def _plan(connection: Connection, folder: Path) -> None:
    """In a process of its own, so that its memory is known."""
    before = _anonymous()
    begin = time.perf_counter()
    store = Store(folder, "train")
    count, first, most = 0, 0.0, before
    sample = []
    for batch in epoch_batches(store.lengths(), 25_000, 1, 0):
        first = first or time.perf_counter() - begin
        count += 1
        most = max(most, _anonymous()) if count % 100 == 1 else most
        if count <= 100:
            sample.append(batch)
    planned = time.perf_counter() - begin
    begin = time.perf_counter()
    for batch in sample:
        tensors_of(store, batch.pairs, BOS, torch.device("cpu"))
    read = (time.perf_counter() - begin) / len(sample)
    connection.send(
        {
            "batches": count, "seconds_to_the_first": round(first, 2), "seconds_in_all": round(planned, 2),
            "ms_to_read_a_batch": round(1000 * read, 2), "mib_of_memory": round(most - before),
        }
    )  # fmt: skip


def _anonymous() -> float:
    """MiB of memory that this process has now, mapped files left out; 0 where the system does not tell."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")) / 2**10


def losses(options: argparse.Namespace, folder: Path, vocabulary: int) -> dict[str, Any]:
    """Mean nll of each tenth of the updates: in float32, again with another seed for dropout, and in bfloat16."""
    store, device = Store(folder, "train"), torch.device(options.device)
    contenders = {"float32": ("float32", 1), "float32, another seed": ("float32", 2), "bfloat16": ("bfloat16", 1)}
    found = {}
    for name, (precision, seed) in contenders.items():
        keys = {"batch_tokens": options.batch_tokens, "precision": precision, "seed": seed}
        rate = {"peak": 1e-3, "warmup_steps": max(1, options.updates // 3)}
        settings = Training.model_validate({**keys, "max_steps": options.updates, "learning_rate": rate})
        torch.manual_seed(1)
        model = side.model_of(options.size, vocabulary).to(device)
        trainer = Trainer(model, store, settings, BOS, Process(0, 1, device))
        progress = Progress(sums=dict(NO_SUMS), device_tokens=options.batch_tokens)
        batches = _endless(store.lengths(), options.batch_tokens)
        curve = []
        for _ in range(10):
            progress.sums = dict(NO_SUMS)
            for _ in range(max(1, options.updates // 10)):
                trainer.update(next(batches), progress, StopFlag())
            curve.append(round(progress.sums["nll"] / progress.sums["tokens"], 4))
        found[name] = curve
        print(f"{name}: {curve}", file=sys.stderr, flush=True)
    return {"updates": options.updates, "nll": found}


def _endless(lengths: NDArray[np.int32], batch_tokens: int) -> Iterator[Any]:
    epoch = 0
    while True:
        yield from epoch_batches(lengths, batch_tokens, 1, epoch)
        epoch += 1


def made_up(folder: Path, pairs: int, vocabulary: int) -> None:
    """Token ids of as many pairs, with lengths such as sentences have."""
    random = np.random.default_rng(1)
    with StoreWriter(folder, "train", vocabulary) as writer:
        for first in range(0, pairs, CHUNK):
            count = min(CHUNK, pairs - first)
            lengths = random.gamma(2.0, MEAN_LENGTH / 2, count)[:, None] * random.uniform(0.8, 1.2, (count, 2))
            lengths = lengths.clip(1, 250).astype(int)
            ids = random.integers(EOS + 1, vocabulary, int(lengths.sum())).tolist()
            ends = np.cumsum(lengths.ravel()).tolist()
            sides = [ids[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
            writer.write(zip(sides[0::2], sides[1::2], strict=True))
