"""Training text that is cut into pieces anew in each epoch: what it depends on, and what it leaves alone."""

import hashlib
import json
import os
import random
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transformer_mt import stages
from transformer_mt.config import Config
from transformer_mt.config import Tokenizer as Settings
from transformer_mt.data import batching, prepare, sampling
from transformer_mt.data.batching import Batch, epoch_batches
from transformer_mt.data.sampling import SampledStore, training_store
from transformer_mt.data.store import Store, StoreWriter
from transformer_mt.data.tokenizer import Tokenizer, learn
from transformer_mt.errors import RunError, UserError

WORDS = [
    *("wohnung", "garten", "wohngarten", "gartenhaus", "hausboot", "bootsfahrt"),
    *("fahrtwind", "windhose", "zwei", "grüne", "lange", "schöne"),
]
TARGET_WORDS = [
    *("flat", "garden", "gardening", "greenhouse", "houseboat", "boating"),
    *("sailing", "tornado", "two", "green", "longer", "nicest"),
]


def sentences(words: list[str], count: int, seed: int) -> list[str]:
    generator = random.Random(seed)
    return [" ".join(generator.choices(words, k=generator.randint(1, 9))) for _ in range(count)]


@lru_cache
def model(algorithm: str, size: int = 400) -> bytes:
    lines = sentences(WORDS, 300, 1) + sentences(TARGET_WORDS, 300, 2)
    settings = Settings.model_validate({"algorithm": algorithm, "vocabulary_size": size, "vocabulary_limit": "soft"})
    return learn(lines, len(lines), settings, 1).model


def settings_of(folder: Path, **training: Any) -> dict[str, Any]:
    return {
        "name": "run",
        "output": str(folder),
        "languages": {"source": "de", "target": "en"},
        "data": {split: [{"source": "a", "target": "b"}] for split in ("train", "validation", "test")},
        "training": {"max_steps": 1, "subword_sampling": 0.2, **training},
    }


def config_of(folder: Path, **training: Any) -> Config:
    return Config.model_validate(settings_of(folder, **training))


def write_run(
    folder: Path, source: list[str], target: list[str], algorithm: str = "bpe", **training: Any
) -> tuple[Config, Tokenizer]:
    """A run folder up to its ids, made of lines as they are."""
    config = config_of(folder, **training)
    for name in ("corpus", "tokenizer", "ids"):
        (folder / name).mkdir(parents=True)
    for split in ("train", "validation"):
        for language, lines in (("de", source), ("en", target)):
            (folder / "corpus" / f"{split}.{language}").write_bytes("".join(f"{line}\n" for line in lines).encode())
    (folder / "tokenizer" / "spm.model").write_bytes(model(algorithm))
    prepare.encode_corpus(config, folder / "corpus", folder / "tokenizer", folder / "ids", lambda line: None)
    return config, Tokenizer(folder / "tokenizer")


def store_of(folder: Path, count: int = 300, algorithm: str = "bpe", **training: Any) -> tuple[SampledStore, Tokenizer]:
    source, target = sentences(WORDS, count, 3), sentences(TARGET_WORDS, count, 4)
    config, tokenizer = write_run(folder, source, target, algorithm, **training)
    return SampledStore(config, folder, tokenizer), tokenizer


def drawn(store: SampledStore, epoch: int, pairs: np.ndarray | None = None) -> list[list[list[int]]]:
    """Source and target ids of each pair of a window."""
    pairs = np.arange(len(store)) if pairs is None else pairs
    lengths = store.segment(pairs, epoch)
    sides = [store._side(pairs, side) for side in (0, 1)]
    assert np.array_equal(lengths, np.stack([sizes + 1 for _, sizes in sides], 1)) and lengths.dtype == np.int32
    cuts = [np.split(ids, np.cumsum(sizes)[:-1]) for ids, sizes in sides]
    return [[side[row].tolist() for side in cuts] for row in range(len(pairs))]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "CHUNK_PAIRS", 16)


# What the pieces depend on


def test_pieces_of_a_pair_are_a_function_of_seed_epoch_and_pair(tmp_path: Path, small_chunks: None) -> None:
    store, tokenizer = store_of(tmp_path)
    found = drawn(store, 2)
    drawn(store, 5)  # what is drawn in between changes nothing
    assert drawn(store, 2) == found
    for pairs in (range(100, 300), range(1, 300, 7), range(299, 300)):
        other = SampledStore(config_of(tmp_path), tmp_path, tokenizer)
        assert drawn(other, 2, np.array(pairs)) == [found[number] for number in pairs]


PROGRAM = """
import hashlib, json, sys
from pathlib import Path
import numpy as np
from transformer_mt.config import Config
from transformer_mt.data.sampling import SampledStore
from transformer_mt.data.tokenizer import Tokenizer
config = Config.model_validate(json.loads(sys.argv[1]))
store = SampledStore(config, config.output, Tokenizer(config.output / "tokenizer"))
store.segment(np.arange(int(sys.argv[2]), len(store)), 3)
print(hashlib.sha256(repr([side.tolist() for side in store.padded(np.arange(200, 300), 0, 3, 2)]).encode()).hexdigest())
"""


def test_every_process_draws_the_same(tmp_path: Path) -> None:
    store, _ = store_of(tmp_path)
    store.segment(np.arange(len(store)), 3)
    padded = [side.tolist() for side in store.padded(np.arange(200, 300), 0, 3, 2)]
    for number in (1, 2):
        found = subprocess.run(
            [sys.executable, "-c", PROGRAM, json.dumps(settings_of(tmp_path)), str(number * 100)],
            env={**os.environ, "PYTHONHASHSEED": str(number)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert found.stdout.strip() == hashlib.sha256(repr(padded).encode()).hexdigest()


def test_epochs_seeds_pairs_and_sides_differ(tmp_path: Path) -> None:
    words = ["wohngarten gartenhaus hausboot bootsfahrt"] * 64
    config, tokenizer = write_run(tmp_path, words, words, subword_sampling=0.5)
    other_seed = SampledStore(config_of(tmp_path, seed=2, subword_sampling=0.5), tmp_path, tokenizer)
    store = SampledStore(config, tmp_path, tokenizer)
    first = drawn(store, 0)
    sides = [
        [pair[side] for pair in sample] for sample in (first, drawn(store, 1), drawn(other_seed, 0)) for side in (0, 1)
    ]
    for number, one in enumerate(sides):
        assert len(set(map(tuple, one))) > 60
        assert all(sum(map(list.__eq__, one, other)) < 4 for other in sides[:number])


def test_sides_with_models_of_their_own(tmp_path: Path) -> None:
    store, tokenizer = store_of(tmp_path / "shared")
    assert store._models[0] is store._models[1]
    (tmp_path / "apart").mkdir()
    (tmp_path / "apart" / "source.model").write_bytes(model("bpe"))
    (tmp_path / "apart" / "target.model").write_bytes(model("bpe", 290))
    apart = Tokenizer(tmp_path / "apart")
    other = SampledStore(config_of(tmp_path / "shared"), tmp_path / "shared", apart)
    for one, two in zip(drawn(store, 0), drawn(other, 0), strict=True):
        assert one[0] == two[0] and one[1] != two[1] and apart.decode(two[1]) == tokenizer.decode(one[1])


def test_a_unigram_model_is_refused(tmp_path: Path) -> None:
    config, tokenizer = write_run(tmp_path, ["zwei", "boot"], ["two", "boat"], "unigram")
    with pytest.raises(
        UserError, match=r"training\.subword_sampling: found a unigram model, wanted a BPE model.* or 0$"
    ):
        training_store(config, tmp_path, tokenizer)
    without = config_of(tmp_path, subword_sampling=0.0)
    assert type(training_store(without, tmp_path, tokenizer)) is Store


# What they are


def test_other_pieces_of_the_same_text(tmp_path: Path) -> None:
    store, tokenizer = store_of(tmp_path)
    found = drawn(store, 0)
    for side in (0, 1):
        plain = [store.pair(number)[side].tolist() for number in range(len(store))]
        assert [tokenizer.decode(pair[side]) for pair in found] == [tokenizer.decode(ids) for ids in plain]
        changed = sum(pair[side] != ids for pair, ids in zip(found, plain, strict=True))
        assert changed > 0.7 * len(store)
        assert sum(len(pair[side]) for pair in found) > 1.1 * sum(map(len, plain))


def test_a_higher_key_means_more_pieces(tmp_path: Path) -> None:
    sizes = []
    for strength in (0.01, 0.1, 0.5):
        store, _ = store_of(tmp_path / str(strength), subword_sampling=strength)
        sizes.append(int(store.segment(np.arange(300), 0).sum()))
    assert int(store.lengths().sum()) < sizes[0] < sizes[1] < sizes[2]


def test_a_side_too_long_for_max_tokens_is_as_it_is_on_disk(tmp_path: Path) -> None:
    store, _ = store_of(tmp_path, max_tokens=12, subword_sampling=0.5)
    found, on_disk = drawn(store, 0), [[side.tolist() for side in store.pair(number)] for number in range(len(store))]
    assert max(len(ids) for pair in found for ids in pair) == 11
    pairs = list(zip(found, on_disk, strict=True))
    assert any(one[side] == other[side] and len(other[side]) > 6 for one, other in pairs for side in (0, 1))
    assert any(one[0] != other[0] and one[1] == other[1] and len(other[1]) > 6 for one, other in pairs)  # each its own


def test_a_pair_that_was_cut_stays_cut(tmp_path: Path) -> None:
    words = " ".join(WORDS)
    config, tokenizer = write_run(tmp_path, [words] * 3, ["two"] * 3, max_tokens=6, too_long="truncate")
    store = SampledStore(config, tmp_path, tokenizer)
    assert [pair[0] for pair in drawn(store, 0)] == [store.pair(number)[0].tolist() for number in range(3)]
    assert store.lengths()[:, 0].tolist() == [6] * 3


def test_a_line_of_endless_length_is_not_cut_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single word of a hundred thousand characters would take minutes."""
    source = ["zwei", "wohngarten" * 10_000, "boot"]
    config, tokenizer = write_run(tmp_path, source, ["two", "one", "boat"], max_tokens=20, too_long="truncate")
    store, seen = SampledStore(config, tmp_path, tokenizer), []
    segment = store._models[0].segment

    def watched(lines: list[str], *rest: Any) -> Any:
        seen.extend(lines)
        return segment(lines, *rest)

    monkeypatch.setattr(store._models[0], "segment", watched)
    found = drawn(store, 0)
    assert found[1][0] == store.pair(1)[0].tolist() and len(found[1][0]) == 19
    assert [tokenizer.decode(found[number][0]) for number in (0, 2)] == ["zwei", "boot"]
    assert max(map(len, seen)) < 400 and len(seen) == 6


ODD = [
    "ein\u2028haus",
    "boot\rfahrt",
    "zwei\r",
    "\u2029",
    "a\x85b\x0bc\x0cd\x1ce",
    "日本 wohnung",
    "",
    "\u200bgarten  haus",
]


def test_lines_are_read_as_they_were_encoded(tmp_path: Path) -> None:
    """LF alone ends a line; all else that some call a line's end, and white space, is the tokenizer's to treat."""
    config, tokenizer = write_run(tmp_path, ODD, ODD[::-1])
    with (tmp_path / "corpus" / "train.de").open("rb+") as file:  # the last line may lack its LF
        file.truncate(file.seek(-1, 2))
    store = SampledStore(config, tmp_path, tokenizer)
    assert len(store) == len(ODD)
    for source, target in zip(drawn(store, 0), ODD, strict=True):
        assert tokenizer.decode(source[0]) == tokenizer.decode(tokenizer.encode_source([target])[0])
    assert [pair[1] for pair in drawn(store, 0)][1] == []
    plain = [tokenizer.decode(store.pair(number)[1].tolist()) for number in range(len(store))]
    assert [tokenizer.decode(pair[1]) for pair in drawn(store, 1)] == plain


def test_places_are_those_of_the_pairs_that_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "CHUNK_PAIRS", 3)
    source = ["zwei", " ".join(WORDS), "ß", "grüne", " ".join(WORDS), "lange", "windhose", "garten"]
    target = ["two", "green", "ß ß", " ".join(TARGET_WORDS), "green", "long", "tornado", "garden"]
    config, tokenizer = write_run(tmp_path, source, target, max_tokens=12)
    store = SampledStore(config, tmp_path, tokenizer)
    kept = [(tokenizer.decode(one), tokenizer.decode(other)) for one, other in drawn(store, 0)]
    assert kept == [(source[number], target[number]) for number in (0, 2, 5, 6, 7)]
    assert drawn(store, 0, np.array([1, 3]))[1] != [[], []] and len(drawn(store, 0, np.array([4]))) == 1


# How training sees them


def test_padded_is_that_of_a_store_of_the_same_ids(tmp_path: Path, small_chunks: None) -> None:
    store, _ = store_of(tmp_path, 100)
    window = np.arange(1, 100, 2)
    found = drawn(store, 3, window)
    with StoreWriter(tmp_path, "same", 400) as writer:
        writer.write([(source, target) for source, target in found])
    same = Store(tmp_path, "same")
    rows = np.array([7, 3, 49, 3, 0])
    for one, other in zip(store.padded(window[rows], 0, 3, 2), same.padded(rows, 0, 3, 2), strict=True):
        assert np.array_equal(one, other) and one.dtype == other.dtype
    assert np.array_equal(store.segment(window, 3), same.lengths())
    assert store._sides[0].ids.dtype == np.uint16


@pytest.mark.parametrize("numbers", [[0], [1, 2], [100]])
def test_pairs_of_another_window_are_no_pairs(tmp_path: Path, numbers: list[int]) -> None:
    store, _ = store_of(tmp_path, 101)
    store.segment(np.arange(1, 100, 2), 0)
    with pytest.raises(ValueError, match="window"):
        store.padded(np.array(numbers), 0, 3, 2)


def test_without_a_window_pairs_are_as_they_are_on_disk(tmp_path: Path) -> None:
    store, _ = store_of(tmp_path)
    rows = np.array([7, 3, 299])
    plain = [side.tolist() for side in Store(tmp_path / "ids", "train").padded(rows, 0, 3, 2)]
    assert [side.tolist() for side in store.padded(rows, 0, 3, 2)] == plain
    store.segment(np.arange(300), 0)
    assert [side.tolist() for side in store.padded(rows, 0, 3, 2)] != plain
    store.release()
    assert [side.tolist() for side in store.padded(rows, 0, 3, 2)] == plain


def test_a_window_of_no_pairs(tmp_path: Path) -> None:
    store, _ = store_of(tmp_path, 2)
    assert store.segment(np.zeros(0, np.int64), 0).shape == (0, 2)


def plan(store: SampledStore, epoch: int, look: bool = False) -> list[Batch]:
    batches = []
    for batch in epoch_batches(store.lengths(), 60, store._training.seed, epoch, store.segment):
        if look:
            source, target_input, labels = store.padded(batch.pairs, 0, 3, 2)
            assert source.shape == (len(batch.pairs), batch.source_length) and source.size <= 60
            assert labels.shape == target_input.shape == (len(batch.pairs), batch.target_length) and labels.size <= 60
            assert (labels != 0).sum() == batch.target_tokens
        batches.append(batch)
    return batches


def test_the_plan_is_a_function_of_seed_and_epoch_and_has_each_pair_once(
    tmp_path: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "SAMPLED_WINDOW_PAIRS", 64)
    store, tokenizer = store_of(tmp_path, max_tokens=60, batch_tokens=60)
    plans = [plan(store, epoch, look=True) for epoch in (0, 1, 0)]
    numbers = [[batch.pairs.tolist() for batch in batches] for batches in plans]
    for batches in numbers:
        assert sorted(number for batch in batches for number in batch) == list(range(len(store)))
    again = SampledStore(config_of(tmp_path, max_tokens=60, batch_tokens=60), tmp_path, tokenizer)
    assert numbers[0] == numbers[2] == [batch.pairs.tolist() for batch in plan(again, 0)] != numbers[1]
    assert sum(batch.target_tokens for batch in plans[0]) > 1.1 * store.lengths()[:, 1].sum()


def test_a_window_is_used_up_before_the_next_is_segmented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "SAMPLED_WINDOW_PAIRS", 64)
    store, _ = store_of(tmp_path)
    windows: list[np.ndarray] = []

    def segment(pairs: np.ndarray, epoch: int) -> np.ndarray:
        assert epoch == 3
        windows.append(pairs)
        return store.segment(pairs, epoch)

    seen = 0
    for batch in epoch_batches(store.lengths(), 300, 1, 3, segment):
        assert np.isin(batch.pairs, windows[-1]).all()
        seen += len(batch.pairs)
        assert sum(map(len, windows[:-1])) < seen <= sum(map(len, windows))
    assert len(windows) == 5 and all(len(pairs) <= 64 and (np.diff(pairs) > 0).all() for pairs in windows)


# The run folder


def test_places_are_written_only_where_the_key_asks(tmp_path: Path) -> None:
    for name, strength in (("off", 0.0), ("on", 0.1)):
        config, tokenizer = write_run(tmp_path / name, ["zwei", "boot"], ["two", "boat"], subword_sampling=strength)
        assert type(training_store(config, tmp_path / name, tokenizer)) is (SampledStore if strength else Store)
    names = {"train.bin", "train.idx", "validation.bin", "validation.idx"}
    assert {path.name for path in (tmp_path / "off" / "ids").iterdir()} == names
    assert {path.name for path in (tmp_path / "on" / "ids").iterdir()} == names | {"train.text"}
    assert np.fromfile(tmp_path / "on/ids/train.text", "<i8").tolist() == [0, 0, 5, 4]
    for name in names:
        assert (tmp_path / "off/ids" / name).read_bytes() == (tmp_path / "on/ids" / name).read_bytes()


def test_only_turning_it_on_makes_the_ids_anew(tmp_path: Path) -> None:
    """Not by the folder's settings, which say how the ids came about, but because a file is wanted."""

    def stage(strength: float) -> stages.Stage:
        encode = stages.stages(config_of(tmp_path, subword_sampling=strength), print)[2]
        assert encode.name == "encode"
        return encode

    assert stage(0.0).settings == stage(0.3).settings
    assert stage(0.0).settings["training"] == {"max_tokens": 256, "too_long": "skip"}
    assert stage(0.0).needed == () and stage(0.1).needed == stage(0.3).needed == ("train.text",)
    (tmp_path / "ids").mkdir(parents=True)
    assert stage(0.0).whole() and not stage(0.1).whole()
    (tmp_path / "ids" / "train.text").touch()
    assert stage(0.1).whole()


@pytest.mark.parametrize("damage", ["cut", "missing"])
def test_places_that_do_not_fit_the_ids_are_refused(tmp_path: Path, damage: str) -> None:
    config, tokenizer = write_run(tmp_path, ["zwei", "boot"], ["two", "boat"])
    path = tmp_path / "ids" / "train.text"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-8])
    else:
        path.unlink()
    with pytest.raises(RunError, match=r"train\.text does not belong"):
        SampledStore(config, tmp_path, tokenizer)
