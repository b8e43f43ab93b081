"""Kills a training run with SIGKILL at random moments, and shows that it ends as if nothing had happened.

    python scripts/kill_and_resume.py                       a hundred kills, one process
    python scripts/kill_and_resume.py --kills 20 --ranks 2  torchrun with two workers, all of them killed

A tiny run on sentences of the embedded grammar is trained undisturbed, then again in another folder while it is
killed over and over. After every kill the folder must hold nothing but whole files; in the end checkpoint, model and
metrics must be those of the undisturbed run, to the bit. Prints a summary as JSON; exit code 1 if anything differs.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from transformer_mt.errors import Failure
from transformer_mt.model.folder import read_tensors
from transformer_mt.train import checkpoint

CLOCKS = ("seconds", "tokens_per_second")
LOGS = ("metrics.jsonl", "train.log")
"""Files that grow line by line: the only ones that may be empty, or end in the middle of a line."""
BEGUN = "million parameters"
"""Is in the line that says what is about to be trained."""
SAVE, VALIDATE = 5, 20
"""Updates between checkpoints and between validations: neither divides the updates between lines of the log."""
STARTING = 0.3
"""Share of the kills that fall into the start-up."""
RESERVE = 0.1
"""Share of the kills that is left for the end of the run: the last updates, averaging, leaving."""


def settings(updates: int) -> dict[str, Any]:
    """A run of many small things: several passes an update, dropout, sampled subwords, validations that translate."""

    def pairs(count: int, seed: int) -> list[dict[str, Any]]:
        return [{"demo": "english-german", "pairs": count, "seed": seed}]

    return {
        "name": "kill-and-resume",
        "output": "run",
        "languages": {"source": "en", "target": "de"},
        "data": {"train": pairs(1500, 1), "validation": pairs(8, 2)},
        "tokenizer": {"vocabulary_size": 400, "byte_fallback": False, "character_coverage": 1.0},
        "model": {
            "encoder_layers": 1, "decoder_layers": 1, "model_size": 64, "feedforward_size": 128, "heads": 4,
            "dropout": 0.1,
        },
        "training": {
            "batch_tokens": 500,
            "device_tokens": 200,
            "max_tokens": 60,
            "max_steps": updates,
            "subword_sampling": 0.1,
            "learning_rate": {"warmup_steps": 60, "peak": 3e-3},
            "log_every_steps": 3,
            "checkpoint": {"every_steps": SAVE, "keep_last": 40, "average": 40},
            "validation": {"every_steps": VALIDATE},
        },
        "decoding": {"beam_size": 2, "max_length": {"factor": 1.0, "extra": 4}},
    }  # fmt: skip


class Broken(Exception):
    """What must not happen, in sentences."""


# Processes


def descendants(process: int) -> list[int]:
    """The processes below one, in whatever session: torchrun's workers have sessions of their own."""
    listed = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = [tuple(map(int, line.split())) for line in listed.splitlines()]
    found = [process]
    for parent in found:  # grows while it is walked
        found += [child for child, its_parent in parents if its_parent == parent]
    return found[1:]


def alive(processes: list[int]) -> bool:
    """Whether any of them still runs; one that is dead and not yet collected does not."""
    command = ["ps", "-o", "stat=", "-p", ",".join(map(str, processes))]
    states = subprocess.run(command, capture_output=True, text=True).stdout.split()
    return any(not state.startswith("Z") for state in states)


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to a process and all below it; returns when none of them runs any more."""
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGSTOP)  # a launcher that is stopped starts no further worker
    everyone = [process.pid, *descendants(process.pid)]
    for number in everyone:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    process.wait()
    while alive(everyone):
        time.sleep(0.02)


@dataclass
class Runner:
    """Starts the training command in a folder that has the configuration."""

    folder: Path
    ranks: int
    sets: list[str]

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.folder / "run"

    def log(self) -> str:
        """What the last session wrote to stderr."""
        return (self.folder / "stderr.log").read_text("utf-8", errors="replace")

    def start(self) -> subprocess.Popen[bytes]:
        """Starts a session."""
        launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(self.ranks), "-m"]
        module = [*(launcher if self.ranks > 1 else []), "transformer_mt"]
        changes = [part for change in self.sets for part in ("--set", change)]
        command = [sys.executable, "-m", *module, "train", "--config", "config.yaml", "--device", "cpu", *changes]
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        with (self.folder / "stderr.log").open("wb") as log:
            return subprocess.Popen(
                command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def session(self, seconds: float, *, training: bool) -> tuple[int | None, float | None, float]:
        """Lets a session run for so long, or train for so long, then kills it.

        Its exit code if it ended by itself before; the seconds until it began to train, if it did; those it lived.
        """
        process, begin = self.start(), time.monotonic()
        begun, now = None, 0.0
        try:
            while process.poll() is None:
                now = time.monotonic() - begin
                if begun is None and BEGUN in self.log():
                    begun = now
                since = begun if training else 0.0
                if since is not None and now >= since + seconds:
                    break
                time.sleep(0.02 if since is None else min(0.02, since + seconds - now))
            return process.returncode, begun, now
        finally:
            if process.returncode is None:
                kill_all(process)

    def to_the_end(self) -> tuple[float, float, float]:
        """An undisturbed session: seconds to the first line about updates, to the last one, and in all."""
        process, begin = self.start(), time.monotonic()
        seen = [0.0, 0.0]
        try:
            while process.poll() is None:
                time.sleep(0.02)
                now, log = time.monotonic() - begin, self.log()
                done = re.search(r"^step (\d+)/\1 ", log, re.MULTILINE)
                for place, there in enumerate((re.search(r"^step \d", log, re.MULTILINE), done)):
                    seen[place] = seen[place] or (now if there else 0.0)
        finally:
            if process.returncode is None:
                kill_all(process)
        if process.returncode:
            raise Broken(f"training ended with exit code {process.returncode}:\n{self.log()[-2000:]}")
        whole = time.monotonic() - begin
        return seen[0] or whole, seen[1] or whole, whole


# What must hold after a kill


def damage(run: Path) -> list[str]:
    """What in a run folder is not whole, in sentences: whatever has its final name must be."""
    found = [f"{path} is empty" for path in _final_files(run) if path.name not in LOGS and path.stat().st_size == 0]
    folder = run / "checkpoints"
    for path in checkpoint.checkpoints(folder):
        try:
            checkpoint.verify(path)  # the optimiser's file of an older checkpoint is removed by rule
            read_tensors(path / "model.safetensors")
        except (Failure, OSError, ValueError, KeyError) as failure:
            found.append(f"checkpoint {path.name} is not whole: {failure}")
    try:
        found += checkpoint.newest(folder)[1]
    except Failure as failure:
        found += failure.messages
    best = folder / "best"
    if best.is_symlink() and not best.is_dir():
        found.append(f"{best} points to {os.readlink(best)}, which is gone")
    if (run / "model").exists():
        try:
            read_tensors(run / "model" / "model.safetensors")
        except Failure as failure:
            found += failure.messages
    return found + _damaged_lines(run / "metrics.jsonl")


def _final_files(run: Path) -> Iterator[Path]:
    """Files that neither are hidden nor lie in a hidden folder: those names are for what is not finished."""
    for path in run.rglob("*"):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(run).parts):
            yield path


def _damaged_lines(path: Path) -> list[str]:
    if not path.is_file():
        return []
    found = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):  # what follows the last end of line is torn
        try:
            json.loads(line)
        except ValueError:
            found.append(f"{path}, line {number} is no JSON: {line[:60]!r}")
    return found


def events(run: Path) -> list[dict[str, Any]]:
    """The whole lines of metrics.jsonl, without what the clock says."""
    path = run / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
    return [{key: value for key, value in json.loads(line).items() if key not in CLOCKS} for line in lines]


def last_step(run: Path) -> int:
    """The update of the newest checkpoint, 0 when there is none."""
    found = checkpoint.checkpoints(run / "checkpoints")
    return checkpoint.step_of(found[-1]) if found else 0


def differences(one: Path, other: Path) -> list[str]:
    """In what two finished run folders differ, in sentences; the clock does not count."""
    steps = last_step(one), last_step(other)
    if 0 in steps or steps[0] != steps[1]:
        return [f"the last checkpoints are of update {steps[0]} and {steps[1]}"]
    last = Path("checkpoints") / checkpoint.name_of(steps[0])
    names = [last / "model.safetensors", last / "optimizer.safetensors"]
    names += [Path("model") / name for name in ("model.safetensors", "config.yaml")]
    found = [sentence for name in names for sentence in _file_difference(one / name, other / name)]
    for run in (one, other):
        counts = Counter((event["event"], event["step"]) for event in events(run))
        found += [f"{run / LOGS[0]} tells {n} times of {kind} at {at}" for (kind, at), n in counts.items() if n > 1]
    pairs = list(zip(events(one), events(other), strict=False))
    if uneven := next((pair for pair in pairs if pair[0] != pair[1]), None):
        found.append(f"{LOGS[0]} differs: {json.dumps(uneven[0])} and {json.dumps(uneven[1])}")
    if len(events(one)) != len(events(other)):
        found.append(f"{LOGS[0]} has {len(events(one))} and {len(events(other))} events")
    return found


def _file_difference(one: Path, other: Path) -> list[str]:
    if missing := [path for path in (one, other) if not path.is_file()]:
        return [f"{path} is not there" for path in missing]
    contents = one.read_bytes(), other.read_bytes()
    if contents[0] == contents[1]:
        return []
    place = next((n for n, pair in enumerate(zip(*contents, strict=False)) if pair[0] != pair[1]), None)
    where = f"length {len(contents[0])} and {len(contents[1])}" if place is None else f"first at byte {place}"
    return [f"{one.name} of {one.parent.name} differs, {where}: {one}, {other}"]


# Killing


@dataclass
class Times:
    """What an undisturbed run takes, in seconds."""

    first: float
    """Until updates are made, the preparation of data included."""
    again: float
    """The same when all is prepared."""
    update: float
    """For an update, with its share of saving and validating."""
    ending: float
    """From the last update until the process is gone."""
    window: float = 0.0
    """How far into the updates a kill may be drawn."""

    def fit_window(self, updates: int, kills: float) -> None:
        """Chooses the window in which so many kills let the run progress by so many updates.

        A kill at a moment of the window lets it progress by half of the window, less what was not saved yet.
        """
        self.window = (SAVE + 2 * updates / max(1.0, kills * (1 - STARTING))) * self.update

    def moment(self, share: float, updates_left: int, *, prepared: bool) -> tuple[float, bool]:
        """The seconds to a kill, and whether they count from the beginning of training.

        A share below STARTING falls into the start-up, another into the window or what is left of the run; within each
        all moments are as likely. Without the division nearly all kills would fall into the start-up, which is the
        longest part of such short sessions.
        """
        if share < STARTING or not updates_left:
            share = share / STARTING if share < STARTING else share
            return share * (self.again if prepared else self.first), False
        rest = updates_left * self.update + self.ending
        return min(self.window, rest) * (share - STARTING) / (1 - STARTING), True

    def follow(self, begun: float | None, seconds: float, updates: int) -> None:
        """Takes a session into account, since other load on the machine comes and goes.

        Training began after so many seconds, if it did, and made so many updates until the session was killed.
        """
        self.again += ((begun or max(self.again, seconds)) - self.again) / 3
        if begun and updates > 0:
            self.update += ((seconds - begun) / updates - self.update) / 3


def shares(count: int, generator: random.Random) -> Iterator[float]:
    """Random numbers, uniform between 0 and 1, the first `count` of them one in each of so many equal parts."""
    for part in generator.sample(range(count), count):
        yield (part + generator.random()) / count
    while True:
        yield generator.random()


@dataclass
class Tally:
    """What happened so far."""

    kills: int = 0
    sessions: int = 0
    ended_before_the_kill: int = 0
    updates_redone: int = 0
    fell_into: Counter[str] = field(default_factory=Counter)


def measure(runner: Runner, updates: int) -> Times:
    """Trains undisturbed, then starts once more, when there is nothing left to train."""
    first, last, whole = runner.to_the_end()
    again = runner.to_the_end()[2]
    return Times(first, again, (last - first) / updates, whole - last)


def fell_into(run: Path, log: str, began: float, updates: int) -> str:
    """What a session was doing when it was killed, from what it left in the folder and in its log."""
    hidden = {path.name for path in [*run.glob(".*.partial"), *run.glob("checkpoints/.*")] if _age(path) >= began}
    if hidden & {".corpus.partial", ".tokenizer.partial", ".ids.partial"}:
        return "preparing data"
    if BEGUN not in log:
        return "start-up"
    if ".model.partial" in hidden:
        return "averaging"
    if any(name.startswith(".step-") for name in hidden):
        return "saving"
    step, measured = last_step(run), {event["step"] for event in events(run) if event["event"] == "validation"}
    due = step and (step % VALIDATE == 0 or step == updates)
    if due and step not in measured:
        return "validating"
    if step < updates:
        return "updating"
    return "leaving" if (run / "model").exists() else "averaging"


def _age(path: Path) -> float:
    with suppress(FileNotFoundError):
        return path.stat().st_mtime
    return 0.0


def kill_once(
    runner: Runner, tally: Tally, moment: tuple[float, bool], updates: int
) -> tuple[float | None, float, int]:
    """A session that is killed at such a moment, and what it left looked at.

    When it had begun to train, the seconds it lived, and the updates that it made, as far as its log tells.
    """
    before, first = time.time() - 0.01, last_step(runner.run)  # clocks of file systems tick coarsely
    code, begun, seconds = runner.session(moment[0], training=moment[1])
    tally.sessions += 1
    log, step = runner.log(), last_step(runner.run)
    reached = max((int(number) for number in re.findall(r"^step (\d+)", log, re.MULTILINE)), default=first)
    if code:
        raise Broken(f"a session ended by itself with exit code {code}:\n{log[-2000:]}")
    if code == 0:
        tally.ended_before_the_kill += 1
        return begun, seconds, 0
    tally.kills += 1
    where = fell_into(runner.run, log, before, updates)
    tally.fell_into[where] += 1
    tally.updates_redone += max(0, reached - step)
    print(f"kill {tally.kills}, after {seconds:.2f} s, {where}, goes on from {step}/{updates}", file=sys.stderr)
    if found := damage(runner.run):
        raise Broken(*(f"after kill {tally.kills} ({where}): {sentence}" for sentence in found))
    return begun, seconds, max(reached, step) - first


def disturb(runner: Runner, times: Times, options: argparse.Namespace, updates: int) -> Tally:
    """Kills until the kills are used up, then lets the run come to its end."""
    tally, run = Tally(), runner.run
    moments = shares(options.kills, random.Random(options.seed))
    while tally.kills < options.kills:
        if tally.sessions > 5 * options.kills + 20:
            raise Broken(f"only {tally.kills} of {tally.sessions} sessions lived until they were to be killed")
        step, prepared = last_step(run), (run / "ids").is_dir()
        times.fit_window(updates - step, options.kills * (1 - RESERVE) - tally.kills)
        left = 0 if step == updates and (run / "model").is_dir() else max(1, updates - step)
        moment = times.moment(next(moments), left, prepared=prepared)
        begun, seconds, done = kill_once(runner, tally, moment, updates)
        if prepared:
            times.follow(begun, seconds, done)
    runner.to_the_end()
    tally.sessions += 1
    return tally


def compare(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Both runs; the summary."""
    begin, updates = time.monotonic(), 40 + 10 * options.kills
    runners = [Runner(folder / name, options.ranks, options.set) for name in ("undisturbed", "killed")]
    for runner in runners:
        runner.folder.mkdir(parents=True)
        (runner.folder / "config.yaml").write_text(yaml.safe_dump(settings(updates), sort_keys=False), "utf-8")
    times = measure(runners[0], updates)
    shown = ", ".join(f"{name} {value:.3f} s" for name, value in vars(times).items())
    print(f"undisturbed: {updates} updates; {shown}", file=sys.stderr)
    tally = disturb(runners[1], times, options, updates)
    found = damage(runners[1].run) + differences(runners[0].run, runners[1].run)
    return {
        "identical": not found,
        "differences": found,
        "kills": tally.kills,
        "fell_into": dict(tally.fell_into.most_common()),
        "restarts": tally.sessions - 1,
        "ended_before_the_kill": tally.ended_before_the_kill,
        "updates": updates,
        "updates_redone": tally.updates_redone,
        "ranks": options.ranks,
        "seed": options.seed,
        "minutes": round((time.monotonic() - begin) / 60, 1),
    }


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--ranks", type=int, choices=(1, 2), default=1)
    parser.add_argument("--seed", type=int, default=1, help="decides the moments of the kills")
    parser.add_argument("--folder", type=Path, help="where both runs are kept; by default they are removed")
    parser.add_argument("--set", action="append", default=[], help="key.path=value of the configuration; repeatable")
    options = parser.parse_args()
    if options.kills < 1:
        parser.error(f"--kills {options.kills}: wanted at least 1")
    if options.folder and options.folder.exists() and any(options.folder.iterdir()):
        parser.error(f"--folder {options.folder} is not empty")
    return options


def main() -> None:
    """Parses, compares, prints one JSON object."""
    options = parsed()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the session in progress is ended too
    folder = (options.folder or Path(tempfile.mkdtemp(prefix="kill-and-resume-"))).resolve()
    keep = options.folder is not None
    try:
        summary = compare(folder, options)
        keep = keep or not summary["identical"]
    except Broken as failure:
        summary, keep = {"identical": False, "differences": list(failure.args)}, True
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(summary, indent=1))
    if not summary["identical"]:
        print("\n".join([*summary["differences"], f"both runs are kept in {folder}"]), file=sys.stderr)
        raise SystemExit(1)


if __name__ == "__main__":
    main()
