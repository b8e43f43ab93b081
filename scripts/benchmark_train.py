"""Our updates beside a plain loop and bare matrix products: the same sentences, batches and threads, in one run.

Each contender is a process of its own (or one for each rank), so that the memory it takes is known and what it sets up
for itself helps no other. They take turns, and how busy other programs kept the machine meanwhile is told too. Run by
`scripts/benchmark.py train`.

Letters in shapes: B batch, S source and T target length, D model size, H heads, V vocabulary.
"""

import argparse
import multiprocessing
import os
import re
import resource
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from transformer_mt.allocator import keep_large_buffers
from transformer_mt.config import Training
from transformer_mt.data.batching import Batch, epoch_batches
from transformer_mt.data.store import Store
from transformer_mt.data.tokenizer import BOS, EOS, PAD
from transformer_mt.distributed import Process, process_group
from transformer_mt.model.transformer import Transformer, sinusoidal_positions
from transformer_mt.train.checkpoint import Progress
from transformer_mt.train.loop import NO_SUMS, Trainer, tensors_of
from transformer_mt.train.signals import StopFlag

SIZES = {"small": (256, 1024, 4, 3), "base": (512, 2048, 8, 6), "big": (1024, 4096, 16, 6)}
"""Model size, inner size, heads, layers on each side."""
WIDTHS = ("128", "256", "512", "1024")
SIZES |= {width: (int(width), 4 * int(width), int(width) // 64, 3) for width in WIDTHS}
WARM_UP = 2
"""Updates of each contender that do not count."""
CONTENDERS = (
    "ours float32", "ours bfloat16", "ours float32, 2 processes", "plain float32", "plain bfloat16",
    "products float32", "products bfloat16",
)  # fmt: skip


def compare(options: argparse.Namespace, folder: Path, vocabulary: int) -> dict[str, Any]:
    """Target tokens a second of each contender, padding not counted; shares of the products' rate; memory."""
    store = Store(folder, "train")
    batches = list(epoch_batches(store.lengths(), options.batch_tokens, 1, 0))
    numbers = list(range(WARM_UP + options.repeat * options.updates))
    names = [name for name in CONTENDERS if re.search(options.only, name) and _possible(name, options)]
    contenders = {name: Contender(name, options, folder, vocabulary) for name in names}
    try:
        for contender in contenders.values():
            contender.turn(numbers[:WARM_UP])
        for first in range(WARM_UP, len(numbers), options.updates):
            for name, contender in contenders.items():
                contender.turn(numbers[first : first + options.updates], counts=True)
                print(f"{name}: {contender.rates[-1]:.4g} a second", file=sys.stderr, flush=True)
    finally:
        memory = {name: contender.end() for name, contender in contenders.items()}
    done = [batches[number % len(batches)] for number in numbers[WARM_UP:]]
    lengths = store.lengths()
    flops = sum(flops_of(lengths[batch.pairs], SIZES[options.size], vocabulary) for batch in done)
    each = flops / sum(batch.target_tokens for batch in done)
    speeds = {name: one for name, one in contenders.items() if not name.startswith("products")}
    peaks = {name.split()[1]: one for name, one in contenders.items() if name.startswith("products")}
    return {
        "updates_of_a_turn": options.updates,
        "flops_per_target_token": each,
        "tokens_per_second": {name: statistics.median(one.rates) for name, one in speeds.items()},
        "least_and_most": {name: [min(one.rates), max(one.rates)] for name, one in speeds.items()},
        "products_flops_per_second": {name: statistics.median(one.rates) for name, one in peaks.items()},
        "share_of_products": {
            name: statistics.median(
                rate * each / peak for rate, peak in zip(one.rates, peaks[precision].rates, strict=True)
            )
            for name, one in speeds.items()
            if (precision := name.split(",")[0].split()[1]) in peaks
        },
        "peak_memory_mib": {name: memory[name] for name in speeds},
        "cores_taken_by_others": {name: max(one.others) for name, one in contenders.items()},
        "share_of_batches_on_their_way": _share_of_data(store, done, contenders.get("ours float32")),
    }


def _possible(name: str, options: argparse.Namespace) -> bool:
    """Ranks share a CPU's cores here, not one GPU."""
    return "processes" not in name or (options.device == "cpu" and torch.get_num_threads() > 1)


def flops_of(lengths: NDArray[np.int32], size: tuple[int, int, int, int], vocabulary: int) -> float:
    """Of the matrix products of an update, forward and twice that backward, over real tokens only.

    lengths (N, 2): source and target tokens of each pair, with `</s>`; causal attention counts as half a square.
    """
    width, inner, _, layers = size
    source, target = lengths.astype(np.float64).T
    rows = source.sum() * (4 * width**2 + 2 * width * inner) + target.sum() * (6 * width**2 + 2 * width * inner)
    rows += source.sum() * 2 * width**2
    pairs = 2 * width * ((source**2).sum() + (target**2).sum() / 2 + (source * target).sum())
    return float(6 * (layers * (rows + pairs) + target.sum() * width * vocabulary))


def _share_of_data(store: Store, batches: Sequence[Batch], ours: "Contender | None") -> float | None:
    """Seconds that it takes to read and pad batches, as a share of ours."""
    if not ours:
        return None
    begin = time.perf_counter()
    for batch in batches:
        tensors_of(store, batch.pairs, BOS, torch.device("cpu"))
    taken = time.perf_counter() - begin
    return taken / (sum(batch.target_tokens for batch in batches) / statistics.median(ours.rates))


# Processes that take turns


class Contender:
    """One way to make updates, in processes that wait for their turn."""

    def __init__(self, name: str, options: argparse.Namespace, folder: Path, vocabulary: int) -> None:
        self.rates: list[float] = []
        """Target tokens (of bare products: operations) a second, one for each turn that counts."""
        self.others: list[float] = []
        """Cores that other programs kept busy during it."""
        ranks = 2 if "processes" in name else 1
        context = multiprocessing.get_context("spawn")
        self._processes: list[BaseProcess] = []
        self._connections: list[Connection] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        for rank in range(ranks):
            here, there = context.Pipe()
            given = Given(name, vars(options), folder, vocabulary, torch.get_num_threads() // ranks, rank, ranks, port)
            process = context.Process(target=_work, args=(there, given), daemon=True)
            process.start()
            there.close()
            self._processes.append(process)
            self._connections.append(here)

    def turn(self, numbers: Sequence[int], *, counts: bool = False) -> None:
        """Makes the updates of batches of these numbers."""
        begin, busy = time.perf_counter(), _busy()
        for connection in self._connections:
            connection.send(numbers)
        results = [connection.recv() for connection in self._connections]
        elapsed = time.perf_counter() - begin
        seconds = max(result[0] for result in results)
        if counts:
            self.rates.append(results[0][1] / seconds)
            self.others.append(max(0.0, _busy() - busy - sum(result[2] for result in results)) / elapsed)

    def end(self) -> float:
        """Ends the processes; MiB of memory that they took together at their peaks."""
        for connection in self._connections:
            connection.send(None)
        total: float = sum(connection.recv() for connection in self._connections)
        for process in self._processes:
            process.join()
        return total


@dataclass(frozen=True)
class Given:
    """What a process is told."""

    name: str
    options: dict[str, Any]
    folder: Path
    vocabulary: int
    threads: int
    rank: int
    ranks: int
    port: int


def _work(connection: Connection, given: Given) -> None:
    """The life of a process: turns, until it is given none."""
    torch.set_num_threads(given.threads)
    if given.ranks > 1:
        place = {"RANK": given.rank, "LOCAL_RANK": given.rank, "WORLD_SIZE": given.ranks, "MASTER_PORT": given.port}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", **{key: str(value) for key, value in place.items()}}
    with process_group(given.options["device"]) as process:
        torch.manual_seed(1)
        for result in _turns(given, process, connection):
            connection.send(result)


def _turns(given: Given, process: Process, connection: Connection) -> Iterator[Any]:
    """Of each turn its seconds, what was done in them, and the seconds of a processor; at last the peak memory."""
    device, kind = process.device, given.name.split()[0]
    store = Store(given.folder, "train")
    batches = list(epoch_batches(store.lengths(), given.options["batch_tokens"], 1, 0))
    make = {"ours": _ours, "plain": _plain, "products": _products}[kind]
    update = make(given, process, store)
    while (numbers := connection.recv()) is not None:
        before = time.process_time()
        begin = time.perf_counter()
        done = 0.0
        for number in numbers:
            done += update(batches[number % len(batches)])
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        yield time.perf_counter() - begin, done, time.process_time() - before
    if device.type == "cuda":
        yield torch.cuda.max_memory_allocated(device) / 2**20
    else:
        yield resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def _busy() -> float:
    """Seconds that all processors together have been busy, as Linux counts them; elsewhere 0."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return 0.0
    return sum(int(fields[place]) for place in (0, 1, 2, 5, 6)) / os.sysconf("SC_CLK_TCK")


# Contenders


def _ours(given: Given, process: Process, store: Store) -> Callable[[Batch], float]:
    """What `transformer-mt train` does for each batch."""
    keep_large_buffers()
    options = given.options
    precision = given.name.split(",")[0].split()[1]
    keys = {"batch_tokens": options["batch_tokens"], "precision": precision, "compile": options["compile"]}
    settings = Training.model_validate({**keys, "max_steps": 1, "learning_rate": {"peak": 1e-4, "warmup_steps": 1}})
    model = model_of(options["size"], given.vocabulary).to(process.device)
    trainer = Trainer(model, store, settings, BOS, process)
    progress = Progress(sums=dict(NO_SUMS), device_tokens=-(-options["batch_tokens"] // process.ranks))

    def update(batch: Batch) -> float:
        trainer.update(batch, progress, StopFlag())
        return batch.target_tokens

    return update


def model_of(size: str, vocabulary: int) -> Transformer:
    """A model of one of the sizes, on the CPU."""
    width, inner, heads, layers = SIZES[size]
    return Transformer(
        source_vocabulary=vocabulary, target_vocabulary=vocabulary, encoder_layers=layers, decoder_layers=layers,
        model_size=width, feedforward_size=inner, heads=heads, key_size=width // heads, value_size=width // heads,
    )  # fmt: skip


def _products(given: Given, process: Process, store: Store) -> Callable[[Batch], float]:
    """Products of the model's shapes with 4,096 rows, and a square one: the fastest of them is the machine's rate."""
    width, inner, *_ = SIZES[given.options["size"]]
    dtype = getattr(torch, given.name.split()[1])
    shapes = [(4096, width, width), (4096, width, inner), (4096, inner, width), (2048, 2048, 2048)]
    pairs = [
        (torch.randn(m, k, dtype=dtype, device=process.device), torch.randn(n, k, dtype=dtype, device=process.device))
        for m, k, n in shapes
    ]
    work = 2e11 if process.device.type == "cpu" else 5e13

    def rate(rows: Tensor, weight: Tensor) -> float:
        flops = 2.0 * rows.numel() * len(weight)
        times = max(1, round(work / len(pairs) / flops))
        begin = time.perf_counter()
        for _ in range(times):
            F.linear(rows, weight)
        if process.device.type == "cuda":
            torch.cuda.synchronize(process.device)
        return flops * times / (time.perf_counter() - begin)

    def update(batch: Batch) -> float:
        """Operations at the best rate, for as long as they took."""
        begin = time.perf_counter()
        best = max(rate(*pair) for pair in pairs)
        return best * (time.perf_counter() - begin)

    return update


def _plain(given: Given, process: Process, store: Store) -> Callable[[Batch], float]:
    """What a careful user writes with PyTorch's own parts, on the same batches."""
    options, device = given.options, process.device
    dtype = getattr(torch, given.name.split()[1])
    model = PlainTransformer(given.vocabulary, *SIZES[options["size"]]).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)

    def update(batch: Batch) -> float:
        padded = store.padded(batch.pairs, PAD, EOS, BOS)
        source, target, labels = (torch.from_numpy(rows).to(device) for rows in padded)
        with torch.autocast(device.type, dtype) if dtype != torch.float32 else nullcontext():
            loss = model.loss(source, target, labels)
        torch.autograd.backward([loss])
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        return batch.target_tokens

    return update


class PlainAttention(nn.Module):
    """Heads of attention with one matrix for q, k and v, or for k and v."""

    def __init__(self, size: int, heads: int, *, cross: bool) -> None:
        super().__init__()
        self.heads, self.cross = heads, cross
        self.queries = nn.Linear(size, size if cross else 3 * size, bias=False)
        self.memory = nn.Linear(size, 2 * size, bias=False) if cross else None
        self.output = nn.Linear(size, size, bias=False)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """x (B, T, D), memory (B, S, D) -> (B, T, D)."""
        if self.memory is None:
            parts = self.queries(x).chunk(3, -1)
        else:
            parts = (self.queries(x), *self.memory(memory).chunk(2, -1))
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return self.output(heads.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class PlainLayer(nn.Module):
    """A post-norm layer of the encoder, or of the decoder."""

    def __init__(self, size: int, inner: int, heads: int, *, decoder: bool) -> None:
        super().__init__()
        self.attention = PlainAttention(size, heads, cross=False)
        self.cross = PlainAttention(size, heads, cross=True) if decoder else None
        self.inner, self.outer = nn.Linear(size, inner), nn.Linear(inner, size)
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(3 if decoder else 2))

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """x (B, T, D) -> (B, T, D)."""
        causal = self.cross is not None
        x = self.norms[0](x + F.dropout(self.attention(x, x, None if causal else mask, causal), 0.1))
        if self.cross:
            x = self.norms[1](x + F.dropout(self.cross(x, memory, mask, False), 0.1))
        return self.norms[-1](x + F.dropout(self.outer(F.relu(self.inner(x))), 0.1))  # type: ignore[no-any-return]


class PlainTransformer(nn.Module):
    """Post-norm, tied embeddings, the logits of real tokens only."""

    def __init__(self, vocabulary: int, size: int, inner: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size)
        nn.init.normal_(self.embedding.weight, std=size**-0.5)
        self.encoder = nn.ModuleList(PlainLayer(size, inner, heads, decoder=False) for _ in range(layers))
        self.decoder = nn.ModuleList(PlainLayer(size, inner, heads, decoder=True) for _ in range(layers))
        self.register_buffer("positions", sinusoidal_positions(1024, size).float())

    def loss(self, source: Tensor, target: Tensor, labels: Tensor) -> Tensor:
        """The mean of the label-smoothed loss of all real labels (B, T)."""
        mask = (source != PAD)[:, None, None]
        x, y = self._embed(source), self._embed(target)
        for layer in self.encoder:
            x = layer(x, x, mask)
        for layer in self.decoder:
            y = layer(y, x, mask)
        places = (labels.flatten() != PAD).nonzero()[:, 0]
        logits = F.linear(y.flatten(0, 1)[places], self.embedding.weight).float()
        return F.cross_entropy(logits, labels.flatten()[places], label_smoothing=0.1)

    def _embed(self, ids: Tensor) -> Tensor:
        scale = self.embedding.embedding_dim**0.5
        return F.dropout(self.embedding(ids) * scale + self.positions[: ids.shape[1]], 0.1)  # type: ignore[index]
