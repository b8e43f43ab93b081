"""Models for other programs, and models from elsewhere; each proves that it says what the original says."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformer_mt.data import files
from transformer_mt.errors import UserError
from transformer_mt.export.ctranslate2 import PRECISIONS
from transformer_mt.export.proof import SENTENCES
from transformer_mt.model import folder

Say = Callable[[str], None]


def export(model: Path, form: str, output: Path, precision: str | None, sentences: Path | None, say: Say) -> None:
    """Writes a model for another program and compares both; `sentences` is a file of those to compare them on."""
    problems = list(_problems(output, form, precision))
    lines: tuple[str, ...] = SENTENCES
    try:
        origin = folder.locate(model)
        lines = tuple(_sentences(sentences)) if sentences else SENTENCES
    except UserError as error:
        problems += error.messages
    if problems:
        raise UserError(*problems)
    output = output.absolute()  # even the current folder has a name
    compared: dict[str, Any]
    if form == "huggingface":
        from transformer_mt.export import huggingface

        compared = huggingface.export(origin, output, lines).record()
    elif form == "onnx":
        from transformer_mt.export import onnx

        compared = onnx.export(origin, output, lines).record()
    else:
        from transformer_mt.export import ctranslate2

        compared = ctranslate2.export(origin, output, precision or "float32", lines)
    say(f"{output}: {form}, compared with {origin}: {told(compared)}")


def import_model(
    model: Path, output: Path, source: str | None, target: str | None, sentences: Path | None, say: Say
) -> None:
    """Brings a Marian folder into a model folder of ours and compares both."""
    from transformer_mt.export.marian import import_marian

    lines = tuple(_sentences(sentences)) if sentences else SENTENCES
    proof = import_marian(model, output, lines, source=source, target=target, say=lambda text: say(f"note: {text}"))
    say(f"{output}: compared with {model}: {told(proof.record())}")


def told(compared: dict[str, Any]) -> str:
    """What was compared, in a line."""
    return ", ".join(
        f"{key.replace('_', ' ')} {value:.2g}" if isinstance(value, float) else f"{value} {key.replace('_', ' ')}"
        for key, value in compared.items()
    )


def _sentences(path: Path) -> list[str]:
    if problem := files.path_problem(path):
        raise UserError(f"--sentences: {problem}")
    lines = [line for line in files.text_lines(path) if line.strip()]
    if not lines:
        raise UserError(f"--sentences: {path} has no sentences")
    return lines


def _problems(output: Path, form: str, precision: str | None) -> list[str]:
    problems = []
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        problems.append(f"--output {output} is there already: give a new folder")
    if precision is not None and form != "ctranslate2":
        problems.append(f"--precision does not go together with --format {form}, whose weights are float32")
    elif precision is not None and precision not in PRECISIONS:
        problems.append(f"--precision {precision}: wanted {', '.join(PRECISIONS)}")
    return problems
