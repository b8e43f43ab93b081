"""What training with a configuration would come to: sizes, memory, updates, time and operations; nothing is written.

Speed and memory are measured: a few updates are made here, on the run's own token ids where there are some.
"""

import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from transformer_mt import stages
from transformer_mt.allocator import keep_large_buffers
from transformer_mt.config import Config
from transformer_mt.config.file import differences, load_config, shipped_configs
from transformer_mt.data.batching import Batch, deal, epoch_batches, passes_needed
from transformer_mt.data.store import Store, StoreWriter
from transformer_mt.data.tokenizer import EOS, Tokenizer
from transformer_mt.distributed import Process, is_out_of_memory, pick_device
from transformer_mt.errors import RunError
from transformer_mt.model.folder import START, build
from transformer_mt.model.transformer import Transformer
from transformer_mt.train import checkpoint
from transformer_mt.train.checkpoint import Progress
from transformer_mt.train.loop import NO_SUMS, Trainer, tensors_of
from transformer_mt.train.memory import first_choice, largest_pass
from transformer_mt.train.signals import StopFlag

UPDATES = 3
"""Updates that are timed, after one that is not."""
MADE_UP_PAIRS, MADE_UP_PIECES = 20_000, 25
"""Pairs that stand for those of a corpus that is not there yet, and the mean length of their sides."""
PAPER_OPERATIONS = {512: 3.3e18, 1024: 2.3e19}
"""Of table 2, by model size."""
PAPER_SAYS = (
    "model", "tokenizer.shared", "tokenizer.algorithm", "training.batch_tokens", "training.label_smoothing",
    "training.max_steps", "training.learning_rate", "training.optimizer", "training.subword_sampling",
    "training.initial_model", "training.checkpoint.average", "decoding.beam_size", "decoding.sampling",
    "decoding.length_penalty", "decoding.max_length", "decoding.no_repeat_ngram",
)  # fmt: skip
"""Keys that the paper gives a value, or by saying nothing leaves out what they ask for."""


def plan(config: Config, device: str, devices: int) -> dict[str, Any]:
    """Numbers of all kinds, in bytes, seconds and tokens; `devices` share each update, and are as fast as this one."""
    process = Process(0, devices, pick_device(device))
    if process.device.type == "cpu":
        keep_large_buffers()
    notes: list[str] = []
    tokenizer = _tokenizer(config, notes)
    sizes = (tokenizer.source_size, tokenizer.target_size) if tokenizer else (config.tokenizer.vocabulary_size,) * 2
    step, stored = _progress(config)
    with tempfile.TemporaryDirectory() as place:
        store = _store(config, Path(place), min(sizes), notes)
        lengths, training = store.lengths(), config.training
        batches = list(epoch_batches(lengths, training.batch_tokens, training.seed, 0))
        tokens = first_choice(training, process, stored)
        torch.manual_seed(training.seed)
        model = build(config.model, *sizes).to(process.device)
        trainer = Trainer(model, store, training, START[config.model.start_symbol], Process(0, 1, process.device))
        try:
            memory = _memory(trainer, batches, tokens, devices)
            speed = _speed(trainer, lengths, tokens)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            wanted = "lower training.device_tokens, or the size of the model"
            raise RunError(
                f"out of memory: a pass of {tokens} tokens does not fit on {process.device} ({wanted})"
            ) from None
    updates = _updates(config, batches, tokens, devices)
    found = {
        "name": config.name,
        "parameters": parameters(model),
        "data": {"pairs": len(store), "tokens": dict(zip(("source", "target"), lengths.sum(0).tolist(), strict=True))},
        "updates": updates,
        "memory": memory,
        "speed": {**speed, "device": str(process.device), "threads": torch.get_num_threads()},
        "time": _time(config, updates, step, speed["tokens_per_second"] * devices),
        "departures": departures(config),
        "notes": notes,
    }
    return found | {"operations": _operations(found, process.device, config.model.model_size)}


def parameters(model: Transformer) -> dict[str, int]:
    """How many there are in each part; matrices that are one count once."""
    parts = {"embeddings": 0, "encoder": 0, "decoder": 0}
    for name, parameter in model.named_parameters():
        part = name.partition("_")[0].partition(".")[0]
        parts[part if part in parts and "embedding" not in name else "embeddings"] += parameter.numel()
    return parts | {"total": sum(parts.values())}


# What is there already


def _tokenizer(config: Config, notes: list[str]) -> Tokenizer | None:
    learn = stages.stages(config, notes.append)[1]
    if learn.stale():
        notes.append(f"no tokenizer of this configuration in {learn.folder}: {config.tokenizer.vocabulary_size} pieces")
        return None
    return Tokenizer(learn.folder)


def _progress(config: Config) -> tuple[int, int]:
    """The step that training stands at, and the device_tokens that it has found."""
    saved = checkpoint.checkpoints(config.output / "checkpoints")
    state = checkpoint.read_state(saved[-1])["progress"] if saved else {}
    return state.get("step", 0), state.get("device_tokens", 0)


def _store(config: Config, place: Path, vocabulary: int, notes: list[str]) -> Store:
    """The run's token ids, or made-up ones of usual lengths."""
    encode = stages.stages(config, notes.append)[2]
    if not encode.stale() and encode.whole():
        return Store(encode.folder, "train")
    notes.append(
        f"no token ids of this configuration in {encode.folder}: measured on made-up pairs, {MADE_UP_PIECES} pieces a "
        "side on average; after `tokenize` it is of the real ones"
    )
    random = np.random.default_rng(1)
    lengths = random.gamma(2.0, MADE_UP_PIECES / 2, (MADE_UP_PAIRS, 1)) * random.uniform(0.8, 1.2, (MADE_UP_PAIRS, 2))
    lengths = lengths.clip(1, config.training.max_tokens - 1).astype(int)
    with StoreWriter(place, "train", vocabulary) as writer:
        writer.write(
            (random.integers(EOS + 1, vocabulary, one).tolist(), random.integers(EOS + 1, vocabulary, other).tolist())
            for one, other in lengths.tolist()
        )
    return Store(place, "train")


# What is measured


def _memory(trainer: Trainer, batches: Sequence[Batch], tokens: int, devices: int) -> dict[str, int]:
    """Bytes on each device; activations are what the largest pass of an epoch keeps for the backward pass."""
    weights = sum(parameter.nbytes for parameter in trainer.model.parameters())
    moments = sum(tensor.nbytes for name, tensor in trainer.optimizer.state().items() if ".exp_avg" in name)
    mean = sum(tensor.nbytes for tensor in trainer.optimizer.mean)
    batch, passes = largest_pass(batches, tokens, devices)
    rows = tensors_of(
        trainer.store, deal(batch, passes, devices, 0)[0], trainer.start, trainer.process.device, trainer.loss.multiple
    )
    trainer.loss.train()
    with _kept(trainer.model) as kept, trainer.autocast():
        trainer.loss(*rows)
    activations = sum(kept.values())
    found = {"weights": weights, "gradients": weights, "moments": moments, "mean": mean, "activations": activations}
    return found | {"total": sum(found.values())}


@contextmanager
def _kept(model: Transformer) -> Iterator[dict[int, int]]:
    """Bytes of each piece of memory that a forward pass keeps, by its place; parameters are left out."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield kept


def _speed(trainer: Trainer, lengths: Any, tokens: int) -> dict[str, Any]:
    """Target tokens a second of updates of one pass each."""
    settings = trainer.settings
    batches = epoch_batches(lengths, max(settings.max_tokens, min(tokens, settings.batch_tokens)), settings.seed, 0)
    progress = Progress(sums=dict(NO_SUMS), device_tokens=tokens)
    seconds, done = 0.0, 0
    for number, batch in enumerate(batch for _, batch in zip(range(UPDATES + 1), batches, strict=False)):
        begin = time.perf_counter()
        trainer.update(batch, progress, StopFlag())
        if number or len(lengths) == len(batch.pairs):
            seconds, done = seconds + time.perf_counter() - begin, done + batch.target_tokens
    return {"tokens_per_second": done / seconds, "precision": str(trainer.precision).removeprefix("torch.")}


def _rate_of_products(device: torch.device) -> float:
    """Operations a second of a large float32 product."""
    rows, size = (2048, 2048) if device.type == "cpu" else (8192, 8192)
    one, other = (torch.randn(rows, size, device=device) for _ in range(2))
    best = 0.0
    for _ in range(5):
        begin = time.perf_counter()
        float(F.linear(one, other)[0, 0])
        best = max(best, 2.0 * rows * size * rows / (time.perf_counter() - begin))
    return best


# What follows from it


def _updates(config: Config, batches: Sequence[Batch], tokens: int, devices: int) -> dict[str, Any]:
    target = sum(batch.target_tokens for batch in batches)
    padded = sum(len(batch.pairs) * batch.target_length for batch in batches)
    return {
        "batch_tokens": config.training.batch_tokens,
        "in_an_epoch": len(batches),
        "target_tokens": target / len(batches),
        "padding": 1 - target / padded,
        "devices": devices,
        "device_tokens": tokens,
        "passes": max(passes_needed(batch, tokens, devices) for batch in batches),
    }


def _time(config: Config, updates: dict[str, Any], step: int, tokens_per_second: float) -> dict[str, Any]:
    """What is left until the first of the limits."""
    training, each = config.training, updates["target_tokens"] / tokens_per_second
    limits = [training.max_steps, training.max_epochs and training.max_epochs * updates["in_an_epoch"]]
    limits += [training.max_minutes and max(1, round(60 * training.max_minutes / each))]
    last = min(limit for limit in limits if limit is not None)
    left = max(0, last - step)
    return {"step": step, "last_step": last, "updates_left": left, "seconds_of_an_update": each, "seconds": left * each}


def _operations(found: dict[str, Any], device: torch.device, model_size: int) -> dict[str, Any]:
    """Of the whole training: by the parameters, and as the paper counts, time x devices x rate of a device."""
    updates, when, rate = found["updates"], found["time"], _rate_of_products(device)
    tokens = updates["target_tokens"] * when["last_step"]
    seconds = when["seconds_of_an_update"] * when["last_step"]
    return {
        "six_times_parameters_times_tokens": 6.0 * found["parameters"]["total"] * tokens,
        "as_the_paper_counts": seconds * updates["devices"] * rate,
        "rate_of_float32_products": rate,
        "of_the_paper": PAPER_OPERATIONS.get(model_size),
    }


def departures(config: Config) -> list[str]:
    """What is another way than in the paper, by the nearest of its experiments: of table 3 only if nothing is."""
    own = config.model_dump(mode="json")
    found: dict[str, list[str]] = {}
    for name in shipped_configs():
        other = load_config(name).model_dump(mode="json")
        found[name] = [
            f"{key}: {_shown(theirs)} in {name}, {_shown(ours)} here"
            for key, theirs, ours in differences(other, own)
            if key.startswith(PAPER_SAYS) and key != "model.preset"
        ]
    main = [found[name] for name in found if name.startswith(("base.", "big.", "wmt14-"))]
    return min(*main, *(rows for name, rows in found.items() if name.startswith("table3/") and not rows), key=len)


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)


# What a person reads


def lines(found: dict[str, Any]) -> list[str]:
    """The plan in sentences."""
    sizes, data, updates, memory = (found[name] for name in ("parameters", "data", "updates", "memory"))
    speed, when, operations = (found[name] for name in ("speed", "time", "operations"))
    parts = ", ".join(f"{part} {sizes[part] / 1e6:.2f}" for part in ("embeddings", "encoder", "decoder"))
    kept = ", ".join(f"{part} {_size(memory[part])}" for part in memory if part != "total" and memory[part])
    devices = f"{updates['devices']} device{'s' if updates['devices'] > 1 else ''}"
    paper = f" (the paper: {operations['of_the_paper']:.1e})" if operations["of_the_paper"] else ""
    rows = [
        ("model", f"{sizes['total'] / 1e6:.2f} million parameters: {parts}"),
        ("data", "{:,} pairs, {source:,} source and {target:,} target tokens".format(data["pairs"], **data["tokens"])),
        (
            "updates",
            f"{updates['in_an_epoch']:,} in an epoch, of {updates['target_tokens']:,.0f} target tokens on average "
            f"(batch_tokens {updates['batch_tokens']:,}, padding {updates['padding']:.1%}); on {devices} up to "
            f"{updates['passes']} passes of {updates['device_tokens']:,} tokens",
        ),
        ("memory", f"of each device {_size(memory['total'])}: {kept} of the largest pass"),
        (
            "speed",
            f"{speed['tokens_per_second']:,.0f} target tokens a second on {speed['device']}, {speed['precision']}, "
            f"{speed['threads']} threads, over {UPDATES} updates made here",
        ),
        (
            "time",
            f"{_duration(when['seconds'])} for the {when['updates_left']:,} updates from step {when['step']:,} to "
            f"{when['last_step']:,} on {devices}" + (" as fast as this one" if updates["devices"] > 1 else ""),
        ),
        (
            "operations",
            f"6 x parameters x target tokens: {operations['six_times_parameters_times_tokens']:.1e}; as the paper "
            f"counts, time x devices x {operations['rate_of_float32_products'] / 1e12:.2f}e12 float32 operations a "
            f"second: {operations['as_the_paper_counts']:.1e}{paper}",
        ),
    ]
    texts = [f"{name:<11} {text}" for name, text in rows]
    texts += [f"note: {note}" for note in found["notes"]]
    return texts + [f"departs from the paper: {text}" for text in found["departures"]]


def _size(count: float) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**29 else f"{count / 2**20:.1f} MiB"


def _duration(seconds: float) -> str:
    hours = seconds / 3600
    if hours >= 48:
        return f"{hours / 24:.1f} days"
    return f"{hours:.1f} hours" if hours >= 1 else f"{math.ceil(seconds / 60)} minutes"
