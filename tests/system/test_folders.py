"""What happens when a configuration no longer matches its run folder."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import yaml

from tests.running import (
    WORDS,
    assert_plain,
    command,
    digests,
    end,
    last_checkpoint,
    start,
    times,
    wait_for,
    write_config,
    write_task,
)


def unchanged(found: dict[str, int]) -> dict[str, int]:
    """Without the configuration, which holds the paths of a copy."""
    return {name: value for name, value in found.items() if name != "config.yaml"}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("folders")
    write_task(folder)
    write_config(folder)
    assert command("train", "-c", "c.yaml", cwd=folder).returncode == 0
    return folder


@pytest.fixture
def done(template: Path, tmp_path: Path) -> Path:
    """A copy of a run of twelve updates, with its files."""
    shutil.copytree(template, tmp_path / "copy", symlinks=True)
    return tmp_path / "copy"


def test_changed_keys_are_named_with_both_values(done: Path) -> None:
    before = digests(done / "run"), times(done / "run")
    changes = (
        "tokenizer.vocabulary_size=70",
        "model.model_size=64",
        "training.max_tokens=39",
        "data.cleaning.max_words=9",
    )
    sets = [word for change in changes for word in ("--set", change)]
    again = command("train", "-c", "c.yaml", *sets, cwd=done)
    assert again.returncode == 2
    for told in (
        "tokenizer.vocabulary_size: was 80, is 70",
        "model.model_size: was 32, is 64",
        "training.max_tokens: was 40, is 39",
        "data.cleaning.max_words: was 250, is 9",
        "another `output`, or --fresh",
    ):
        assert again.stderr.count(told) == 1
    assert_plain(again.stderr)
    assert (digests(done / "run"), times(done / "run")) == before


def test_changed_content_is_noticed(done: Path) -> None:
    (done / "train.de").write_bytes((done / "train.de").read_bytes().replace(b"ba", b"du"))
    again = command("train", "-c", "c.yaml", cwd=done)
    assert again.returncode == 2
    assert "content of data.train[0].target changed: sha256 was" in again.stderr


def test_a_touched_file_is_the_same_file(done: Path) -> None:
    (done / "train.de").touch()
    before = times(done / "run")
    again = command("train", "-c", "c.yaml", cwd=done)
    assert again.returncode == 0 and again.stderr.count("up to date") == 3
    assert unchanged(times(done / "run")) == unchanged(before)


def test_a_file_that_is_gone_is_made_again(done: Path) -> None:
    before = digests(done / "run" / "ids", without=["stage.json"])
    (done / "run" / "ids" / "train.bin").unlink()
    assert command("train", "-c", "c.yaml", cwd=done).returncode == 0
    assert digests(done / "run" / "ids", without=["stage.json"]) == before


def test_without_checkpoints_stages_are_made_again(done: Path) -> None:
    shutil.rmtree(done / "run" / "checkpoints")
    before = digests(done / "run")
    again = command("tokenize", "-c", "c.yaml", "--set", "tokenizer.vocabulary_size=50", cwd=done)
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("up to date") == 1
    after = digests(done / "run")
    assert after["corpus/stage.json"] == before["corpus/stage.json"]
    assert after["tokenizer/spm.model"] != before["tokenizer/spm.model"]
    assert json.loads((done / "run/tokenizer/stage.json").read_text())["settings"]["tokenizer"]["vocabulary_size"] == 50


def test_records_of_another_format(done: Path) -> None:
    path = done / "run" / "ids" / "stage.json"
    path.write_text(json.dumps({"format": 99}))
    again = command("train", "-c", "c.yaml", cwd=done)
    assert again.returncode == 2 and "has format 99, this program writes 1" in again.stderr
    shutil.rmtree(done / "run" / "checkpoints")
    assert command("tokenize", "-c", "c.yaml", cwd=done).returncode == 0
    assert json.loads(path.read_text())["format"] == 1


def test_a_missing_stage_is_made_again_only_as_it_was(done: Path) -> None:
    before = digests(done / "run" / "ids")
    shutil.rmtree(done / "run" / "ids")
    other = command("train", "-c", "c.yaml", "--set", "training.max_tokens=12", cwd=done)
    assert other.returncode == 2 and "training.max_tokens: was 40, is 12" in other.stderr
    assert not (done / "run" / "ids").exists()
    assert command("tokenize", "-c", "c.yaml", cwd=done).returncode == 0
    after = digests(done / "run" / "ids")
    assert {**before, "stage.json": ""} == {**after, "stage.json": ""}


def test_schedule_and_optimizer_stay_unless_reset(done: Path) -> None:
    change = {"max_steps": 16, "learning_rate": {"warmup_steps": 10, "peak": 2e-3}, "label_smoothing": 0.2}
    write_config(done, training=change)
    again = command("train", "-c", "c.yaml", cwd=done)
    assert again.returncode == 0
    rate = "training.learning_rate.peak: config 0.002, checkpoint 0.001, using 0.001 (--reset schedule"
    assert again.stderr.count(rate) == 1
    assert again.stderr.count("training.label_smoothing: config 0.2, checkpoint 0.1, using 0.1 (--reset optimizer") == 1
    kept = yaml.safe_load((done / "run" / "config.yaml").read_text("utf-8"))["training"]
    assert (kept["learning_rate"]["peak"], kept["label_smoothing"], kept["max_steps"]) == (0.001, 0.1, 16)
    assert "resuming at step 12" in again.stderr and last_checkpoint(done / "run").name == "step-000000016"
    write_config(done, training={**change, "max_steps": 20})
    again = command("train", "-c", "c.yaml", "--reset", "schedule", cwd=done)
    assert "training.learning_rate.peak: config 0.002, checkpoint 0.001, using 0.002\n" in again.stderr
    used = json.loads((last_checkpoint(done / "run") / "state.json").read_text())["config"]["training"]
    assert (used["learning_rate"]["peak"], used["label_smoothing"]) == (2e-3, 0.1)


def test_reset_of_the_data(done: Path) -> None:
    again = command("train", "-c", "c.yaml", "--reset", "data", "--set", "training.max_steps=13", cwd=done)
    assert "resuming at step 12, epoch 1, batch 0" in again.stderr


def test_unknown_reset(done: Path) -> None:
    again = command("train", "-c", "c.yaml", "--reset", "everything", cwd=done)
    assert again.returncode == 2 and "optimizer, schedule, data" in again.stderr


def test_fresh_moves_the_old_folder_aside(done: Path) -> None:
    before = digests(done / "run")
    again = command("train", "-c", "c.yaml", "--fresh", "--set", "model.model_size=64", cwd=done)
    assert again.returncode == 0, again.stderr
    assert digests(done / "run.old-1") == before
    assert "resuming" not in again.stderr


def test_fresh_with_a_fault_moves_nothing(done: Path) -> None:
    (done / "train.de").unlink()
    before = digests(done / "run")
    again = command("train", "-c", "c.yaml", "--fresh", cwd=done)
    assert again.returncode == 2 and "train.de does not exist" in again.stderr
    assert digests(done / "run") == before


def test_one_run_folder_has_one_trainer(task: Path) -> None:
    long = ("--set", "training.max_steps=100000", "--set", "training.validation.every_steps=1000")
    first = start("train", "-c", "c.yaml", *long, cwd=task)
    wait_for(first, r"^step 4/")
    for more in ((), ("--fresh",)):
        second = command("train", "-c", "c.yaml", *long, *more, cwd=task)
        assert second.returncode == 2
        assert f"in use by another process (process {first.pid})" in second.stderr
    code, rest = end(first, signal.SIGINT)
    assert code == 130 and "interrupted, saved at update" in rest
    assert_plain(rest)


def test_sources_may_be_named_anew_when_their_content_is_the_same(done: Path) -> None:
    (done / "train.en").rename(done / f"{WORDS[0]}.en")
    data = {"train": [{"source": f"{WORDS[0]}.en", "target": "train.de"}]}
    write_config(done, data=data)
    again = command("train", "-c", "c.yaml", cwd=done)
    assert again.returncode == 0 and again.stderr.count("up to date") == 3
