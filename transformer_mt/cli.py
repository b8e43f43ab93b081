"""The command line: parse, load the configuration, call one function, print. Nothing heavy is imported up here."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transformer_mt import __version__, options, streams
from transformer_mt.cli_tokenizer import tokenizer_app
from transformer_mt.errors import UserError, reported
from transformer_mt.progress import Speaker

if TYPE_CHECKING:
    from transformer_mt.config import Config
    from transformer_mt.decode.translator import Translator
    from transformer_mt.distributed import Process

app = typer.Typer(
    name="transformer-mt",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Machine translation with the Transformer of 'Attention Is All You Need': raw text to a comparable score.",
)
config_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show, check and list configurations.")
app.add_typer(config_app, name="config")
app.add_typer(tokenizer_app, name="tokenizer")


def main() -> None:
    """The entry point of the command."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of a rank that is gone we tell in a sentence, not in frames
    streams.prepare()
    with reported(debug=False):  # of help and versions, which stand in no command
        app(prog_name="transformer-mt")


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


@contextmanager
def _errors(debug: bool) -> Iterator[None]:
    given = (os.environ.get(name, "") for name in ("RANK", "LOCAL_RANK"))
    rank, local_rank = (int(text) if text.isdecimal() else None for text in given)
    with reported(debug=debug, rank=rank, local_rank=local_rank or 0):
        yield


def _load(config: str, overrides: list[str] | None) -> "Config":
    from transformer_mt.config.file import load_config

    return load_config(config, overrides or ())


def _maybe_load(config: str | None, overrides: list[str] | None) -> "Config | None":
    if overrides and not config:
        raise UserError("--set changes a config: give --config")
    return _load(config, overrides) if config else None


def _say(quiet: bool) -> Speaker:
    """Progress for people, on stderr and from the first rank alone; warnings even when quiet."""
    return Speaker(quiet=quiet, enabled=os.environ.get("RANK", "0") == "0")


@app.command()
def download(
    config: options.Config, set_: options.Set = None, fresh: options.Fresh = False, workers: options.Workers = 0,
    shard: options.Shard = None, quiet: options.Quiet = False, debug: options.Debug = False,
) -> None:  # fmt: skip
    """Read the sources, clean them, and write the run's corpus."""
    with _errors(debug):
        if shard:
            _make_share(_load(config, set_), "download", shard, fresh, workers, quiet)
            return
        from transformer_mt.stages import prepare_run

        prepare_run(_load(config, set_), _say(quiet), fresh=fresh, names=("download",), workers=workers)


@app.command()
def clean(
    config: options.Config, set_: options.Set = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell only: write nothing into the run folder.")] = False,
    rejected: Annotated[Path | None, typer.Option(help="A JSONL file of all dropped pairs; implies --dry-run.")] = None,
    workers: options.Workers = 0, as_json: options.Json = False, quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:  # fmt: skip
    """Tell what cleaning the training data comes to, filter by filter, with examples; runs download for it."""
    with _errors(debug):
        loaded = _load(config, set_)
        from transformer_mt.commands import clean as work

        record = work.clean(loaded, _say(quiet), dry_run=dry_run, rejected=rejected, workers=workers)
        typer.echo(
            json.dumps(record, indent=1, ensure_ascii=False) if as_json else "\n".join(work.lines(loaded, record))
        )


@app.command()
def tokenize(
    config: options.Config, set_: options.Set = None, fresh: options.Fresh = False, workers: options.Workers = 0,
    learn_only: Annotated[bool, typer.Option("--learn-only", help="Stop before the ids.")] = False,
    shard: options.Shard = None, quiet: options.Quiet = False, debug: options.Debug = False,
) -> None:  # fmt: skip
    """Learn the subword vocabulary and write token ids; runs download first where that is needed."""
    with _errors(debug):
        if shard:
            _make_share(_load(config, set_), "encode", shard, fresh or learn_only, workers, quiet)
            return
        from transformer_mt.stages import prepare_run

        names = ("download", "learn") if learn_only else None
        prepare_run(_load(config, set_), _say(quiet), fresh=fresh, names=names, workers=workers)


def _make_share(config: "Config", stage: str, shard: str, whole: bool, workers: int, quiet: bool) -> None:
    if whole:
        raise UserError("--shard makes a share of one stage: it goes without --fresh and --learn-only")
    from transformer_mt.data.shards import Share
    from transformer_mt.shares import make_share

    make_share(config, stage, Share.parse(shard), _say(quiet), workers)


@app.command()
def train(
    config: options.Config, set_: options.Set = None, fresh: options.Fresh = False, reset: options.Reset = None,
    device: options.Device = "auto", quiet: options.Quiet = False, debug: options.Debug = False,
) -> None:  # fmt: skip
    """Train, from wherever the run folder stands; runs download and tokenize first where that is needed."""
    with _errors(debug):
        loaded, resets = _load(config, set_), options.resets(reset)
        from transformer_mt.distributed import process_group

        with process_group(device) as process:
            _train(loaded, process, fresh, resets, quiet)


@app.command()
def plan(
    config: options.Config, set_: options.Set = None,
    devices: Annotated[int, typer.Option("--devices", min=1, help="Devices that share each update.")] = 1,
    device: options.Device = "auto", as_json: options.Json = False, debug: options.Debug = False,
) -> None:  # fmt: skip
    """Tell what training would come to: sizes, memory, updates, time, operations; measured here, nothing is written."""
    with _errors(debug):
        loaded = _load(config, set_)
        from transformer_mt.commands import plan as work

        found = work.plan(loaded, device, devices)
        typer.echo(json.dumps(found, indent=1, ensure_ascii=False) if as_json else "\n".join(work.lines(found)))


def _train(config: "Config", process: "Process", fresh: bool, resets: list[str], quiet: bool) -> None:
    from transformer_mt import stages
    from transformer_mt.train.log import Console

    stages.train(config, process, Console(enabled=process.first, quiet=quiet), fresh=fresh, resets=resets)


@app.command()
def average(
    config: options.Config, set_: options.Set = None,
    last: Annotated[int | None, typer.Option("--last", min=1, help="How many of the newest checkpoints.")] = None,
    best: Annotated[int | None, typer.Option("--best", min=1, help="How many of the best, by validation.")] = None,
    checkpoint: Annotated[list[Path] | None, typer.Option(help="A checkpoint folder to average; repeatable.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder to write; default the run's model/.")
    ] = None,
    quiet: options.Quiet = False, debug: options.Debug = False,
) -> None:  # fmt: skip
    """Write the mean of checkpoints as a model that can be used."""
    with _errors(debug):
        loaded = _load(config, set_)
        from transformer_mt.commands.average import average as work

        work(loaded, last, best, checkpoint or [], output, _say(quiet))


@app.command()
def translate(
    config: options.MaybeConfig = None, set_: options.Set = None, model: options.Model = None,
    engine: options.Engine = "native",
    source: options.Input = None, output: options.Output = None,
    form: Annotated[str | None, typer.Option("--format", help="text, moses (id ||| text ||| score) or jsonl.")] = None,
    beam_size: options.Beam = None, n_best: options.Best = None, batch_size: options.Batch = None,
    length_penalty: options.Penalty = None, alpha: options.Alpha = None,
    min_length: options.MinLength = None, max_length_factor: options.Factor = None,
    max_length_extra: options.Extra = None,
    sample: options.Sample = False, temperature: options.Temperature = None, top_k: options.TopK = None,
    top_p: options.TopP = None, seed: options.Seed = None, no_repeat_ngram: options.Repeat = None,
    prefix: options.Prefix = None, terms: options.Terms = None, keep: options.Keep = None,
    keep_pattern: options.KeepPattern = None, alignments: options.Alignments = None,
    alignment_layer: options.Layer = None,
    split_sentences: options.Split = False, long_lines: options.Long = None, strict: options.Strict = False,
    interactive: options.Interactive = False, report: options.Report = None,
    device: options.Device = "auto", precision: options.Precision = "float32",
    quiet: options.Quiet = False, debug: options.Debug = False,
) -> None:  # fmt: skip
    """Translate lines: as many come out as go in, in order; on a pipe each is answered when it comes."""
    with _errors(debug):
        if form:
            options.check_choice("--format", form, ("text", "moses", "jsonl"))
        if long_lines:
            options.check_choice("--long-lines", long_lines, ("split", "cut"))
        changes = options.search_changes(beam_size, n_best, batch_size, length_penalty, alpha) | {
            "no_repeat_ngram": no_repeat_ngram, "min_length": min_length, "max_length.factor": max_length_factor,
            "max_length.extra": max_length_extra, "alignment_layer": alignment_layer,
            "long_lines": long_lines, "split_sentences": split_sentences or None,
        }  # fmt: skip
        changes |= options.sampling_changes(sample, temperature, top_k, top_p, seed)
        with _translator(config, set_, model, device, precision, engine, changes, quiet) as (translator, process):
            from transformer_mt.commands.translate import Request
            from transformer_mt.commands.translate import translate as work

            request = Request(
                source, output, form, prefix, terms, keep or (), keep_pattern or (), alignments, report,
                interactive, strict,
            )  # fmt: skip
            work(translator, request, process, _say(quiet))


@app.command()
def score(
    source: Annotated[Path, typer.Option("--input", "-i", help="Source lines.")],
    target: Annotated[Path, typer.Option("--target", "-t", help="A translation of each.")],
    config: options.MaybeConfig = None, set_: options.Set = None, model: options.Model = None,
    output: options.Output = None,
    form: Annotated[str, typer.Option("--format", help="text (log-probability, pieces, score) or jsonl.")] = "text",
    batch_size: options.Batch = None, length_penalty: options.Penalty = None, alpha: options.Alpha = None,
    device: options.Device = "auto", precision: options.Precision = "float32",
    quiet: options.Quiet = False, debug: options.Debug = False,
) -> None:  # fmt: skip
    """Tell the log-probability that a model gives to translations made elsewhere, by forced decoding."""
    with _errors(debug):
        options.check_choice("--format", form, ("text", "jsonl"))
        changes = options.search_changes(None, None, batch_size, length_penalty, alpha)
        with _translator(config, set_, model, device, precision, "native", changes, quiet) as (translator, process):
            from transformer_mt.commands.translate import score as work

            work(translator, source, target, output, form, process, _say(quiet))


@app.command()
def backtranslate(
    source: options.Monolingual, output: options.Pairs, config: options.MaybeConfig = None, set_: options.Set = None,
    model: options.Model = None, engine: options.Engine = "native", beam_size: options.Beam = None,
    batch_size: options.Batch = None, sample: options.Sample = False, temperature: options.Temperature = None,
    top_k: options.TopK = None, top_p: options.TopP = None, seed: options.Seed = None, shard: options.Shard = None,
    shard_lines: options.ShardLines = 10_000, device: options.Device = "auto",
    precision: options.Precision = "float32", quiet: options.Quiet = False, debug: options.Debug = False,
) -> None:  # fmt: skip
    """Make training pairs of text without translations, by a model of the other direction; goes on after a stop."""
    with _errors(debug):
        options.check_engine(engine, precision)
        changes = options.search_changes(beam_size, 1, batch_size, None, None)
        changes |= options.sampling_changes(sample, temperature, top_k, top_p, seed)
        loaded = _maybe_load(config, set_)
        from transformer_mt.commands import backtranslate as work
        from transformer_mt.distributed import process_group

        with process_group(device) as process:
            request = work.Request(source, output, shard, shard_lines, precision, engine)
            work.backtranslate(model or [], loaded, changes, request, process, _say(quiet))


@contextmanager
def _translator(
    config: str | None, overrides: list[str] | None, models: list[Path] | None, device: str, precision: str,
    engine: str, changes: dict[str, Any], quiet: bool,
) -> Iterator[tuple["Translator", "Process"]]:  # fmt: skip
    """What translates, and the process it runs in."""
    options.check_engine(engine, precision)
    loaded = _maybe_load(config, overrides)
    from transformer_mt.commands.translate import load_translator
    from transformer_mt.distributed import process_group

    with process_group(device) as process:
        yield (
            load_translator(models or [], loaded, process, changes, _say(quiet), precision=precision, engine=engine)[0],
            process,
        )


@app.command()
def export(
    model: Annotated[Path, typer.Option("--model", "-m", help="Run, model or checkpoint folder.")],
    form: Annotated[str, typer.Option("--format", help="huggingface (Marian), ctranslate2 or onnx.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A new folder.")],
    precision: Annotated[str | None, typer.Option(help="ctranslate2: float32, float16, bfloat16, int16, int8.")] = None,
    sentences: Annotated[Path | None, typer.Option(help="A file of sentences to compare both sides on.")] = None,
    quiet: options.Quiet = False, debug: options.Debug = False,
) -> None:  # fmt: skip
    """Write a model for another program, and prove that it says the same there."""
    with _errors(debug):
        options.check_choice("--format", form, ("huggingface", "ctranslate2", "onnx"))
        from transformer_mt.commands.export import export as work

        work(model, form, output, precision, sentences, _say(quiet))


@app.command("import")
def import_(
    folder: Annotated[Path, typer.Argument(help="A Marian folder of transformers, such as an OPUS-MT model.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A new model folder.")],
    source_language: Annotated[str | None, typer.Option(help="Language code, if the folder does not tell it.")] = None,
    target_language: Annotated[str | None, typer.Option(help="Language code, if the folder does not tell it.")] = None,
    sentences: Annotated[Path | None, typer.Option(help="A file of sentences to compare both sides on.")] = None,
    quiet: options.Quiet = False, debug: options.Debug = False,
) -> None:  # fmt: skip
    """Make a model of another program ours, and prove that it says the same here."""
    with _errors(debug):
        from transformer_mt.commands.export import import_model as work

        work(folder, output, source_language, target_language, sentences, _say(quiet))


@app.command()
def evaluate(
    config: options.MaybeConfig = None, set_: options.Set = None, model: options.Model = None,
    engine: options.Engine = "native",
    hypothesis: Annotated[Path | None, typer.Option(help="Translations to score, instead of making them.")] = None,
    reference: Annotated[Path | None, typer.Option(help="Reference translations of --hypothesis.")] = None,
    source_language: Annotated[str | None, typer.Option(help="Language code, without --config.")] = None,
    target_language: Annotated[str | None, typer.Option(help="Language code, without --config.")] = None,
    beam_size: options.Beam = None, batch_size: options.Batch = None, length_penalty: options.Penalty = None,
    alpha: options.Alpha = None, device: options.Device = "auto", precision: options.Precision = "float32",
    as_json: options.Json = False, samples: Annotated[int, typer.Option(min=0, help="Translations to show.")] = 0,
    quiet: options.Quiet = False, debug: options.Debug = False,
) -> None:  # fmt: skip
    """Translate the test sets of a config and score them; or score --hypothesis against --reference."""
    with _errors(debug):
        loaded = _maybe_load(config, set_)
        options.check_engine(engine, precision)
        if (hypothesis is None) != (reference is None):
            raise UserError("--hypothesis and --reference go together")
        if hypothesis and reference:
            from transformer_mt.commands.evaluate import evaluate_files

            languages = (source_language, target_language)
            _print_reports([evaluate_files(loaded, hypothesis, reference, languages, _say(quiet))], as_json)
            return
        if loaded is None:
            raise UserError("give --config, or --hypothesis and --reference")
        changes = options.search_changes(beam_size, None, batch_size, length_penalty, alpha)
        from transformer_mt.distributed import process_group

        with process_group(device) as process:
            _evaluate(loaded, model, process, precision, engine, changes, as_json, samples, quiet)


def _evaluate(
    config: "Config", models: list[Path] | None, process: "Process", precision: str, engine: str,
    changes: dict[str, Any], as_json: bool, samples: int, quiet: bool,
) -> None:  # fmt: skip
    from transformer_mt.commands import evaluate as work

    reports = work.evaluate_run(
        config, models or [], process, changes, _say(quiet), precision=precision, engine=engine
    )  # fmt: skip
    if process.first:
        _print_reports(reports, as_json)
        for source, reference, translation in work.samples(config, samples) if samples and not as_json else ():
            typer.echo(f"\nsource      {source}\nreference   {reference}\ntranslation {translation}")


def _print_reports(reports: list[dict[str, Any]], as_json: bool) -> None:
    from transformer_mt.commands.evaluate import report_lines

    if as_json:
        typer.echo(json.dumps(reports[0] if len(reports) == 1 else reports, indent=1, ensure_ascii=False))
    else:
        for report in reports:
            typer.echo("\n".join(report_lines(report)))


@app.command()
def run(
    config: options.Config, set_: options.Set = None, fresh: options.Fresh = False, reset: options.Reset = None,
    device: options.Device = "auto", precision: options.Precision = "float32", as_json: options.Json = False,
    samples: Annotated[int, typer.Option(min=0, help="Translations to show at the end.")] = 5,
    quiet: options.Quiet = False, debug: options.Debug = False,
) -> None:  # fmt: skip
    """Everything from the sources to the scores, each stage skipped when it is up to date."""
    with _errors(debug):
        loaded, resets = _load(config, set_), options.resets(reset)
        options.check_choice("--precision", precision, options.PRECISIONS)
        from transformer_mt.distributed import process_group

        with process_group(device) as process:
            _train(loaded, process, fresh, resets, quiet)
            if loaded.data.test:
                _evaluate(loaded, None, process, precision, "native", {}, as_json, samples, quiet)


@config_app.command("show")
def config_show(config: options.Config, set_: options.Set = None, debug: options.Debug = False) -> None:
    """Print the whole configuration, with every default."""
    with _errors(debug):
        import yaml

        loaded = _load(config, set_).model_dump(mode="json")
        typer.echo(yaml.safe_dump(loaded, sort_keys=False, allow_unicode=True), nl=False)


@config_app.command("check")
def config_check(config: options.Config, set_: options.Set = None, debug: options.Debug = False) -> None:
    """Tell what is wrong with a configuration and its files; nothing is run."""
    with _errors(debug):
        loaded = _load(config, set_)
        from transformer_mt.stages import check

        check(loaded)
        typer.echo(f"{config}: no errors")


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON schema, for editors."""
    with _errors(debug=False):
        from transformer_mt.config import Config

        typer.echo(json.dumps(Config.model_json_schema(), indent=1, ensure_ascii=False))


@config_app.command("list")
def config_list() -> None:
    """Print the names of the shipped configurations."""
    with _errors(debug=False):
        from transformer_mt.config.file import shipped_configs

        typer.echo("\n".join(shipped_configs()))
