"""Ids on disk, and the one place where decoder input and labels are made."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests import tiny
from transformer_mt.data.store import HEADER_BYTES, Store, StoreWriter
from transformer_mt.errors import RunError

PAIRS = [([5, 6], [7]), ([], [8, 9, 10]), ([11], []), ([4] * 40, [5, 4] * 9)]


def written(folder: Path, vocabulary: int = 100, pairs=PAIRS, pieces: int = 1) -> Store:
    with StoreWriter(folder, "train", vocabulary) as writer:
        for start in range(0, len(pairs), pieces):
            writer.write(pairs[start : start + pieces])
    return Store(folder, "train")


@pytest.mark.parametrize("pieces", [1, 3, 4])
def test_what_was_written_is_read(tmp_path: Path, pieces: int) -> None:
    store = written(tmp_path, pieces=pieces)
    assert len(store) == 4
    assert [tuple(side.tolist() for side in store.pair(number)) for number in range(4)] == PAIRS
    assert store.lengths().tolist() == [[3, 2], [1, 4], [2, 1], [41, 19]]
    assert store.lengths().dtype == np.int32


@pytest.mark.parametrize(("vocabulary", "size"), [(100, 2), (65536, 2), (65537, 4)])
def test_ids_take_two_bytes_up_to_65536_pieces(tmp_path: Path, vocabulary: int, size: int) -> None:
    pairs = [([0, vocabulary - 1], [1])]
    store = written(tmp_path, vocabulary, pairs)
    assert (tmp_path / "train.bin").stat().st_size == 3 * size
    assert store.pair(0)[0].tolist() == [0, vocabulary - 1]


def test_an_id_outside_of_the_vocabulary_is_no_id(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="70000"):
        written(tmp_path, 100, [([70000], [1])])


def test_an_empty_store(tmp_path: Path) -> None:
    store = written(tmp_path, pairs=[])
    assert len(store) == 0 and store.lengths().shape == (0, 2)


def test_decoder_input_is_the_start_and_the_target_and_labels_are_the_target_and_the_end(tmp_path: Path) -> None:
    source, target_input, labels = written(tmp_path).padded(np.array([0, 1, 2]), pad=0, eos=3, start=2)
    assert source.tolist() == [[5, 6, 3], [3, 0, 0], [11, 3, 0]]
    assert target_input.tolist() == [[2, 7, 0, 0], [2, 8, 9, 10], [2, 0, 0, 0]]
    assert labels.tolist() == [[7, 3, 0, 0], [8, 9, 10, 3], [3, 0, 0, 0]]
    assert all(rows.dtype == np.int64 and rows.flags.c_contiguous for rows in (source, target_input, labels))


def test_rows_come_in_the_order_asked_for_even_twice(tmp_path: Path) -> None:
    data = tiny.store(tmp_path, tiny.uneven(30))
    numbers = np.array([7, 3, 29, 3, 0])
    for row, number in zip(data.padded(numbers, 0, 3, 2)[2], numbers, strict=True):
        assert row[row != 0].tolist() == [*data.pair(number)[1].tolist(), 3]


def test_the_file_is_mapped_and_not_read(tmp_path: Path) -> None:
    store = written(tmp_path)
    part = store.pair(3)[0]
    owner = part
    while isinstance(owner, np.ndarray) and not isinstance(owner, np.memmap):
        owner = owner.base
    assert isinstance(owner, np.memmap) and not part.flags.writeable


def test_another_version_is_refused_by_name(tmp_path: Path) -> None:
    written(tmp_path)
    index = tmp_path / "train.idx"
    header = json.dumps({"ids": "<u2", "version": 9}).encode().ljust(HEADER_BYTES)
    index.write_bytes(header + index.read_bytes()[HEADER_BYTES:])
    with pytest.raises(RunError, match=r"train\.idx has format version 9, this program reads 1"):
        Store(tmp_path, "train")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04" * 20, b"[1]".ljust(40), b"{}".ljust(40)])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    written(tmp_path)
    (tmp_path / "train.idx").write_bytes(content)
    with pytest.raises(RunError, match=r"train\.idx is no index"):
        Store(tmp_path, "train")


@pytest.mark.parametrize("name", ["train.bin", "train.idx"])
@pytest.mark.parametrize("cut", [1, 2, 8, 16])
def test_a_file_cut_short_is_refused(tmp_path: Path, name: str, cut: int) -> None:
    written(tmp_path)
    file = tmp_path / name
    file.write_bytes(file.read_bytes()[:-cut])
    with pytest.raises(RunError, match="do not belong together"):
        Store(tmp_path, "train")


def test_a_store_left_by_an_error_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(KeyError), StoreWriter(tmp_path, "train", 100) as writer:
        writer.write(PAIRS)
        raise KeyError
    with pytest.raises(RunError):
        Store(tmp_path, "train")


def test_what_an_epoch_has_of_each_source(tmp_path: Path) -> None:
    assert written(tmp_path).mixture.even and written(tmp_path).mixture.turns(0) == 4
    for origins, turns in (([{"end": 1}, {"end": 4}], 4), ([{"end": 1, "weight": 3.0}, {"end": 4, "weight": 1.0}], 6)):
        (tmp_path / "train.sources.json").write_text(json.dumps(origins), "utf-8")
        assert Store(tmp_path, "train").mixture.turns(0) == turns
