"""Every command of README.md is run, in its order, in one folder; only sizes are shrunk and the hub is on loopback."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hub import Hub
from transformer_mt.data import demo

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")

SMALL = [
    "tokenizer.vocabulary_size=500",
    "tokenizer.vocabulary_limit=soft",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "model.model_size=16",
    "model.feedforward_size=16",
    "model.heads=2",
    "model.key_size=8",
    "model.value_size=8",
    "training.batch_tokens=2000",
    "training.max_steps=2",
    "decoding.max_length.extra=2",
]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def shrunk(command: str) -> str:
    """The same command, with a tiny model and the same Python as the tests."""
    command = command.replace("torchrun", f"{sys.executable} -m torch.distributed.run")
    if "--config" not in command or " show " in command:
        return command
    return command + "".join(f" --set '{key}'" for key in SMALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readme")
    for seed, name in enumerate(("train", "dev", "test"), 1):
        pairs = list(demo.generate("english-german", 300 if name == "train" else 6, seed))
        for side, language in enumerate(("en", "de")):
            (folder / f"{name}.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs), "utf-8")
    return folder


ENVIRONMENT = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


def test_every_command_runs(folder: Path) -> None:
    pairs = list(demo.generate("english-german", 300, 9))
    splits = {"train": pairs[:280], "validation": pairs[280:290], "test": pairs[290:]}
    rows = {split: [{"en": one, "de": other} for one, other in some] for split, some in splits.items()}
    found = commands()
    assert len(found) >= 12
    with Hub({"de-en": rows}) as hub:
        environment = hub.environment(folder / "hub-cache", **ENVIRONMENT)
        for command in found:
            done = subprocess.run(
                ["bash", "-c", shrunk(command)],
                cwd=folder, env=environment, capture_output=True, text=True, timeout=300,
            )  # fmt: skip
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    assert len((folder / "out.de").read_text("utf-8").splitlines()) == 6
    assert (folder / "runs/wmt14-en-de-base/scores/test.json").is_file()


def test_the_python_example_runs(folder: Path) -> None:
    (example,) = blocks("python")
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=folder, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("['")


@pytest.mark.parametrize("target", ["demo", "test"])
def test_make_targets_of_the_readme_exist(target: str) -> None:
    assert re.search(rf"^make {target}\b", README, re.MULTILINE)
    done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    wanted = {"demo": "transformer-mt run --config demo.yaml", "test": "-m pytest"}[target]
    assert wanted in done.stdout


def test_files_that_the_readme_names_exist() -> None:
    for name in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"`([\w./-]+\.yaml)`", README):
        assert (ROOT / "configs" / name).is_file(), name


def test_nothing_is_left_to_be_filled_in() -> None:
    prose = re.sub(r"^```sh\n.*?^```", "", README, flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"\b[A-Z]{3,}_[A-Z]+\b", prose) == []
