"""What a person sees on a terminal and on TensorBoard's page, and that neither disturbs a pipe."""

import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import termios
from pathlib import Path

import pytest

from tests.running import COMMAND, command, environment, events, patched, write_config


def on_a_terminal(*arguments: str, cwd: Path) -> str:
    """Runs the command with stderr on a pseudo-terminal; what appears there."""
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process = subprocess.Popen(
        [*COMMAND, *arguments], cwd=cwd, env=environment(TERM="xterm"), stdin=subprocess.DEVNULL, stdout=end, stderr=end
    )
    os.close(end)
    seen = b""
    while True:
        try:
            seen += os.read(terminal, 1 << 16)
        except OSError:  # the last process has closed the terminal
            break
    os.close(terminal)
    assert process.wait(timeout=60) == 0, seen.decode()
    return seen.decode()


def test_a_bar_on_a_terminal_and_plain_lines_elsewhere(task: Path) -> None:
    piped = command("train", "--config", "c.yaml", "--set", "output=piped", cwd=task)
    shown = on_a_terminal("train", "--config", "c.yaml", "--set", "output=shown", cwd=task)
    assert "update/s" in shown.replace("s/update", "update/s") and "\r" in shown
    assert "update/s" not in piped.stderr.replace("s/update", "update/s") and "\r" not in piped.stderr
    assert events(task / "shown") == events(task / "piped")


def test_tensorboard_has_the_metrics(task: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    done = command("train", "--config", "c.yaml", "--set", "training.tensorboard=true", cwd=task)
    assert done.returncode == 0, done.stderr
    board = EventAccumulator(str(task / "run" / "tensorboard"))
    board.Reload()
    logged = {event["step"]: event["loss"] for event in events(task / "run")}
    found = {scalar.step: scalar.value for scalar in board.Scalars("train/loss")}
    assert found.keys() == logged.keys()
    assert all(abs(found[step] - loss) < 1e-4 for step, loss in logged.items())
    assert board.Scalars("validation/loss")


SLOW = """
import time
from transformer_mt import progress
from transformer_mt.data import corpus, prepare
corpus.CHUNK_PAIRS = prepare.CHUNK_PAIRS = 20
progress.EVERY_SECONDS = 0.0
"""


def test_how_far_preparing_has_come(task: Path) -> None:
    """A bar on a terminal; elsewhere lines, with the time left, also where one file of several is empty."""
    for language in ("en", "de"):
        (task / f"train-2.{language}").write_bytes(b"")
        (task / f"train-1.{language}").write_bytes((task / f"train.{language}").read_bytes())
    train = [{"source": "train-*.en", "target": "train-*.de"}]
    write_config(task, data={"train": train})
    piped = command("tokenize", "--config", "c.yaml", cwd=task, env=patched(task, SLOW))
    assert piped.returncode == 0, piped.stderr
    told = re.findall(r"^(.+): [\d,]+ pairs, [\d,]+ a second, \d+%, [\d,]+ s left$", piped.stderr, re.MULTILINE)
    assert {"train", "ids of train"} <= set(told) and "\r" not in piped.stderr
    shown = on_a_terminal("tokenize", "--config", "c.yaml", "--set", "output=shown", cwd=task)
    assert re.search(r"train: .*%\|.*pairs, [\d,]+ a second \[", shown)


WATCHED = """
import os, sys
from transformer_mt.data import corpus, parallel, prepare
corpus.CHUNK_PAIRS = prepare.CHUNK_PAIRS = 100
parallel.cores = corpus.cores = prepare.cores = lambda: 2
if any("spawn_main" in argument for argument in sys.orig_argv):
    names = [os.readlink(f"/proc/self/fd/{number}") for number in range(3)]
    open(f"streams-{os.getpid()}", "w").write(" ".join(names))
"""


@pytest.mark.parametrize("after", ["2>&1 | head -n 1", "2>&-", ">&- 2>&- <&-", "2> /dev/full"])
def test_work_is_done_where_nobody_hears_of_it(task: Path, after: str) -> None:
    """The reader of messages left, or there is none, or its disk is full: the files are the same."""
    shell = f"{shlex.join(COMMAND)} tokenize --config c.yaml --set output=unheard {after}; echo ${{PIPESTATUS[0]}}"
    env = environment(**patched(task, WATCHED))
    done = subprocess.run(["bash", "-c", shell], cwd=task, env=env, capture_output=True, timeout=200)
    *said, code = done.stdout.decode().splitlines()
    assert code == "0" and len(said) == ("head" in after) and not done.stderr
    workers = [path.read_text().split() for path in task.glob("streams-*")]
    assert len(workers) == 4  # two for the corpus, two for the ids
    if "<" in after:
        assert workers == [["/dev/null"] * 3] * 4
    assert command("tokenize", "--config", "c.yaml", "--set", "output=heard", cwd=task).returncode == 0
    names = sorted(path.relative_to(task / "heard") for path in (task / "heard").glob("*/*"))
    assert names and names == sorted(path.relative_to(task / "unheard") for path in (task / "unheard").glob("*/*"))
    for name in names:
        if name.suffix != ".json":  # records have times
            assert (task / "heard" / name).read_bytes() == (task / "unheard" / name).read_bytes(), name


@pytest.mark.parametrize("words", ["--help", "--version", "config check --help", "config list"])
def test_answers_that_cannot_be_written_are_told_in_a_line(words: str, tmp_path: Path) -> None:
    shell = f"exec {shlex.join(COMMAND)} {words} > /dev/full"
    done = command("-c", shell, cwd=tmp_path, prefix=["bash"])
    assert (done.returncode, done.stderr) == (1, "error: [Errno 28] No space left on device\n")
