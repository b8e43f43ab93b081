"""From one YAML file to a score: an interrupted run, the files it leaves, and doing it again."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from tests.running import Trained, assert_plain, command, digests, events, last_checkpoint, times, write_config
from transformer_mt import Translator


def test_sigterm_saves_and_the_next_run_learns_the_task(trained: Trained) -> None:
    first, second = trained.errors
    assert trained.interrupted == 143
    newest = int(trained.steps_saved[-1].removeprefix("step-"))
    assert newest >= 120 and newest != 700
    assert first.rstrip().endswith(f"interrupted, saved at update {newest}")
    assert f"resuming at step {newest}," in second
    assert_plain(first + second)
    scores = json.loads((trained.run / "scores" / "test.json").read_text())
    assert scores["bleu"] >= 99
    assert f"BLEU {scores['bleu']:.2f}  {scores['signature']}" in trained.output


def test_the_run_folder_is_as_documented(trained: Trained) -> None:
    run = trained.run
    names = {path.name for path in run.iterdir() if not path.name.startswith(".")}
    assert names == {
        "config.yaml", "corpus", "tokenizer", "ids", "checkpoints", "model", "metrics.jsonl", "train.log",
        "translations", "scores",
    }  # fmt: skip
    assert {path.name for path in (run / "model").iterdir()} == {
        "model.safetensors", "config.yaml", "spm.model", "README.md",
    }  # fmt: skip
    assert {path.name for path in last_checkpoint(run).iterdir()} == {
        "model.safetensors", "optimizer.safetensors", "state.json",
    }  # fmt: skip
    assert (run / "checkpoints" / "best").resolve().is_dir()
    assert yaml.safe_load((run / "config.yaml").read_text())["training"]["max_steps"] == 700
    assert [event["step"] for event in events(run)] == list(range(20, 701, 20))
    assert [event["step"] for event in events(run, "validation")] == [350, 700]
    assert len(re.findall(r"^step 700/700", (run / "train.log").read_text(), re.M)) == 1
    for stage in ("corpus", "tokenizer", "ids"):
        record = json.loads((run / stage / "stage.json").read_text())
        assert record["format"] == 1 and record["counts"] and record["outputs"]


def test_a_second_run_changes_nothing(trained: Trained) -> None:
    before = digests(trained.run), times(trained.run)
    again = command("run", "--config", "c.yaml", cwd=trained.folder)
    assert again.returncode == 0
    assert "nothing to train: 700 updates made, training.max_steps is 700" in again.stderr
    assert again.stderr.count("up to date") == 4
    assert (digests(trained.run), times(trained.run)) == before
    assert again.stdout == trained.output


def test_sacrebleu_agrees_on_the_files_left(trained: Trained) -> None:
    line = [sys.executable, "-m", "sacrebleu", "test.de", "-i", "run/translations/test.de", "-m", "bleu", "chrf"]
    done = subprocess.run(line, cwd=trained.folder, capture_output=True, text=True, check=True)
    theirs = {score["name"]: score["score"] for score in json.loads(done.stdout)}
    ours = json.loads((trained.run / "scores" / "test.json").read_text())
    assert theirs == {"BLEU": round(ours["bleu"], 1), "chrF2": round(ours["chrf"], 1)}


def test_a_model_folder_moves(trained: Trained, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "model"
    shutil.copytree(trained.model, moved)
    for path in moved.iterdir():
        assert str(trained.folder).encode() not in path.read_bytes()
    translations = Translator.load(moved).translate(["ba do fi", "", "lo"])
    assert [translation.text for translation in translations] == ["fi do ba", "", "lo"]
    done = command("translate", "--model", ".", cwd=moved, stdin=b"ba do fi\n\nlo\n")
    assert done.stdout == "fi do ba\n\nlo\n"


def test_run_and_checkpoint_folders_are_models_too(trained: Trained) -> None:
    best = trained.run / "checkpoints" / "best"
    for model, cwd in (
        (trained.run, trained.folder),
        (last_checkpoint(trained.run), trained.folder),
        (Path("."), best),
    ):
        done = command("translate", "--model", model, cwd=cwd, stdin=b"ba do fi\n")
        assert (done.returncode, done.stdout) == (0, "fi do ba\n")
    assert f"model: {trained.model}" in command("translate", "-m", trained.run, cwd=trained.folder).stderr


def test_decoding_and_averaging_keys_reach_the_model(trained: Trained, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(trained.folder, folder, symlinks=True)
    values = yaml.safe_load((folder / "c.yaml").read_text())
    values["decoding"]["beam_size"] = 2
    values["training"]["checkpoint"]["average"] = 1
    (folder / "c.yaml").write_text(yaml.safe_dump(values))
    again = command("run", "--config", "c.yaml", cwd=folder)
    assert again.returncode == 0, again.stderr
    model = yaml.safe_load((folder / "run" / "model" / "config.yaml").read_text())
    assert model["decoding"]["beam_size"] == 2 and model["steps"] == [700]


def test_epochs_end_a_run_once(task: Path) -> None:
    training = {"max_steps": None, "max_epochs": 2, "checkpoint": {"every_steps": 1}}
    write_config(task, training=training)
    assert command("train", "--config", "c.yaml", cwd=task).returncode == 0
    before = times(task / "run")
    again = command("train", "--config", "c.yaml", cwd=task)
    assert "nothing to train: 2 epochs done" in again.stderr
    assert times(task / "run") == before
