"""The benchmark script runs, at a size that says nothing about speed, and reports what it promises."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
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


def test_updates_are_measured_beside_a_plain_loop() -> None:
    result = measured("train", "--pairs", "500", "--updates", "1")
    names = {f"{who} {precision}" for who in ("ours", "plain") for precision in ("float32", "bfloat16")}
    for key in ("tokens_per_second", "share_of_products", "peak_memory_mib", "least_and_most"):
        assert set(result[key]) == names and result["torch"]
    assert all(share > 0 for share in result["share_of_products"].values())
    assert set(result["products_flops_per_second"]) == {"float32", "bfloat16"}
    assert result["share_of_batches_on_their_way"] > 0


def test_translating_is_measured_beside_others_and_bare_products() -> None:
    """On random weights, and on a model's folder with its own lengths."""
    result = measured("translate", "--sentences", "6", "--length", "3")
    names = set(result["sentences_per_second"])
    assert {"native float32", "our engine ctranslate2 int8", "transformers float32", "matrix products float32"} <= names
    assert any(name.startswith("ctranslate2 float32") for name in names)
    assert set(result["share_of_matrix_products"]) == names and result["sentences"] == 6
    assert result["pieces"]["native float32"] == 6 * 4  # with the end


def test_preparing_is_measured_beside_sentencepiece_and_as_the_corpus_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    result = measured("preparing", "--pairs", "400", "--grow-to", "0")
    assert result["pairs"] == 400 and result["growth"] == {} and result["encoding_ratio"] > 0
    assert all(result["encoding_lines_per_second"][name] > 0 for name in ("ours", "alone"))
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import benchmark_preparing

    monkeypatch.setattr(benchmark_preparing, "SIZES", (500, 900))
    options = argparse.Namespace(pairs=400, repeat=0, grow_to=900, vocabulary=400, source=None, target=None)
    with tempfile.TemporaryDirectory() as folder:
        found = benchmark_preparing.preparing(options, Path(folder))["growth"]
    assert set(found) == {500, 900}
    assert all(found[size][stage]["anonymous_mib"] > 10 for size in found for stage in ("download", "tokenize"))


def test_growth_is_measured_one_thing_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import benchmark_growth

    monkeypatch.setattr(
        benchmark_growth, "CHANGES", {"batch_tokens": (260, 300), "vocabulary": (300,), "threads": (1,)}
    )
    options = argparse.Namespace(
        pairs=300, repeat=1, updates=1, batch_tokens=300, vocabulary=400, device="cpu", compile=False
    )
    with tempfile.TemporaryDirectory() as folder:
        found = benchmark_growth.growth(options, Path(folder))["growth"]
    assert set(found) == {"batch_tokens 260", "batch_tokens 300", "vocabulary 300", "threads 1"}
    assert all(row["tokens_per_second"] > 0 and row["peak_memory_mib"] > 50 for row in found.values())


def test_planning_and_losses_are_measured() -> None:
    found = measured("planning", "--pairs", "2000")["planning"]
    assert set(found) == {"20 pairs", "200 pairs", "2000 pairs"} and found["2000 pairs"]["batches"] >= 1
    nll = measured("losses", "--pairs", "500", "--updates", "10")["nll"]
    assert set(nll) == {"float32", "float32, another seed", "bfloat16"}
    assert all(len(curve) == 10 and curve[-1] < curve[0] for curve in nll.values())


def test_start_up_is_measured_beside_an_empty_process() -> None:
    assert set(measured("startup")["seconds"]) == {"transformer-mt --help", "python -c pass"}
