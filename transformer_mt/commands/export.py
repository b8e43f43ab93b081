"""Models for other programs, and models from elsewhere; each proves that it says what the original says."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from transformer_mt.atomic import taken
from transformer_mt.data import files
from transformer_mt.errors import UserError, noted
from transformer_mt.export.ctranslate2 import PRECISIONS
from transformer_mt.export.proof import SENTENCES
from transformer_mt.model import folder

Say = Callable[[str], None]


def export(model: Path, form: str, output: Path, precision: str | None, sentences: Path | None, say: Say) -> None:
    """Writes a model for another program and compares both; `sentences` is a file of those to compare them on."""
    problems = [*_output_problems(output), *_precision_problems(form, precision)]
    origin = noted(problems, lambda: folder.locate(model))
    lines = noted(problems, lambda: _sentences(sentences))
    if origin is None or lines is None or problems:
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
    from transformer_mt.export import marian, marian_folder

    problems = list(_output_problems(output))
    lines = noted(problems, lambda: _sentences(sentences))
    theirs = noted(problems, lambda: marian_folder.read_marian(model))
    if theirs is None or lines is None or problems:
        raise UserError(*problems)
    proof = marian.import_marian(
        theirs, output.absolute(), lines, source=source, target=target, say=lambda text: say(f"note: {text}")
    )
    say(f"{output}: compared with {model}: {told(proof.record())}")


def told(compared: dict[str, Any]) -> str:
    """What was compared, in a line."""
    return ", ".join(
        f"{key.replace('_', ' ')} {value:.2g}" if isinstance(value, float) else f"{value} {key.replace('_', ' ')}"
        for key, value in compared.items()
    )


def _sentences(path: Path | None) -> Sequence[str]:
    """The lines of a file, or those used where none is given."""
    if path is None:
        return SENTENCES
    if problem := files.path_problem(path):
        raise UserError(f"--sentences: {problem}")
    lines = [line for line in files.text_lines(path) if line.strip()]
    if not lines:
        raise UserError(f"--sentences: {path} has no sentences")
    return lines


def _output_problems(output: Path) -> Iterator[str]:
    if problem := taken(output):
        yield f"--output {problem}"


def _precision_problems(form: str, precision: str | None) -> Iterator[str]:
    if precision is not None and form != "ctranslate2":
        yield f"--precision does not go together with --format {form}, whose weights are float32"
    elif precision is not None and precision not in PRECISIONS:
        yield f"--precision {precision}: wanted {', '.join(PRECISIONS)}"
