"""Our search beside CTranslate2 and transformers: one model, the same sentences, beam and processors, in one run.

Contenders take turns, so that other load on the machine meets all of them. Beside them stand the matrix products that
the same outputs need, alone: nothing that computes them can be faster. Run by `scripts/benchmark.py translate`.
"""

import argparse
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from transformer_mt.config import Decoding
from transformer_mt.data.tokenizer import EOS, PAD, Tokenizer
from transformer_mt.decode.ctranslate2 import CTranslate2Engine
from transformer_mt.decode.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.export import ctranslate2 as conversion
from transformer_mt.export.huggingface import marian_config, marian_state
from transformer_mt.model import folder
from transformer_mt.model.stepwise import COLUMNS
from transformer_mt.model.transformer import DecoderLayer, Transformer

Contender = Callable[[Sequence[str]], int]
"""Translates lines, text in and text out; gives the number of pieces that came out, `</s>` counted."""
TOGETHER = 64
"""Sentences in a batch of those that do not choose it themselves."""
ROWS = 256
"""Rows of the matrix products alone: the beams of 64 sentences."""


def compare(options: argparse.Namespace, model: Path, lines: Sequence[str]) -> dict[str, Any]:
    """Sentences a second of each contender, as medians, and as shares of what matrix products allow."""
    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as name:
        contenders = _contenders(options, model, threads, Path(name))
        native = contenders["native float32"]
        contenders = {name: work for name, work in contenders.items() if re.search(options.only, name)}
        outputs = {name: work(lines[:TOGETHER]) for name, work in contenders.items()}  # warms all of them up
        loaded = folder.load(model, torch.device("cpu"))
        pieces = loaded.tokenizer.encode_source(lines)
        contenders["matrix products float32"] = _products(
            loaded.model, sum(map(len, pieces)) + len(pieces), native(lines), options.beam_size, threads
        )
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(options.repeat):
            for name, work in contenders.items():
                torch.set_num_threads(threads)  # which loading CTranslate2 changes
                begin = time.perf_counter()
                outputs[name] = work(lines)
                seconds[name].append(time.perf_counter() - begin)
                print(f"{name}: {seconds[name][-1]:.1f} s", file=sys.stderr, flush=True)
    limit = seconds["matrix products float32"]
    return {
        "sentences": len(lines),
        "beam_size": options.beam_size,
        "sentences_per_second": {name: len(lines) / statistics.median(times) for name, times in seconds.items()},
        "share_of_matrix_products": {
            name: statistics.median(one / other for one, other in zip(limit, times, strict=True))
            for name, times in seconds.items()
        },
        "pieces": outputs,
    }


def _contenders(options: argparse.Namespace, model: Path, threads: int, place: Path) -> dict[str, Contender]:
    """All that this machine and its libraries have."""
    settings = _settings(options, model)
    found = {"native float32": _native(model, "float32", settings)}
    if options.bfloat16:
        found["native bfloat16"] = _native(model, "bfloat16", settings)
    try:
        converted = conversion.cached(folder.locate(model), Translator.load(model, "cpu"), lambda text: None)
    except UserError:
        return found
    tokenizer = Tokenizer(folder.tokenizer_folder(folder.locate(model)))
    for precision in ("float32", "int8"):
        found[f"our engine ctranslate2 {precision}"] = _our_ctranslate2(
            model, converted, tokenizer, settings, precision, threads
        )
        for workers, each in {(1, threads), (threads, 1)}:
            name = f"ctranslate2 {precision} {workers}x{each} threads"
            found[name] = _plain_ctranslate2(converted, tokenizer, settings, precision, workers, each)
    found["transformers float32"] = _transformers(model, tokenizer, settings, place)
    return found


def _settings(options: argparse.Namespace, model: Path) -> Decoding:
    """The search of the model folder, or all outputs of one length."""
    values: dict[str, Any] = {"beam_size": options.beam_size}
    if options.length:
        values |= {"min_length": options.length, "max_length": {"factor": 0, "extra": options.length}}
    return Decoding.model_validate(values)


def _native(model: Path, precision: str, settings: Decoding) -> Contender:
    translator = Translator.load(model, "cpu", precision, settings)
    return lambda lines: sum(found.candidates[0].length for found in translator.translate(lines))


def _our_ctranslate2(
    model: Path, converted: Path, tokenizer: Tokenizer, settings: Decoding, precision: str, threads: int
) -> Contender:
    engine = CTranslate2Engine(converted, tokenizer, settings, precision, workers=threads, threads=1)
    translator = Translator.load(model, "cpu", settings=settings)
    translator.engine = engine
    return lambda lines: sum(found.candidates[0].length for found in translator.translate(lines))


def _plain_ctranslate2(
    converted: Path, tokenizer: Tokenizer, settings: Decoding, precision: str, workers: int, threads: int
) -> Contender:
    """What a user of CTranslate2 writes, with its fastest batches."""
    import ctranslate2

    engine = ctranslate2.Translator(
        str(converted), device="cpu", compute_type=precision, inter_threads=workers, intra_threads=threads
    )
    source, target = tokenizer.models
    length = settings.max_length.extra if settings.max_length.factor == 0 else 0
    keys: dict[str, Any] = {"max_decoding_length": length or 256, "min_decoding_length": length or 1}

    def work(lines: Sequence[str]) -> int:
        found = engine.translate_batch(
            source.encode(list(lines), out_type=str), beam_size=settings.beam_size, length_penalty=0.6,
            max_batch_size=TOGETHER, **keys,
        )  # fmt: skip
        best = [result.hypotheses[0] for result in found]
        target.decode(best)
        return sum(map(len, best)) + len(best)

    return work


def _transformers(model: Path, tokenizer: Tokenizer, settings: Decoding, place: Path) -> Contender:
    """`generate` on the same weights, in batches of similar length."""
    import transformers
    from safetensors.torch import save_file

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    loaded = folder.load(model, torch.device("cpu"))
    save_file(marian_state(loaded.model), place / "model.safetensors", {"format": "pt"})
    config = transformers.MarianConfig(**marian_config(loaded.model, loaded.start))
    config.save_pretrained(place)
    other = transformers.MarianMTModel.from_pretrained(place).eval()  # type: ignore[no-untyped-call]
    length = settings.max_length.extra if settings.max_length.factor == 0 else None

    def work(lines: Sequence[str]) -> int:
        rows = sorted(([*ids, EOS] for ids in tokenizer.encode_source(lines)), key=len, reverse=True)
        count = 0
        for first in range(0, len(rows), TOGETHER):
            some = rows[first : first + TOGETHER]
            source = torch.tensor([row + [PAD] * (len(some[0]) - len(row)) for row in some])
            most = length or int(settings.max_length.factor * len(some[0])) + settings.max_length.extra
            with torch.inference_mode():
                found = other.generate(
                    input_ids=source, attention_mask=(source != PAD).long(), num_beams=settings.beam_size,
                    length_penalty=0.6, do_sample=False, suppress_tokens=[PAD, 1, 2], max_new_tokens=most,
                    min_new_tokens=length,
                )  # fmt: skip
            [tokenizer.decode([token for token in row if token > EOS]) for row in found[:, 1:].tolist()]
            count += int((found[:, 1:] != PAD).sum())
        return count

    return work


def _products(model: Transformer, source_pieces: int, pieces: int, beam_size: int, threads: int) -> Contender:
    """Only the products with weights: encoder and cross-attention memory for the sources, the rest for all beams."""
    source, target = _matrices(model)
    parts = (
        (torch.randn(ROWS * 8, model.model_size), source, source_pieces),
        (torch.randn(ROWS, model.model_size), target, pieces * beam_size),
    )

    def share(_: int) -> None:
        torch.set_num_threads(1)
        with torch.inference_mode():
            for rows, weights, count in parts:
                inner = torch.randn(len(rows), max(weight.shape[1] for weight in weights))
                for _ in range(round(count / threads / len(rows))):
                    for weight in weights:
                        torch.mm(inner[:, : weight.shape[1]], weight.t())

    def work(lines: Sequence[str]) -> int:
        with ThreadPoolExecutor(threads) as team:
            list(team.map(share, range(threads)))
        torch.set_num_threads(threads)
        return pieces

    return work


def _matrices(model: Transformer) -> tuple[list[Tensor], list[Tensor]]:
    """Weights of all products for source tokens, and of those for target tokens."""
    source = [weight.detach() for weight in model.encoder.parameters() if weight.dim() == 2]
    target = [weight.detach() for weight in torch.split(model.output.weight, COLUMNS)]
    for layer in cast("list[DecoderLayer]", list(model.decoder)):
        cross = layer.cross_attention.projection.weight
        queries = layer.cross_attention.heads * layer.cross_attention.key_size
        source.append(cross.detach()[queries:])
        target.append(cross.detach()[:queries])
        target += [weight.detach() for weight in layer.parameters() if weight.dim() == 2 and weight is not cross]
    return source, target
