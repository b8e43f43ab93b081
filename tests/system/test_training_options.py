"""Options of training, seen from outside: a running mean, other averages, a limit in minutes, fine-tuning, stopping."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.running import assert_plain, digests, events, inside, last_checkpoint, train, write_config, write_task
from tests.tiny import CPU
from transformer_mt.config.file import load_config
from transformer_mt.data.tokenizer import Tokenizer
from transformer_mt.errors import UserError
from transformer_mt.model.folder import weights
from transformer_mt.train.checkpoint import name_of
from transformer_mt.train.log import Console
from transformer_mt.train.opening import open_session
from transformer_mt.train.session import Session
from transformer_mt.train.signals import StopFlag

STILL = {"warmup_steps": 1, "peak": 1e-30}
"""A rate so small that no weight but 0 moves."""


def opened(folder: Path) -> Session:
    """The session that the next command would begin with."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        config = load_config("c.yaml")
        return open_session(config, config.output, CPU, Console(enabled=False), StopFlag())
    finally:
        os.chdir(before)


def checkpoint(run: Path, step: int) -> Path:
    return run / "checkpoints" / name_of(step)


def model_of(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def state_of(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((folder / "state.json").read_text("utf-8"))
    return state


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 0.0) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor.double(), expected[name].double(), rtol=0, atol=tolerance, msg=name)


def mean(folders: list[Path]) -> dict[str, Tensor]:
    """Summed in float64, from the oldest on."""
    loaded = [model_of(folder) for folder in sorted(folders)]
    return {name: (sum(one[name].double() for one in loaded) / len(loaded)).float() for name in loaded[0]}


def copy(folder: Path, place: Path) -> Path:
    shutil.copytree(folder, place, symlinks=True)
    return place


# A running mean of the weights


MEAN = {"ema_decay": 0.6}


def test_a_checkpoint_holds_the_mean_and_beside_it_what_is_trained(task: Path) -> None:
    rules = {"every_steps": 1, "average": 2, "keep_resumable": 9}
    steps = {"max_steps": 6, "checkpoint": rules}
    write_config(task, output="plain", training=steps)
    inside(task, "tokenize", "-c", "c.yaml")
    expected = {name: tensor.double() for name, tensor in weights(opened(task).trainer.model).items()}
    train(task)
    write_config(task, output="mean", training={**steps, "optimizer": MEAN})
    train(task)
    for step in range(1, 7):
        share = min(0.6, (1 + step) / (10 + step))
        trained = model_of(checkpoint(task / "plain", step))
        expected = {name: share * expected[name] + (1 - share) * trained[name].double() for name in expected}
        found = checkpoint(task / "mean", step)
        assert_close(model_of(found), expected, 1e-6)
        assert not all(torch.equal(tensor, trained[name]) for name, tensor in model_of(found).items())
        kept = load_file(found / "optimizer.safetensors")
        assert_close({name: kept[f"{name}.trained"] for name in trained}, trained)
    assert_close(model_of(task / "mean" / "model"), mean([checkpoint(task / "mean", step) for step in (5, 6)]))


def test_with_a_mean_a_resumed_run_equals_an_undisturbed_one(tmp_path: Path) -> None:
    write_task(tmp_path, 200)
    for output, limits in (("whole", (10,)), ("parted", (3, 5, 10))):
        for limit in limits:
            training = {"max_steps": limit, "optimizer": {**MEAN, "weight_decay": 0.1}, "log_every_steps": 5}
            write_config(tmp_path, output=output, training=training)
            said = train(tmp_path)
            assert ("resuming at step" in said) == (limit != limits[0])
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (last_checkpoint(whole) / name).read_bytes() == (last_checkpoint(parted) / name).read_bytes()
    assert (whole / "model/model.safetensors").read_bytes() == (parted / "model/model.safetensors").read_bytes()
    kept = [event for event in events(parted, "validation") if event["step"] in (4, 8, 10)]
    assert kept == events(whole, "validation") and len(kept) == 3


def test_validation_measures_the_mean(tmp_path: Path) -> None:
    """BLEU and chrF of the log are those of the checkpoint's own translations; what is trained gives others."""
    write_task(tmp_path, 600)
    training = {
        "max_steps": 60, "batch_tokens": 600, "label_smoothing": 0.0, "optimizer": {"ema_decay": 0.9},
        "learning_rate": {"warmup_steps": 10, "peak": 1e-2},
        "checkpoint": {"every_steps": 60, "average": 1},
        "validation": {"every_steps": 60, "translate": True, "metric": "bleu"},
    }  # fmt: skip
    write_config(tmp_path, training=training, model={"dropout": 0.0}, decoding={"beam_size": 2})
    train(tmp_path)
    run = tmp_path / "run"
    (logged,) = events(run, "validation")
    found = checkpoint(run, 60)
    assert scores(run, found) == pytest.approx((logged["bleu"], logged["chrf"]), rel=1e-9)
    assert logged["bleu"] > 0
    other = copy(found, run / "checkpoints" / "step-000000099")
    kept = load_file(found / "optimizer.safetensors")
    trained = {name: kept[f"{name}.trained"] for name in model_of(found)}
    save_file(trained, other / "model.safetensors")
    assert scores(run, other)[1] != pytest.approx(logged["chrf"], rel=1e-3)


def scores(run: Path, model: Path) -> tuple[float, float]:
    """BLEU and chrF of the validation text translated by a model."""
    out, text = run.parent / "out.de", run / "corpus"
    done = inside(run.parent, "translate", "-m", model, "--input", text / "validation.en", "--output", out)
    assert done.exit_code == 0, done.stderr
    options = ("--target-language", "de", "--json", "--quiet")
    done = inside(run.parent, "evaluate", "--hypothesis", out, "--reference", text / "validation.de", *options)
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    return report["bleu"], report["chrf"]


# Which checkpoints are averaged


@pytest.fixture(scope="module")
def best_of(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten updates with so high a rate that the best checkpoints are not the last ones."""
    folder = tmp_path_factory.mktemp("best")
    write_task(folder)
    training = {
        "max_steps": 10,
        "learning_rate": {"warmup_steps": 3, "peak": 0.5},
        "checkpoint": {"every_steps": 1, "keep_best": 4, "keep_last": 4, "average": 3, "average_of": "best"},
        "validation": {"every_steps": 1, "translate": False, "metric": "loss"},
    }
    write_config(folder, training=training)
    train(folder)
    return folder


def by_loss(run: Path) -> list[int]:
    """Steps of the validations, best first."""
    return [event["step"] for event in sorted(events(run, "validation"), key=lambda event: event["loss"])]


def test_model_is_the_mean_of_the_best(best_of: Path) -> None:
    run = best_of / "run"
    best = by_loss(run)[:3]
    assert set(best) != {8, 9, 10}
    assert_close(model_of(run / "model"), mean([checkpoint(run, step) for step in best]))
    settings = yaml.safe_load((run / "model" / "config.yaml").read_text("utf-8"))
    assert settings["steps"] == sorted(best)
    steps = ", ".join(map(str, sorted(best)))
    assert (run / "train.log").read_text("utf-8").endswith(f"mean of steps {steps}\n")
    assert "nothing to train" in train(best_of)


def test_average_takes_the_best_in_any_order(best_of: Path) -> None:
    run = best_of / "run"
    best = by_loss(run)[:2]
    done = inside(best_of, "average", "-c", "c.yaml", "--best", "2", "--output", "best-two")
    assert done.exit_code == 0 and "warning" not in done.stderr, done.stderr
    assert_close(model_of(best_of / "best-two"), mean([checkpoint(run, step) for step in best]))
    for output, order in (("one", best), ("two", best[::-1])):
        options = [word for step in order for word in ("--checkpoint", str(checkpoint(run, step)))]
        done = inside(best_of, "average", "-c", "c.yaml", *options, "--output", output)
        assert done.exit_code == 0, done.stderr
        assert digests(best_of / output) == digests(best_of / "best-two")
    done = inside(best_of, "average", "-c", "c.yaml", "--output", "as-configured")
    assert done.exit_code == 0, done.stderr
    assert digests(best_of / "as-configured") == digests(run / "model")
    done = inside(best_of, "average", "-c", "c.yaml", "--last", "2", "--output", "last-two")
    assert_close(model_of(best_of / "last-two"), mean([checkpoint(run, step) for step in (9, 10)]))


def test_fewer_checkpoints_than_asked_for_are_told(best_of: Path) -> None:
    run = best_of / "run"
    kept = [int(path.name[5:]) for path in (run / "checkpoints").glob("step-*")]
    done = inside(best_of, "average", "-c", "c.yaml", "--best", "50", "--output", "all")
    assert done.exit_code == 0
    assert done.stderr.count(f"warning: run has {len(kept)} checkpoints, fewer than 50\n") == 1
    assert_close(model_of(best_of / "all"), mean([checkpoint(run, step) for step in kept]))


def test_one_way_of_choosing_excludes_the_others(best_of: Path) -> None:
    before = digests(best_of)
    given = ("--checkpoint", checkpoint(best_of / "run", 10))
    for options in (("--last", "2", "--best", "2"), ("--best", "2", *given), ("--last", "2", *given)):
        done = inside(best_of, "average", "-c", "c.yaml", *options, "--output", "none")
        assert done.exit_code == 2 and done.stderr == "error: give one of --last, --best and --checkpoint\n"
    assert digests(best_of) == before


def test_the_best_are_those_that_were_validated(best_of: Path, tmp_path: Path) -> None:
    folder = copy(best_of, tmp_path / "copy")
    (folder / "run" / "metrics.jsonl").write_text("")
    done = inside(folder, "average", "-c", "c.yaml", "--best", "2")
    assert done.exit_code == 2 and done.stderr == "error: run has no checkpoints to average that were validated\n"


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ({"average": 5}, r"average \(\S+c\.yaml:\d+\): found 5, wanted at most keep_best \(1\)"),
        ({"average": 3, "keep_best": 2}, r"average \(\S+c\.yaml:\d+\): found 3, wanted at most keep_best \(2\)"),
        ({"average": 0, "keep_best": 0}, r"average \(\S+c\.yaml:\d+\): found 0, which takes the best checkpoint"),
    ],
)
def test_more_than_is_kept_cannot_be_averaged(tmp_path: Path, rules: dict[str, int], told: str) -> None:
    path = write_config(tmp_path, training={"checkpoint": {**rules, "average_of": "best"}})
    with pytest.raises(UserError, match=f"^training.checkpoint.{told}"):
        load_config(str(path))


def test_as_many_as_are_kept_can_be_averaged(tmp_path: Path) -> None:
    rules = {"average": 3, "keep_best": 3, "keep_last": 1, "average_of": "best"}
    assert load_config(str(write_config(tmp_path, training={"checkpoint": rules}))).training.checkpoint.average == 3


# A limit in minutes


class Clock:
    """Stands for the module `time`: every look at it is `tick` seconds after the one before; at first, `first`."""

    def __init__(self, tick: float, first: float | None = None) -> None:
        self.tick, self.now, self.first = tick, 0.0, [tick if first is None else first] * 2

    def perf_counter(self) -> float:
        self.now += self.first.pop() if self.first else self.tick
        return self.now


TIMED: dict[str, Any] = {
    "max_minutes": 0.5,
    "checkpoint": {"every_steps": 100, "average": 1},
    "validation": {"every_steps": 100, "translate": False, "metric": "loss"},
}


@pytest.fixture(scope="module")
def ten_seconds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Ten updates of a second each, of a run that may take half a minute."""
    folder = tmp_path_factory.mktemp("minutes")
    write_task(folder)
    write_config(folder, training={**TIMED, "max_steps": 10})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformer_mt.train.session.time", Clock(1))
        (folder / "said").write_text(train(folder))
    yield folder


def test_minutes_become_a_number_of_updates(ten_seconds: Path) -> None:
    told = "training.max_minutes 0.5 come to 30 updates, 1 seconds each\n"
    log = (ten_seconds / "run" / "train.log").read_text("utf-8")
    assert (ten_seconds / "said").read_text().count(told) == 1 and log.count(told) == 1
    assert log.index(told) < log.index("step 2/10")  # max_steps comes first
    progress = state_of(checkpoint(ten_seconds / "run", 10))["progress"]
    assert (progress["minutes"], progress["last_step"], progress["seconds"]) == (0.5, 30, 10.0)


def test_their_speed_is_known_after_a_twentieth_of_the_time(task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second for the first update and one for the second are a twentieth of half a minute."""
    write_config(task, training={**TIMED, "max_steps": 4})
    monkeypatch.setattr("transformer_mt.train.session.time", Clock(1, first=0.5))
    said = train(task)
    assert said.count("come to") == 1
    assert "training.max_minutes 0.5 come to 40 updates, 0.75 seconds each\n" in said


def test_the_number_of_updates_stays_after_a_resume(
    ten_seconds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy(ten_seconds, tmp_path / "copy")
    monkeypatch.setattr("transformer_mt.train.session.time", Clock(7))
    said = train(folder, "--set", "training.max_steps=1000")
    assert "come to" not in said and re.search(r"^step 30/30 ", said, re.M)
    assert last_checkpoint(folder / "run").name == name_of(30)
    progress = state_of(last_checkpoint(folder / "run"))["progress"]
    assert (progress["minutes"], progress["last_step"], progress["seconds"]) == (0.5, 30, 10.0 + 20 * 7)
    again = train(folder, "--set", "training.max_steps=1000")
    assert "nothing to train: 30 updates made, which training.max_minutes 0.5 came to" in again


@pytest.mark.parametrize(("minutes", "last"), [("0.4", 24), ("0.2", 12), ("0.1", 10)])
def test_another_limit_is_another_number_of_updates(
    ten_seconds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: str, last: int
) -> None:
    """At a second each; those that were made count, and none is made when the time is over already."""
    folder = copy(ten_seconds, tmp_path / "copy")
    monkeypatch.setattr("transformer_mt.train.session.time", Clock(1))
    said = train(folder, "--set", "training.max_steps=1000", "--set", f"training.max_minutes={minutes}")
    assert f"training.max_minutes {minutes} come to {last} updates, 1 seconds each\n" in said
    assert last_checkpoint(folder / "run").name == name_of(last)
    progress = state_of(last_checkpoint(folder / "run"))["progress"]
    assert (progress["step"], progress["seconds"]) == (last, last)


def test_without_the_limit_its_number_of_updates_is_gone(
    ten_seconds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy(ten_seconds, tmp_path / "copy")
    monkeypatch.setattr("transformer_mt.train.session.time", Clock(1))
    train(folder, "--set", "training.max_steps=33", "--set", "training.max_minutes=null")
    progress = state_of(last_checkpoint(folder / "run"))["progress"]
    assert (progress["step"], progress["minutes"], progress["last_step"]) == (33, 0.0, None)


# Fine-tuning


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of twelve updates."""
    folder = tmp_path_factory.mktemp("old")
    write_task(folder)
    write_config(folder)
    train(folder)
    return folder


def test_the_same_vocabulary_takes_the_whole_model(old: Path, tmp_path: Path) -> None:
    folder = copy(old, tmp_path / "copy")
    shutil.rmtree(folder / "run")
    origin = checkpoint(old / "run", 12)
    training = {"max_steps": 1, "seed": 2, "learning_rate": STILL, "initial_model": str(origin)}
    write_config(folder, training=training)
    said = train(folder)
    taken = model_of(origin)
    told = f"initial weights from {origin}: {len(taken)} of {len(taken)} tensors taken whole\n"
    assert said.count(told) == 1 and (folder / "run" / "train.log").read_text("utf-8").count(told) == 1
    assert not re.search("by piece|that are new|not taken", said)
    assert_close(model_of(last_checkpoint(folder / "run")), taken, 1e-29)
    (first,) = events(folder / "run", "validation")
    before = events(old / "run", "validation")[-1]
    assert (first["step"], before["step"]) == (1, 12)
    assert (first["loss"], first["nll"]) == pytest.approx((before["loss"], before["nll"]), rel=1e-9)
    assert state_of(last_checkpoint(folder / "run"))["progress"]["step"] == 1


def rows_by_piece(tensor: Tensor, pieces: list[str]) -> dict[str, Tensor]:
    assert len(tensor) == len(pieces) == len(set(pieces))
    return dict(zip(pieces, tensor, strict=True))


def assert_rows(found: dict[str, Tensor], taken: dict[str, Tensor], new: dict[str, Tensor]) -> tuple[int, int]:
    """Rows of shared pieces are the old model's, others those of a model that begins anew; how many of each."""
    for piece, row in found.items():
        assert torch.equal(row, taken[piece] if piece in taken else new[piece]), piece
    return len(found.keys() & taken.keys()), len(found.keys() - taken.keys())


def test_another_vocabulary_takes_rows_by_the_piece(old: Path, tmp_path: Path) -> None:
    words = {"train": "ba", "valid": "do", "test": "fi"}
    write_task(tmp_path)
    for name, word in words.items():
        for language in ("en", "de"):
            path = tmp_path / f"{name}.{language}"
            path.write_text(path.read_text("utf-8").replace(word, "zyx"), "utf-8")
    write_config(tmp_path, tokenizer={"vocabulary_size": 50})
    assert inside(tmp_path, "tokenize", "-c", "c.yaml").exit_code == 0
    new = weights(opened(tmp_path).trainer.model)
    write_config(tmp_path, tokenizer={"vocabulary_size": 50}, training={"initial_model": str(old / "run" / "model")})
    session = opened(tmp_path)
    found, taken = weights(session.trainer.model), model_of(old / "run" / "model")
    pieces, theirs = (Tokenizer(folder / "run" / "tokenizer").source_pieces() for folder in (tmp_path, old))
    assert pieces != theirs and pieces.index("▁") != theirs.index("▁")
    (name,) = [name for name, tensor in found.items() if len(tensor) == len(pieces)]
    tables = (rows_by_piece(one[name], own) for one, own in ((found, pieces), (taken, theirs), (new, pieces)))
    shared, others = assert_rows(*tables)
    assert shared > 20 and others > 2
    assert_close(*({n: t for n, t in one.items() if n != name} for one in (found, taken)))
    assert session.notes == [
        f"initial weights from {old / 'run' / 'model'}: {len(found) - 1} of {len(found)} tensors taken whole",
        f"initial weights by piece, {name}: {shared} of {len(pieces)} pieces",
    ]


def test_two_vocabularies_each_go_by_their_own_pieces(tmp_path: Path) -> None:
    """Three untied matrices and a bias on the output, with pieces that one language has and the other has not."""
    apart = {"tokenizer": {"shared": False}, "model": {"tie_embeddings": "none", "output_bias": True}}
    for name, more in (("first", "first"), ("second", "other")):
        write_task(tmp_path / name)
        for language, text in (("en", f"q{more}\n"), ("de", f"w{more}\n")):
            with (tmp_path / name / f"train.{language}").open("a", encoding="utf-8") as file:
                file.write(text * 2)
        write_config(tmp_path / name, **apart, training={"max_steps": 1, "learning_rate": {"peak": 0.1}})
    train(tmp_path / "first")
    second, origin = tmp_path / "second", checkpoint(tmp_path / "first" / "run", 1)
    assert inside(second, "tokenize", "-c", "c.yaml").exit_code == 0
    new = weights(opened(second).trainer.model)
    write_config(second, **apart, training={"max_steps": 1, "initial_model": str(origin)})
    session = opened(second)
    model, taken = session.trainer.model, model_of(origin)
    found, names = weights(model), {id(parameter): name for name, parameter in model.named_parameters()}
    ours, theirs = Tokenizer(second / "run/tokenizer"), Tokenizer(tmp_path / "first/run/tokenizer")
    assert ours.source_pieces() != ours.target_pieces()
    sides = {
        names[id(model.source_embedding.tokens.weight)]: (ours.source_pieces(), theirs.source_pieces()),
        names[id(model.target_embedding.tokens.weight)]: (ours.target_pieces(), theirs.target_pieces()),
        names[id(model.output.weight)]: (ours.target_pieces(), theirs.target_pieces()),
        names[id(model.output_bias)]: (ours.target_pieces(), theirs.target_pieces()),
    }
    assert len(sides) == 4
    for name, (mine, their) in sides.items():
        assert mine != their
        tables = (rows_by_piece(one[name], own) for one, own in ((found, mine), (taken, their), (new, mine)))
        shared, others = assert_rows(*tables)
        assert shared > 20 and others > 2
        assert f"initial weights by piece, {name}: {shared} of {len(mine)} pieces" in session.notes


def test_a_deeper_model_keeps_its_new_layers(old: Path, tmp_path: Path) -> None:
    folder = copy(old, tmp_path / "copy")
    shutil.rmtree(folder / "run")
    deeper, rate = {"encoder_layers": 2}, {"max_steps": 1, "learning_rate": STILL}
    write_config(folder, model=deeper, training=rate)
    inside(folder, "tokenize", "-c", "c.yaml")
    new = weights(opened(folder).trainer.model)
    write_config(folder, model=deeper, training={**rate, "initial_model": str(old / "run")})
    said, taken = train(folder), model_of(old / "run" / "model")
    found = model_of(last_checkpoint(folder / "run"))
    more = [name for name in new if name not in taken]
    assert more and found.keys() == new.keys()
    assert_close(found, {**new, **taken}, 1e-29)
    total = len(new)
    assert f"initial weights from {old / 'run' / 'model'}: {total - len(more)} of {total} tensors taken whole\n" in said
    assert f"initial weights that are new: {', '.join(more)}\n" in said
    assert "not taken" not in said
    # The other way round two layers' weights find no place, and are told.
    origin = str(last_checkpoint(folder / "run"))
    write_config(folder, output="shallow", training={**rate, "initial_model": origin})
    said = train(folder)
    assert f"not taken, since this model has no such weights: {', '.join(sorted(more))}\n" in said
    assert "that are new" not in said


def test_a_model_of_which_nothing_fits_is_refused(old: Path, tmp_path: Path) -> None:
    folder = copy(old, tmp_path / "copy")
    shutil.rmtree(folder / "run")
    sizes = {"model_size": 48, "feedforward_size": 48}
    write_config(folder, model=sizes, training={"initial_model": str(old / "run")})
    done = inside(folder, "train", "-c", "c.yaml")
    told = f"error: training.initial_model: nothing in {old / 'run' / 'model'} has the names and shapes of this model\n"
    assert done.exit_code == 2 and done.stderr.endswith(told)
    made = {path.name for path in (folder / "run").iterdir() if not path.name.startswith(".")}
    assert made == {"corpus", "tokenizer", "ids", "config.yaml"}


@pytest.mark.parametrize("place", ["missing", "empty"])
def test_a_model_that_is_not_there_is_told_before_anything_is_prepared(task: Path, place: str) -> None:
    (task / "empty").mkdir()
    write_config(task, training={"initial_model": place})
    done = inside(task, "train", "-c", "c.yaml")
    assert done.exit_code == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert str(task / place) in done.stderr
    assert not (task / "run").exists()


def test_a_run_is_not_moved_aside_for_a_model_that_is_not_there(old: Path, tmp_path: Path) -> None:
    folder = copy(old, tmp_path / "copy")
    write_config(folder, training={"initial_model": "missing"})
    before = digests(folder)
    done = inside(folder, "train", "-c", "c.yaml", "--fresh")
    assert done.exit_code == 2 and str(folder / "missing") in done.stderr
    assert digests(folder) == before


def test_when_training_goes_on_the_initial_model_is_no_matter(old: Path, tmp_path: Path) -> None:
    origin = copy(old, tmp_path / "origin")
    for name in ("one", "two"):
        folder = copy(old, tmp_path / name)
        shutil.rmtree(folder / "run")
        training = {"learning_rate": {"peak": 1e-2}, "initial_model": "../origin/run", "max_steps": 8}
        write_config(folder, training={**training, "max_steps": 8 if name == "one" else 4})
        assert "initial weights from" in train(folder)
    write_config(tmp_path / "two", training=training)
    shutil.rmtree(origin)
    said = train(tmp_path / "two")
    assert "resuming at step 4" in said and "initial weights" not in said
    one, two = (last_checkpoint(tmp_path / name / "run") for name in ("one", "two"))
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (one / name).read_bytes() == (two / name).read_bytes()


# The end of decay, and stopping early


def test_a_schedule_that_ended_stays_at_its_minimum_when_training_is_prolonged(task: Path) -> None:
    rate = {"schedule": "linear", "warmup_steps": 2, "peak": 1e-3, "minimum": 0.25}
    write_config(task, training={"max_steps": 6, "learning_rate": rate, "log_every_steps": 1})
    train(task)
    said = train(task, "--set", "training.max_steps=8")
    assert "training.learning_rate.decay_steps: config 8, checkpoint 6, using 6 (--reset schedule takes the con" in said
    expected = [5e-4, 1e-3, 8.125e-4, 6.25e-4, 4.375e-4, 2.5e-4, 2.5e-4, 2.5e-4]
    assert [event["learning_rate"] for event in events(task / "run")] == pytest.approx(expected, rel=1e-9)
    train(task, "--set", "training.max_steps=10", "--reset", "schedule")
    assert events(task / "run")[8]["learning_rate"] == pytest.approx(1e-3 * (0.25 + 0.75 / 8), rel=1e-9)


@pytest.mark.parametrize(
    ("metric", "values", "stops"),
    [
        ("loss", (2.0, 2.1, 2.2), True),
        ("loss", (2.2, 2.1, 2.0), False),
        ("loss", (2.2, 2.0, 2.1), False),
        ("nll", (2.0, 2.1, 2.2), True),
        ("ppl", (9.0, 8.0, 7.0), False),
        ("bleu", (20.0, 21.0, 22.0), False),
        ("bleu", (22.0, 21.0, 20.0), True),
        ("bleu", (20.0, 22.0, 21.0), False),
        ("chrf", (40.0, 41.0, 42.0), False),
        ("chrf", (42.0, 41.0, 41.5), True),
        ("chrf", (42.0, 42.0, 42.0), True),
    ],
)
def test_patience_knows_the_direction_of_its_metric(
    old: Path, tmp_path: Path, metric: str, values: tuple[float, ...], stops: bool
) -> None:
    folder = copy(old, tmp_path / "copy")
    validation = {"every_steps": 4, "metric": metric, "patience": 2, "translate": True}
    write_config(folder, training={"max_steps": 100, "validation": validation})
    rows = [
        {"event": "validation", "step": step, metric: value} for step, value in zip((4, 8, 12), values, strict=True)
    ]
    (folder / "run" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    reason = opened(folder).finished()
    assert reason == (f"no better {metric} for 2 validations" if stops else None)


def test_a_run_stops_when_its_translations_get_no_better(task: Path) -> None:
    """With weights that stay as they are chrF stays too: a tie is no improvement."""
    validation = {"every_steps": 2, "metric": "chrf", "patience": 2, "translate": True}
    training = {"max_steps": 1000, "learning_rate": STILL, "validation": validation}
    write_config(task, training={**training, "checkpoint": {"every_steps": 100, "average": 0}})
    train(task)
    assert [event["step"] for event in events(task / "run", "validation")] == [2, 4, 6]
    assert len({event["chrf"] for event in events(task / "run", "validation")}) == 1
    assert (task / "run" / "checkpoints" / "best").resolve().name == name_of(2)
    assert_plain(train(task))


# What was wished for the first start, and what an elastic launcher starts again


def test_fresh_and_reset_hold_for_the_first_start_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_task(tmp_path)
    write_config(tmp_path, training={"max_steps": 4})
    assert inside(tmp_path, "train", "-c", "c.yaml").exit_code == 0
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    changes = ("--set", "training.max_steps=6", "--set", "training.learning_rate.peak=0.5")
    again = inside(tmp_path, "train", "-c", "c.yaml", "--fresh", "--reset", "schedule", *changes)
    assert again.exit_code == 0, again.stderr
    assert "resuming at step 4," in again.stderr and "checkpoint 0.001, using 0.001" in again.stderr
    assert not list(tmp_path.glob("run.old-*"))


def test_what_was_reset_is_saved_before_anything_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a sitting that dies at once, and goes on without the option, goes on from the reset state."""
    write_task(tmp_path)
    write_config(tmp_path, training={"max_steps": 4})
    assert inside(tmp_path, "train", "-c", "c.yaml").exit_code == 0

    def die(*arguments: object) -> None:
        raise RuntimeError("out of luck")

    with monkeypatch.context() as patch:
        patch.setattr("transformer_mt.train.loop.Trainer.update", die)
        changes = ("--set", "training.max_steps=6", "--set", "training.learning_rate.peak=0.5")
        dead = inside(tmp_path, "train", "-c", "c.yaml", "--reset", "schedule", "--reset", "optimizer", *changes)
        assert dead.exit_code == 1
    moments = load_file(tmp_path / "run/checkpoints/step-000000004/optimizer.safetensors")
    assert not any(tensor.any() for name, tensor in moments.items() if name.endswith("exp_avg"))
    again = inside(tmp_path, "train", "-c", "c.yaml", "--set", "training.max_steps=6")
    assert "config 0.001, checkpoint 0.5, using 0.5" in again.stderr


def test_the_last_line_of_the_log_is_written_however_the_run_ends(tmp_path: Path) -> None:
    """Epochs end where there is neither a line of the log nor a checkpoint due, or a checkpoint alone."""
    for every, folder in ((1000, tmp_path / "one"), (1, tmp_path / "other")):
        write_task(folder)
        rules = {"every_steps": every, "average": 1}
        write_config(folder, training={"max_epochs": 1, "max_steps": None, "log_every_steps": 5, "checkpoint": rules})
        assert inside(folder, "train", "-c", "c.yaml").exit_code == 0
        last = int(last_checkpoint(folder / "run").name[5:])
        steps = [event["step"] for event in events(folder / "run")]
        assert steps == sorted({*range(5, last, 5), last})
        again = inside(folder, "train", "-c", "c.yaml", "--set", "training.checkpoint.keep_last=9")
        assert again.exit_code == 0 and [event["step"] for event in events(folder / "run")] == steps


def test_sampling_can_be_turned_on_and_off(tmp_path: Path) -> None:
    write_task(tmp_path)
    write_config(tmp_path, training={"max_steps": 4})
    on = ("--set", "training.subword_sampling=0.2")
    assert inside(tmp_path, "train", "-c", "c.yaml").exit_code == 0
    kept = inside(tmp_path, "train", "-c", "c.yaml", "--set", "training.max_steps=6", *on)
    assert kept.exit_code == 0, kept.stderr
    assert "training.subword_sampling: config 0.2, checkpoint 0.0, using 0.0 (--reset data" in kept.stderr
    reset = inside(tmp_path, "train", "-c", "c.yaml", "--set", "training.max_steps=8", "--reset", "data", *on)
    assert reset.exit_code == 0 and "using 0.2" in reset.stderr, reset.stderr
    still = inside(tmp_path, "train", "-c", "c.yaml", "--set", "training.max_steps=10")
    assert "config 0.0, checkpoint 0.2, using 0.2" in still.stderr


def test_the_metrics_are_on_the_disk_before_the_checkpoint_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a power cut could leave a checkpoint that has outlived the validations before it."""
    write_task(tmp_path)
    write_config(tmp_path, training={"max_steps": 4})
    order: list[str] = []
    forced, renamed = os.fsync, Path.rename

    def fsync(handle: int) -> None:
        order.append(os.readlink(f"/proc/self/fd/{handle}"))
        forced(handle)

    def rename(self: Path, target: Path) -> Path:
        order.append(str(target.absolute()))
        return renamed(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    train(tmp_path)
    place = order.index(str(tmp_path / "run/checkpoints/step-000000004"))
    assert {str(tmp_path / "run/metrics.jsonl"), str(tmp_path / "run")} <= set(order[:place])
