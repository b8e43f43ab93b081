"""What training would come to, told before anything is made; its numbers are those that training then has."""

import json
import re
from pathlib import Path

import pytest
import torch

from tests.running import Trained, assert_plain, inside, write_config
from transformer_mt.commands.plan import departures, parameters
from transformer_mt.config.file import load_config, shipped_configs
from transformer_mt.model.folder import build


def test_before_anything_is_there_nothing_is_made(task: Path) -> None:
    write_config(task, training={"max_steps": 50, "batch_tokens": 400})
    before = sorted(task.rglob("*"))
    done = inside(task, "plan", "-c", "c.yaml")
    assert done.exit_code == 0, done.stderr
    assert_plain(done.stderr)
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names[:7] == ["model", "data", "updates", "memory", "speed", "time", "operations"]
    assert "note: no token ids of this configuration" in done.stdout and "made-up pairs" in done.stdout
    assert "departs from the paper: model.heads: 8 in " in done.stdout
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
    assert updates["max_steps"] == 100_000 and updates["max_minutes"] >= 1


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
    def none(*arguments: object) -> None:
        raise torch.OutOfMemoryError

    write_config(task)
    monkeypatch.setattr("transformer_mt.commands.plan._speed", none)
    done = inside(task, "plan", "-c", "c.yaml")
    assert done.exit_code == 1 and "training.device_tokens" in done.stderr
    assert_plain(done.stderr)
