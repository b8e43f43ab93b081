"""Keys that came before, found in partitions on disk."""

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.running import command
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
    seen: set[int] = set()
    expected = [key in seen or bool(seen.add(key)) for key in keys.tolist()]
    with Duplicates(tmp_path / "keys") as finder:
        for part in np.split(keys, [3, 3, 500]):
            finder.add(part)
        assert finder.repeated().tolist() == expected
    assert list(tmp_path.iterdir()) == []


def test_no_keys_at_all(tmp_path: Path) -> None:
    with Duplicates(tmp_path / "keys") as finder:
        assert finder.repeated().tolist() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("different", [1, 1 << 62])
def test_memory_does_not_grow_with_keys_nor_with_copies(tmp_path: Path, different: int) -> None:
    """Sixteen times as many; equal keys are all in one partition."""
    code = f"""
import sys, numpy as np
from pathlib import Path
from transformer_mt.data.duplicates import Duplicates

def anonymous():
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.split("\\n") if line.startswith("RssAnon")).split()[1])

peak, generator = 0, np.random.default_rng(1)
with Duplicates(Path(sys.argv[2])) as finder:
    mark = finder._mark
    def watched(*given):
        global peak
        mark(*given)
        peak = max(peak, anonymous())
    finder._mark = watched
    for _ in range(int(sys.argv[1])):
        finder.add(generator.integers(0, {different}, 1 << 18, np.uint64))
    again = finder.repeated()
    peak = max(peak, anonymous())
    print(peak, int(again.sum()))
"""
    peaks = []
    for number in (1, 16):
        done = command("-c", code, str(number), str(tmp_path / f"keys-{number}"), cwd=tmp_path, prefix=[sys.executable])
        assert done.returncode == 0, done.stderr
        peak, copies = map(int, done.stdout.split())
        assert copies == (number * (1 << 18) - 1 if different == 1 else 0)
        peaks.append(peak)
    assert peaks[1] - peaks[0] < 16 * 1024  # KiB; the keys alone are 32 MiB, and 64 with their numbers
