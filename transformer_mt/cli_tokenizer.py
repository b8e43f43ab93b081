"""The commands that look at a tokenizer. As in cli.py, nothing heavy is imported up here."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transformer_mt import options
from transformer_mt.errors import UserError, reported

if TYPE_CHECKING:
    from transformer_mt.config import Config

tokenizer_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at the subwords of a run or model.")

SIDES = ("source", "target")
Model = Annotated[Path | None, typer.Option("--model", "-m", help="Run, model or checkpoint folder.")]


def _load(config: str | None, overrides: list[str] | None) -> "Config | None":
    if overrides and not config:
        raise UserError("--set changes a config: give --config")
    from transformer_mt.config.file import load_config

    return load_config(config, overrides or ()) if config else None


@tokenizer_app.command("inspect")
def inspect(
    text: Annotated[list[str] | None, typer.Argument(help="Lines to cut; default those of stdin.")] = None,
    config: options.MaybeConfig = None, set_: options.Set = None, model: Model = None,
    side: Annotated[str, typer.Option("--side", help="The language of the lines: source or target.")] = "source",
    as_json: options.Json = False, debug: options.Debug = False,
) -> None:  # fmt: skip
    """Print the pieces of each line, a tab, and their ids; with --json an object for each line."""
    with reported(debug=debug):
        options.check_choice("--side", side, SIDES)
        loaded = _load(config, set_)
        from transformer_mt.commands import tokenizer as work
        from transformer_mt.data.tokenizer import Tokenizer

        tokenizer = Tokenizer(work.find_tokenizer(loaded, model))
        for found in work.inspect(tokenizer, text or (), side):
            typer.echo(work.shown(found, as_json))


@tokenizer_app.command("report")
def report(
    config: options.MaybeConfig = None, set_: options.Set = None, model: Model = None,
    split: Annotated[str | None, typer.Option(help="train, validation or test; default train.")] = None,
    source: Annotated[Path | None, typer.Option("--input", "-i", help="A file to read, not the corpus.")] = None,
    side: Annotated[str | None, typer.Option("--side", help="The language of --input: source or target.")] = None,
    lines: Annotated[int, typer.Option("--lines", min=1, help="Lines to read at most, drawn evenly.")] = 100_000,
    as_json: options.Json = False, debug: options.Debug = False,
) -> None:  # fmt: skip
    """Tell what the vocabulary makes of the run's corpus: pieces a word, what is unknown, how much of it occurs."""
    with reported(debug=debug):
        if side is not None:
            options.check_choice("--side", side, SIDES)
        loaded = _load(config, set_)
        from transformer_mt.commands import tokenizer as work

        found = work.report(loaded, model, split, source, side, lines)
        typer.echo(json.dumps(found, indent=1, ensure_ascii=False) if as_json else "\n".join(work.lines(found)))
