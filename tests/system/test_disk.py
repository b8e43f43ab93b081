"""A disk that is too small, fills up or damages a file: told in a sentence, and nothing that was whole is lost."""

import re
import shlex
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from tests.running import COMMAND, assert_plain, command, digests, inside, last_checkpoint, write_config, write_task
from transformer_mt.data import corpus
from transformer_mt.train import log
from transformer_mt.train.checkpoint import name_of

FULL = Path("/dev/full")
Usage = namedtuple("Usage", "total used free")


def train(folder: Path, *arguments: str | Path) -> Result:
    return inside(folder, "train", "-c", "c.yaml", *arguments)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve updates of a model of about a megabyte, with three checkpoints, two of which can be resumed from."""
    folder = tmp_path_factory.mktemp("disk")
    write_task(folder)
    write_config(folder, model={"model_size": 128, "feedforward_size": 256})
    done = train(folder)
    assert done.exit_code == 0, done.stderr
    return folder


@pytest.fixture
def done(template: Path, tmp_path: Path) -> Path:
    shutil.copytree(template, tmp_path / "copy", symlinks=True)
    return tmp_path / "copy"


@pytest.fixture
def prepared(done: Path) -> Path:
    """The same before its first update."""
    for name in ("checkpoints", "model"):
        shutil.rmtree(done / "run" / name)
    for name in ("metrics.jsonl", "train.log"):
        (done / "run" / name).unlink()
    return done


# Room


def leave_free(monkeypatch: pytest.MonkeyPatch, megabytes: float) -> None:
    """Lets every disk have so much room, whatever is written."""
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(10**12, 0, int(megabytes * 1e6)))


def missing(stderr: str) -> float:
    """The megabytes that the one error asks for."""
    told = re.findall(r"^error: run needs ([\d.]+) MB more for its checkpoints and model, the disk has ", stderr, re.M)
    assert len(told) == 1 and stderr.count("error") == 1, stderr
    assert "(make room, or lower training.checkpoint.keep_last)\n" in stderr
    return float(told[0])


def size(*paths: Path) -> float:
    return sum(path.stat().st_size for path in paths) / 1e6


def test_room_for_all_checkpoints_is_asked_for_before_the_first_update(
    template: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three checkpoints, moments for two of them, a checkpoint that is being written, and the model."""
    leave_free(monkeypatch, 0.25)
    failed = train(prepared)
    assert failed.exit_code == 1
    assert_plain(failed.stderr)
    last = last_checkpoint(template / "run")
    model, moments = size(last / "model.safetensors"), size(last / "optimizer.safetensors")
    needed = missing(failed.stderr)
    assert needed == pytest.approx(5 * model + 3 * moments, abs=0.1) and needed > 3
    assert "the disk has 0.2 MB free" in failed.stderr or "the disk has 0.3 MB free" in failed.stderr
    assert not re.search(r"^step ", failed.stderr, re.M)
    assert not (prepared / "run" / "checkpoints").exists() and not (prepared / "run" / "model").exists()
    leave_free(monkeypatch, needed - 0.15)
    assert train(prepared).exit_code == 1
    leave_free(monkeypatch, needed + 0.15)
    enough = train(prepared)
    assert enough.exit_code == 0, enough.stderr
    assert last_checkpoint(prepared / "run").name == name_of(12)
    written = size(*(prepared / "run").rglob("*.safetensors"))
    assert written == pytest.approx(needed - model - moments, abs=0.1)


def test_only_as_many_as_are_kept_need_room(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_free(monkeypatch, 0)
    few = missing(train(prepared, "--set", "training.max_steps=4").stderr)
    three = missing(train(prepared).stderr)
    many = missing(train(prepared, "--set", "training.max_steps=100000").stderr)
    endless = ("--set", "training.max_steps=null", "--set", "training.max_epochs=3")
    assert few < three < many == missing(train(prepared, *endless).stderr)
    fewer = ("--set", "training.checkpoint.keep_last=2", "--set", "training.max_steps=100000")
    assert missing(train(prepared, *fewer).stderr) == three
    average = ("--set", "training.optimizer.ema_decay=0.9")
    assert missing(train(prepared, *average).stderr) > three + 0.5  # what is trained is kept beside the mean


def test_what_is_there_already_counts(done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digests(done / "run", without=["config.yaml", "train.log", "metrics.jsonl"])
    longer = ("--set", "training.max_steps=16")
    own = size(*(done / "run").rglob("*.safetensors"))
    assert own > 3
    leave_free(monkeypatch, 0)
    failed = train(done, *longer)
    more = missing(failed.stderr)
    assert failed.exit_code == 1 and more < own
    assert digests(done / "run", without=["config.yaml", "train.log", "metrics.jsonl"]) == before
    leave_free(monkeypatch, more + 0.15)
    enough = train(done, *longer)
    assert enough.exit_code == 0, enough.stderr
    assert last_checkpoint(done / "run").name == name_of(16)
    shutil.rmtree(done / "run" / "checkpoints")
    again = train(done, *longer)
    assert again.exit_code == 1 and missing(again.stderr) > more + 1


def test_a_run_that_is_done_needs_no_room(done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_free(monkeypatch, 0)
    again = train(done)
    assert again.exit_code == 0 and "nothing to train" in again.stderr


# Logs that cannot be written


needs_full = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full on this system")


def assert_told(stderr: str, name: str) -> None:
    """One plain line says what is wrong, with the file's name."""
    lines = [line for line in stderr.splitlines() if "rror" in line]
    assert len(lines) == 1 and lines[0].startswith("error: ") and name in lines[0], stderr
    assert re.search("no space left", lines[0], re.I)
    assert_plain(stderr)


@needs_full
def test_a_log_that_cannot_be_written(prepared: Path) -> None:
    """In a process of its own: whatever is said when it ends counts too."""
    (prepared / "run" / "train.log").symlink_to(FULL)
    failed = command("train", "-c", "c.yaml", cwd=prepared)
    assert failed.returncode == 1
    assert_told(failed.stderr, "train.log")
    assert not (prepared / "run" / "checkpoints").exists()


@needs_full
def test_metrics_that_cannot_be_written(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fills up after the session has begun."""
    cut = log.cut_metrics

    def fill(run: Path, step: int) -> None:
        cut(run, step)
        (run / log.METRICS).unlink()
        (run / log.METRICS).symlink_to(FULL)

    monkeypatch.setattr(log, "cut_metrics", fill)
    failed = train(prepared)
    assert failed.exit_code == 1
    assert_told(failed.stderr, "metrics.jsonl")
    monkeypatch.undo()
    (prepared / "run" / log.METRICS).unlink()
    assert train(prepared).exit_code == 0


@needs_full
def test_metrics_that_cannot_be_taken_back(done: Path) -> None:
    before = digests(done / "run", without=["config.yaml", "train.log"])
    (done / "run" / ".metrics.jsonl.partial").symlink_to(FULL)
    failed = train(done, "--set", "training.max_steps=14")
    assert failed.exit_code == 1
    assert_told(failed.stderr, "metrics.jsonl")
    assert digests(done / "run", without=["config.yaml", "train.log"]) == before


# One bit


def flip(path: Path) -> None:
    """Turns one bit of the last tensor around: the file is read as before, with another number in it."""
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def other_batch(path: Path) -> None:
    """One digit of what training goes on from."""
    text = path.read_text("utf-8")
    path.write_text(re.sub(r'"batch": \d+', '"batch": 1', text), "utf-8")
    assert path.read_text("utf-8") != text


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_checkpoint_with_one_wrong_bit_is_passed_over(done: Path, name: str) -> None:
    """It is made again, and what follows is as if it had been whole."""
    damaged = last_checkpoint(done / "run")
    before = {path: (done / "run" / path).read_bytes() for path in ("model/model.safetensors", "metrics.jsonl")}
    weights = (damaged / "model.safetensors").read_bytes()
    (other_batch if name == "state.json" else flip)(damaged / name)
    shutil.rmtree(done / "run" / "model")
    assert train(done).exit_code == 0
    assert (done / "run/model/model.safetensors").read_bytes() == before["model/model.safetensors"]
    assert (damaged / "model.safetensors").read_bytes() == weights
    aside = damaged.with_name(f"damaged-{damaged.name}")
    assert (aside / name).is_file() and aside.is_dir()
    (other_batch if name == "state.json" else flip)(damaged / name)
    again = train(done, "--set", "training.max_steps=13")
    assert again.exit_code == 0, again.stderr
    place = f"run/checkpoints/{damaged.name}"
    told = (
        f"warning: checkpoint {place} cannot be resumed from: {place}/{name} is not as it was written; "
        f"it is set aside, and {name_of(8)} is used instead\n"
    )
    assert again.stderr.count(told) == 1 and again.stderr.count("warning") == 1
    assert "resuming at step 8," in again.stderr
    assert last_checkpoint(done / "run").name == name_of(13)


def test_when_no_checkpoint_is_as_it_was_written_nothing_is_changed(done: Path) -> None:
    flip(done / "run" / "checkpoints" / name_of(12) / "model.safetensors")
    flip(done / "run" / "checkpoints" / name_of(8) / "optimizer.safetensors")
    assert not (done / "run" / "checkpoints" / name_of(4) / "optimizer.safetensors").exists()
    before = digests(done)
    failed = train(done, "--set", "training.max_steps=13")
    assert failed.exit_code == 1
    errors = [line for line in failed.stderr.splitlines() if "up to date" not in line]
    assert [line.partition(": ")[0] for line in errors] == ["error"] * 4
    for step, told in (
        (12, "model.safetensors is not as it was written"),
        (8, "optimizer.safetensors is not as it was written"),
        (4, "optimizer.safetensors not found"),
    ):
        found = [line for line in errors if f"checkpoint run/checkpoints/{name_of(step)} cannot" in line]
        assert len(found) == 1 and told in found[0]
    assert errors[-1] == "error: no checkpoint in run/checkpoints can be resumed from (--fresh starts again)"
    assert_plain(failed.stderr)
    assert digests(done) == before


def test_a_state_without_digests_is_taken_as_it_is(done: Path) -> None:
    """As versions wrote it that knew none."""
    state = last_checkpoint(done / "run") / "state.json"
    written = state.read_text("utf-8")
    text = re.sub(r',\s*"digest": "\w+"', "", written)
    state.write_text(re.sub(r'"sha256": \{.*?\},', "", text, flags=re.S), "utf-8")
    assert "sha256" not in state.read_text("utf-8") and text != written
    again = train(done, "--set", "training.max_steps=13")
    assert again.exit_code == 0 and "resuming at step 12," in again.stderr and "warning" not in again.stderr


# Preparation


@pytest.mark.parametrize("work", ["download", "clean --dry-run"])
def test_text_that_does_not_fit_is_told_with_its_place(tmp_path: Path, work: str) -> None:
    write_task(tmp_path)
    write_config(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    limited = f"ulimit -f 1; exec {shlex.join(COMMAND)} {work} -c c.yaml"
    done = command("-c", limited, cwd=tmp_path, prefix=["bash"], env={"TMPDIR": str(tmp_path / "elsewhere")})
    assert done.returncode == 1
    place = "run/corpus" if work == "download" else str(tmp_path / "elsewhere")
    assert f"error: [Errno 27] File too large: '{place}" in done.stderr, done.stderr
    assert_plain(done.stderr)
    assert not (tmp_path / "run" / "corpus").exists() and not list((tmp_path / "elsewhere").iterdir())


def test_a_source_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record must not claim text that was not there."""
    make = corpus.make_corpus

    def make_beside_a_writer(*arguments: Any, **keys: Any) -> dict[str, Any]:
        counts = make(*arguments, **keys)
        for language in ("en", "de"):
            with (tmp_path / f"train.{language}").open("a") as file:
                file.write("ba\n")
        return counts

    monkeypatch.setattr(corpus, "make_corpus", make_beside_a_writer)
    write_task(tmp_path)
    write_config(tmp_path)
    done = inside(tmp_path, "download", "-c", "c.yaml")
    assert done.exit_code == 1 and not (tmp_path / "run" / "corpus").exists()
    assert "error: the content of data.train[0].source, data.train[0].target changed while it was read" in done.stderr
    monkeypatch.undo()
    assert inside(tmp_path, "download", "-c", "c.yaml").exit_code == 0
