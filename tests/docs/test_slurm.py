"""The batch script for Slurm, run by bash with stand-ins for Slurm's commands and for torchrun that train for real."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.running import command, digests, environment, last_checkpoint, write_config, write_task

SCRIPT = Path(__file__).parents[2] / "scripts/slurm_train.sh"
JOB = "4711"

# Each stand-in writes how it was called into `calls`, one line a call.
STUBS = {
    "srun": """
        echo "$$" > step.pid
        while [[ $1 == --* ]]; do shift; done
        exec "$@" """,
    "torchrun": """
        while [[ $1 != -m ]]; do shift; done
        exec python "$@" """,
    "scancel": """ kill -TERM "$(cat step.pid)" """,
    "scontrol": """
        case $1 in
            show) if [[ $2 == job ]]; then cat state; else echo node-1; echo node-2; fi ;;
        esac """,
}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A folder with a task, its configuration, and the stand-ins."""
    write_task(tmp_path)
    write_config(tmp_path)
    (tmp_path / "state").write_text("   JobState=RUNNING Reason=None\n")
    (tmp_path / "bin").mkdir()
    for name, body in STUBS.items():
        stub = tmp_path / "bin" / name
        stub.write_text(f'#!/usr/bin/env bash\necho "{name} $*" >> calls\n{body}\n')
        stub.chmod(0o755)
    return tmp_path


def start(job: Path, *, restarts: int = 0) -> subprocess.Popen[str]:
    """Starts the script as Slurm would; all it and its step say goes to `log`, as --open-mode=append has it."""
    path = f"{job / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    slurm = {"JOB_ID": JOB, "JOB_NUM_NODES": "2", "JOB_NODELIST": "node-[1-2]", "RESTART_COUNT": str(restarts)}
    variables = {f"SLURM_{name}": value for name, value in slurm.items()}
    with (job / "log").open("a") as log:
        return subprocess.Popen(
            ["bash", str(SCRIPT)], cwd=job, env=environment(PATH=path, CONFIG="c.yaml", **variables),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True, start_new_session=True,
        )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> int:
    try:
        return process.wait(timeout=100)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)


def calls(job: Path, beginning: str) -> list[str]:
    return [line for line in (job / "calls").read_text().splitlines() if line.startswith(beginning)]


def log(job: Path) -> str:
    return (job / "log").read_text()


def signalled(job: Path) -> subprocess.Popen[str]:
    """The script in the middle of a long training, just when SIGTERM was sent to the shell alone."""
    write_config(job, training={"max_steps": 100000})
    process = start(job)
    begin = time.monotonic()
    while not re.search(r"^step 6/", log(job), re.MULTILINE):
        assert process.poll() is None and time.monotonic() - begin < 60, log(job)
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    return process


def test_a_run_that_ends_well_is_not_queued_again(job: Path) -> None:
    assert ended(start(job)) == 0, log(job)
    assert (job / "run" / "model" / "model.safetensors").is_file()
    assert calls(job, "scontrol requeue") == calls(job, "scancel") == []
    [step], [launcher] = calls(job, "srun"), calls(job, "torchrun")
    assert "--ntasks-per-node=1" in step and "--kill-on-bad-exit=1" in step
    assert "--nnodes 2 " in launcher and "--max-restarts 3" in launcher
    assert "--rdzv-endpoint node-1:29500" in launcher and f"--rdzv-id {JOB}-0 " in launcher


def test_a_run_that_was_asked_to_leave_saves_and_is_queued_once(job: Path) -> None:
    assert ended(signalled(job)) == 0, log(job)
    saved = re.findall(r"^interrupted, saved at update (\d+)$", log(job), re.MULTILINE)
    assert len(saved) == 1 and last_checkpoint(job / "run").name == f"step-{int(saved[0]):09d}"
    assert calls(job, "scancel") == [f"scancel --signal=TERM {JOB}"]
    assert calls(job, "scontrol requeue") == [f"scontrol requeue {JOB}"]
    write_config(job, training={"max_steps": int(saved[0]) + 2})
    assert ended(start(job, restarts=1)) == 0, log(job)
    assert f"resuming at step {saved[0]}," in log(job)
    assert len(calls(job, "scontrol requeue")) == 1


def test_a_job_that_was_cancelled_is_waited_for_and_not_queued_again(job: Path) -> None:
    (job / "state").write_text("   JobState=CANCELLED Reason=None\n")
    process = signalled(job)
    time.sleep(0.5)
    assert process.poll() is None and calls(job, "scancel") == []
    os.kill(int((job / "step.pid").read_text()), signal.SIGTERM)  # as Slurm itself does
    assert ended(process) != 0
    assert "interrupted, saved at update" in log(job)
    assert calls(job, "scontrol requeue") == []


def test_a_wrong_configuration_is_not_queued_again(job: Path) -> None:
    (job / "train.de").unlink()
    assert ended(start(job)) == 2
    assert "train.de does not exist" in log(job)
    assert not (job / "calls").exists()


def test_a_run_that_fails_is_not_queued_again(job: Path) -> None:
    with (job / "train.en").open("a") as file:
        file.write("ba\n")  # seen when the text is read, not when the config is checked
    assert ended(start(job)) == 2
    assert "line N of one must translate line N of the other" in log(job)
    assert len(calls(job, "srun")) == 1 and calls(job, "scontrol requeue") == []


SBATCH = """
    id=$(( $(cat id 2>/dev/null || echo 100) + 1 ))
    echo "$id" > id
    tasks=0
    for argument in "$@"; do
        case $argument in
            --array=1-*) tasks=$(seq "${argument#--array=1-}" -1 1) ;;
            --wrap=*) work=${argument#--wrap=} ;;
        esac
    done
    for task in $tasks; do SLURM_ARRAY_TASK_ID=$task bash -c "$work" >> log 2>&1 || exit; done
    echo "$id" """


def test_preparing_as_a_job_array(tmp_path: Path) -> None:
    """Jobs that begin as soon as they are handed in, the tasks of an array last to first; twice the same corpus."""
    for name in ("many", "one machine"):
        (tmp_path / name / "bin").mkdir(parents=True)
        write_task(tmp_path / name)
        write_config(tmp_path / name)
    folder = tmp_path / "many"
    (folder / "c.yaml").rename(folder / "a b.yaml")
    (folder / "bin/sbatch").write_text(f'#!/usr/bin/env bash\necho "sbatch $*" >> calls\n{SBATCH}\n')
    (folder / "bin/sbatch").chmod(0o755)
    path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", str(SCRIPT.with_name("slurm_prepare.sh")), "3"], cwd=folder, capture_output=True, text=True,
        env=environment(PATH=path, CONFIG="a b.yaml"), timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + (folder / "log").read_text()
    assert done.stdout.endswith("jobs 101 (clean), 102 (learn), 103 (encode), 104 (join)\n")
    jobs = calls(folder, "sbatch")
    assert ["--array=1-3" in job for job in jobs] == [True, False, True, False]
    assert ["--dependency" in job for job in jobs] == [False, True, True, True]
    assert "--dependency=afterok:103" in jobs[3]
    assert command("tokenize", "-c", "c.yaml", cwd=tmp_path / "one machine").returncode == 0
    one, many = (
        digests(tmp_path / name / "run", without=["stage.json", "config.yaml"]) for name in ("one machine", "many")
    )
    assert one == many and "ids/train.bin" in one
