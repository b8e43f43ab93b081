"""What the system tests share: a small task on generated files, and real processes."""

import hashlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner, Result

from transformer_mt.cli import app

COMMAND = [sys.executable, "-m", "transformer_mt"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
WORDS = ["ba", "do", "fi", "gu", "ka", "lo", "mi", "nu", "pa", "so", "ti", "vu"]
TRAIN = "train"


def environment(**more: str) -> dict[str, str]:
    """This process' environment with one thread, no launcher's variables and no progress of others."""
    own = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return {**own, "OMP_NUM_THREADS": "1", **more}


def command(
    *arguments: str | Path,
    cwd: Path,
    stdin: bytes | None = None,
    env: Mapping[str, str] | None = None,
    prefix: Sequence[str] = COMMAND,
    timeout: float = 240,
) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end; output as text."""
    done = subprocess.run(
        [*prefix, *map(str, arguments)],
        cwd=cwd,
        env=environment(**(env or {})),
        input=b"" if stdin is None else stdin,
        capture_output=True,
        timeout=timeout,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def ranks(
    *arguments: str | Path, cwd: Path, env: Mapping[str, str] | None = None, timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """The same on two ranks."""
    return command(*arguments, cwd=cwd, env=env, prefix=[*TORCHRUN, "-m", "transformer_mt"], timeout=timeout)


def inside(folder: Path, *arguments: str | Path) -> Result:
    """The command inside this process, which saves the seconds of a start."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        return CliRunner().invoke(app, [str(argument) for argument in arguments])
    finally:
        os.chdir(before)


def train(folder: Path, *arguments: str | Path) -> str:
    """Trains to the end inside this process; what was said."""
    done = inside(folder, "train", "-c", "c.yaml", *arguments)
    assert done.exit_code == 0, done.stderr
    return done.stderr


STARTED: list[subprocess.Popen[str]] = []
"""What tests have started; what a failed one leaves behind would take the processors from all others."""


def kill_what_is_left() -> None:
    """Ends all processes that tests have started, with the groups that they lead."""
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def start(*arguments: str | Path, cwd: Path, prefix: Sequence[str] = COMMAND, **more: str) -> subprocess.Popen[str]:
    """Starts the command in a group of its own, its stderr to be read from."""
    process = subprocess.Popen(
        [*prefix, *map(str, arguments)],
        cwd=cwd,
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    STARTED.append(process)
    return process


def start_ranks(*arguments: str | Path, cwd: Path, count: int = 2, **more: str) -> list[subprocess.Popen[str]]:
    """Starts ranks without a launcher between, so that each one's exit code and words are seen."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    own = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [start(*arguments, cwd=cwd, **shared, **names, **more) for names in own]


def patched(folder: Path, code: str) -> dict[str, str]:
    """An environment in which `code` runs before anything else does, as if the machine were so."""
    (folder / "patch").mkdir(exist_ok=True)
    (folder / "patch" / "sitecustomize.py").write_text(code, "utf-8")
    return {"PYTHONPATH": str(folder / "patch")}


def wait_for(process: subprocess.Popen[str], pattern: str) -> str:
    """Reads stderr up to a line in which the pattern is found; what was read."""
    assert process.stderr
    seen = ""
    for line in process.stderr:
        seen += line
        if re.search(pattern, line):
            return seen
    raise AssertionError(f"{pattern} never came:\n{seen}")


def end(process: subprocess.Popen[str], number: int, *, group: bool = False) -> tuple[int, str]:
    """Sends a signal; exit code and the rest of stderr."""
    (os.killpg if group else os.kill)(process.pid, number)
    _, rest = process.communicate(timeout=60)
    return process.returncode, rest


def digests(folder: Path, *, without: Sequence[str] = ()) -> dict[str, str]:
    """Digest of every file below a folder, but hidden ones and those named."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".") and path.name not in without
    }


def times(folder: Path) -> dict[str, int]:
    """When every file below a folder was last changed."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_mtime_ns
        for path in folder.rglob("*")
        if not path.name.startswith(".") and not path.is_dir()
    }


def events(run: Path, kind: str = TRAIN) -> list[dict[str, Any]]:
    """Events of metrics.jsonl without what the clock says."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    clocks = ("seconds", "tokens_per_second")
    return [{k: v for k, v in row.items() if k not in clocks} for row in rows if row["event"] == kind]


def last_checkpoint(run: Path) -> Path:
    return max((run / "checkpoints").glob("step-*"))


def assert_plain(text: str) -> None:
    assert "Traceback" not in text, text


def sentences(count: int, seed: int, most: int = 4) -> list[list[str]]:
    """Different sentences of the task's words, none of them twice in one."""
    generator = random.Random(seed)
    found: dict[str, list[str]] = {}
    while len(found) < count:
        words = generator.sample(WORDS, generator.randint(2, most))
        found[" ".join(words)] = words
    return list(found.values())


def write_pairs(folder: Path, name: str, rows: Sequence[Sequence[str]]) -> None:
    """Two files, the target being the source's words from last to first."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.en").write_text("".join(" ".join(row) + "\n" for row in rows), "utf-8")
    (folder / f"{name}.de").write_text("".join(" ".join(row[::-1]) + "\n" for row in rows), "utf-8")


def write_task(folder: Path, train: int = 300) -> None:
    """Training, validation and test files of the reversal task."""
    rows = sentences(train + 80, 1)
    words = [[word] for word in WORDS]
    for name, part in (("valid", rows[:40]), ("test", rows[40:80]), (TRAIN, words + rows[80 + len(words) :])):
        write_pairs(folder, name, part)


def files(name: str) -> list[dict[str, str]]:
    return [{"source": f"{name}.en", "target": f"{name}.de"}]


def settings(**sections: Any) -> dict[str, Any]:
    """A configuration for a tiny model on the task's files; keyword arguments replace keys within sections."""
    plain: dict[str, Any] = {
        "name": "tiny",
        "output": "run",
        "languages": {"source": "en", "target": "de"},
        "data": {"train": files(TRAIN), "validation": files("valid"), "test": files("test")},
        "tokenizer": {"vocabulary_size": 80, "vocabulary_limit": "soft", "byte_fallback": False},
        "model": {
            "encoder_layers": 1, "decoder_layers": 1, "model_size": 32, "feedforward_size": 32, "heads": 2,
        },
        "training": {
            "batch_tokens": 200,
            "max_tokens": 40,
            "max_steps": 12,
            "learning_rate": {"warmup_steps": 10, "peak": 1e-3},
            "log_every_steps": 2,
            "checkpoint": {"every_steps": 4, "average": 2},
            "validation": {"every_steps": 4, "translate": False, "metric": "loss"},
        },
        "decoding": {"max_length": {"extra": 5}},
    }  # fmt: skip
    for name, value in sections.items():
        plain[name] = {**plain[name], **value} if isinstance(plain.get(name), dict) else value
    return plain


def write_config(folder: Path, name: str = "c.yaml", **sections: Any) -> Path:
    path = folder / name
    path.write_text(yaml.safe_dump(settings(**sections), allow_unicode=True), "utf-8")
    return path


@dataclass
class Trained:
    """A run that was interrupted, taken up again and ended, and what was seen of it."""

    folder: Path
    interrupted: int
    steps_saved: list[str]
    errors: list[str] = field(default_factory=list)
    output: str = ""

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def model(self) -> Path:
        return self.run / "model"

    def translate(self, *arguments: str | Path, stdin: bytes | None = None) -> subprocess.CompletedProcess[str]:
        return command("translate", "--model", self.model, *arguments, cwd=self.folder, stdin=stdin)

    def lines(self, folder: Path, lines: Sequence[str], *arguments: str | Path) -> tuple[list[str], Result]:
        """The translations of lines, by files and inside this process; and what else was seen."""
        (folder / "in").write_text("".join(f"{line}\n" for line in lines), "utf-8")
        done = inside(folder, "translate", "-m", self.model, "-i", "in", "-o", "out", *arguments)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        output = folder / "out"
        return output.read_text("utf-8").split("\n")[:-1] if output.exists() else [], done


def example(folder: Path, lines: Sequence[str]) -> list[str]:
    """What the program in a folder's README.md prints, once it is given two lines, in its text or as its input."""
    code = (folder / "README.md").read_text("utf-8").split("```python\n")[1].split("```")[0]
    code = re.sub(r'\["[^"]+", "[^"]+"\]', lambda _: repr(list(lines)), code)
    run, text = [sys.executable, "-c", code], "".join(f"{line}\n" for line in lines)
    done = subprocess.run(
        run,
        cwd=folder,
        env=environment(HF_HUB_OFFLINE="1"),
        input=text,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
