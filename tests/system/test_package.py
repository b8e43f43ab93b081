"""The wheel, installed in an environment of its own, works from another folder."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with our wheel in it; its dependencies are those of the tests' environment."""
    folder = tmp_path_factory.mktemp("package")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=False, symlinks=True)
    python = folder / "env" / "bin" / "python"
    install = [*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=300)
    (site,) = (folder / "env" / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    return python


def run(python: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run(
        [str(python.parent / "transformer-mt"), *arguments],
        cwd=folder, env=environment | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def test_the_wheel_is_what_runs(python: Path, tmp_path: Path) -> None:
    code = "import transformer_mt; print(transformer_mt.__file__)"
    done = subprocess.run([str(python), "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert str(python.parent.parent) in done.stdout


def test_shipped_configs_are_found(python: Path, tmp_path: Path) -> None:
    listed = run(python, tmp_path, "config", "list").stdout.split()
    there = {path.relative_to(ROOT / "configs").as_posix() for path in (ROOT / "configs").rglob("*.yaml")}
    assert set(listed) == there
    assert "name: demo" in run(python, tmp_path, "config", "show", "--config", "demo.yaml").stdout


def test_it_trains_and_scores_from_another_folder(python: Path, tmp_path: Path) -> None:
    small = [
        "data.train=[{demo: english-german, pairs: 200}]", "data.test=[{demo: english-german, pairs: 4, seed: 3}]",
        "data.validation=[{demo: english-german, pairs: 4, seed: 2}]", "tokenizer.vocabulary_size=200",
        "model.encoder_layers=1", "model.decoder_layers=1", "model.model_size=16", "model.feedforward_size=16",
        "training.max_steps=2", "decoding.max_length.extra=2",
    ]  # fmt: skip
    sets = [part for key in small for part in ("--set", key)]
    done = run(python, tmp_path, "run", "--config", "demo.yaml", *sets)
    assert done.returncode == 0, done.stderr
    assert "BLEU" in done.stdout
    assert "nrefs:1|" in done.stdout
    assert (tmp_path / "runs/demo/model/model.safetensors").is_file()
