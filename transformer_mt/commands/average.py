"""The mean of checkpoints as a model folder."""

from collections.abc import Callable, Sequence
from pathlib import Path

from transformer_mt.atomic import sha256
from transformer_mt.config import Config
from transformer_mt.config.file import config_from_dict
from transformer_mt.data.tokenizer import Tokenizer
from transformer_mt.errors import UserError
from transformer_mt.model import folder
from transformer_mt.train import averaging, checkpoint, log

Say = Callable[[str], None]


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
