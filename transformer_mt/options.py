"""The options of the command line, named, explained and checked alike in every command."""

from pathlib import Path
from typing import Annotated, Any

import typer

from transformer_mt.errors import UserError

PRECISIONS = ("float32", "bfloat16", "float16", "float64")

Config = Annotated[str, typer.Option("--config", "-c", help="YAML file, or the name of a shipped one.")]
MaybeConfig = Annotated[str | None, typer.Option("--config", "-c", help="YAML file, or the name of a shipped one.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="key.path=value in place of the file's; repeatable.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Move an existing run folder aside first.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print warnings and results only.")]
Debug = Annotated[bool, typer.Option("--debug", help="Print tracebacks.")]
Workers = Annotated[int, typer.Option("--workers", min=0, help="Processes that clean and encode; 0: one a core.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:N or mps.")]
Precision = Annotated[
    str, typer.Option("--precision", help="float32, bfloat16, float16 or float64; int8 and more with ctranslate2.")
]
Engine = Annotated[str, typer.Option("--engine", help="native, or ctranslate2: another search, on a converted model.")]
Model = Annotated[
    list[Path] | None,
    typer.Option("--model", "-m", help="Run, model or checkpoint folder; several: the mean of their probabilities."),
]
Beam = Annotated[int | None, typer.Option("--beam-size", min=1, help="1 is greedy search.")]
Best = Annotated[int | None, typer.Option("--n-best", min=1, help="Hypotheses for each line.")]
MinLength = Annotated[
    int | None, typer.Option("--min-length", min=0, help="Fewest pieces of an output, </s> not counted.")
]
Factor = Annotated[
    float | None,
    typer.Option("--max-length-factor", min=0, help="Most pieces of an output: factor x source pieces + extra."),
]
Extra = Annotated[int | None, typer.Option("--max-length-extra", min=0, help="See --max-length-factor.")]
Batch = Annotated[int | None, typer.Option("--batch-size", min=1, help="Sentences decoded together at most.")]
Penalty = Annotated[
    str | None,
    typer.Option(
        "--length-penalty",
        help="What log-probabilities are divided by; n counts </s>: "
        "none 1, average n, power n^alpha, gnmt ((5+n)/6)^alpha.",
    ),
]
Temperature = Annotated[float | None, typer.Option("--temperature", help="Sampling: logits are divided by it.")]
TopK = Annotated[int | None, typer.Option("--top-k", min=1, help="Sampling: from so many best pieces only.")]
TopP = Annotated[float | None, typer.Option("--top-p", help="Sampling: from the fewest pieces of this share.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Sampling: another seed, other outputs.")]
Alpha = Annotated[float | None, typer.Option("--alpha", help="Exponent of the length penalty.")]
Reset = Annotated[
    list[str] | None,
    typer.Option("--reset", help="optimizer, schedule or data: take the config's, not the checkpoint's; repeatable."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Input = Annotated[Path | None, typer.Option("--input", "-i", help="File to translate; default stdin.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="File to write; default stdout.")]
Sample = Annotated[bool, typer.Option("--sample", help="Draw outputs instead of searching for the best.")]
Repeat = Annotated[
    int | None, typer.Option("--no-repeat-ngram", min=0, help="No sequence of so many pieces comes twice.")
]
Prefix = Annotated[Path | None, typer.Option("--target-prefix", help="File: what each translation has to begin with.")]
Terms = Annotated[Path | None, typer.Option("--terms", help="File of source, tab, target: terms that have to appear.")]
Keep = Annotated[
    list[str] | None,
    typer.Option("--keep", help="What survives unchanged: tags, placeholders, urls, emails; repeatable."),
]
KeepPattern = Annotated[
    list[str] | None, typer.Option("--keep-pattern", help="A regular expression of what survives; repeatable.")
]
Alignments = Annotated[
    Path | None, typer.Option("--alignments", help="File to write: pairs of word numbers, source-target, by attention.")
]
Layer = Annotated[
    int | None,
    typer.Option("--alignment-layer", min=1, help="Decoder layer of --alignments; default: last but one."),
]
Split = Annotated[bool, typer.Option("--split-sentences", help="Translate the sentences of each line one by one.")]
Long = Annotated[
    str | None, typer.Option("--long-lines", help="Of a line with too many pieces: split it, or cut its end off.")
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Exit 1 if a line was cut, hit its limit or lacks what it has to hold.")
]
Interactive = Annotated[
    bool, typer.Option("--interactive", help="Answer each line of a pipe before the next one is read.")
]
Report = Annotated[Path | None, typer.Option("--report", help="File for the summary as JSON, with line numbers.")]
Monolingual = Annotated[
    Path, typer.Option("--input", "-i", help="Text to translate back, a sentence a line; .gz and the like too.")
]
Pairs = Annotated[
    Path, typer.Option("--output", "-o", help="A new TSV file: translation, line; its blocks are kept in FILE.parts.")
]
Shard = Annotated[str | None, typer.Option("--shard", help="I/N: do the I-th of N equal shares of the work, as 2/4.")]
ShardLines = Annotated[int, typer.Option("--shard-lines", min=1, help="Lines of a block, which is lost as a whole.")]


def check_choice(option: str, value: str, allowed: tuple[str, ...]) -> None:
    """Refuses a value that is none of those allowed."""
    if value not in allowed:
        raise UserError(f"{option} {value}: wanted {', '.join(allowed)}")


def check_engine(engine: str, precision: str) -> None:
    """Refuses an engine that there is not, and a precision that our own does not have."""
    check_choice("--engine", engine, ("native", "ctranslate2"))
    if engine == "native":
        check_choice("--precision", precision, PRECISIONS)


def resets(given: list[str] | None) -> list[str]:
    """The values of --reset."""
    allowed = ("optimizer", "schedule", "data")
    if wrong := [name for name in given or () if name not in allowed]:
        raise UserError(f"--reset {wrong[0]}: wanted {', '.join(allowed)}")
    return list(given or ())


def search_changes(
    beam_size: int | None, n_best: int | None, batch_size: int | None, length_penalty: str | None, alpha: float | None
) -> dict[str, Any]:
    """Keys of `decoding` that options replace; None leaves a key as it is."""
    if length_penalty is not None:
        check_choice("--length-penalty", length_penalty, ("none", "average", "power", "gnmt"))
    return {
        "beam_size": beam_size,
        "n_best": n_best,
        "batch_size": batch_size,
        "length_penalty.form": length_penalty,
        "length_penalty.alpha": alpha,
    }


def sampling_changes(
    sample: bool, temperature: float | None, top_k: int | None, top_p: float | None, seed: int | None
) -> dict[str, Any]:
    """The same of `decoding.sampling`: any of these options asks for it."""
    return {
        "sampling.temperature": 1.0 if sample and temperature is None else temperature,
        "sampling.top_k": top_k,
        "sampling.top_p": top_p,
        "sampling.seed": seed,
    }
