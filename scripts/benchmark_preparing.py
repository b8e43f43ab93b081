"""Preparing a corpus: speed beside SentencePiece alone, and memory as the corpus grows.

Run by `scripts/benchmark.py preparing`.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import yaml

from transformer_mt.config import Config
from transformer_mt.data import demo
from transformer_mt.data.parallel import cores
from transformer_mt.data.prepare import encode_corpus

CONFIG = {"name": "measured", "output": "run", "languages": {"source": "en", "target": "de"}}
STAGES = ("download", "tokenize")
SIZES = (100_000, 1_000_000, 10_000_000)


def preparing(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Encoding beside SentencePiece alone by turns, then memory and speed of both commands for growing corpora."""
    lines = _lines(options)
    result: dict[str, Any] = {"cores": cores(), "pairs": len(lines[0])}
    if options.repeat:
        result |= _encoding(lines, options, folder)
    sizes = [size for size in SIZES if size <= options.grow_to]
    result["growth"] = {size: _growth(lines, size, options.vocabulary) for size in sizes}
    return result


def _lines(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Sentences of the files given, or of the embedded grammar."""
    if options.source and options.target:
        one, other = (path.read_text("utf-8").split("\n")[: options.pairs] for path in (options.source, options.target))
        return one, other
    pairs = list(demo.generate("english-german", options.pairs, 1))
    return [one for one, _ in pairs], [other for _, other in pairs]


def _write(folder: Path, lines: tuple[list[str], list[str]], pairs: int, vocabulary: int) -> None:
    """A corpus of so many pairs, all different: a number before each, where the sentences do not suffice."""
    folder.mkdir(exist_ok=True)
    for language, side in zip(("en", "de"), lines, strict=True):
        with (folder / f"train.{language}").open("w", encoding="utf-8") as file:
            for number in range(pairs):
                lap, place = divmod(number, len(side))
                file.write(f"{lap} {side[place]}\n" if lap else side[place] + "\n")
        (folder / f"valid.{language}").write_text("".join(f"9 {line}\n" for line in side[:500]), "utf-8")
    sides = {split: {"source": f"{split}.en", "target": f"{split}.de"} for split in ("train", "valid")}
    config = {
        **CONFIG,
        "data": {"train": [sides["train"]], "validation": [sides["valid"]]},
        "tokenizer": {"vocabulary_size": vocabulary, "vocabulary_limit": "soft", "sample_lines": 200_000},
    }
    (folder / "c.yaml").write_text(yaml.safe_dump(config), "utf-8")


def _encoding(lines: tuple[list[str], list[str]], options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Lines a second of `tokenize`'s encoding, and of SentencePiece with a thread a core and a plain file."""
    _write(folder, lines, len(lines[0]), options.vocabulary)
    command = [sys.executable, "-m", "transformer_mt", "tokenize", "--quiet", "--config", "c.yaml"]
    subprocess.run(command, cwd=folder, check=True)
    # A program of its own: worker processes import what their parent began with, and the command begins without torch.
    command = [sys.executable, __file__, str(folder / "run"), str(options.repeat)]
    result: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return result


def _by_turns(run: Path, repeat: int) -> dict[str, Any]:
    """The corpus of a run encoded as `tokenize` does it, and by SentencePiece alone, so often."""
    config = Config.model_validate(yaml.safe_load((run / "config.yaml").read_text("utf-8")))
    model = sentencepiece.SentencePieceProcessor(model_file=str(run / "tokenizer" / "spm.model"))
    sides = [(run / "corpus" / f"train.{language}").read_text("utf-8").split("\n")[:-1] for language in ("en", "de")]
    seconds: dict[str, list[float]] = {"ours": [], "alone": []}
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as place:
            begin = time.perf_counter()
            encode_corpus(config, run / "corpus", run / "tokenizer", Path(place), lambda text: None)
            seconds["ours"].append(time.perf_counter() - begin)
        begin = time.perf_counter()
        with tempfile.TemporaryFile() as file:
            for side in sides:
                for ids in model.encode(side, num_threads=cores()):
                    file.write(np.asarray(ids, np.uint16).tobytes())
        seconds["alone"].append(time.perf_counter() - begin)
    count = 2 * len(sides[0])
    speeds = {name: count / statistics.median(times) for name, times in seconds.items()}
    ratios = [alone / ours for ours, alone in zip(seconds["ours"], seconds["alone"], strict=True)]
    return {"encoding_lines_per_second": speeds, "encoding_ratio": statistics.median(ratios)}


def _growth(lines: tuple[list[str], list[str]], pairs: int, vocabulary: int) -> dict[str, Any]:
    """Of each command: seconds, pairs a second, and peak of anonymous memory of all its processes together, in MiB."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        _write(folder, lines, pairs, vocabulary)
        result = {}
        for stage in STAGES:
            command = [sys.executable, "-m", "transformer_mt", stage, "--quiet", "--config", "c.yaml"]
            begin, peak = time.perf_counter(), 0
            with subprocess.Popen(command, cwd=folder) as process:
                while process.poll() is None:
                    peak = max(peak, sum(map(_anonymous, _tree(process.pid))))
                    time.sleep(0.05)
            seconds = time.perf_counter() - begin
            if process.returncode:
                raise SystemExit(f"{stage} ended with {process.returncode}")
            result[stage] = {"seconds": seconds, "pairs_per_second": pairs / seconds, "anonymous_mib": peak / 1024}
        return result


def _tree(process: int) -> Iterator[int]:
    """A process and those that it started, as Linux tells them."""
    yield process
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from _tree(int(child))


def _anonymous(process: int) -> int:
    """KiB of memory that no file stands behind."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.split("\n") if line.startswith("RssAnon")), 0)


if __name__ == "__main__":
    print(json.dumps(_by_turns(Path(sys.argv[1]), int(sys.argv[2]))))
