"""What `translate`, `evaluate` and `average` do, between parsed options and the parts that do the work."""

import contextlib
import json
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import torch
from pydantic import ValidationError

import transformer_mt
from transformer_mt import stages
from transformer_mt.atomic import partial_of, sha256, sync, write_json, write_text
from transformer_mt.config import Config, Decoding
from transformer_mt.config.file import config_from_dict, problems
from transformer_mt.config.values import digest
from transformer_mt.data import files
from transformer_mt.data.prepare import test_names
from transformer_mt.data.tokenizer import Tokenizer
from transformer_mt.decode.stream import WINDOW_LINES, arriving_lines, translate_stream
from transformer_mt.decode.translator import Translator
from transformer_mt.distributed import Process, on_first_rank
from transformer_mt.errors import UserError
from transformer_mt.evaluate import scores
from transformer_mt.model import folder
from transformer_mt.train import averaging, checkpoint, log

Say = Callable[[str], None]


def load_translator(
    model: Path | None, config: Config | None, process: Process, precision: str, changes: dict[str, Any], say: Say
) -> tuple[Translator, folder.Loaded]:
    """The model that a path or a config's run means; its search settings are the config's, else those stored with it.

    `changes` are the options of the command line: they win over both.
    """
    path = model or (config.output if config else None)
    if path is None:
        raise UserError("give --model or --config")
    loaded = folder.load(path, process.device, getattr(torch, precision))
    if loaded.origin != path:
        say(f"model: {loaded.origin}")
    settings = changed_decoding(config.decoding if config else loaded.decoding, changes)
    return Translator(loaded.model, loaded.tokenizer, settings, loaded.start), loaded


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
    path = path.resolve()
    if path.exists() and not path.is_file():  # a pipe or a device is written to, not replaced
        with path.open("wb") as file:
            yield _writer(file)
        return
    unfinished = partial_of(path)
    try:
        with unfinished.open("wb") as file:
            yield _writer(file)
        sync(unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _writer(file: BinaryIO) -> Callable[[str], None]:
    """Writes text; an empty one flushes."""

    def write(text: str) -> None:
        if text:
            file.write(text.encode())
        else:
            file.flush()

    return write


def translate(
    translator: Translator,
    source: Path | None,
    output: Path | None,
    form: str | None,
    process: Process,
    say: Say,
    *,
    prefix: Path | None = None,
    report: Path | None = None,
) -> None:
    """Translates a file or standard input, and says on stderr what happened to the lines.

    `form` is text, moses or jsonl; None is text, or moses where several hypotheses are asked for. `prefix` holds what
    each translation has to begin with, line by line; `report` gets the summary as JSON, with line numbers.
    """
    several = translator.settings.n_best > 1
    form = form or ("moses" if several else "text")
    if source is None and process.ranks > 1:
        raise UserError("several processes cannot share standard input: give --input")
    if source is not None and (not source.exists() or source.is_dir()):
        raise UserError(f"input file {source} not found")
    for option, path in (("--output", output), ("--report", report)):
        if path is not None and path.is_dir():
            raise UserError(f"{option} {path} is a folder; wanted a file")
        if path is not None and not path.parent.is_dir():
            raise UserError(f"folder {path.parent} of {option} does not exist")
    if prefix is not None and not prefix.is_file():
        raise UserError(f"prefix file {prefix} not found")
    if prefix is not None and source is not None and source.is_file():
        counts = [sum(1 for _ in files.text_lines(path)) for path in (source, prefix)]
        if counts[0] != counts[1]:
            raise UserError(f"{source} has {counts[0]} lines, {prefix} has {counts[1]}")
    if form == "text" and several:
        raise UserError(f"--format text has one line a line: n_best {translator.settings.n_best} needs moses or jsonl")
    if source is not None and source.is_file():
        deque(files.text_lines(source), maxlen=0)  # before any work is lost to a line that is no text
    if (source is None and sys.stdin is None) or (output is None and sys.stdout is None):
        raise UserError("standard input or output is closed: give --input and --output")
    with contextlib.ExitStack() as stack:
        groups = _line_groups(source, stack)
        write = stack.enter_context(_output(output, process.first))
        name = str(source) if source else "standard input"
        begins = iter(files.text_lines(prefix)) if prefix else None
        summary = translate_stream(
            translator, groups, write, name=name, form=form, process=process, say=say, prefixes=begins
        )
    if report and process.first:
        write_json(report, summary.report())
    say(summary.text())


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


def _line_groups(source: Path | None, stack: contextlib.ExitStack) -> Iterator[list[bytes]]:
    """Lines of a file, plain or compressed, in large groups; of standard input or a pipe, as they arrive."""
    if source is None:
        return arriving_lines(sys.stdin.buffer)
    if not source.is_file():
        return arriving_lines(stack.enter_context(source.open("rb")))
    lines = files.lines(source)
    return iter(lambda: list(islice(lines, WINDOW_LINES)), [])


def average(
    config: Config, last: int | None, best: int | None, given: Sequence[Path], output: Path | None, say: Say
) -> None:
    """Writes the mean of checkpoints of a run as a model folder, by default the run's model/.

    They are the given ones, the `last` or `best` ones by number, or those that the configuration asks for.
    """
    run = config.output
    if sum(map(bool, (last, best, given))) > 1:
        raise UserError("give one of --last, --best and --checkpoint")
    validations = log.validations(log.read_metrics(run))
    chosen = sorted({path.resolve() for path in given}) or averaging.chosen(
        run, config, validations, last=last, best=best
    )
    if not chosen:
        raise UserError(f"{run} has no checkpoints to average" + (" that were validated" if best else ""))
    wanted = last or best or config.training.checkpoint.average
    if not given and len(chosen) < wanted:
        say(f"warning: {run} has {len(chosen)} checkpoints, fewer than {wanted}")
    saved = config_from_dict(checkpoint.read_state(chosen[-1])["config"], str(chosen[-1]))
    _check_family(run, chosen)
    if output is not None and output.exists() and not folder.is_model(output):
        raise UserError(f"--output {output} is there already and is no model folder: give another")
    averaging.write_average(run, saved, chosen, output or run / "model")
    say(f"{output or run / 'model'}: mean of {', '.join(path.name for path in chosen)}")


def _check_family(run: Path, chosen: Sequence[Path]) -> None:
    """Refuses checkpoints of another vocabulary than the run's, whose mean would mean nothing."""
    own = [sha256(path) for path in Tokenizer(run / "tokenizer").files]
    for path in chosen:
        checkpoint.read_state(path)
        if [sha256(file) for file in Tokenizer(path.parent.parent / "tokenizer").files] != own:
            raise UserError(f"{path} was trained with another tokenizer than {run}: they cannot be averaged")


def scored(
    name: str,
    hypotheses: Sequence[str],
    references: Sequence[str],
    source: str,
    target: str,
    metrics: Sequence[str],
    say: Say,
) -> dict[str, Any]:
    """All scores of one test set as JSON data: none without its signature."""
    if empty := scores.empty_lines(references):
        say(f"warning: {name}: {empty} empty reference{'s' if empty > 1 else ''}")
    found = scores.score(hypotheses, [references], metrics=metrics, source_language=source, target_language=target)
    report: dict[str, Any] = {
        "test_set": name,
        "segments": len(references),
        "source_language": source,
        "target_language": target,
        "reference_sha256": scores.corpus_digest(references),
        "scores": [],
    }
    if scores.paper_bleu_available():
        paper = scores.paper_bleu(hypotheses, references, source_language=source, target_language=target)
        found += [paper] if paper else []
    elif scores.has_paper_bleu(source, target):
        report["paper_bleu"] = "not computed: pip install 'transformer-mt[moses]'"
    for score in found:
        entry = {"name": score.name, "value": score.value, "signature": score.signature}
        report["scores"].append(entry | ({"details": score.details} if score.details else {}))
    for metric, score in zip(metrics, found, strict=False):
        report |= {metric: score.value, "signature" if metric == "bleu" else f"{metric}_signature": score.signature}
        if "length_ratio" in score.details:
            report["length_ratio"] = score.details["length_ratio"]
    return report


def report_lines(report: dict[str, Any]) -> list[str]:
    """A report for people: a line a score."""
    lines = [
        f"{report['test_set']}: {report['segments']} segments, references sha256 {report['reference_sha256'][:16]}"
    ]
    lines += [f"{score['name']} {score['value']:.2f}  {score['signature']}" for score in report["scores"]]
    if "paper_bleu" in report:
        lines.append(f"paper BLEU {report['paper_bleu']}")
    return lines


def evaluate_run(
    config: Config, model: Path | None, process: Process, precision: str, changes: dict[str, Any], say: Say
) -> list[dict[str, Any]]:
    """Translates and scores each test set of a configuration; translations/ and scores/ of the run keep the results.

    A test set whose score was made by the same model with the same search is not translated again. A run folder whose
    test sets are not the configuration's is refused.
    """
    if not config.data.test:
        raise UserError("data.test has no test set; give one, or --hypothesis and --reference")
    on_first_rank(lambda: stages.check_corpus(config))
    translator, loaded = load_translator(model, config, process, precision, changes, say)
    basis = {
        "model_sha256": sha256(loaded.origin / folder.WEIGHTS),
        "search": translator.settings.model_dump(mode="json"),
        "precision": precision,
        "metrics": list(config.evaluation.metrics),
        "version": transformer_mt.__version__,
    }
    reports = []
    for name in test_names(config):
        lines, references = (list(files.text_lines(path)) for path in _test_texts(config, name))
        inputs = _inputs(config, name, basis)
        if known := _known_report(config, name, inputs):
            say(f"{_score_path(config, name)}: up to date")
            reports.append(known)
            continue
        with log.progress_bar(len(lines), process) as progress:
            translations = [translation.text for translation in translator.translate(lines, process, progress)]
        facts = {**basis, "model": loaded.origin.resolve().name, "config": digest(config), "inputs": inputs}
        make = partial(_score_test_set, config, name, translations, references, facts, say)
        reports.append(on_first_rank(make))
    return reports


def _score_test_set(
    config: Config, name: str, translations: list[str], references: list[str], facts: dict[str, Any], say: Say
) -> dict[str, Any]:
    """Writes the translations, then the scores with what they were made from."""
    source, target = config.languages.source, config.languages.target
    report = scored(name, translations, references, source, target, config.evaluation.metrics, say)
    output = _translation_path(config, name)
    write_text(output, "".join(f"{line}\n" for line in translations))
    report |= {**facts, "translations_sha256": sha256(output)}
    write_json(_score_path(config, name), report)
    return report


def _test_texts(config: Config, name: str) -> tuple[Path, Path]:
    corpus = config.output / "corpus"
    return corpus / f"{name}.{config.languages.source}", corpus / f"{name}.{config.languages.target}"


def _translation_path(config: Config, name: str) -> Path:
    return config.output / "translations" / f"{name}.{config.languages.target}"


def _score_path(config: Config, name: str) -> Path:
    return config.output / "scores" / f"{name}.json"


def _inputs(config: Config, name: str, basis: dict[str, Any]) -> str:
    """Digest of all that a score depends on."""
    texts = [sha256(path) for path in _test_texts(config, name)]
    return digest({**basis, "texts": texts, "moses": scores.paper_bleu_available()})


def _known_report(config: Config, name: str, inputs: str) -> dict[str, Any] | None:
    """The report of an earlier evaluation with the same inputs whose translations are still there."""
    path, output = _score_path(config, name), _translation_path(config, name)
    if not path.is_file() or not output.is_file():
        return None
    report: dict[str, Any] = json.loads(path.read_text("utf-8"))
    same = report.get("inputs") == inputs and report.get("translations_sha256") == sha256(output)
    return report if same else None


def evaluate_files(
    hypothesis: Path, reference: Path, source: str, target: str, metrics: Sequence[str], say: Say
) -> dict[str, Any]:
    """Scores a file of translations against a file of references."""
    hypotheses, references = (list(files.text_lines(path)) for path in (hypothesis, reference))
    if len(hypotheses) != len(references):
        raise UserError(f"{hypothesis} has {len(hypotheses)} lines, {reference} has {len(references)}")
    return scored(reference.name, hypotheses, references, source, target, metrics, say)


def samples(config: Config, count: int) -> list[tuple[str, str, str]]:
    """Source, reference and translation of lines spread over the first test set."""
    name = test_names(config)[0]
    columns = (*_test_texts(config, name), _translation_path(config, name))
    rows = list(zip(*map(files.text_lines, columns), strict=True))
    return rows[:: max(1, len(rows) // count)][:count]
