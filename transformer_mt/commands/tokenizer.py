"""Looking at a tokenizer: which pieces lines become, and what its vocabulary makes of a corpus.

Neither needs the weights of a model, so PyTorch is not loaded.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from transformer_mt.config import Config
from transformer_mt.data import files
from transformer_mt.data.clean import normalize
from transformer_mt.data.sides import Side
from transformer_mt.data.tokenizer import Tokenizer
from transformer_mt.data.vocabulary_report import SIDES, drawn_lines, report_of_run, report_side
from transformer_mt.data.vocabulary_report import lines as report_lines
from transformer_mt.errors import UserError

_MODELS = ("spm.model", "source.model")


def find_tokenizer(config: Config | None, model: Path | None) -> Path:
    """The folder of the tokenizer that a run, model or checkpoint folder has, or else a config's run.

    A run's model/ comes first, as where a model is wanted; without one, what `tokenize` has made.
    """
    given = model or (config.output if config else None)
    if given is None:
        raise UserError("give --model or --config")
    folder = given.resolve()
    places = [folder, folder / "model", folder / "tokenizer"]
    if (folder / "state.json").is_file():  # a checkpoint has its run's
        places.append(folder.parent.parent / "tokenizer")
    for place in places:
        if any((place / name).is_file() for name in _MODELS):
            return place
    if model is None:
        raise UserError(f"{given} has no tokenizer yet: run `tokenize` or `train` with this configuration first")
    if not given.is_dir():
        raise UserError(f"model folder {given} not found")
    raise UserError(f"{given} holds no tokenizer: wanted a run, model or checkpoint folder")


def inspect(tokenizer: Tokenizer, texts: Sequence[str], side: str) -> Iterator[dict[str, Any]]:
    """What becomes of each text, or each line of standard input where there are none; `</s>` is left out.

    `text` as it was given, `normalized` as it is cut, its `pieces` and their `ids`, and those that are `unknown`.
    """
    if broken := [text for text in texts if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text)]:
        raise UserError(*(f"{text!r} is not {files.ENCODING}" for text in broken))
    for text in texts or _standard_input():
        yield _inspected(tokenizer.sides[SIDES.index(side)], text)


def _inspected(side: Side, text: str) -> dict[str, Any]:
    line = normalize(text)
    pieces, (ids,) = side.text_pieces(line), side.encode([line])
    unknown = [piece for piece, number in zip(pieces, ids, strict=True) if number == side.unknown]
    return {"text": text, "normalized": side.normalized(line), "pieces": pieces, "ids": ids, "unknown": unknown}


def _standard_input() -> Iterator[str]:
    if sys.stdin is None:
        raise UserError("standard input is closed: give a text")
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            yield files.text_of(line)
        except UnicodeDecodeError as failure:
            byte = f"byte 0x{failure.object[failure.start]:02X} at byte offset {failure.start}"
            raise UserError(f"standard input, line {number}: {byte} of the line is not {files.ENCODING}") from None


def shown(found: dict[str, Any], as_json: bool) -> str:
    """A line for what `inspect` yields: as JSON, or the pieces, a tab and their ids."""
    if as_json:
        return json.dumps(found, ensure_ascii=False)
    return f"{' '.join(found['pieces'])}\t{' '.join(map(str, found['ids']))}"


def report(
    config: Config | None, model: Path | None, split: str | None, source: Path | None, side: str | None, most: int
) -> dict[str, Any]:
    """What the vocabulary makes of at most so many lines: of a split of the config's corpus, or of one side's file."""
    if source is not None:
        if side is None:
            raise UserError("--input needs --side: source or target")
        if split is not None:
            raise UserError("--input and --split do not go together")
        return _report_of_file(find_tokenizer(config, model), source, side, most)
    if side is not None:
        raise UserError("--side goes together with --input: without it both sides are told")
    if config is None:
        raise UserError("give --config, whose corpus is read, or --input and --side")
    corpus, split = config.output / "corpus", split or "train"
    names = sorted(path.stem for path in corpus.glob(f"*.{config.languages.source}"))
    if not names:
        raise UserError(f"{config.output} has no corpus yet: run `download` or `train` with this configuration first")
    if split not in names:
        raise UserError(f"--split {split}: {corpus} holds {', '.join(names)}")
    return report_of_run(corpus, find_tokenizer(config, model), config.languages, most, split)


def _report_of_file(folder: Path, path: Path, side: str, most: int) -> dict[str, Any]:
    if problem := files.path_problem(path):
        raise UserError(f"--input: {problem}")
    count = files.count_lines(path)
    if not count:
        raise UserError(f"--input: {path} is empty")
    found = report_side(Tokenizer(folder).sides[SIDES.index(side)], drawn_lines(path, most, count))
    return {"file": str(path), "lines_of_file": count, side: found}


def lines(found: dict[str, Any]) -> list[str]:
    """A report for people: what was read, and the table."""
    name, what = (found["file"], "lines") if "file" in found else (found["split"], "pairs")
    count = found["lines_of_file"] if "file" in found else found["lines_of_corpus"]
    read = next(found[side]["lines"] for side in SIDES if side in found)
    some = f"{read:,} of {count:,} {what}, drawn evenly" if read < count else f"all {count:,} {what}"
    return [f"{name}: {some}", *report_lines(found)]
