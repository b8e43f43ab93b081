"""Measures speed as ratios within one run, on sentences of the embedded grammar or of files you name.

    python scripts/benchmark.py train      our updates beside a plain loop and bare matrix products
    python scripts/benchmark.py growth     how training's speed and memory grow with all that can be chosen
    python scripts/benchmark.py losses     training in bfloat16 beside float32, by their losses
    python scripts/benchmark.py preparing  encoding beside SentencePiece alone; memory as the corpus grows
    python scripts/benchmark.py planning   the batches of corpora of up to --pairs pairs
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

import benchmark_growth
import benchmark_preparing
import benchmark_train
import torch
from benchmark_train import SIZES, model_of

from transformer_mt.config import Tokenizer
from transformer_mt.data import demo
from transformer_mt.data.store import Store, StoreWriter
from transformer_mt.data.tokenizer import Tokenizer as Subwords
from transformer_mt.data.tokenizer import learn
from transformer_mt.model.folder import FORMAT, weights, write_model


def corpus(folder: Path, options: argparse.Namespace) -> tuple[Store, Subwords, list[str]]:
    """Encodes pairs of the demonstration, or of two files."""
    if options.source and options.target:
        sides = [path.read_text("utf-8").split("\n")[: options.pairs] for path in (options.source, options.target)]
        pairs = [(one, other) for one, other in zip(*sides, strict=True) if one and other]
    else:
        pairs = list(demo.generate("english-german", options.pairs, 1))
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
    """Our updates beside a plain loop's and bare matrix products."""
    _, tokenizer, _ = corpus(folder, options)
    return benchmark_train.compare(options, folder, tokenizer.source_size)


def losses(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What bfloat16 does to the loss."""
    _, tokenizer, _ = corpus(folder, options)
    return benchmark_growth.losses(options, folder, tokenizer.source_size)


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
    work = {
        "train": train, "growth": benchmark_growth.growth, "losses": losses, "planning": benchmark_growth.planning,
        "preparing": benchmark_preparing.preparing,
        "translate": translate, "startup": startup,
    }  # fmt: skip
    parser.add_argument("what", choices=tuple(work))
    parser.add_argument("--size", choices=("small", "base", "big"), default="small")
    parser.add_argument("--pairs", type=int, default=40_000, help="of the grammar or the files, at most")
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeat", type=int, default=10, help="turns of each contender")
    parser.add_argument("--updates", type=int, default=4, help="train, growth: updates of a turn; losses: of all")
    parser.add_argument("--grow-to", type=int, default=100_000, help="preparing: the largest corpus, up to 10,000,000")
    parser.add_argument("--compile", action="store_true", help="train: ours with torch.compile")
    parser.add_argument("--source", type=Path, help="text file, instead of the embedded grammar")
    parser.add_argument("--target", type=Path)
    parser.add_argument("--model", type=Path, help="translate: a run or model folder, instead of random weights")
    parser.add_argument("--sentences", type=int, default=500, help="translate: how many of --source")
    parser.add_argument("--beam-size", type=int, default=4)
    parser.add_argument("--length", type=int, help="translate: pieces of every output; with random weights 24")
    parser.add_argument("--bfloat16", action="store_true", help="translate: our search in bfloat16 too")
    parser.add_argument("--only", default="", help="contenders whose names this regular expression finds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = work[options.what](options, Path(folder))
    machine = {"torch": torch.__version__, "machine": platform.machine(), "threads": torch.get_num_threads()}
    print(json.dumps({"what": options.what, "size": options.size, **result, **machine}, indent=1))


if __name__ == "__main__":
    main()
