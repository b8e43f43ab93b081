"""The benchmark script runs, at a size that says nothing about speed, and reports what it promises."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TINY = ["--vocabulary", "400", "--batch-tokens", "300", "--repeat", "1"]


def measured(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(ROOT / "scripts/benchmark.py"), *arguments, *TINY]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("what", ["train", "translate"])
def test_a_ratio_and_both_sides_are_reported(what: str) -> None:
    result = measured(what)
    sides = next(value for key, value in result.items() if key.endswith("per_second"))
    assert len(sides) >= 2
    assert result["ratio"] > 0
    assert result["torch"]


def test_start_up_is_measured_beside_an_empty_process() -> None:
    assert set(measured("startup")["seconds"]) == {"transformer-mt --help", "python -c pass"}
