"""Memory that a process keeps for buffers that come and go."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.running import inside, write_config
from transformer_mt.allocator import keep_large_buffers

CODE = """
import resource, sys, torch
torch.set_num_threads(1)
if sys.argv[1] == "kept":
    from transformer_mt.allocator import keep_large_buffers
    assert keep_large_buffers() and keep_large_buffers()
for _ in range(2):
    torch.ones(20_000_000)  # 80 MB, gone at once
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    torch.ones(20_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(kind: str) -> int:
    """Pages that the kernel had to give for five buffers of 20,000 pages each."""
    done = subprocess.run([sys.executable, "-c", CODE, kind], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_the_kernel_is_not_asked_again_and_again() -> None:
    assert faults("kept") < 1000 < 5000 < faults("given back")


def test_training_and_its_plan_keep_theirs(task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    for name in ("train.opening", "commands.plan"):
        monkeypatch.setattr(f"transformer_mt.{name}.keep_large_buffers", lambda name=name: asked.append(name))
    write_config(task, training={"max_steps": 1})
    for command in ("plan", "train"):
        done = inside(task, command, "-c", "c.yaml")
        assert done.exit_code == 0, done.stderr
    assert asked == ["commands.plan", "train.opening"]


def test_elsewhere_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_large_buffers.__wrapped__() is False
