"""Keys that came before, found in partitions on disk."""

from pathlib import Path

import numpy as np
import pytest

from transformer_mt.data import duplicates
from transformer_mt.data.duplicates import Duplicates


@pytest.mark.parametrize("buffered", [1, 7, 1 << 18])
def test_repeated_keys_are_those_that_a_set_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buffered: int
) -> None:
    monkeypatch.setattr(duplicates, "BUFFERED", buffered)
    generator = np.random.default_rng(buffered)
    keys = generator.integers(0, 1 << 64, 300, np.uint64)[generator.integers(0, 300, 1000)]
    keys[:4] = [0, (1 << 64) - 1, 0, (1 << 64) - 1]
    finder = Duplicates(tmp_path / "keys")
    for part in np.split(keys, [3, 3, 500]):
        finder.add(part)
    seen: set[int] = set()
    expected = [key in seen or bool(seen.add(key)) for key in keys.tolist()]
    assert finder.repeated().tolist() == expected
    assert list(tmp_path.iterdir()) == []


def test_no_keys_at_all(tmp_path: Path) -> None:
    assert Duplicates(tmp_path / "keys").repeated().tolist() == []
    assert list(tmp_path.iterdir()) == []
