"""The stages and their order. A stage turns settings and inputs into a folder that is whole or absent.

Each folder carries `stage.json`: the settings it was made with, digests of its inputs and outputs, counts. A stage
whose record agrees with what it would be made from now is skipped; one that does not is made again, unless
checkpoints were trained on it: then the difference is told, key by key.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import transformer_mt
from transformer_mt.atomic import LOCK, locked, naming, new_folder, sha256, write_text
from transformer_mt.config import Config, TextSource, source_kind
from transformer_mt.config.file import differences, write_config
from transformer_mt.config.values import without_paths
from transformer_mt.errors import RunError, UserError, noted

if TYPE_CHECKING:
    from transformer_mt.distributed import Process
    from transformer_mt.train.log import Console

RECORD = "stage.json"
FORMAT = 1
LATER_KEYS: dict[str, Any] = {
    "weight": 1.0, "tag": None, "streaming": False, "remove_identical": False, "check_script": False, "symbols": [],
}  # fmt: skip
"""Settings that older records do not have, with what holds for them."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Stage:
    """One step of preparation."""

    name: str
    folder: Path
    settings: dict[str, Any]
    """By the configuration's sections; paths left out, since content counts."""
    inputs: Callable[[], dict[str, Any]]
    """Digests of what it reads."""
    work: Callable[[Path], dict[str, Any]]
    """Fills a folder and returns counts."""
    needed: tuple[str, ...] = ()
    """Files that not every folder of this stage has, but this configuration needs."""

    def stale(self) -> list[str]:
        """What differs between the folder's record and now, in sentences; [] when it is up to date."""
        record = read_record(self.folder)
        if record is None:
            return [f"{self.folder} is not made yet"]
        if record.get("format") != FORMAT:
            return [f"{self.folder} has format {record.get('format')}, this program writes {FORMAT}"]
        changes = [f"{key}: was {old}, is {new}" for key, old, new in changed(record["settings"], self.settings)]
        before, now = _digests(record["inputs"]), _digests(self.inputs())
        inputs = differences(before, now)
        return changes + [f"content of {key} changed: sha256 was {old}, is {new}" for key, old, new in inputs]

    def whole(self) -> bool:
        """Whether every file that the record tells of, or that is needed now, is there, and as long as it was."""
        sizes = (read_record(self.folder) or {}).get("sizes", {})  # older records have none
        for name in (*outputs_of(self.folder), *self.needed):
            path = self.folder / name
            if not path.is_file() or path.stat().st_size != sizes.get(name, path.stat().st_size):
                return False
        return True

    def depends_on(self) -> dict[str, Any]:
        """What makes its folder what it is: settings, and digests of what is read."""
        return {"settings": self.settings, "inputs": _digests(self.inputs())}

    def run(self) -> None:
        """Makes the folder."""
        with new_folder(self.folder) as folder, naming(self.folder):
            inputs = self.inputs()
            counts = self.work(folder)
            if changes := list(differences(_digests(inputs), _digests(self.inputs()))):
                read = ", ".join(key for key, _, _ in changes)
                raise RunError(f"the content of {read} changed while it was read: run the command again")
            made = sorted(folder.iterdir())
            record = {
                "format": FORMAT,
                "stage": self.name,
                "settings": self.settings,
                "inputs": inputs,
                "outputs": {path.name: sha256(path) for path in made},
                "sizes": {path.name: path.stat().st_size for path in made},
                "counts": counts,
                "made": {"version": transformer_mt.__version__, "time": datetime.now(timezone.utc).isoformat()},
            }
            write_text(folder / RECORD, json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def changed(before: dict[str, Any], now: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """What differs between recorded settings and others, by dotted keys."""
    for key, old, new in differences(before, now):
        name = key.rpartition(".")[2]
        if old is not None or name not in LATER_KEYS or new != LATER_KEYS[name]:
            yield key, old, new


def read_record(folder: Path) -> dict[str, Any] | None:
    """The record of a stage's folder, None where there is none that can be read: then it is made again."""
    try:
        record = json.loads((folder / RECORD).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def _digests(inputs: dict[str, Any]) -> dict[str, str]:
    """The digests among a record's inputs, short enough to be read."""
    return {key: str(value["sha256"] if isinstance(value, dict) else value)[:16] for key, value in inputs.items()}


def parts_folder(run: Path, name: str) -> Path:
    """Where machines that share a stage's work leave what they make."""
    return run / "parts" / name


def clear_parts(run: Path, name: str) -> None:
    """Removes what machines left of a stage that is made."""
    shutil.rmtree(parts_folder(run, name), ignore_errors=True)
    with suppress(OSError):  # there are none, or of another stage too
        parts_folder(run, name).parent.rmdir()


def outputs_of(folder: Path, names: Callable[[str], bool] = lambda name: True) -> dict[str, Any]:
    """Digests of the files that a stage made."""
    record = read_record(folder) or {"outputs": {}}
    return {name: digest for name, digest in record["outputs"].items() if names(name)}


def stages(config: Config, say: Say, workers: int = 0) -> list[Stage]:
    """The stages before training, in order; `workers` processes clean and encode text (0: one a core)."""
    from transformer_mt import shares
    from transformer_mt.data import corpus as text
    from transformer_mt.data import prepare
    from transformer_mt.data.clean import Cleaned

    def stage(name: str) -> Stage:
        return next(stage for stage in found if stage.name == name)

    seen: dict[str, Any] = {}

    def files_read() -> dict[str, Any]:
        record = read_record(corpus)
        seen.update(_fingerprints(config, {**(record["inputs"] if record else {}), **seen}))
        return dict(seen)

    run = config.output
    corpus, tokenizer, ids = run / "corpus", run / "tokenizer", run / "ids"
    plain = config.model_dump(mode="json")
    training_text = {f"train.{config.languages.source}", f"train.{config.languages.target}"}
    encoded_text = training_text | {name.replace("train", "validation") for name in training_text}
    found = [
        Stage(
            "download",
            corpus,
            {"languages": plain["languages"], "data": _flat(without_paths(_without_weights(plain["data"])))},
            files_read,
            lambda folder: text.make_corpus(
                config,
                folder,
                say,
                shares.pinned(run) or pinned(run),
                workers=workers,
                ready=shares.ready(stage("download"), run, Cleaned),
            ),
        ),
        Stage(
            "learn",
            tokenizer,
            {"tokenizer": without_paths(plain["tokenizer"])},
            lambda: _given_models(config) | outputs_of(corpus, training_text.__contains__),
            lambda folder: prepare.learn_tokenizer(config, corpus, _training_pairs(corpus), folder, say),
        ),
        Stage(
            "encode",
            ids,
            {"training": {key: plain["training"][key] for key in ("max_tokens", "too_long")}, **_weights(config)},
            lambda: outputs_of(corpus, encoded_text.__contains__) | outputs_of(tokenizer),
            lambda folder: prepare.encode_corpus(
                config, corpus, tokenizer, folder, say, workers, shares.ready(stage("encode"), run, prepare.Encoded)
            ),
            ("train.text",) if config.training.subword_sampling else (),
        ),
    ]
    return found


def _without_weights(data: dict[str, Any]) -> dict[str, Any]:
    """The text does not depend on them."""
    sources = [{key: value for key, value in source.items() if key != "weight"} for source in data["train"]]
    return {**data, "train": sources}


def _weights(config: Config) -> dict[str, Any]:
    """The weight of each training source."""
    return {f"data.train[{number}].weight": source.weight for number, source in enumerate(config.data.train)}


def _flat(data: dict[str, Any]) -> dict[str, Any]:
    """Lists of sources as mappings, so that differences name `data.train[0].split`."""
    flat = dict(data)
    for split in ("train", "validation", "test"):
        flat |= {f"{split}[{number}]": source for number, source in enumerate(flat.pop(split))}
    return flat


def pinned(run: Path) -> list[dict[str, Any]]:
    """The hub data sets that a run's corpus was made from before, each with its commit."""
    record = read_record(run / "corpus")
    return record["counts"]["hub"] if record else []


def check_corpus(config: Config) -> None:
    """Raises UserError when a run's corpus is not what the configuration asks for."""
    stage = stages(config, print)[0]
    if read_record(stage.folder) is None:
        raise UserError(f"{config.output} has no corpus yet: run `download` or `train` with this configuration first")
    if changes := stage.stale():
        raise UserError(f"{stage.folder} is not this configuration's: run `download`, or give another output", *changes)


def _training_pairs(corpus: Path) -> int:
    record = read_record(corpus)
    return int(record["counts"]["train"]["pairs"]) if record else 0


def _given_models(config: Config) -> dict[str, Any]:
    settings = config.tokenizer
    keys = ("model", "source_model", "target_model", "vocabulary")
    given = {key: path for key in keys if (path := getattr(settings, key))}
    return {f"tokenizer.{key}": sha256(path) for key, path in given.items() if path.is_file()}


def _fingerprints(config: Config, known: dict[str, Any]) -> dict[str, Any]:
    """Digests of the files of all sources; a file whose size and time are those that are known is not read again."""
    from transformer_mt.data.sources import parts, paths_of

    digests: dict[str, Any] = {}
    for split in ("train", "validation", "test"):
        for number, source in enumerate(getattr(config.data, split)):
            keys = ("source", "target") if isinstance(source, TextSource) else (source_kind(source),)
            files = [list(zip(keys, paths_of(part), strict=False)) for part in parts(source)]
            for place, (side, path) in ((place, file) for place, part in enumerate(files) for file in part):
                key = f"data.{split}[{number}].{side}" + (f"[{place}]" if len(files) > 1 else "")
                stat = path.stat()
                stamp, before = [stat.st_size, stat.st_mtime_ns], known.get(key, {})
                digest = before["sha256"] if before.get("stamp") == stamp else sha256(path)
                same = before.get("sha256") == digest
                digests[key] = before if same else {"sha256": digest, "stamp": stamp}
    return digests


def has_checkpoints(run: Path) -> bool:
    """Whether something was trained in this run folder."""
    return any((run / "checkpoints").glob("step-*"))


def refuse_changes(config: Config, say: Say) -> None:
    """Raises UserError, as `prepare` does, if this is another run than the one whose checkpoints are there."""
    if has_checkpoints(config.output):
        problems = _changes_since_training(config)
        for stage in stages(config, say):
            problems += stage.stale() if read_record(stage.folder) else []
        _refuse(config, problems)


def _refuse(config: Config, problems: Sequence[str]) -> None:
    if problems:
        remedy = f"{config.output} was trained with other settings: give another `output`, or --fresh to move it aside"
        raise UserError(remedy, *dict.fromkeys(problems))


def prepare(
    config: Config, say: Say, *, names: Sequence[str] = ("download", "learn", "encode"), workers: int = 0
) -> None:
    """Makes the corpus, the tokenizer and the ids where they are missing or stale.

    What a model was trained on is made again only where it is missing, and only as it was.
    """
    trained = has_checkpoints(config.output)
    problems = _changes_since_training(config) if trained else []
    for stage in stages(config, say, workers):
        if stage.name not in names:
            continue
        changes = stage.stale()
        if changes and trained and read_record(stage.folder):
            problems += changes
        elif changes or not stage.whole():
            if not problems:
                stage.run()
                clear_parts(config.output, stage.name)
        else:
            say(f"{stage.folder}: up to date")
            clear_parts(config.output, stage.name)
    _refuse(config, problems)


def _changes_since_training(config: Config) -> list[str]:
    """Keys that no training can change any more and that differ from the newest checkpoint's."""
    from transformer_mt.train.checkpoint import newest_config

    saved, now = newest_config(config.output / "checkpoints"), config.model_dump(mode="json")
    if saved is None:
        return []
    saved, now = ({**one, "tokenizer": without_paths(one["tokenizer"])} for one in (saved, now))
    fixed = ("languages", "tokenizer", "model", "training.max_tokens", "training.too_long")
    return [
        f"{key}: was {old}, is {new}"
        for key, old, new in changed(saved, now)
        if key.startswith(fixed) and key != "model.preset"
    ]


def move_aside(run: Path, say: Say) -> None:
    """Renames a run folder to the first free NAME.old-N."""
    run, number = run.resolve(), 1
    while (aside := run.with_name(f"{run.name}.old-{number}")).exists():
        number += 1
    run.rename(aside)
    say(f"{run} moved to {aside}")


def check(config: Config) -> None:
    """Raises UserError with all that can be seen to be wrong with the sources and the run folder before any work."""
    from transformer_mt.data.prepare import check_sources

    problems: list[str] = []
    noted(problems, lambda: check_sources(config))
    problems += _problems_of_run_folder(config)
    if problems:
        raise UserError(*problems)


def _problems_of_run_folder(config: Config) -> list[str]:
    """Why it cannot be the run folder: that must be new, empty or one of ours, since stages replace what is there."""
    from transformer_mt.data.sources import paths_of

    run = config.output
    try:
        there = next(path for path in (run, *run.absolute().parents) if path.exists())
    except OSError as failure:
        return [f"output {run}: {failure.strerror}"]
    if not there.is_dir():
        return [f"output {there} is a file, wanted a folder"]
    if run.is_dir() and any(run.iterdir()) and not (run / LOCK).exists():
        return [f"output {run} holds other files and no run: give a folder of its own"]
    problems: list[str] = []
    for split in ("train", "validation", "test"):
        for number, source in enumerate(getattr(config.data, split)):
            found = noted([], partial(paths_of, source))  # what is wrong with the source itself is told elsewhere
            inside = [path for path in found or () if path.resolve().is_relative_to(run.resolve())]
            problems += [f"data.{split}[{number}]: {path} lies in the run folder {run}" for path in inside]
    return problems


def prepare_run(
    config: Config, say: Say, *, fresh: bool = False, names: Sequence[str] | None = None, workers: int = 0
) -> None:
    """`prepare` in a locked run folder that carries its configuration."""
    check(config)
    if fresh and config.output.exists():
        with locked(config.output):
            move_aside(config.output, say)
    with locked(config.output):
        prepare(config, say, **({"names": names} if names else {}), workers=workers)
        if not has_checkpoints(config.output):  # else training writes what holds, once it has read them
            write_config(config)


def train(
    config: Config, process: "Process", console: "Console", *, fresh: bool = False, resets: Sequence[str] = ()
) -> None:
    """Prepares what is missing on the first rank, then trains on all.

    What an elastic launcher starts again after a failure goes on: `fresh` and `resets` do not hold then.
    """
    from transformer_mt.distributed import on_first_rank, restarted
    from transformer_mt.model.folder import locate
    from transformer_mt.train import log, opening

    if config.training.tensorboard and (problems := log.check_tensorboard()):
        raise UserError(*problems)
    if restarted():  # these were wishes for the first start
        fresh, resets = False, ()
    if config.training.initial_model and (fresh or not has_checkpoints(config.output)):
        locate(config.training.initial_model)
    on_first_rank(lambda: prepare_run(config, console, fresh=fresh))
    with ExitStack() as stack:
        on_first_rank(lambda: stack.enter_context(locked(config.output)))
        opening.train(config, config.output, process, console, resets)
