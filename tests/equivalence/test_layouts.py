"""Training that goes on with other ranks or other passes: the same data in the same order, and the same numbers.

On another layout gradients agree to rounding, not to the bit.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.recording import PAIRS, kept_updates, record_pairs
from tests.running import events, inside, last_checkpoint, patched, start_ranks, train, write_config, write_task
from transformer_mt.train.checkpoint import name_of

MIDDLE, END = 5, 10
"""Updates: an epoch has six, so that a border lies in the second half."""
SAME = ("step", "epoch", "padding", "learning_rate", "skipped")


def configure(folder: Path, steps: int, **training: Any) -> None:
    keys: dict[str, Any] = {
        "batch_tokens": 160, "device_tokens": 50, "log_every_steps": 1, "checkpoint": {"every_steps": MIDDLE},
        "validation": {"every_steps": MIDDLE, "translate": False, "metric": "loss"},
    }  # fmt: skip
    write_config(folder, model={"dropout": 0.0}, training={**keys, "max_steps": steps, **training})


def together(folder: Path, count: int) -> str:
    """Trains with so many ranks, whose updates are recorded; what they said."""
    processes = start_ranks("train", "-c", "c.yaml", cwd=folder, count=count, **patched(folder, PAIRS))
    said = "".join(process.communicate(timeout=120)[1] for process in processes)
    assert [process.returncode for process in processes] == [0] * count, said
    return said


def alone(folder: Path, *arguments: str) -> str:
    """The same with one rank, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        record_pairs(patch)
        return train(folder, *arguments)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One rank to the end, its checkpoint in the middle kept."""
    folder = tmp_path_factory.mktemp("undisturbed")
    write_task(folder, 200)
    configure(folder, END)
    alone(folder)
    epochs = [row["epoch"] for row in kept_updates(folder).values()]
    assert epochs[MIDDLE] == 0 and epochs[-1] == 1, epochs
    return folder


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks to the middle."""
    folder = tmp_path_factory.mktemp("half")
    write_task(folder, 200)
    configure(folder, MIDDLE)
    together(folder, 2)
    return folder


def copy(folder: Path, place: Path) -> Path:
    shutil.copytree(folder, place, symlinks=True)
    return place


def assert_alike(folder: Path, undisturbed: Path, first: int = 1) -> None:
    """The same pairs in each update on every rank, and from `first` on what was logged of it."""
    expected = kept_updates(undisturbed)
    for path in folder.glob("updates.*.jsonl"):
        found = kept_updates(folder, int(path.name.split(".")[1]))
        assert found == {step: row for step, row in expected.items() if step in found}
    assert sorted(kept_updates(folder)) == list(range(1, END + 1))
    pairs = [[event for event in events(place / "run") if event["step"] >= first] for place in (folder, undisturbed)]
    assert len(pairs[0]) == len(pairs[1]) == END + 1 - first
    for ours, theirs in zip(*pairs, strict=True):
        assert [ours[key] for key in SAME] == [theirs[key] for key in SAME]
        for key in ("loss", "nll", "ppl", "gradient_norm"):
            assert ours[key] == pytest.approx(theirs[key], rel=1e-4), (ours["step"], key)


def test_two_ranks_then_one(undisturbed: Path, half: Path, tmp_path: Path) -> None:
    folder = copy(half, tmp_path / "copy")
    configure(folder, END)
    said = alone(folder)
    assert said.count("warning: ranks was 2, is 1: results will not be equal to the last bit") == 1
    assert f"resuming at step {MIDDLE}," in said
    assert_alike(folder, undisturbed)


def test_two_ranks_then_three(undisturbed: Path, half: Path, tmp_path: Path) -> None:
    folder = copy(half, tmp_path / "copy")
    configure(folder, END)
    said = together(folder, 3)
    assert said.count("warning: ranks was 2, is 3: results will not be equal to the last bit") == 1
    assert all(max(kept_updates(folder, rank)) == END for rank in range(3))
    assert_alike(folder, undisturbed)


@pytest.mark.parametrize("device_tokens", [40, 160])
def test_other_passes(undisturbed: Path, tmp_path: Path, device_tokens: int) -> None:
    """More of them an update than before, or one."""
    folder = copy(undisturbed, tmp_path / "copy")
    shutil.rmtree(last_checkpoint(folder / "run"))
    configure(folder, END, device_tokens=device_tokens)
    said = alone(folder)
    assert f"resuming at step {MIDDLE}," in said
    told = f"warning: device_tokens was 50, is {device_tokens}: results will not be equal to the last bit"
    assert [line for line in said.splitlines() if line.startswith("warning")] == [told]
    state = json.loads((last_checkpoint(folder / "run") / "state.json").read_text())
    assert state["progress"]["device_tokens"] == device_tokens
    assert_alike(folder, undisturbed)


# Validation

SEARCH = {"beam_size": 2, "length_penalty": {"form": "power", "alpha": 3.0}, "max_length": {"extra": 5}}


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model good enough for scores above 0, validated with search options that are not the default ones."""
    folder = tmp_path_factory.mktemp("learnt")
    write_task(folder, 600)
    training = {
        "max_steps": 60, "batch_tokens": 600, "label_smoothing": 0.0,
        "learning_rate": {"warmup_steps": 10, "peak": 1e-2},
        "checkpoint": {"every_steps": 60, "average": 1},
        "validation": {"every_steps": 60, "translate": True, "metric": "bleu"},
    }  # fmt: skip
    write_config(folder, training=training, model={"dropout": 0.0}, decoding=SEARCH)
    train(folder)
    return folder


def measured(folder: Path) -> dict[str, Any]:
    (event,) = events(folder / "run", "validation")
    return event


def scores(folder: Path, *options: str) -> dict[str, Any]:
    """What the two commands give for the checkpoint of the validation."""
    model = folder / "run" / "checkpoints" / name_of(measured(folder)["step"])
    texts = folder / "run" / "corpus"
    done = inside(
        folder, "translate", "--model", model, "--input", texts / "validation.en", "--output", "out", *options
    )
    assert done.exit_code == 0, done.stderr
    files = ("--hypothesis", "out", "--reference", texts / "validation.de", "--target-language", "de")
    done = inside(folder, "evaluate", *files, "--json", "--quiet")
    assert done.exit_code == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_the_scores_in_the_log_are_those_of_the_commands(learnt: Path) -> None:
    logged, found = measured(learnt), scores(learnt)
    assert logged["bleu"] == pytest.approx(found["bleu"], rel=1e-12) and logged["bleu"] > 0
    assert logged["chrf"] == pytest.approx(found["chrf"], rel=1e-12)
    # With the default options they are others, so it is the configuration's that were used.
    default = scores(learnt, "--beam-size", "4", "--length-penalty", "gnmt", "--alpha", "0.6")
    assert default["chrf"] != pytest.approx(logged["chrf"], rel=1e-6)


def test_two_ranks_measure_what_one_does(learnt: Path, tmp_path: Path) -> None:
    """The same weights, whose validation was left to the next session."""
    folder = copy(learnt, tmp_path / "copy")
    metrics = folder / "run" / "metrics.jsonl"
    rows = [row for row in metrics.read_text().splitlines(keepends=True) if '"validation"' not in row]
    metrics.write_text("".join(rows))
    together(folder, 2)
    ours, theirs = measured(folder), measured(learnt)
    assert ours.keys() == theirs.keys() and len(ours) == 9
    for key in ("loss", "nll", "ppl"):
        assert ours[key] == pytest.approx(theirs[key], rel=1e-12)
    for key in ours.keys() - {"loss", "nll", "ppl"}:
        assert ours[key] == theirs[key]
