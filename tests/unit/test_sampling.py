"""Training text that is cut into pieces anew in each epoch: what it depends on, and what it leaves alone."""

import random
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece

from transformer_mt import stages
from transformer_mt.config import Config
from transformer_mt.config import Tokenizer as Settings
from transformer_mt.data import batching, prepare, sampling
from transformer_mt.data.batching import Batch, epoch_batches
from transformer_mt.data.sampling import SampledStore, training_store
from transformer_mt.data.store import Store, StoreWriter
from transformer_mt.data.tokenizer import Tokenizer, learn, seeded
from transformer_mt.errors import RunError

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
def model(algorithm: str) -> bytes:
    lines = sentences(WORDS, 300, 1) + sentences(TARGET_WORDS, 300, 2)
    settings = Settings.model_validate({"algorithm": algorithm, "vocabulary_size": 400, "vocabulary_limit": "soft"})
    return learn(lines, len(lines), settings, 1).model


def config_of(folder: Path, **training: Any) -> Config:
    return Config.model_validate(
        {
            "name": "run",
            "output": folder,
            "languages": {"source": "de", "target": "en"},
            "data": {split: [{"source": "a", "target": "b"}] for split in ("train", "validation", "test")},
            "training": {"max_steps": 1, "subword_sampling": 0.2, **training},
        }
    )


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


def store_of(
    folder: Path, count: int = 300, algorithm: str = "bpe", threads: int = 2, **training: Any
) -> tuple[SampledStore, Tokenizer]:
    source, target = sentences(WORDS, count, 3), sentences(TARGET_WORDS, count, 4)
    config, tokenizer = write_run(folder, source, target, algorithm, **training)
    return SampledStore(config, folder, tokenizer, threads), tokenizer


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


@pytest.fixture
def noise() -> Iterator[Callable[[], None]]:
    """Threads that sample for themselves all the time, one another and with other seeds."""
    leave, threads = threading.Event(), []

    def sample(processor: sentencepiece.SentencePieceProcessor) -> None:
        while not leave.is_set():
            processor.encode(WORDS[2], enable_sampling=True, alpha=0.5, nbest_size=-1)

    def start() -> None:
        processor = sentencepiece.SentencePieceProcessor()
        processor.LoadFromSerializedProto(model("bpe"))
        for _ in range(2):
            threads.append(threading.Thread(target=sample, args=(processor,)))
            threads[-1].start()

    yield start
    leave.set()
    for thread in threads:
        thread.join()


# What the pieces depend on


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_the_same_seed_and_epoch_give_the_same_pieces(
    tmp_path: Path, algorithm: str, small_chunks: None, noise: Callable[[], None]
) -> None:
    store, tokenizer = store_of(tmp_path, algorithm=algorithm, threads=1)
    before = drawn(store, 2)
    drawn(store, 5)  # what is drawn in between, and seeds set by others, change nothing
    sentencepiece.set_random_generator_seed(99)
    with seeded(1):
        tokenizer.sample(0, WORDS, 0.5)
    assert drawn(store, 2) == before
    noise()
    for threads in (1, 2, 7):
        other = SampledStore(config_of(tmp_path), tmp_path, tokenizer, threads)
        assert drawn(other, 2) == before


class Inline:
    """A model that cuts a list of lines in the thread that asks, as SentencePiece may do or not."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor

    def encode(self, texts: list[str], *, num_threads: int, **options: Any) -> list[list[int]]:
        assert num_threads == 1
        return [self.processor.encode(text, **options) for text in texts]


@pytest.mark.parametrize("inline", [False, True])
def test_a_thread_that_drew_before_draws_from_the_beginning(
    tmp_path: Path, inline: bool, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, tokenizer = store_of(tmp_path, 100, threads=1)
    if inline:
        for name in ("_source", "_target"):
            monkeypatch.setattr(tokenizer, name, Inline(getattr(tokenizer, name)))
    found = drawn(store, 0)
    for threads in (2, 5):
        assert drawn(SampledStore(config_of(tmp_path), tmp_path, tokenizer, threads), 0) == found


def test_stores_that_segment_at_the_same_time_do_not_disturb_each_other(tmp_path: Path, small_chunks: None) -> None:
    store, tokenizer = store_of(tmp_path)
    alone = {epoch: drawn(store, epoch) for epoch in range(4)}
    found: dict[int, list[list[list[int]]]] = {}

    def segment(epoch: int) -> None:
        found[epoch] = drawn(SampledStore(config_of(tmp_path), tmp_path, tokenizer, 3), epoch)

    threads = [threading.Thread(target=segment, args=(epoch,)) for epoch in alone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == alone


def test_epochs_seeds_chunks_and_sides_differ(tmp_path: Path, small_chunks: None) -> None:
    words = ["wohngarten gartenhaus hausboot bootsfahrt"] * 64
    config, tokenizer = write_run(tmp_path, words, words)
    other_seed = SampledStore(config_of(tmp_path, seed=2), tmp_path, tokenizer)
    store = SampledStore(config, tmp_path, tokenizer)
    first = drawn(store, 0)
    sides = list(zip(*first, strict=True))
    chunks = [first[start : start + 16] for start in range(0, 64, 16)]
    different = [first, drawn(store, 1), drawn(other_seed, 0), [[b, a] for a, b in first]]
    for number, one in enumerate(different):
        assert all(one != other for other in different[:number])
    assert sides[0] != sides[1]
    assert all(one != other for number, one in enumerate(chunks) for other in chunks[:number])


def test_any_seed_counts(tmp_path: Path) -> None:
    """SentencePiece takes the last 32-bit number for no seed at all, and 64 bits do not fit."""
    _, tokenizer = store_of(tmp_path, 2)
    lines = sentences(WORDS, 20, 5)

    def sample(seed: int) -> list[list[int]]:
        with seeded(seed):
            return tokenizer.sample(0, lines, 0.3)

    found = [sample(seed) for seed in (0, 1, (1 << 32) - 2, (1 << 32) + 4, (1 << 64) - 9)]
    assert all(one != other for number, one in enumerate(found) for other in found[:number])
    for before in (7, 8):
        sample(before)
        assert sample((1 << 32) - 1) == found[0]


def test_the_seed_is_not_set_while_others_draw(tmp_path: Path, small_chunks: None) -> None:
    store, _ = store_of(tmp_path)
    segmenting = threading.Thread(target=store.segment, args=(np.arange(len(store)), 1))
    with seeded(1):
        segmenting.start()
        segmenting.join(0.2)
        assert segmenting.is_alive() and not store._sides
    segmenting.join()
    assert store._sides


# What they are


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_other_pieces_of_the_same_text(tmp_path: Path, algorithm: str) -> None:
    # A unigram model is the more even among segmentations the lower the key; of twelve words it is very sure.
    store, tokenizer = store_of(tmp_path, algorithm=algorithm, subword_sampling=0.2 if algorithm == "bpe" else 0.001)
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
    monkeypatch.setattr(prepare, "CHUNK_LINES", 3)
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
    again = SampledStore(config_of(tmp_path, max_tokens=60, batch_tokens=60), tmp_path, tokenizer, 1)
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
    def settings(strength: float) -> dict[str, Any]:
        stage = stages.stages(config_of(tmp_path, subword_sampling=strength), print)[2]
        assert stage.name == "encode"
        return stage.settings

    assert settings(0.0) == {"training": {"max_tokens": 256, "too_long": "skip"}}
    assert settings(0.1) == settings(0.3) != settings(0.0)


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
