"""Checkpoints: written whole or not at all, the newest one that is whole found again, old ones removed by rule.

checkpoints/step-000001000/ holds model.safetensors, optimizer.safetensors (the newest few only) and state.json.
"""

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from transformer_mt.atomic import new_folder, partial_of, sha256, write_json
from transformer_mt.config import Checkpoint, Config
from transformer_mt.config.file import config_from_dict, differences
from transformer_mt.config.values import digest
from transformer_mt.errors import RunError, UserError
from transformer_mt.evaluate.scores import is_better
from transformer_mt.model.folder import FORMAT, WEIGHTS, read_tensors, save_tensors

MOMENTS = "optimizer.safetensors"
STATE = "state.json"
BEST = "best"

# Keys whose value in the checkpoint stays unless their group is reset.
RESETS = {
    "optimizer": ("training.optimizer", "training.label_smoothing"),
    "schedule": ("training.learning_rate",),
    "data": ("training.batch_tokens", "training.seed", "training.subword_sampling"),
}


@dataclass
class Progress:
    """How far training has come: everything but weights and moments that the next update depends on."""

    step: int = 0
    """Updates made."""
    epoch: int = 0
    batch: int = 0
    """The next batch of the epoch."""
    tokens: int = 0
    """Target tokens seen, `</s>` included."""
    skipped: int = 0
    """Updates left out because the gradient was not finite."""
    skipped_in_row: int = 0
    seconds: float = 0.0
    """Spent in updates, over all sessions."""
    device_tokens: int = 0
    """What `training.device_tokens: auto` came to."""
    minutes: float = 0.0
    """The training.max_minutes that `last_step` was reckoned from."""
    last_step: int | None = None
    """The number of updates that they came to."""
    loss_scale: dict[str, float] = field(default_factory=dict)
    """State of the float16 loss scaler."""
    sums: dict[str, float] = field(default_factory=dict)
    """Loss, nll, tokens and such since the last line of the log."""


def name_of(step: int) -> str:
    """Folder name of a checkpoint."""
    return f"step-{step:09d}"


def planned(folder: Path) -> list[Path]:
    """The checkpoints to average: those saved at the config's intervals, and the newest one.

    Others were saved because training was interrupted, and serve to resume from it only.
    """
    found = checkpoints(folder)
    return [path for path in found[:-1] if is_planned(path)] + found[-1:]


def is_planned(folder: Path) -> bool:
    """Whether a checkpoint was saved at one of the config's intervals."""
    try:
        return bool(read_state(folder).get("planned", True))
    except UserError:
        return True


def step_of(folder: Path) -> int:
    """The update a checkpoint folder was written after; its record tells where its name does not."""
    number = folder.name.removeprefix("step-")
    return int(number) if number.isdecimal() else int(read_state(folder)["progress"]["step"])


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoint folders, oldest first."""
    return sorted(path for path in folder.glob("step-*") if path.name[5:].isdecimal())


def save(
    folder: Path,
    tensors: Mapping[str, Tensor],
    moments: Mapping[str, Tensor],
    progress: Progress,
    record: dict[str, Any],
) -> Path:
    """Writes a checkpoint beside its place, forces it to the disk, then renames it. Returns its folder.

    `record` is plain data kept with it: the configuration and what it ran on.
    """
    final = folder / name_of(progress.step)
    try:
        with new_folder(final) as partial:
            save_tensors(tensors, partial / WEIGHTS)
            save_tensors(moments, partial / MOMENTS)
            digests = {name: sha256(partial / name) for name in (WEIGHTS, MOMENTS)}
            state = {"format": FORMAT, "progress": asdict(progress), "sha256": digests, **record}
            write_json(partial / STATE, {**state, "digest": digest(state)})
    except (OSError, SafetensorError) as error:
        size = sum(tensor.nbytes for tensor in (*tensors.values(), *moments.values()))
        raise RunError(f"checkpoint {final} needs {size / 1e6:.1f} MB and could not be written: {error}") from None
    return final


@dataclass(frozen=True)
class Saved:
    """A checkpoint as read: plain state, how far training had come, weights and moments on the CPU."""

    folder: Path
    state: dict[str, Any]
    progress: Progress
    tensors: dict[str, Tensor]
    moments: dict[str, Tensor]


def read_state(folder: Path) -> dict[str, Any]:
    """The plain part of a checkpoint."""
    path = folder / STATE
    if not path.is_file():
        raise UserError(f"{folder} is no checkpoint: it has no state.json")
    try:
        state: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if not isinstance(state, dict):
        raise UserError(f"{path} holds no JSON object")
    if state.get("format") != FORMAT:
        raise UserError(f"{folder} has format {state.get('format')}, this program reads {FORMAT}")
    return state


def newest_config(folder: Path) -> dict[str, Any] | None:
    """The configuration that the newest readable checkpoint was trained with."""
    for path in reversed(checkpoints(folder)):
        with suppress(UserError, OSError, ValueError, KeyError):
            return _with_defaults(read_state(path)["config"])
    return None


def _with_defaults(saved: dict[str, Any]) -> dict[str, Any]:
    """A stored configuration with the keys that there were not yet when it was stored."""
    return config_from_dict(saved, "the checkpoint's configuration").model_dump(mode="json")


def newest(folder: Path) -> tuple[Saved | None, list[str]]:
    """The newest checkpoint that is whole and can be resumed from, and a warning for each newer one that is not.

    Raises RunError when there are checkpoints and none of them is good: never silently from scratch.
    """
    problems: list[str] = []
    found = checkpoints(folder)
    for path in reversed(found):
        try:
            saved = read(path)
        except (UserError, OSError, ValueError, KeyError, TypeError) as error:
            problems.append(f"checkpoint {path} cannot be resumed from: {error}")
        else:
            return saved, [f"{problem}; it is set aside, and {path.name} is used instead" for problem in problems]
    if found:
        raise RunError(*problems, f"no checkpoint in {folder} can be resumed from (--fresh starts again)")
    return None, []


def read(folder: Path) -> Saved:
    """A checkpoint whose files are, to the last bit, those that were written."""
    state = verify(folder)
    if unknown := state["progress"].keys() - {item.name for item in fields(Progress)}:
        raise UserError(f"{folder / STATE} holds progress.{min(unknown)}, which this version does not know")
    progress = Progress(**state["progress"])
    return Saved(folder, state, progress, read_tensors(folder / WEIGHTS), read_tensors(folder / MOMENTS))


def verify(folder: Path) -> dict[str, Any]:
    """The plain part of a checkpoint, whose files and state are as they were written, as far as digests tell."""
    state = read_state(folder)
    own = state.pop("digest", None)
    if own is not None and digest(state) != own:
        raise UserError(f"{folder / STATE} is not as it was written")
    for name, written in state.get("sha256", {}).items():
        if (folder / name).is_file() and sha256(folder / name) != written:
            raise UserError(f"{folder / name} is not as it was written")
    return state


def set_aside(folder: Path, step: int) -> None:
    """Renames checkpoints of later updates than the one that training goes on from: they cannot be trusted."""
    for path in checkpoints(folder):
        if step_of(path) > step:
            aside = path.with_name(f"damaged-{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)


def keep_or_reset(config: Config, saved: dict[str, Any], resets: Sequence[str]) -> tuple[Config, list[str]]:
    """The configuration that holds when training goes on from a checkpoint, and a line for each differing key."""
    values, lines = config.model_dump(mode="json"), []
    saved = _with_defaults(saved)
    for key, before, now in list(differences(saved["training"], values["training"], "training")):
        group = next((name for name, prefixes in RESETS.items() if key.startswith(prefixes)), None)
        if group is None:
            continue
        used = now if group in resets else before
        hint = "" if group in resets else f" (--reset {group} takes the config's)"
        lines.append(f"{key}: config {now}, checkpoint {before}, using {used}{hint}")
        section = values
        *path, last = key.split(".")
        for name in path:
            section = section[name]
        section[last] = used
    return config_from_dict(values, "the configuration, with what the checkpoint keeps"), lines


def mark_best(folder: Path, step: int) -> None:
    """Makes `best` point to a checkpoint, in one rename."""
    link = partial_of(folder / BEST)
    link.unlink(missing_ok=True)
    link.symlink_to(name_of(step))
    os.replace(link, folder / BEST)


def prune(folder: Path, keep_last: int, keep_resumable: int, best_steps: Sequence[int]) -> list[str]:
    """Removes what the rules do not keep: names of removed checkpoints. Best ones stay, with weights only."""
    found = checkpoints(folder)
    kept = {*map(step_of, planned(folder)[-keep_last:]), *best_steps}
    removed = []
    for path in found[:-keep_resumable]:
        if step_of(path) not in kept:
            path.rename(partial_of(path))
            removed.append(path.name)
        else:
            (path / MOMENTS).unlink(missing_ok=True)
    for leftover in folder.glob(".step-*"):
        shutil.rmtree(leftover)
    return removed


def bytes_needed(weights: int, moments: int, rules: Checkpoint, count: int) -> int:
    """Bytes on disk at the most: `count` checkpoints in all but no more than are kept, one being written, and model/.

    weights, moments: bytes of the two files of one checkpoint.
    """
    kept = min(count, max(rules.keep_last, rules.keep_resumable) + rules.keep_best)
    return kept * weights + min(kept, rules.keep_resumable) * moments + weights + moments + weights


def check_disk(run: Path, needed: int) -> None:
    """Raises RunError where the disk has no room for what training will write; what is there already counts."""
    own = sum(path.stat().st_size for name in ("checkpoints", "model") for path in (run / name).rglob("*.safetensors"))
    free = shutil.disk_usage(run).free
    if needed - own > free:
        raise RunError(
            f"{run} needs {(needed - own) / 1e6:.1f} MB more for its checkpoints and model, "
            f"the disk has {free / 1e6:.1f} MB free (make room, or lower training.checkpoint.keep_last)"
        )


def best_steps(events: Sequence[dict[str, Any]], metric: str, count: int) -> list[int]:
    """Steps of the `count` best validations by a metric, best first; of equal ones the earlier."""
    sign = -1 if is_better(metric, 1.0, 0.0) else 1
    measured = [event for event in events if event.get(metric) is not None and not math.isnan(event[metric])]
    return [event["step"] for event in sorted(measured, key=lambda event: sign * event[metric])][:count]
