"""A run folder of an earlier version: its models translate, its training goes on, its scores can be had."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.running import assert_plain, digests, events, inside, last_checkpoint
from transformer_mt.train.checkpoint import name_of

FORMAT_1 = Path(__file__).parent.parent / "fixtures" / "format-1"
LINES = "ka do fi\nka pa\nti ka\n"
# The two best translations of each line with their scores, as the version that trained the model gave them.
FROZEN = [("k", -3.01693), ("a", -3.45298), ("a", -3.15835), ("k", -3.38545), ("k", -3.27513), ("a", -3.40824)]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A copy of the run with its text; the configuration asks for three updates more."""
    folder = tmp_path / "old"
    shutil.copytree(FORMAT_1, folder, symlinks=True)
    (folder / "run" / ".lock").touch()  # every run folder has it
    config = yaml.safe_load((folder / "run" / "config.yaml").read_text("utf-8"))
    for name, split in (("train", "train"), ("valid", "validation"), ("test", "test")):
        config["data"][split] = [{"source": str(folder / f"{name}.en"), "target": str(folder / f"{name}.de")}]
    config["training"]["max_steps"] = 9
    (folder / "c.yaml").write_text(yaml.safe_dump(config, allow_unicode=True), "utf-8")
    return folder


def state_of(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((folder / "state.json").read_text("utf-8"))
    return state


def translated(folder: Path, model: str, *options: str) -> list[str]:
    (folder / "in.en").write_text(LINES)
    done = inside(folder, "translate", "-m", model, "--input", "in.en", "--output", "out", *options)
    assert done.exit_code == 0, done.stderr
    return (folder / "out").read_text("utf-8").splitlines()


def test_its_model_translates_as_it_did(old: Path) -> None:
    assert translated(old, "run/model") == ["k", "a", "k"]
    rows = [json.loads(row) for row in translated(old, "run/model", "--n-best", "2", "--format", "jsonl")]
    found = [(one["text"], one["score"]) for row in rows for one in row["translations"]]
    assert found == [(text, pytest.approx(score, rel=1e-4)) for text, score in FROZEN]
    kept = (FORMAT_1 / "run" / "translations" / "test.de").read_text("utf-8").splitlines()
    (old / "in.en").write_bytes((FORMAT_1 / "test.en").read_bytes())
    assert inside(old, "translate", "-m", "run", "--input", "in.en", "--output", "out").exit_code == 0
    assert (old / "out").read_text("utf-8").splitlines() == kept


def test_its_cleaning_is_told_as_far_as_it_is_known(old: Path) -> None:
    done = inside(old, "clean", "-c", "c.yaml")
    assert done.exit_code == 0, done.stderr
    assert "up to date" in done.stderr and "not counted" in done.stdout and "empty_source" in done.stdout


@pytest.mark.parametrize("step", [3, 6])
def test_its_checkpoints_translate(old: Path, step: int) -> None:
    folder = f"run/checkpoints/{name_of(step)}"
    (row,) = [json.loads(row) for row in translated(old, folder, "--format", "jsonl")][:1]
    frozen = {3: ("k", -3.045229), 6: ("k", -2.996463)}[step]
    (best,) = row["translations"]
    assert (best["text"], best["score"]) == (frozen[0], pytest.approx(frozen[1], rel=1e-4))


def test_its_training_goes_on(old: Path) -> None:
    """From its own weights and moments to the update that it was to come to; what is made another way now is told."""
    before = state_of(old / "run" / "checkpoints" / name_of(6))
    assert not {"minutes", "last_step"} & before["progress"].keys() and "sha256" not in before
    assert "ema_decay" not in before["config"]["training"]["optimizer"]
    done = inside(old, "train", "-c", "c.yaml")
    assert done.exit_code == 0, done.stderr
    assert done.stderr.count("up to date") == 3
    assert done.stderr.count("resuming at step 6, epoch 2, batch 2 from run/checkpoints/step-000000006\n") == 1
    assert done.stderr.count("warning: the version that began this run made its updates another way") == 1
    assert "--reset" not in done.stderr  # a key that is new has the value that nothing changes with
    rows = {event["step"]: event["loss"] for event in events(old / "run")}
    assert list(rows) == [2, 4, 6, 8, 9]
    assert (rows[8], rows[9]) == pytest.approx((3.729982, 3.962561), rel=1e-4)
    validation = events(old / "run", "validation")[-1]
    assert (validation["step"], validation["loss"]) == (9, pytest.approx(3.678912, rel=1e-4))
    state = state_of(last_checkpoint(old / "run"))
    assert (state["progress"]["step"], state["progress"]["minutes"], state["progress"]["last_step"]) == (9, 0.0, None)
    training = state["config"]["training"]
    assert training["max_steps"] == 9 and training["learning_rate"]["minimum"] == training["subword_sampling"] == 0.0
    assert training["optimizer"]["ema_decay"] == training["optimizer"]["weight_decay"] == 0.0
    steps = yaml.safe_load((old / "run" / "model" / "config.yaml").read_text("utf-8"))["steps"]
    assert steps == [6, 9]


def test_a_key_that_it_did_not_know_stays_as_if_it_were_not_there(old: Path) -> None:
    sets = ("training.optimizer.weight_decay=0.5", "training.subword_sampling=0.0", "training.learning_rate.peak=1e-2")
    done = inside(old, "train", "-c", "c.yaml", *(word for one in sets for word in ("--set", one)))
    assert done.exit_code == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "(--reset " in line]
    assert told == [
        "training.learning_rate.peak: config 0.01, checkpoint 0.001, using 0.001 (--reset schedule takes the config's)",
        "training.optimizer.weight_decay: config 0.5, checkpoint 0.0, using 0.0 (--reset optimizer takes the config's)",
    ]
    assert {event["step"]: event["loss"] for event in events(old / "run")}[9] == pytest.approx(3.962561, rel=1e-4)


def test_a_finished_run_stays_finished(old: Path) -> None:
    before = digests(old / "run", without=["config.yaml"])
    done = inside(old, "train", "-c", "c.yaml", "--set", "training.max_steps=6")
    assert done.exit_code == 0, done.stderr
    assert "nothing to train: 6 updates made, training.max_steps is 6" in done.stderr
    assert digests(old / "run", without=["config.yaml"]) == before


def test_its_scores_are_those_it_had(old: Path) -> None:
    before = json.loads((old / "run" / "scores" / "test.json").read_text("utf-8"))
    shutil.rmtree(old / "run" / "scores")
    done = inside(old, "evaluate", "-c", "c.yaml", "--json")
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    for name in ("bleu", "chrf", "ter", "segments", "reference_sha256", "model_sha256", "translations_sha256"):
        assert report[name] == before[name]
    assert (old / "run" / "translations" / "test.de").read_bytes() == (
        FORMAT_1 / "run" / "translations" / "test.de"
    ).read_bytes()


def test_its_checkpoints_can_be_averaged(old: Path) -> None:
    before = (old / "run" / "model" / "model.safetensors").read_bytes()
    done = inside(old, "average", "-c", "c.yaml", "--last", "2", "--output", "again")
    assert done.exit_code == 0, done.stderr
    assert (old / "again" / "model.safetensors").read_bytes() == before


def future(folder: Path, *sections: str) -> None:
    """Gives the newest checkpoint's state a field that this version does not know."""
    path = folder / "run" / "checkpoints" / name_of(6) / "state.json"
    state = json.loads(path.read_text("utf-8"))
    section = state
    for name in sections:
        section = section[name]
    section["of_the_future"] = 1
    path.write_text(json.dumps(state), "utf-8")


def test_a_field_of_the_future_on_the_way_is_told_in_a_line(old: Path) -> None:
    """What an update may depend on is not left out in silence."""
    future(old, "progress")
    before = digests(old)
    done = inside(old, "train", "-c", "c.yaml")
    assert done.exit_code == 1
    told = [line for line in done.stderr.splitlines() if "of_the_future" in line]
    assert len(told) == 1 and told[0].startswith("error: ") and name_of(6) in told[0]
    assert "Error" not in done.stderr and "__init__" not in done.stderr, done.stderr
    assert_plain(done.stderr)
    assert digests(old) == before


@pytest.mark.parametrize("sections", [("config", "training", "optimizer"), ("config", "training", "learning_rate")])
def test_a_key_of_the_future_that_updates_depend_on_is_told_in_a_line(old: Path, sections: tuple[str, ...]) -> None:
    future(old, *sections)
    before = digests(old)
    done = inside(old, "train", "-c", "c.yaml")
    assert done.exit_code in (1, 2)
    told = [line for line in done.stderr.splitlines() if "up to date" not in line]
    assert len(told) == 1 and told[0].startswith("error: unknown key") and "of_the_future" in told[0], done.stderr
    assert_plain(done.stderr)
    assert digests(old) == before


def test_a_field_of_the_future_beside_the_others_is_no_matter(old: Path) -> None:
    future(old)
    done = inside(old, "train", "-c", "c.yaml")
    assert done.exit_code == 0, done.stderr
    assert "resuming at step 6," in done.stderr
