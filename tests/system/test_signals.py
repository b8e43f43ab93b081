"""Signals, to one rank, to all or to the launcher, wherever they fall: all leave in seconds, and nothing is lost."""

import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.running import (
    TORCHRUN,
    Trained,
    assert_plain,
    command,
    end,
    last_checkpoint,
    patched,
    start,
    start_ranks,
    wait_for,
    write_config,
)

SOON = 15.0
"""Seconds; a guard against hanging, far above what leaving takes."""
PASSES = {"batch_tokens": 400, "device_tokens": 40, "max_steps": 100_000}

# Every pass and every translated batch take their time, so that signals fall where they are meant to.
SLOW = """
import time
def slow(owner, name, seconds):
    original = getattr(owner, name)
    def slowed(self, *arguments, **options):
        print("SLOW", name, flush=True, file=__import__("sys").stderr)
        time.sleep(seconds)
        return original(self, *arguments, **options)
    setattr(owner, name, slowed)
"""
SLOW_UPDATE = (
    SLOW
    + """
from transformer_mt.train.loop import Trainer
original = Trainer._pass
def _pass(self, pairs, batch):
    if self.optimizer.adam.state.get(next(self.model.parameters()), {{}}).get("step", 0) == {before}:
        print("SLOW pass", flush=True, file=__import__("sys").stderr)
        time.sleep({seconds})
    return original(self, pairs, batch)
Trainer._pass = _pass
"""
)
SLOW_FIRST_UPDATE = SLOW_UPDATE.format(before=0, seconds=0.3)
SLOW_SECOND_UPDATE = SLOW_UPDATE.format(before=1, seconds=10)
SLOW_THIRD_UPDATE = SLOW_UPDATE.format(before=2, seconds=0.3)
SLOW_TRANSLATING = (
    SLOW
    + """
from transformer_mt.decode.models import ModelSteps
slow(ModelSteps, "admit", 0.3)
"""
)
SLOW_VALIDATING = (
    SLOW
    + """
from transformer_mt.train.loop import LossOf
original = LossOf.forward
def forward(self, *tensors):
    if not self.training:
        print("SLOW validation", flush=True, file=__import__("sys").stderr)
        time.sleep(0.3)
    return original(self, *tensors)
LossOf.forward = forward
"""
)


def ends(processes: list[subprocess.Popen[str]]) -> tuple[list[int], str]:
    """Exit codes and what all of them said, which is no traceback."""
    begin = time.monotonic()
    said = "".join(process.communicate(timeout=60)[1] for process in processes)
    assert time.monotonic() - begin < SOON
    assert_plain(said)
    return [process.returncode for process in processes], said


def resumes(folder: Path) -> int:
    """The step of the newest checkpoint, from which one rank goes on."""
    step = int(last_checkpoint(folder / "run").name[5:])
    again = command("train", "-c", "c.yaml", "--set", f"training.max_steps={step + 1}", cwd=folder)
    assert again.returncode == 0, again.stderr
    assert f"resuming at step {step}," in again.stderr
    return step


@pytest.mark.parametrize(("rank", "number"), [(0, signal.SIGTERM), (1, signal.SIGINT)])
def test_one_rank_between_passes(task: Path, rank: int, number: int) -> None:
    """The third update has ten slow passes a rank: none of the ranks goes through most of them."""
    write_config(task, training={**PASSES, "batch_tokens": 800})
    processes = start_ranks("train", "-c", "c.yaml", cwd=task, **patched(task, SLOW_THIRD_UPDATE))
    wait_for(processes[0], r"SLOW pass")
    processes[rank].send_signal(number)
    codes, said = ends(processes)
    assert codes == [128 + number] * 2, said
    assert re.findall(r"^interrupted, saved at update (\d+)$", said, re.M) == [str(resumes(task))]
    assert said.count("SLOW") < 12


@pytest.mark.parametrize(("rank", "patch"), [(0, SLOW_VALIDATING), (1, SLOW_TRANSLATING)], ids=["loss", "translating"])
def test_one_rank_while_validating(task: Path, rank: int, patch: str) -> None:
    validation = {"every_steps": 2, "translate": True, "metric": "bleu"}
    training = {"device_tokens": 41, "max_steps": 100_000, "validation": validation}
    write_config(task, training=training, decoding={"batch_size": 1})
    processes = start_ranks("train", "-c", "c.yaml", cwd=task, **patched(task, patch))
    wait_for(processes[0], r"SLOW")
    processes[rank].send_signal(signal.SIGTERM)
    codes, said = ends(processes)
    assert codes == [143, 143], said
    assert said.count("interrupted, saved at update 2") == 1
    write_config(task, training={"max_steps": 3, "validation": validation})
    again = command("train", "-c", "c.yaml", cwd=task)
    assert again.stderr.index("resuming at step 2,") < again.stderr.index("validation at step 2 ")


@pytest.mark.parametrize("patch", ["", SLOW_TRANSLATING], ids=["training", "translating"])
def test_the_launcher(task: Path, patch: str) -> None:
    validation = {"every_steps": 4, "translate": True, "metric": "bleu"}
    write_config(task, training={"max_steps": 100_000, "validation": validation}, decoding={"batch_size": 1})
    prefix = [*TORCHRUN, "-m", "transformer_mt"]
    process = start("train", "-c", "c.yaml", cwd=task, prefix=prefix, **patched(task, patch))
    wait_for(process, "SLOW" if patch else r"^step 6/")
    begin = time.monotonic()
    _, said = end(process, signal.SIGTERM)
    assert time.monotonic() - begin < SOON
    assert len(re.findall(r"^interrupted, saved at update \d+$", said, re.M)) == 1
    left = subprocess.run(["ps", "-o", "pid=,stat=", "-g", str(process.pid)], capture_output=True, text=True).stdout
    assert [line for line in left.splitlines() if "Z" not in line.split()[1]] == []
    assert resumes(task) >= 4


def test_a_second_signal_leaves_at_once(task: Path) -> None:
    """Without waiting for a pass of ten seconds, at whose end the first one would be heard."""
    write_config(task, training=PASSES)
    process = start("train", "-c", "c.yaml", cwd=task, **patched(task, SLOW_SECOND_UPDATE))
    wait_for(process, r"SLOW pass")
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert process.poll() is None
    code, said = end(process, signal.SIGINT)
    assert code == 130 and time.monotonic() - begin < 5
    assert_plain(said)


def test_before_the_first_update(task: Path) -> None:
    write_config(task, training=PASSES)
    processes = start_ranks("train", "-c", "c.yaml", cwd=task, **patched(task, SLOW_FIRST_UPDATE))
    wait_for(processes[0], r"SLOW pass")  # the trial
    processes[1].send_signal(signal.SIGTERM)
    codes, said = ends(processes)
    assert codes == [143, 143] and said.count("interrupted before the first update") == 1
    assert not (task / "run" / "checkpoints").exists()


@pytest.mark.parametrize("verb", ["translate", "evaluate"])
def test_decoding_ends_and_leaves_no_half_a_file(trained: Trained, tmp_path: Path, verb: str) -> None:
    (tmp_path / "in").write_text("ba do\n" * 400)
    (tmp_path / "out").write_text("before\n")
    arguments: list[str | Path] = ["translate", "-m", trained.model, "-i", "in", "-o", "out", "--batch-size", "1"]
    process = start(*arguments, cwd=tmp_path, **patched(tmp_path, SLOW_TRANSLATING))
    wait_for(process, "SLOW")
    code, said = end(process, signal.SIGTERM if verb == "translate" else signal.SIGINT)
    assert code == (143 if verb == "translate" else 130), said
    assert_plain(said)
    assert (tmp_path / "out").read_text() == "before\n"
    assert {path.name for path in tmp_path.iterdir()} == {"in", "out", "patch"}


def test_a_launcher_that_is_killed_leaves_no_orphans(task: Path) -> None:
    write_config(task, training={"max_steps": 100_000})
    process = start("train", "-c", "c.yaml", cwd=task, prefix=[*TORCHRUN, "-m", "transformer_mt"])
    wait_for(process, r"^step 6/")
    (own,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[:1] or [""]
    process.kill()
    deadline = time.monotonic() + SOON
    while time.monotonic() < deadline and Path(f"/proc/{own}/cmdline").exists():
        time.sleep(0.2)
    assert own and not Path(f"/proc/{own}/cmdline").exists()
    assert re.search(r"^interrupted, saved at update \d+$", process.communicate(timeout=60)[1], re.M)


def test_one_rank_while_translating(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("ba do\n" * 400)
    arguments: list[str | Path] = ["translate", "-m", trained.model, "-i", "in", "-o", "out", "--batch-size", "1"]
    processes = start_ranks(*arguments, cwd=tmp_path, **patched(tmp_path, SLOW_TRANSLATING))
    wait_for(processes[0], "SLOW")
    processes[1].send_signal(signal.SIGTERM)
    codes, said = ends(processes)
    assert codes == [143, 143] and said.count("terminated") == 1, said
    assert {path.name for path in tmp_path.iterdir()} == {"in", "patch"}
