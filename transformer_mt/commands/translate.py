"""Loading what translates, and translating or scoring files and streams with it."""

import contextlib
import json
import platform
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, islice
from pathlib import Path
from typing import Any, BinaryIO

import torch
from pydantic import ValidationError

from transformer_mt.allocator import keep_large_buffers
from transformer_mt.atomic import sha256, whole_file, write_json
from transformer_mt.config import Config, Decoding
from transformer_mt.config.file import problems
from transformer_mt.data import files
from transformer_mt.decode import terms
from transformer_mt.decode.ctranslate2 import CTranslate2Engine
from transformer_mt.decode.stream import WINDOW_LINES, Stream, arriving_lines
from transformer_mt.decode.translator import Translator
from transformer_mt.distributed import Process, on_first_rank
from transformer_mt.errors import RunError, UserError
from transformer_mt.export import ctranslate2 as conversion
from transformer_mt.model import folder
from transformer_mt.train import log

Say = Callable[[str], None]


def load_translator(
    models: Sequence[Path], config: Config | None, process: Process, changes: dict[str, Any], say: Say, *,
    precision: str = "float32", engine: str = "native",
) -> tuple[Translator, list[folder.Loaded]]:  # fmt: skip
    """The model that paths or a config's run mean; its search settings are the config's, else those stored with it.

    Several models have to be of one vocabulary; the settings of the first one hold. `changes` are the options of the
    command line: they win over both.
    """
    paths = list(models) or ([config.output] if config else [])
    if not paths:
        raise UserError("give --model or --config")
    native = precision if engine == "native" else "float32"
    loaded = [folder.load(path, process.device, getattr(torch, native)) for path in paths]
    for path, each in zip(paths, loaded, strict=True):
        if each.origin != path:
            say(f"model: {each.origin}")
        _check_kinship(loaded[0], each)
    first = loaded[0]
    settings = changed_decoding(config.decoding if config else first.decoding, changes)
    translator = Translator([each.model for each in loaded], first.tokenizer, settings, first.start)
    if process.device.type == "cpu" and torch.get_num_threads() == 1:  # else the workers do so
        keep_large_buffers()
    if engine == "ctranslate2":
        translator.engine = _converted(translator, loaded, precision, process, say)
    elif precision == "bfloat16" and process.device.type == "cpu" and not _has_bfloat16():
        say("warning: --precision bfloat16: this processor has no instructions for it, float32 is faster")
    return translator, loaded


def _has_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 matrices by itself; of others than x86 we do not know."""
    known = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return known is None or platform.machine().lower() not in ("x86_64", "amd64") or bool(known())


def _check_kinship(one: folder.Loaded, other: folder.Loaded) -> None:
    """Refuses models that cannot speak with one voice."""
    digests = [[sha256(path) for path in each.tokenizer.files] for each in (one, other)]
    if digests[0] != digests[1] or one.start != other.start:
        raise UserError(f"{one.origin} and {other.origin} have different vocabularies: they cannot translate together")


def _converted(
    translator: Translator, loaded: Sequence[folder.Loaded], precision: str, process: Process, say: Say
) -> CTranslate2Engine:
    """The engine of CTranslate2 on the same model, converted where that has not been done yet."""
    if len(loaded) > 1:
        raise UserError("--engine ctranslate2 does not go together with several models")
    origin = loaded[0].origin
    made = on_first_rank(lambda: conversion.cached(origin, translator, say))
    say("engine: ctranslate2, another search than ours: probabilities are those among the pieces that are allowed, "
        "and a sentence is done with beam_size finished hypotheses; ranked by our length penalty")  # fmt: skip
    workers = torch.get_num_threads() if process.device.type == "cpu" else 1
    return CTranslate2Engine(
        made, translator.tokenizer, translator.settings, precision, workers=workers, threads=1, device=process.device
    )


def changed_decoding(settings: Decoding, changes: dict[str, Any]) -> Decoding:
    """Search settings with some keys replaced, checked again; None means unchanged."""
    values = settings.model_dump(mode="json")
    for key, value in changes.items():
        if value is not None:
            section, _, last = key.rpartition(".")
            if section and values[section] is None:
                values[section] = {}
            (values[section] if section else values)[last] = value
    if values["sampling"] is not None and changes.get("beam_size"):
        raise UserError("--beam-size does not go together with sampling (--sample, --temperature, --top-k, --top-p)")
    if changes.get("beam_size") is not None and changes.get("n_best") is None:
        values["n_best"] = min(values["n_best"], values["beam_size"])
    try:
        return Decoding.model_validate(values)
    except ValidationError as error:
        raise UserError(*problems(error.errors(), values, "search options")) from None


@contextlib.contextmanager
def _output(path: Path | None, enabled: bool) -> Iterator[Callable[[str], None]]:
    """Where results go: a file that appears whole, or stdout, flushed after every group; nowhere on other ranks."""
    if not enabled:
        yield lambda text: None
        return
    if path is None:
        yield _writer(sys.stdout.buffer)
        return
    with whole_file(path) as file:
        yield _writer(file)


def _writer(file: BinaryIO) -> Callable[[str], None]:
    """Writes text; an empty one flushes."""

    def write(text: str) -> None:
        if text:
            file.write(text.encode())
        else:
            file.flush()

    return write


@dataclass(frozen=True)
class Request:
    """What is to be translated, and what else is wanted with it."""

    source: Path | None = None
    """A file; None: standard input."""
    output: Path | None = None
    """A file; None: standard output."""
    form: str | None = None
    """text, moses or jsonl; None is text, or moses where several hypotheses are asked for."""
    prefix: Path | None = None
    """A file of what each translation has to begin with, line by line."""
    terms: Path | None = None
    """A file of source, tab, target: terms that have to appear."""
    keep: Sequence[str] = ()
    """Kinds of text that survive unchanged: keys of decode.terms.PATTERNS."""
    keep_patterns: Sequence[str] = ()
    """Regular expressions of the same."""
    alignments: Path | None = None
    """A file to write: which words belong together, a line each."""
    report: Path | None = None
    """A file to write: the summary as JSON, with line numbers."""
    interactive: bool = False
    """Answer each line before the next one is read."""
    strict: bool = False
    """Fail if a line was not translated whole, within its limit, and with what it has to hold."""


def translate(translator: Translator, request: Request, process: Process, say: Say) -> None:
    """Translates a file or standard input, and says on stderr what happened to the lines."""
    form = request.form or ("moses" if translator.settings.n_best > 1 else "text")
    problems = [*_file_problems(request, process), *_option_problems(translator, request, form)]
    try:
        required = _required(request)
    except UserError as error:
        problems += error.messages
    if problems:
        raise UserError(*problems)
    source = request.source
    if source is not None and source.is_file():
        deque(files.text_lines(source), maxlen=0)  # before any work is lost to a line that is no text
    with contextlib.ExitStack() as stack:
        groups = _line_groups(request, stack)
        write = stack.enter_context(_output(request.output, process.first))
        align = stack.enter_context(_output(request.alignments, process.first)) if request.alignments else None
        stream = Stream(
            translator, write, form, say, process=process, name=str(source or "standard input"), required=required,
            prefixes=iter(files.text_lines(request.prefix)) if request.prefix else None, align=align,
        )  # fmt: skip
        summary = stream.translate(groups)
    if request.report and process.first:
        write_json(request.report, summary.report())
    say(summary.text())
    if request.strict and (failed := summary.failures()):
        raise RunError(f"--strict: {failed}")


def _required(request: Request) -> terms.Finder | None:
    """What finds texts that have to appear."""
    known = terms.read_terms(request.terms) if request.terms else []
    patterns = terms.compiled(request.keep, request.keep_patterns)
    return terms.Finder(known, patterns) if known or patterns else None


def _file_problems(request: Request, process: Process) -> Iterator[str]:
    """What is wrong with the files of a request."""
    source, prefix = request.source, request.prefix
    if source is None and process.ranks > 1:
        yield "several processes cannot share standard input: give --input"
    if source is not None and (not source.exists() or source.is_dir()):
        yield f"input file {source} not found"
    given = {"output": request.output, "alignments": request.alignments, "report": request.report}
    written = {option: path for option, path in given.items() if path is not None}
    for option, path in written.items():
        if path.is_dir():
            yield f"--{option} {path} is a folder; wanted a file"
        elif not path.parent.is_dir():
            yield f"folder {path.parent} of --{option} does not exist"
    for (one, path), (other, same) in combinations(written.items(), 2):
        if path.resolve() == same.resolve() and (path.is_file() or not path.exists()):
            yield f"--{one} and --{other} are one file: {path}"
    if prefix is not None and not prefix.is_file():
        yield f"prefix file {prefix} not found"
    elif prefix is not None and source is not None and source.is_file():
        counts = [sum(1 for _ in files.text_lines(path)) for path in (source, prefix)]
        if counts[0] != counts[1]:
            yield f"{source} has {counts[0]} lines, {prefix} has {counts[1]}"
    if (source is None and sys.stdin is None) or (request.output is None and sys.stdout is None):
        yield "standard input or output is closed: give --input and --output"


def _option_problems(translator: Translator, request: Request, form: str) -> Iterator[str]:
    """Which options do not go together."""
    settings = translator.settings
    if form == "text" and settings.n_best > 1:
        yield f"--format text has one line a line: n_best {settings.n_best} needs moses or jsonl"
    required = "--terms" if request.terms else "--keep" if request.keep else "--keep-pattern"
    if request.terms or request.keep or request.keep_patterns:
        if settings.sampling:
            yield f"{required} does not go together with sampling (--sample, --temperature, --top-k, --top-p)"
        if settings.no_repeat_ngram:
            yield f"{required} does not go together with --no-repeat-ngram, which may forbid what has to appear"
        if isinstance(translator.engine, CTranslate2Engine):
            yield f"{required} does not go together with --engine ctranslate2, which has no such search"
    if request.prefix and settings.split_sentences:
        yield "--target-prefix does not go together with --split-sentences: it would begin the first sentence alone"
    if request.prefix and isinstance(translator.engine, CTranslate2Engine):
        yield "--target-prefix does not go together with --engine ctranslate2, which leaves it out of its scores"
    layer, layers = settings.alignment_layer, min(len(model.decoder) for model in translator.models)
    if request.alignments and layer and layer > layers:
        yield f"alignment_layer: found {layer}, the decoder has {layers}"
    if request.interactive and request.source:
        yield "--interactive does not go together with --input: it is for a pipe that waits for each answer"


def score(
    translator: Translator, source: Path, target: Path, output: Path | None, form: str, process: Process, say: Say
) -> None:
    """Writes what the model thinks of given translations, a line each: text (sum, pieces, score) or jsonl."""
    sources, targets = (list(files.text_lines(path)) for path in (source, target))
    if len(sources) != len(targets):
        raise UserError(f"{source} has {len(sources)} lines, {target} has {len(targets)}")
    if output is not None and not output.parent.is_dir():
        raise UserError(f"folder {output.parent} of --output does not exist")
    scored = translator.score(sources, targets, process)
    with _output(output, process.first) as write:
        for number, found in enumerate(scored, 1):
            if form == "jsonl":
                write(json.dumps({"line": number, **asdict(found)}, ensure_ascii=False) + "\n")
            else:
                write(f"{found.log_probability:.6f}\t{found.length}\t{found.score:.6f}\n")
        write("")
    total, pieces = sum(found.log_probability for found in scored), sum(found.length for found in scored)
    say(f"{len(scored)} lines, {pieces} pieces, perplexity {log.perplexity(-total / max(1, pieces)):.4f}")


def _line_groups(request: Request, stack: contextlib.ExitStack) -> Iterator[list[bytes]]:
    """Lines of a file, plain or compressed, in large groups; of standard input or a pipe, as they arrive."""
    if request.source is None:
        return arriving_lines(sys.stdin.buffer, one_by_one=request.interactive)
    if not request.source.is_file():
        return arriving_lines(stack.enter_context(request.source.open("rb")))
    lines = files.lines(request.source)
    return iter(lambda: list(islice(lines, WINDOW_LINES)), [])
