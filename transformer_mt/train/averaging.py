"""Several checkpoints made one model (section 6.1): which ones, their mean, and the folder it becomes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transformer_mt.atomic import new_folder, read_json
from transformer_mt.config import Config
from transformer_mt.errors import UserError
from transformer_mt.model.card import model_card
from transformer_mt.model.folder import WEIGHTS, model_settings, read_tensors, write_model
from transformer_mt.train import checkpoint, log


def average(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The arithmetic mean of the weights in these folders, whatever their order; float32, summed in float64.

    Raises UserError naming a folder whose tensors differ in name or shape from the first one's.
    """
    paths = sorted(paths)
    sums: dict[str, Tensor] = {}
    for path in paths:
        if (path / checkpoint.STATE).is_file():
            checkpoint.verify(path)
        tensors = read_tensors(path / WEIGHTS)
        if sums and {name: value.shape for name, value in sums.items()} != {n: t.shape for n, t in tensors.items()}:
            raise UserError(f"{path} is a checkpoint of another model than {paths[0]}: they cannot be averaged")
        for name, tensor in tensors.items():
            sums[name] = tensor.double() if name not in sums else sums[name].add_(tensor)
    return {name: (total / len(paths)).to(torch.float32) for name, total in sums.items()}


def best_checkpoints(run: Path, validations: Sequence[dict[str, Any]], metric: str) -> list[Path]:
    """The checkpoints of a run that were validated and are still there, best first."""
    steps = checkpoint.best_steps(validations, metric, len(validations))
    there = {checkpoint.step_of(path): path for path in checkpoint.checkpoints(run / "checkpoints")}
    return [there[step] for step in steps if step in there]


def chosen(
    run: Path,
    config: Config,
    validations: Sequence[dict[str, Any]],
    *,
    last: int | None = None,
    best: int | None = None,
) -> list[Path]:
    """The checkpoints to average, oldest first: the `last` or `best` ones by number, else what the config says."""
    rules = config.training.checkpoint
    if best or (not last and (rules.average_of == "best" or not rules.average)):
        found = best_checkpoints(run, validations, config.training.validation.metric)
        return sorted(found[: best or rules.average or 1])
    return checkpoint.planned(run / "checkpoints")[-(last or rules.average) :]


def write_average(run: Path, config: Config, folders: Sequence[Path], output: Path) -> None:
    """Writes a deployable folder from the mean of checkpoints of a run."""
    tensors = average(folders)
    steps = [checkpoint.step_of(path) for path in sorted(folders)]
    validations = log.validations(log.read_metrics(run))
    last = next((event for event in reversed(validations) if event["step"] in steps), None)
    counts = (read_json(run / "corpus" / "stage.json") or {}).get("counts", {})
    pairs = counts.get("train", {}).get("pairs")
    card = model_card(config, sum(tensor.numel() for tensor in tensors.values()), steps, last, pairs)
    with new_folder(output) as partial:
        write_model(partial, tensors, model_settings(config, steps), run / "tokenizer", card)
