"""What training with a configuration would come to: sizes, memory, updates, time and operations; nothing is written.

Speed and memory are measured: a few updates are made here, on the run's own token ids where there are some.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
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
from transformer_mt.data.tokenizer import EOS, Tokenizer, load_model, read_vocabulary
from transformer_mt.distributed import Process, is_out_of_memory, pick_device
from transformer_mt.errors import RunError, UserError
from transformer_mt.model.folder import START, build, locate
from transformer_mt.model.transformer import Transformer
from transformer_mt.train import checkpoint
from transformer_mt.train.checkpoint import Progress
from transformer_mt.train.loop import NO_SUMS, Trainer, tensors_of
from transformer_mt.train.memory import after_failure, first_choice, fitting_tokens, largest_pass
from transformer_mt.train.session import machine_record
from transformer_mt.train.signals import StopFlag

UPDATES = 3
"""Updates that are timed, after one that is not."""
MADE_UP_PAIRS, MADE_UP_PIECES = 20_000, 25
"""Pairs that stand for those of a corpus that is not there yet, and the mean length of their sides."""
PAPER_OPERATIONS = {512: 3.3e18, 1024: 2.3e19}
"""Of table 2, by model size."""
PAPER_SAYS = (
    "model", "tokenizer.shared", "tokenizer.algorithm", "tokenizer.vocabulary_size", "training.batch_tokens",
    "training.label_smoothing", "training.max_steps", "training.learning_rate", "training.optimizer",
    "training.subword_sampling", "training.initial_model", "training.checkpoint.average", "decoding.beam_size",
    "decoding.sampling", "decoding.length_penalty", "decoding.max_length", "decoding.no_repeat_ngram",
)  # fmt: skip
"""Keys that the paper gives a value, or by saying nothing leaves out what they ask for."""


def plan(config: Config, device: str, devices: int) -> dict[str, Any]:
    """Numbers of all kinds, in bytes, seconds and tokens; `devices` share each update, and are as fast as this one."""
    process, notes = Process(0, devices, pick_device(device)), list[str]()
    stages.check(config)
    stages.refuse_changes(config, notes.append)
    if config.training.initial_model and not stages.has_checkpoints(config.output):
        locate(config.training.initial_model)
    if process.device.type == "cpu":
        keep_large_buffers()
    config, progress = _progress(config, notes)
    training, ready = config.training, _ready(config, notes)
    sizes = _vocabulary_sizes(config, ready.get("learn"))
    if training.subword_sampling:
        notes.append(
            "training.subword_sampling: text is cut anew in each epoch, into more pieces than are counted here"
        )
    with tempfile.TemporaryDirectory() as place, _memory_told(process.device):
        store = _store(config, ready.get("encode"), Path(place), min(sizes), notes)
        torch.manual_seed(training.seed)
        model = build(config.model, *sizes).to(process.device)
        start = START[config.model.start_symbol]
        trainer = Trainer(model, store, training, start, Process(0, 1, process.device), notes.append)
        trainer.process = process  # from here on it makes the first one's share of an update, and meets no other
        wanted = first_choice(training, process, progress.device_tokens)
        tokens = after_failure(config.output, wanted, training, machine_record(process))
        tokens = fitting_tokens(trainer, tokens, StopFlag())
        batches = list(epoch_batches(store.lengths(), training.batch_tokens, training.seed, 0, None, store.mixture))
        memory, speed = _memory(trainer, batches, tokens), _speed(trainer, tokens)
        turns = np.concatenate([batch.pairs for batch in batches])
        tokens_of = dict(zip(("source", "target"), store.lengths()[turns].sum(0).tolist(), strict=True))
        data = {"pairs": len(store), "pairs_in_an_epoch": len(turns), "tokens": tokens_of}
    updates = _updates(config, batches, tokens, devices)
    found = {
        "name": config.name,
        "parameters": parameters(model),
        "data": data,
        "updates": updates,
        "memory": memory,
        "speed": {**speed, "device": str(process.device), "threads": torch.get_num_threads()},
        "time": _time(config, updates, progress, speed["tokens_per_second"]),
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


def _progress(config: Config, notes: list[str]) -> tuple[Config, Progress]:
    """Where training stands, and the configuration that it would go on with."""
    for folder in reversed(checkpoint.checkpoints(config.output / "checkpoints")):
        try:
            state = checkpoint.read_state(folder)
            progress = Progress(**state["progress"])
            config, told = checkpoint.keep_or_reset(config, state["config"], ())
        except (UserError, OSError, ValueError, KeyError, TypeError) as error:
            notes.append(f"checkpoint {folder} cannot be resumed from: {error}")
            continue
        notes += told
        return config, progress
    return config, Progress()


def _ready(config: Config, notes: list[str]) -> dict[str, Path]:
    """The folders of the stages that are as this configuration wants them, up to the first one that is not."""
    found: dict[str, Path] = {}
    for stage in stages.stages(config, notes.append):
        try:
            reasons = stage.stale()
        except OSError as error:
            reasons = [str(error)]
        if reasons or not stage.whole():
            notes.append(
                f"{reasons[0] if reasons else f'files are missing in {stage.folder}'}; training makes it first"
            )
            break
        found[stage.name] = stage.folder
    return found


def _vocabulary_sizes(config: Config, folder: Path | None) -> tuple[int, int]:
    """Pieces of source and target: of the run's tokenizer, else of given ones, else as many as are to be learned."""
    settings = config.tokenizer
    if folder:
        tokenizer = Tokenizer(folder)
        return tokenizer.source_size, tokenizer.target_size
    if settings.vocabulary:
        pieces = read_vocabulary(settings.vocabulary)
        return len(pieces[0]), len(pieces[-1])
    given = [path for path in (settings.model, settings.source_model, settings.target_model) if path]
    counts = [int(load_model(path).get_piece_size()) for path in given] or [settings.vocabulary_size]
    return counts[0], counts[-1]


def _store(config: Config, folder: Path | None, place: Path, vocabulary: int, notes: list[str]) -> Store:
    """The run's token ids, or made-up ones of usual lengths."""
    if folder:
        return Store(folder, "train")
    notes.append(
        f"measured on made-up pairs, {MADE_UP_PIECES} pieces a side on average; after `tokenize` it is on the real ones"
    )
    random, last = np.random.default_rng(1), max(vocabulary, EOS + 2)
    lengths = random.gamma(2.0, MADE_UP_PIECES / 2, (MADE_UP_PAIRS, 1)) * random.uniform(0.8, 1.2, (MADE_UP_PAIRS, 2))
    lengths = lengths.clip(1, max(1, config.training.max_tokens - 1)).astype(int)
    with StoreWriter(place, "train", last) as writer:
        writer.write(
            (random.integers(EOS + 1, last, one).tolist(), random.integers(EOS + 1, last, other).tolist())
            for one, other in lengths.tolist()
        )
    return Store(place, "train")


# What is measured


def _memory(trainer: Trainer, batches: Sequence[Batch], tokens: int) -> dict[str, int]:
    """Bytes on each device; activations are what the largest pass of an epoch keeps for the backward pass."""
    weights = sum(parameter.nbytes for parameter in trainer.model.parameters())
    moments = sum(tensor.nbytes for name, tensor in trainer.optimizer.state().items() if ".exp_avg" in name)
    mean = sum(tensor.nbytes for tensor in trainer.optimizer.mean)
    process = trainer.process
    batch, passes = largest_pass(batches, tokens, process.ranks)
    rows = deal(batch, passes, process.ranks, 0)[0]
    tensors = tensors_of(trainer.store, rows, trainer.start, process.device, trainer.loss.multiple)
    trainer.loss.train()
    with _kept(trainer.model) as kept, trainer.autocast():
        trainer.loss(*tensors)
    activations = sum(kept.values())
    found = {"weights": weights, "gradients": weights, "moments": moments, "mean": mean, "activations": activations}
    return found | {"total": sum(found.values())}


@contextmanager
def _memory_told(device: torch.device) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise RunError(f"out of memory: this model and its optimiser do not fit on {device}") from None


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


def _speed(trainer: Trainer, tokens: int) -> dict[str, Any]:
    """Target tokens a second of all devices, by this one's share of updates of at most one pass on each."""
    settings, lengths, ranks = trainer.settings, trainer.store.lengths(), trainer.process.ranks
    batch_tokens = max(settings.max_tokens, min(tokens * ranks, settings.batch_tokens))
    batches = islice(epoch_batches(lengths, batch_tokens, settings.seed, 0), UPDATES + 1)
    progress, rows = Progress(sums=dict(NO_SUMS), device_tokens=tokens), []
    for batch in batches:
        begin = time.perf_counter()
        trainer.update(batch, progress, StopFlag())
        rows.append((batch.target_tokens, time.perf_counter() - begin))
    rows = rows[1:] or rows  # the first one warms up
    return {
        "tokens_per_second": sum(done for done, _ in rows) / sum(seconds for _, seconds in rows),
        "updates": len(rows),
        "precision": str(trainer.precision).removeprefix("torch."),
    }


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


def _time(config: Config, updates: dict[str, Any], progress: Progress, tokens_per_second: float) -> dict[str, Any]:
    """What is left until the first of the limits."""
    training, each, step = config.training, updates["target_tokens"] / tokens_per_second, progress.step
    limits = [training.max_steps, training.max_epochs and training.max_epochs * updates["in_an_epoch"]]
    if training.max_minutes:  # a run that has made a number of updates of them keeps it
        reckoned = progress.last_step if progress.minutes == training.max_minutes else None
        limits.append(reckoned or max(1, round(60 * training.max_minutes / each)))
    last = min(limit for limit in limits if limit is not None)
    left = max(0, last - step)
    return {"step": step, "last_step": last, "updates_left": left, "seconds_of_an_update": each, "seconds": left * each}


def _operations(found: dict[str, Any], device: torch.device, model_size: int) -> dict[str, Any]:
    """Of the whole training: by the parameters, and as the paper counts, time x devices x rate of a device."""
    same = not any(text.startswith("model.") for text in found["departures"])
    updates, when, rate = found["updates"], found["time"], _rate_of_products(device)
    tokens = updates["target_tokens"] * when["last_step"]
    seconds = when["seconds_of_an_update"] * when["last_step"]
    return {
        "six_times_parameters_times_tokens": 6.0 * found["parameters"]["total"] * tokens,
        "as_the_paper_counts": seconds * updates["devices"] * rate,
        "rate_of_float32_products": rate,
        "of_the_paper": PAPER_OPERATIONS.get(model_size) if same else None,
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
    tokens = data["tokens"]
    parts = ", ".join(f"{part} {_count(sizes[part])}" for part in ("embeddings", "encoder", "decoder"))
    kept = ", ".join(f"{part} {_size(memory[part])}" for part in memory if part != "total" and memory[part])
    passes = f"{updates['passes']} pass{'es' if updates['passes'] > 1 else ''}"
    devices = f"{updates['devices']} device{'s' if updates['devices'] > 1 else ''}"
    paper = f" (the paper: {operations['of_the_paper']:.1e})" if operations["of_the_paper"] else ""
    weighed = data["pairs_in_an_epoch"] != data["pairs"]
    turns = f", by their weights {data['pairs_in_an_epoch']:,} in an epoch:" if weighed else ","
    rows = [
        ("model", f"{_count(sizes['total'])} parameters: {parts}"),
        ("data", f"{data['pairs']:,} pairs{turns} {tokens['source']:,} source and {tokens['target']:,} target tokens"),
        (
            "updates",
            f"{updates['in_an_epoch']:,} in an epoch, of {updates['target_tokens']:,.0f} target tokens on average "
            f"(batch_tokens {updates['batch_tokens']:,}, padding {updates['padding']:.1%}); on {devices} up to "
            f"{passes} of {updates['device_tokens']:,} tokens",
        ),
        ("memory", f"of each device {_size(memory['total'])}: {kept} of the largest pass"),
        (
            "speed",
            f"{speed['tokens_per_second']:,.0f} target tokens a second on {devices} like {speed['device']}, "
            f"{speed['precision']}, {speed['threads']} threads, over {speed['updates']} updates made here",
        ),
        (
            "time",
            f"{_duration(when['seconds'])} for the {when['updates_left']:,} updates from step {when['step']:,} to "
            f"{when['last_step']:,} on {devices}",
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


def _count(number: int) -> str:
    return f"{number / 1e6:.2f} million" if number >= 1e6 else f"{number:,}"


def _size(count: float) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB")):
        if count >= unit / 2:
            return f"{count / unit:.2f} {name}"
    return f"{count / 2**10:.1f} KiB"


def _duration(seconds: float) -> str:
    hours = seconds / 3600
    if hours >= 48:
        return f"{hours / 24:.1f} days"
    if hours >= 2:
        return f"{hours:.1f} hours"
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} seconds"
