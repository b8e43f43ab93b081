"""Measures speed as ratios within one run, on sentences of the embedded grammar or of files you name.

    python scripts/benchmark.py train      updates of ours beside a plain loop around torch.nn.Transformer
    python scripts/benchmark.py translate  our search beside CTranslate2, transformers and bare matrix products
    python scripts/benchmark.py startup    the command's --help beside an empty Python process

Times are medians; the two sides of a ratio take turns, so that other load on the machine meets both.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from transformer_mt.config import Tokenizer, Training
from transformer_mt.data import demo
from transformer_mt.data.batching import Batch, epoch_batches
from transformer_mt.data.store import Store, StoreWriter
from transformer_mt.data.tokenizer import BOS, EOS, PAD, learn
from transformer_mt.data.tokenizer import Tokenizer as Subwords
from transformer_mt.distributed import Process
from transformer_mt.model.folder import FORMAT, weights, write_model
from transformer_mt.model.transformer import Transformer, sinusoidal_positions
from transformer_mt.train.checkpoint import Progress
from transformer_mt.train.loop import NO_SUMS, Trainer
from transformer_mt.train.signals import StopFlag

SIZES = {"small": (256, 1024, 4, 3), "base": (512, 2048, 8, 6)}


class Plain(nn.Module):
    """What a careful user writes with torch.nn.Transformer: post-norm, tied embeddings, the same sizes."""

    def __init__(self, vocabulary: int, size: int, inner: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size)
        nn.init.normal_(self.embedding.weight, std=size**-0.5)
        self.core = nn.Transformer(size, heads, layers, layers, inner, 0.1, batch_first=True)
        self.register_buffer("positions", sinusoidal_positions(512, size).float())

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Ids to logits."""

        def embed(ids: torch.Tensor) -> torch.Tensor:
            return self.embedding(ids) * self.embedding.embedding_dim**0.5 + self.positions[: ids.shape[1]]  # type: ignore[index,no-any-return]

        padding = source == PAD
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        hidden = self.core(
            embed(source), embed(target), tgt_mask=causal, src_key_padding_mask=padding,
            memory_key_padding_mask=padding, tgt_is_causal=True,
        )  # fmt: skip
        return hidden @ self.embedding.weight.T  # type: ignore[no-any-return]


def corpus(folder: Path, options: argparse.Namespace) -> tuple[Store, Subwords, list[str]]:
    """Encodes 20,000 pairs of the demonstration, or of two files."""
    if options.source and options.target:
        sides = [path.read_text("utf-8").split("\n")[:20_000] for path in (options.source, options.target)]
        pairs = [(one, other) for one, other in zip(*sides, strict=True) if one and other]
    else:
        pairs = list(demo.generate("english-german", 20_000, 1))
    lines = [side for pair in pairs for side in pair]
    settings = Tokenizer(vocabulary_size=options.vocabulary, vocabulary_limit="soft")
    (folder / "spm.model").write_bytes(learn(lines, len(lines), settings, 1).model)
    tokenizer = Subwords(folder)
    with StoreWriter(folder, "train", tokenizer.source_size) as writer:
        ids = zip(
            tokenizer.encode_source([pair[0] for pair in pairs]),
            tokenizer.encode_target([pair[1] for pair in pairs]),
            strict=True,
        )
        writer.write([(one[:255], other[:255]) for one, other in ids])
    return Store(folder, "train"), tokenizer, [pair[0] for pair in pairs]


def model_of(size: str, vocabulary: int) -> Transformer:
    """One of the two sizes."""
    width, inner, heads, layers = SIZES[size]
    return Transformer(
        source_vocabulary=vocabulary, target_vocabulary=vocabulary, encoder_layers=layers, decoder_layers=layers,
        model_size=width, feedforward_size=inner, heads=heads, key_size=width // heads, value_size=width // heads,
    )  # fmt: skip


def alternate(sides: dict[str, Callable[[Any], None]], items: list[Any]) -> dict[str, list[float]]:
    """Seconds that each side takes for each item, taking turns."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for item in items:
        for name, work in sides.items():
            begin = time.perf_counter()
            work(item)
            seconds[name].append(time.perf_counter() - begin)
    return seconds


def train(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Target tokens a second (padding not counted) of both loops, on the same batches."""
    store, tokenizer, _ = corpus(folder, options)
    settings = Training(batch_tokens=options.batch_tokens, max_steps=1, precision=options.precision)
    device = torch.device(options.device)
    trainer = Trainer(
        model_of(options.size, tokenizer.source_size).to(device), store, settings, BOS, Process(0, 1, device)
    )
    plain = Plain(tokenizer.source_size, *SIZES[options.size]).to(device)
    optimizer = torch.optim.Adam(plain.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
    progress = Progress(sums=dict(NO_SUMS), device_tokens=options.batch_tokens)

    def ours(batch: Batch) -> None:
        trainer.update(batch, progress, StopFlag())

    def theirs(batch: Batch) -> None:
        padded = store.padded(batch.pairs, PAD, EOS, BOS)
        source, target, labels = (torch.from_numpy(rows).to(device) for rows in padded)
        logits = plain(source, target)
        loss = nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=PAD, label_smoothing=0.1
        )
        torch.autograd.backward([loss])
        optimizer.step()
        optimizer.zero_grad()
        loss.item()

    batches = list(epoch_batches(store.lengths(), options.batch_tokens, 1, 0))[: options.repeat + 2]
    seconds = alternate({"transformer-mt": ours, "torch.nn.Transformer": theirs}, batches)
    speeds = {
        name: statistics.median(batch.target_tokens / s for batch, s in zip(batches[2:], times[2:], strict=True))
        for name, times in seconds.items()
    }
    return {"tokens_per_second": speeds, "ratio": speeds["transformer-mt"] / speeds["torch.nn.Transformer"]}


def translate(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Our search beside others', on the model of --model, else on one with random weights."""
    from benchmark_translate import compare

    if options.model:
        if not options.source:
            raise SystemExit("--model needs --source: sentences to translate")
        lines = [line for line in options.source.read_text("utf-8").split("\n") if line.strip()]
        return compare(options, options.model, lines[: options.sentences])
    _, tokenizer, lines = corpus(folder, options)
    model = model_of(options.size, tokenizer.source_size)
    width, inner, heads, layers = SIZES[options.size]
    shape = {"encoder_layers": layers, "decoder_layers": layers, "model_size": width, "feedforward_size": inner}
    settings = {
        "format": FORMAT,
        "languages": {"source": "en", "target": "de"},
        "model": {**shape, "heads": heads},
        "decoding": {},
    }
    (folder / "model").mkdir()
    write_model(folder / "model", weights(model), settings, folder, "")
    options.length = options.length or 24
    return compare(options, folder / "model", lines[: options.sentences])


def startup(options: argparse.Namespace, _: Path) -> dict[str, Any]:
    """Seconds until `--help` is printed."""
    sides = {
        "transformer-mt --help": [sys.executable, "-m", "transformer_mt", "--help"],
        "python -c pass": [sys.executable, "-c", "pass"],
    }
    work = {
        name: lambda _, command=command: subprocess.run(command, check=True, capture_output=True)
        for name, command in sides.items()
    }
    seconds = alternate(work, list(range(options.repeat)))  # type: ignore[arg-type]
    return {"seconds": {name: statistics.median(times) for name, times in seconds.items()}}


def main() -> None:
    """Parses, measures, prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "translate", "startup"))
    parser.add_argument("--size", choices=tuple(SIZES), default="small")
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--source", type=Path, help="text file, instead of the embedded grammar")
    parser.add_argument("--target", type=Path)
    parser.add_argument("--model", type=Path, help="translate: a run or model folder, instead of random weights")
    parser.add_argument("--sentences", type=int, default=500, help="translate: how many of --source")
    parser.add_argument("--beam-size", type=int, default=4)
    parser.add_argument("--length", type=int, help="translate: pieces of every output; with random weights 24")
    parser.add_argument("--bfloat16", action="store_true", help="translate: our search in bfloat16 too")
    parser.add_argument("--only", default="", help="translate: contenders whose names this regular expression finds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = {"train": train, "translate": translate, "startup": startup}[options.what](options, Path(folder))
    machine = {"torch": torch.__version__, "machine": platform.machine(), "threads": torch.get_num_threads()}
    print(json.dumps({"what": options.what, "size": options.size, **result, **machine}, indent=1))


if __name__ == "__main__":
    main()
