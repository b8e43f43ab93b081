"""Translating the test sets of a configuration and scoring them; scoring files."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import transformer_mt
from transformer_mt import stages
from transformer_mt.atomic import sha256, write_json, write_text
from transformer_mt.commands.translate import load_translator
from transformer_mt.config import Config
from transformer_mt.config.values import digest
from transformer_mt.data import files
from transformer_mt.data.corpus import test_names
from transformer_mt.distributed import Process, on_first_rank
from transformer_mt.errors import UserError
from transformer_mt.evaluate import scores
from transformer_mt.model import folder
from transformer_mt.model.card import with_scores
from transformer_mt.train import log

Say = Callable[[str], None]


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
    config: Config, models: Sequence[Path], process: Process, changes: dict[str, Any], say: Say, *,
    precision: str = "float32", engine: str = "native",
) -> list[dict[str, Any]]:  # fmt: skip
    """Translates and scores each test set of a configuration; translations/ and scores/ of the run keep the results.

    A test set whose score was made by the same model with the same search is not translated again. A run folder whose
    test sets are not the configuration's is refused.
    """
    if not config.data.test:
        raise UserError("data.test has no test set; give one, or --hypothesis and --reference")
    on_first_rank(lambda: stages.check_corpus(config))
    translator, loaded = load_translator(
        models, config, process, changes, say, precision=precision, engine=engine
    )  # fmt: skip
    basis = {
        "model_sha256": ",".join(sha256(each.origin / folder.WEIGHTS) for each in loaded),
        "search": translator.settings.model_dump(mode="json"),
        "precision": precision,
        "engine": engine,
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
        origins = ",".join(each.origin.resolve().name for each in loaded)
        facts = {**basis, "model": origins, "config": digest(config), "inputs": inputs}
        make = partial(_score_test_set, config, name, translations, references, facts, say)
        reports.append(on_first_rank(make))
    plain = (precision, engine, translator.settings) == ("float32", "native", config.decoding)
    if plain and [each.origin.resolve() for each in loaded] == [(config.output / "model").resolve()]:
        on_first_rank(lambda: _tell_in_card(config.output / "model" / "README.md", reports))
    return reports


def _tell_in_card(card: Path, reports: Sequence[dict[str, Any]]) -> None:
    """Brings the scores of the run's own model into its card."""
    text = card.read_text("utf-8") if card.is_file() else ""
    if (told := with_scores(text, reports)) != text:
        write_text(card, told)


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
    config: Config | None, hypothesis: Path, reference: Path, languages: tuple[str | None, str | None], say: Say
) -> dict[str, Any]:
    """Scores a file of translations against a file of references; languages not given are the configuration's."""
    source, target = languages
    source = source or (config.languages.source if config else "en")
    target = target or (config.languages.target if config else None)
    if target is None:
        raise UserError("--target-language is needed without --config: BLEU's tokenizer follows it")
    hypotheses, references = (list(files.text_lines(path)) for path in (hypothesis, reference))
    if len(hypotheses) != len(references):
        raise UserError(f"{hypothesis} has {len(hypotheses)} lines, {reference} has {len(references)}")
    metrics = config.evaluation.metrics if config else ("bleu", "chrf", "ter")
    return scored(reference.name, hypotheses, references, source, target, metrics, say)


def samples(config: Config, count: int) -> list[tuple[str, str, str]]:
    """Source, reference and translation of lines spread over the first test set."""
    name = test_names(config)[0]
    columns = (*_test_texts(config, name), _translation_path(config, name))
    rows = list(zip(*map(files.text_lines, columns), strict=True))
    return rows[:: max(1, len(rows) // count)][:count]
