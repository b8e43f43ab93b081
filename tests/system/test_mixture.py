"""Several training sources with weights and a tag, from the YAML file to the updates."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from tests.running import command, inside, sentences, train, write_config, write_pairs, write_task
from transformer_mt.data.batching import epoch_batches
from transformer_mt.data.store import Store
from transformer_mt.data.tokenizer import Tokenizer


def write(folder: Path, **changes: Any) -> None:
    back: dict[str, Any] = {"source": "back-*.en", "target": "back-*.de", "tag": "<bt>", "weight": 0.5, **changes}
    given = {"source": "train.en", "target": "train.de", "weight": 2}
    write_config(folder, data={"train": [given, back]}, training={"max_steps": 2})


def test_weights_and_tags(tmp_path: Path) -> None:
    write_task(tmp_path, 60)
    for number in (1, 2):
        write_pairs(tmp_path, f"back-{number}", sentences(30, 10 + number))
    write(tmp_path)
    told = train(tmp_path)
    assert "pieces a word" in told
    tokenizer, store = Tokenizer(tmp_path / "run/tokenizer"), Store(tmp_path / "run/ids", "train")
    tagged = [line.startswith("<bt> ") for line in (tmp_path / "run/corpus/train.en").read_text("utf-8").split("\n")]
    assert not any(tagged[: store.mixture.ends[0]]) and sum(tagged) == store.mixture.ends[1] - store.mixture.ends[0]
    assert store.mixture.weights == (2.0, 0.5)
    piece = tokenizer.sides[0].number("<bt>")
    assert [piece in store.pair(number)[0] for number in range(len(store))] == tagged[:-1]
    assert "<bt>" not in (tmp_path / "run/corpus/train.de").read_text("utf-8")
    batches = epoch_batches(store.lengths(), 100, 1, 0, None, store.mixture)
    times = np.bincount(np.concatenate([batch.pairs for batch in batches]), minlength=len(store))
    assert set(times[: store.mixture.ends[0]].tolist()) == {2} and times[store.mixture.ends[0] :].max() == 1
    assert times[store.mixture.ends[0] :].sum() == sum(tagged) // 2


def test_the_plan_tells_pairs_and_how_many_of_them_an_epoch_has(tmp_path: Path) -> None:
    write_task(tmp_path, 100)
    both = {"source": "train.en", "target": "train.de"}
    write_config(tmp_path, data={"train": [both, {**both, "weight": 0.25}], "cleaning": {"deduplicate": False}})
    assert command("tokenize", "-c", "c.yaml", cwd=tmp_path).returncode == 0
    done = command("plan", "-c", "c.yaml", cwd=tmp_path)
    told = re.search(r"^data +(\d+) pairs, by their weights (\d+) in an epoch: ", done.stdout, re.MULTILINE)
    assert told, done.stdout + done.stderr
    pairs, turns = map(int, told.groups())
    assert pairs == 200 and turns == 125


def test_they_cannot_change_under_a_trained_model(tmp_path: Path) -> None:
    write_task(tmp_path, 60)
    write_pairs(tmp_path, "back-1", sentences(30, 11))
    write(tmp_path)
    train(tmp_path)
    for change, words in [
        ({"weight": 0.75}, "data.train[1].weight: was 0.5, is 0.75"),
        ({"tag": None}, "data.train[1].tag: was <bt>, is None"),
    ]:
        write(tmp_path, **change)
        done = inside(tmp_path, "train", "-c", "c.yaml")
        assert done.exit_code == 2 and words in done.stderr
    write_pairs(tmp_path, "back-2", sentences(30, 12))
    write(tmp_path)
    assert inside(tmp_path, "train", "-c", "c.yaml").exit_code == 2


def test_a_changed_weight_changes_the_ids_alone(tmp_path: Path) -> None:
    write_task(tmp_path, 60)
    write_pairs(tmp_path, "back-1", sentences(30, 11))
    write(tmp_path)
    assert inside(tmp_path, "tokenize", "-c", "c.yaml").exit_code == 0
    write(tmp_path, weight=3)
    done = inside(tmp_path, "tokenize", "-c", "c.yaml")
    assert "corpus: up to date" in done.stderr and "tokenizer: up to date" in done.stderr
    assert "ids: up to date" not in done.stderr
    assert Store(tmp_path / "run/ids", "train").mixture.weights == (2.0, 3.0)


def test_weights_that_leave_nothing_and_those_of_other_sets_are_refused(tmp_path: Path) -> None:
    write_task(tmp_path, 60)
    write_config(tmp_path, data={"train": [{"source": "train.en", "target": "train.de", "weight": 0.001}]})
    done = inside(tmp_path, "tokenize", "-c", "c.yaml")
    assert done.exit_code == 2 and "with the weights 0.001 an epoch of" in done.stderr
    for key, value in (("weight", 2), ("tag", "<bt>")):
        validation = [{"source": "valid.en", "target": "valid.de", key: value}]
        write_config(tmp_path, data={"validation": validation})
        done = inside(tmp_path, "config", "check", "-c", "c.yaml")
        assert done.exit_code == 2 and f"found {key} {value} in source 0" in done.stderr


def test_symbols_that_cannot_be_are_told_with_the_sources(tmp_path: Path) -> None:
    write_task(tmp_path, 60)
    write(tmp_path, tag="</s>", source="none-*.en")
    done = inside(tmp_path, "config", "check", "-c", "c.yaml")
    assert done.exit_code == 2
    assert "none-*.en matches no file" in done.stderr and "tags of sources: found '</s>'" in done.stderr
