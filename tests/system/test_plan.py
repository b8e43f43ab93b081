"""What training would come to, told before anything is made; its numbers are those that training then has."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.running import Trained, assert_plain, inside, last_checkpoint, write_config
from transformer_mt.commands.plan import departures, parameters
from transformer_mt.config.file import load_config, shipped_configs
from transformer_mt.data.batching import Batch
from transformer_mt.data.tokenizer import Tokenizer
from transformer_mt.model.folder import build
from transformer_mt.train.loop import Trainer


def test_before_anything_is_there_nothing_is_made(task: Path) -> None:
    write_config(task, training={"max_steps": 50, "batch_tokens": 400})
    before = sorted(task.rglob("*"))
    done = inside(task, "plan", "-c", "c.yaml")
    assert done.exit_code == 0, done.stderr
    assert_plain(done.stderr)
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names[:7] == ["model", "data", "updates", "memory", "speed", "time", "operations"]
    assert "corpus is not made yet; training makes it first" in done.stdout and "made-up pairs" in done.stdout
    assert "departs from the paper: model.heads: 8 in base.yaml" in done.stdout
    assert sorted(task.rglob("*")) == before


def test_of_a_run_that_has_begun(trained: Trained) -> None:
    """Updates of an epoch, tokens and parameters are those of training's own log; the time is what is left."""
    steps = max(int(path.name[5:]) for path in trained.run.glob("checkpoints/step-*"))
    changes = ["--set", f"training.max_steps={steps + 30}"]
    before = {path: path.stat().st_mtime_ns for path in trained.run.rglob("*")}
    done = inside(trained.folder, "plan", "-c", "c.yaml", "--json", *changes)
    assert done.exit_code == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in trained.run.rglob("*")} == before
    found = json.loads(done.stdout)
    assert found["notes"] == []
    log = (trained.run / "train.log").read_text()
    (millions, pairs) = re.search(r"([\d.]+) million parameters, (\d+) pairs", log).groups()  # type: ignore[union-attr]
    assert f"{found['parameters']['total'] / 1e6:.2f}" == millions and found["data"]["pairs"] == int(pairs)
    sizes = found["parameters"]
    assert sizes["embeddings"] + sizes["encoder"] + sizes["decoder"] == sizes["total"]
    memory = found["memory"]
    assert memory["weights"] == memory["gradients"] == memory["moments"] / 2 == 4 * sizes["total"]
    assert memory["activations"] > 0 and memory["total"] == sum(memory[key] for key in memory if key != "total")
    when = found["time"]
    assert (when["step"], when["last_step"], when["updates_left"]) == (steps, steps + 30, 30)
    tokens = found["updates"]["target_tokens"] * (steps + 30)
    assert found["operations"]["six_times_parameters_times_tokens"] == pytest.approx(6 * sizes["total"] * tokens)
    assert found["speed"]["tokens_per_second"] > 0 and when["seconds"] > 0


def test_more_devices_share_each_update(trained: Trained) -> None:
    """The updates are the same, each device makes fewer passes, and needs no more memory."""
    plans = []
    for devices in ("1", "4"):
        options = ("--devices", devices, "--set", "training.device_tokens=64", "--json")
        done = inside(trained.folder, "plan", "-c", "c.yaml", *options)
        assert done.exit_code == 0, done.stderr
        plans.append(json.loads(done.stdout))
    one, four = plans
    for key in ("in_an_epoch", "target_tokens", "padding", "device_tokens"):
        assert one["updates"][key] == four["updates"][key]
    assert one["updates"]["passes"] > four["updates"]["passes"] >= one["updates"]["passes"] / 4
    assert four["memory"]["weights"] == one["memory"]["weights"]
    assert four["memory"]["activations"] <= one["memory"]["activations"]


def test_kept_activations_grow_with_the_pass(trained: Trained) -> None:
    sizes = []
    for tokens in (32, 128):
        options = ("--set", f"training.device_tokens={tokens}", "--set", "training.batch_tokens=128", "--json")
        done = inside(trained.folder, "plan", "-c", "c.yaml", *options)
        sizes.append(json.loads(done.stdout)["memory"]["activations"])
    assert 2 * sizes[0] < sizes[1] < 6 * sizes[0]


def test_limits_of_all_kinds(trained: Trained) -> None:
    updates = {}
    for key, value in (("max_epochs", 3), ("max_minutes", 0.001), ("max_steps", 100_000)):
        limits = [f"training.{name}=null" for name in ("max_steps", "max_epochs", "max_minutes") if name != key]
        options = [part for text in [f"training.{key}={value}", *limits] for part in ("--set", text)]
        done = inside(trained.folder, "plan", "-c", "c.yaml", "--json", *options)
        assert done.exit_code == 0, done.stderr
        found = json.loads(done.stdout)
        updates[key] = found["time"]["last_step"]
        if key == "max_epochs":
            assert updates[key] == 3 * found["updates"]["in_an_epoch"]
        if key == "max_minutes":
            each = found["time"]["seconds_of_an_update"]
            assert updates[key] == max(1, round(0.06 / each))
    assert updates["max_steps"] == 100_000


def test_departures_from_the_paper() -> None:
    """None in the configurations that are the paper's; each by its key in others."""
    for name in shipped_configs():
        found = departures(load_config(name))
        assert bool(found) == name.startswith(("demo", "local", "base-t2t")), (name, found)
    changes = ("model.dropout=0.3", "training.learning_rate.warmup_steps=8000", "training.optimizer.clip_norm=1")
    assert departures(load_config("base.yaml", changes)) == [
        "model.dropout: 0.1 in base.yaml, 0.3 here",
        "training.learning_rate.warmup_steps: 4000 in base.yaml, 8000 here",
        "training.optimizer.clip_norm: none in base.yaml, 1.0 here",
    ]


def test_parameters_of_the_paper() -> None:
    """Table 3: 65 million with 37,000 pieces, 213 million the big model."""
    for name, millions in (("base.yaml", 63.08), ("big.yaml", 214.2)):
        with torch.device("meta"):
            sizes = parameters(build(load_config(name).model, 37000, 37000))
        assert sizes["total"] / 1e6 == pytest.approx(millions, abs=0.1)
        assert sizes["embeddings"] == 37000 * load_config(name).model.model_size


def test_no_memory_is_told(task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(task)
    monkeypatch.setattr(Trainer, "rehearse", lambda *arguments: False)
    done = inside(task, "plan", "-c", "c.yaml")
    assert done.exit_code == 1 and "does not fit" in done.stderr
    assert_plain(done.stderr)


def planned(folder: Path, *sets: str) -> dict[str, Any]:
    done = inside(folder, "plan", "-c", "c.yaml", "--json", *(word for one in sets for word in ("--set", one)))
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_less_memory_means_more_passes_as_in_training(task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Trainer.rehearse

    def small(self: Trainer, batch: Batch, passes: int, *more: Any) -> bool:
        tokens = -(-len(batch.pairs) // passes) * max(batch.source_length, batch.target_length)
        return tokens <= 200 and original(self, batch, passes, *more)

    write_config(task, training={"batch_tokens": 400})
    monkeypatch.setattr(Trainer, "rehearse", small)
    found = planned(task)
    assert found["updates"]["device_tokens"] < 4096 and found["updates"]["passes"] > 1
    assert any("training.device_tokens is" in note for note in found["notes"])


CHANGES = pytest.mark.parametrize(
    ("change", "told"),
    [
        ("tokenizer.vocabulary_size=30", "tokenizer.vocabulary_size: was"),
        ("data.cleaning.max_length_ratio=5", "data.cleaning.max_length_ratio: was"),
        ("training.max_tokens=200", "training.max_tokens: was"),
    ],
)


@CHANGES
def test_what_was_made_for_another_configuration_is_not_measured_on(task: Path, change: str, told: str) -> None:
    write_config(task)
    assert inside(task, "tokenize", "-c", "c.yaml").exit_code == 0
    assert planned(task)["data"]["pairs"] < 20_000
    found = planned(task, change)
    assert found["notes"][0].startswith(told) and "made-up" in found["notes"][-1]
    assert found["data"]["pairs"] == 20_000


@CHANGES
def test_what_training_refuses_is_refused(trained: Trained, change: str, told: str) -> None:
    for command in ("plan", "train"):
        done = inside(trained.folder, command, "-c", "c.yaml", "--set", change)
        assert done.exit_code == 2 and "was trained with other settings" in done.stderr and told in done.stderr
        assert_plain(done.stderr)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("training.initial_model=nosuch", "nosuch"),
        ("data.train=[{source: no.en, target: no.de}]", "no.en"),
        ("output=c.yaml", "is a file"),
        ("model.model_size=100000000", "out of memory"),
    ],
)
def test_what_is_not_there_is_told(task: Path, change: str, told: str) -> None:
    write_config(task)
    done = inside(task, "plan", "-c", "c.yaml", "--set", change)
    assert done.exit_code == (1 if "memory" in told else 2) and told in done.stderr, done.stderr
    assert_plain(done.stderr)


def test_records_that_cannot_be_read(trained: Trained, tmp_path: Path) -> None:
    shutil.copytree(trained.folder, tmp_path / "copy", symlinks=True)
    folder = tmp_path / "copy"
    for content in ("x", "[]"):
        (folder / "run" / "ids" / "stage.json").write_text(content)
        assert any("training makes it first" in note for note in planned(folder)["notes"])
        (last_checkpoint(folder / "run") / "state.json").write_text(content)
        assert "cannot be resumed from" in planned(folder)["notes"][0]


def test_a_given_vocabulary_is_counted_before_it_is_there(trained: Trained, task: Path) -> None:
    write_config(task, tokenizer={"model": str(trained.model / "spm.model")})
    width = load_config(str(task / "c.yaml")).model.model_size
    assert planned(task)["parameters"]["embeddings"] == Tokenizer(trained.model).source_size * width


def test_a_run_is_taken_as_training_takes_it(trained: Trained, tmp_path: Path) -> None:
    """Keys that a checkpoint keeps are its own; a damaged checkpoint is told, and the one before it counts."""
    shutil.copytree(trained.folder, tmp_path / "copy", symlinks=True)
    folder = tmp_path / "copy"
    found = planned(folder, "training.batch_tokens=999")
    assert found["updates"]["batch_tokens"] != 999 and "training.batch_tokens: config 999" in found["notes"][0]
    newest = last_checkpoint(folder / "run")
    (newest / "state.json").unlink()
    found = planned(folder)
    assert newest.name in found["notes"][0] and found["time"]["step"] < int(newest.name[5:])


def test_sampled_subwords_are_told(trained: Trained) -> None:
    assert any("subword_sampling" in note for note in planned(trained.folder, "training.subword_sampling=0.1")["notes"])
