"""Checkpoints on disk: kept by rule, averaged, refused, and what happens when they cannot be written."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.running import (
    COMMAND,
    assert_plain,
    command,
    digests,
    environment,
    last_checkpoint,
    write_config,
    write_task,
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    write_task(folder)
    rules = {"every_steps": 5, "keep_last": 2, "keep_best": 1, "average": 2}
    write_config(
        folder,
        training={
            "max_steps": 40, "checkpoint": rules, "learning_rate": {"warmup_steps": 5, "peak": 0.5},
            "validation": {"every_steps": 5, "translate": False, "metric": "loss"},
        },
    )  # fmt: skip
    done = command("train", "-c", "c.yaml", cwd=folder)
    assert done.returncode == 0, done.stderr
    (folder / "stderr").write_text(done.stderr)
    return folder


@pytest.fixture
def done(template: Path, tmp_path: Path) -> Path:
    shutil.copytree(template, tmp_path / "copy", symlinks=True)
    return tmp_path / "copy"


def test_what_is_kept(template: Path) -> None:
    run = template / "run"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = {row["step"]: row["loss"] for row in rows if row["event"] == "validation"}
    best = min(losses, key=lambda step: losses[step])
    names = {path.name for path in (run / "checkpoints").iterdir()}
    assert names == {"best", *(f"step-{step:09d}" for step in {best, 35, 40})}
    assert (run / "checkpoints" / "best").resolve().name == f"step-{best:09d}"
    for step in {best} - {35, 40}:
        assert not (run / "checkpoints" / f"step-{step:09d}" / "optimizer.safetensors").exists()
    removed = re.findall(r"^removed checkpoint step-(\d+)$", (template / "stderr").read_text(), re.M)
    assert {int(step) for step in removed} == set(range(5, 41, 5)) - {best, 35, 40}
    assert {path.suffix for path in run.rglob("*") if path.is_file() and not path.name.startswith(".")} <= {
        ".safetensors", ".json", ".jsonl", ".yaml", ".log", ".md", ".model", ".bin", ".idx", ".en", ".de", ".lines",
    }  # fmt: skip


def mean(folders: list[Path]) -> dict[str, torch.Tensor]:
    loaded = [load_file(folder / "model.safetensors") for folder in folders]
    return {name: sum(one[name].double() for one in loaded) / len(loaded) for name in loaded[0]}


def test_model_is_the_mean_of_the_last(template: Path) -> None:
    run = template / "run"
    expected = mean([run / "checkpoints" / f"step-{step:09d}" for step in (35, 40)])
    found = load_file(run / "model" / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name].float())


def test_average_in_any_order(done: Path) -> None:
    names = [f"run/checkpoints/step-{step:09d}" for step in (35, 40)]
    for output, order in (("one", names), ("two", names[::-1])):
        options = [word for name in order for word in ("--checkpoint", name)]
        made = command("average", "-c", "c.yaml", *options, "--output", output, cwd=done)
        assert made.returncode == 0, made.stderr
    assert digests(done / "one") == digests(done / "two")
    assert command("average", "-c", "c.yaml", "--last", "1", "--output", "last", cwd=done).returncode == 0
    newest = last_checkpoint(done / "run") / "model.safetensors"
    assert {k: v.tolist() for k, v in load_file(done / "last/model.safetensors").items()} == {
        k: v.tolist() for k, v in load_file(newest).items()
    }


def test_foreign_checkpoints_are_refused(done: Path, tmp_path: Path) -> None:
    write_task(tmp_path, 200)
    write_config(tmp_path, "other.yaml", output="other", training={"max_steps": 1}, tokenizer={"vocabulary_size": 70})
    assert command("train", "-c", "other.yaml", cwd=tmp_path).returncode == 0
    own = last_checkpoint(done / "run")
    (tmp_path / "empty").mkdir()
    cases = {
        tmp_path / "other/checkpoints/step-000000001": "another tokenizer",
        tmp_path / "empty": "is no checkpoint",
        done / "run" / "model": "is no checkpoint",
        tmp_path / "none": "none",
    }
    before = digests(done / "run")
    for path, told in cases.items():
        made = command("average", "-c", "c.yaml", "--checkpoint", own, "--checkpoint", path, cwd=done)
        assert made.returncode == 2 and told in made.stderr, made.stderr
        assert_plain(made.stderr)
    assert digests(done / "run") == before


def test_another_shape_is_refused(done: Path) -> None:
    shutil.copytree(done / "run", done / "wide", symlinks=True)
    shutil.rmtree(done / "wide" / "checkpoints")
    wide = ("--set", "output=wide", "--set", "model.model_size=64", "--set", "training.max_steps=1")
    assert command("train", "-c", "c.yaml", *wide, cwd=done).returncode == 0
    other = last_checkpoint(done / "wide")
    made = command(
        "average", "-c", "c.yaml", "--checkpoint", last_checkpoint(done / "run"), "--checkpoint", other, cwd=done
    )
    assert made.returncode == 2 and "checkpoint of another model" in made.stderr


def test_output_that_is_no_model_stays(done: Path) -> None:
    before = digests(done)
    for taken in ("run/corpus", last_checkpoint(done / "run").relative_to(done)):
        made = command("average", "-c", "c.yaml", "--output", taken, cwd=done)
        assert made.returncode == 2 and "is no model folder" in made.stderr
    assert digests(done) == before


def test_a_checkpoint_that_cannot_be_written(done: Path) -> None:
    before = digests(done / "run" / "checkpoints")
    # Blocks of 1024 bytes: room for the log's lines, not for the weights.
    shell = f"ulimit -f 30; exec {' '.join(COMMAND)} train -c c.yaml --set training.max_steps=45"
    failed = subprocess.run(["bash", "-c", shell], cwd=done, env=environment(), capture_output=True, text=True)
    assert failed.returncode == 1, failed.stderr
    assert re.search(r"error: checkpoint \S+step-000000045 needs [\d.]+ MB and could not be written", failed.stderr)
    assert_plain(failed.stderr)
    assert digests(done / "run" / "checkpoints") == before
    assert not list((done / "run" / "checkpoints").glob(".*"))
    assert command("train", "-c", "c.yaml", "--set", "training.max_steps=45", cwd=done).returncode == 0


def test_formats_of_the_future(done: Path) -> None:
    for path in (done / "run/checkpoints").glob("step-*/state.json"):
        path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    failed = command("train", "-c", "c.yaml", cwd=done)
    assert failed.returncode == 1 and "has format 2, this program reads 1" in failed.stderr
    settings = done / "run" / "model" / "config.yaml"
    settings.write_text(settings.read_text().replace("format: 1", "format: 2"))
    failed = command("translate", "-m", "run/model", cwd=done)
    assert failed.returncode == 2 and "has format 2, this program reads 1" in failed.stderr
    settings.write_text("- no settings\n")
    failed = command("translate", "-m", "run/model", cwd=done)
    assert failed.returncode == 2 and "holds no settings" in failed.stderr
    assert_plain(failed.stderr)


def test_weights_of_a_wrapper_load(done: Path) -> None:
    from safetensors.torch import save_file

    path = done / "run/model/model.safetensors"
    plain = command("translate", "-m", "run/model", cwd=done, stdin=b"ba do\n").stdout
    save_file({f"module._orig_mod.{name}": tensor for name, tensor in load_file(path).items()}, path)
    assert command("translate", "-m", "run/model", cwd=done, stdin=b"ba do\n").stdout == plain
    save_file({f"odd.{name}": tensor for name, tensor in load_file(path).items()}, path)
    failed = command("translate", "-m", "run/model", cwd=done, stdin=b"ba do\n")
    assert failed.returncode == 2 and "unknown to this model" in failed.stderr
    path.write_bytes(b"PK\x03\x04 a pickle of torch")
    failed = command("translate", "-m", "run/model", cwd=done, stdin=b"ba do\n")
    assert failed.returncode == 2 and "no readable safetensors file" in failed.stderr


def test_patience_ends_the_run(task: Path) -> None:
    validation = {"every_steps": 2, "translate": False, "metric": "loss", "patience": 1}
    rate = {"warmup_steps": 1, "peak": 2.0}
    write_config(task, training={"max_steps": 4000, "validation": validation, "learning_rate": rate})
    ended = command("train", "-c", "c.yaml", cwd=task)
    assert ended.returncode == 0, ended.stderr
    step = int(last_checkpoint(task / "run").name[5:])
    assert step < 4000
    again = command("train", "-c", "c.yaml", cwd=task)
    assert "nothing to train: no better loss for 1 validations" in again.stderr
