"""Two processes under torchrun: the same work shared, and everything that ends it."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from safetensors import safe_open

from tests.running import (
    COMMAND,
    TORCHRUN,
    Trained,
    assert_plain,
    command,
    digests,
    end,
    environment,
    events,
    files,
    last_checkpoint,
    ranks,
    sentences,
    start,
    wait_for,
    write_config,
    write_pairs,
    write_task,
)

PREFIX = [*TORCHRUN, "-m", "transformer_mt"]


def ours(stderr: str) -> str:
    """What we wrote, without the launcher's own words."""
    return "\n".join(line for line in stderr.splitlines() if re.match(r"(rank \d: )?(error|interrupted|warning)", line))


def children(group: int) -> list[str]:
    done = subprocess.run(["ps", "-o", "pid=,stat=", "-g", str(group)], capture_output=True, text=True)
    return [line for line in done.stdout.splitlines() if "Z" not in line.split()[1]]


@pytest.fixture(scope="module")
def pair_of_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same run by one process and by two, without dropout."""
    folders = []
    for name, runner in (("one", command), ("two", ranks)):
        folder = tmp_path_factory.mktemp(name)
        write_task(folder)
        write_config(folder, model={"dropout": 0.0}, training={"validation": {"every_steps": 4}})
        done = runner("run", "-c", "c.yaml", cwd=folder)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("BLEU ") == 2
        folders.append(folder)
    return folders[0], folders[1]


def test_two_ranks_make_the_same_updates(pair_of_runs: tuple[Path, Path]) -> None:
    one, two = (folder / "run" for folder in pair_of_runs)
    for kind in ("train", "validation"):
        for single, double in zip(events(one, kind), events(two, kind), strict=True):
            assert single.keys() == double.keys()
            for key in ("step", "epoch", "padding"):
                assert single.get(key) == double.get(key)
            assert double["loss"] == pytest.approx(single["loss"], rel=1e-4)
    assert digests(one / "corpus", without=["stage.json"]) == digests(two / "corpus", without=["stage.json"])
    assert (two / "train.log").read_text().count("step 12/12") == 1


def test_saved_names_carry_no_wrapper(pair_of_runs: tuple[Path, Path]) -> None:
    names = []
    for folder in pair_of_runs:
        with safe_open(last_checkpoint(folder / "run") / "model.safetensors", "pt") as file:
            names.append(set(file.keys()))
    assert names[0] == names[1]


def test_translating_and_scoring_are_shared(trained: Trained, tmp_path: Path) -> None:
    lines = [" ".join(row) for row in sentences(30, 5)] + [""]
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in lines))
    for runner, name in ((command, "one"), (ranks, "two")):
        options = ("--input", "in", "--output", name, "--batch-size", "7")
        done = runner("translate", "-m", trained.model, *options, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("31 lines, empty 1") == 1
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    copy = tmp_path / "copy"
    shutil.copytree(trained.folder, copy, symlinks=True)
    before = json.loads((copy / "run/scores/test.json").read_text())
    (copy / "run/scores/test.json").unlink()
    done = ranks("evaluate", "-c", "c.yaml", "--json", cwd=copy)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bleu"] == before["bleu"]


def test_standard_input_cannot_be_shared(trained: Trained, tmp_path: Path) -> None:
    done = ranks("translate", "-m", trained.model, cwd=tmp_path)
    assert done.returncode != 0
    assert ours(done.stderr) == "error: several processes cannot share standard input: give --input"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_leaving(task: Path, number: int) -> None:
    """Ctrl-C reaches the whole group, and the launcher passes it on besides."""
    process = start("train", "-c", "c.yaml", "--set", "training.max_steps=100000", cwd=task, prefix=PREFIX)
    wait_for(process, r"^step 6/")
    begin = time.monotonic()
    _, rest = end(process, number, group=number == signal.SIGINT)
    assert time.monotonic() - begin < 15
    assert re.search(r"^interrupted, saved at update \d+$", rest, re.M)
    assert "transformer_mt" not in rest.replace("-m transformer_mt", "")
    assert children(process.pid) == []
    step = int(last_checkpoint(task / "run").name[5:])
    again = ranks("train", "-c", "c.yaml", "--set", f"training.max_steps={step + 1}", cwd=task)
    assert again.returncode == 0 and f"resuming at step {step}," in again.stderr


PATCH = """
import os
if os.environ.get("RANK") == "1":
    import torch
    step, count = torch.optim.Adam.step, [0]
    def fail(self, *arguments, **options):
        count[0] += 1
        if count[0] == 3:
            raise RuntimeError("out of luck")
        return step(self, *arguments, **options)
    torch.optim.Adam.step = fail
"""


def test_a_rank_that_fails_is_named(task: Path) -> None:
    (task / "patch").mkdir()
    (task / "patch" / "sitecustomize.py").write_text(PATCH)
    begin = time.monotonic()
    process = start("train", "-c", "c.yaml", cwd=task, prefix=PREFIX, PYTHONPATH=str(task / "patch"))
    _, stderr = process.communicate(timeout=100)
    assert time.monotonic() - begin < 60
    assert process.returncode not in (0, None)
    assert "rank 1: error: RuntimeError: out of luck" in stderr
    assert children(process.pid) == []


def test_wrong_input_is_told_once(task: Path) -> None:
    (task / "train.de").unlink()
    done = ranks("train", "-c", "c.yaml", cwd=task)
    assert done.returncode != 0
    assert ours(done.stderr).count("train.de does not exist") == 1 and ours(done.stderr).count("error") == 1


@pytest.mark.parametrize("pairs", [1, 5])
def test_fewer_rows_than_ranks(tmp_path: Path, pairs: int) -> None:
    write_task(tmp_path)
    write_pairs(tmp_path, "few", [["ba", "do"], *sentences(pairs - 1, 3)])
    training = {"batch_tokens": 40, "max_steps": 3, "max_epochs": 3}
    data = {"train": files("few"), "validation": files("few"), "cleaning": {"remove_test_overlap": False}}
    write_config(tmp_path, data=data, training=training)
    done = ranks("train", "-c", "c.yaml", cwd=tmp_path, timeout=100)
    assert done.returncode == 0, done.stderr
    assert last_checkpoint(tmp_path / "run").name == "step-000000003"


def test_two_jobs_at_once(tmp_path: Path) -> None:
    processes = []
    for name in ("a", "b"):
        write_task(tmp_path / name)
        write_config(tmp_path / name, training={"max_steps": 3})
        processes.append(start("train", "-c", "c.yaml", cwd=tmp_path / name, prefix=PREFIX))
    assert [process.communicate(timeout=120) and process.returncode for process in processes] == [0, 0]


def test_half_a_launcher_is_an_error(task: Path) -> None:
    done = command("train", "-c", "c.yaml", cwd=task, env={"RANK": "0"})
    assert done.returncode == 2 and "WORLD_SIZE" in done.stderr
    assert_plain(done.stderr)
    left = {name: value for name, value in environment().items() if name != "RANK"}
    line = [*COMMAND, "download", "-c", "c.yaml"]
    assert subprocess.run(line, cwd=task, env=left, capture_output=True).returncode == 0
    assert os.path.isdir(task / "run" / "corpus")
