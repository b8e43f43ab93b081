"""A run folder is ours alone: nothing that a person keeps elsewhere is replaced, moved or read from inside it."""

import gzip
import shutil
from pathlib import Path

import pytest

from tests.running import COMMAND, assert_plain, command, digests, write_config


@pytest.mark.parametrize("extra", [(), ("--fresh",)])
@pytest.mark.parametrize("output", [".", "mine"])
def test_folders_that_hold_other_files_are_refused(task: Path, output: str, extra: tuple[str, ...]) -> None:
    (task / "mine" / "corpus").mkdir(parents=True)
    (task / "mine" / "corpus" / "irreplaceable.txt").write_text("years of work", "utf-8")
    before = digests(task)
    done = command("run", "-c", "c.yaml", "--set", f"output={output}", *extra, cwd=task)
    assert done.returncode == 2 and "holds other files and no run" in done.stderr, done.stderr
    assert_plain(done.stderr)
    assert digests(task) == before
    assert not list(task.rglob("*.old-*"))


def test_the_check_tells_of_the_folder_and_of_the_files(task: Path) -> None:
    (task / "mine").mkdir()
    (task / "mine" / "notes.txt").write_text("years of work", "utf-8")
    (task / "test.de").unlink()
    done = command("config", "check", "-c", "c.yaml", "--set", "output=mine", cwd=task)
    assert done.returncode == 2 and done.stderr.count("error: ") == 2, done.stderr
    assert "test.de does not exist" in done.stderr and "holds other files and no run" in done.stderr


@pytest.mark.parametrize(
    ("output", "wanted"),
    [
        ("train.en", "train.en is a file, wanted a folder"),
        ("train.en/run", "train.en is a file, wanted a folder"),
        ("n" * 300, "File name too long"),
    ],
)
def test_an_output_that_can_be_no_folder(task: Path, output: str, wanted: str) -> None:
    done = command("tokenize", "-c", "c.yaml", "--set", f"output={output}", cwd=task)
    assert done.returncode == 2 and wanted in done.stderr
    assert_plain(done.stderr)


def test_sources_inside_the_run_folder_are_refused(task: Path) -> None:
    assert command("download", "-c", "c.yaml", cwd=task).returncode == 0
    for side in ("en", "de"):
        shutil.copy(task / f"train.{side}", task / "run" / "corpus" / f"mine.{side}")
    inside = {"train": [{"source": "run/corpus/mine.en", "target": "run/corpus/mine.de"}]}
    write_config(task, "inside.yaml", data=inside)
    done = command("download", "-c", "inside.yaml", cwd=task)
    assert done.returncode == 2 and done.stderr.count("lies in the run folder") == 2, done.stderr
    assert (task / "run/corpus/mine.en").is_file()


def test_a_rejected_configuration_leaves_nothing(task: Path) -> None:
    (task / "valid.de").unlink()
    done = command("train", "-c", "c.yaml", cwd=task)
    assert done.returncode == 2 and "valid.de" in done.stderr
    assert not (task / "run").exists()


def test_closed_streams_and_other_kinds_of_files(task: Path) -> None:
    assert command("train", "-c", "c.yaml", "--quiet", cwd=task).returncode == 0
    closed = command("-c", 'exec "$@" translate --model run <&-', "bash", *COMMAND, cwd=task, prefix=["bash"])
    assert closed.returncode == 2 and "is closed" in closed.stderr, closed.stderr
    (task / "packed").write_bytes(gzip.compress(b"ba do\n\xef\xbb\xbfmi"))
    (task / "plain").write_bytes(b"ba do\n\xef\xbb\xbfmi")
    packed, plain = (command("translate", "-m", "run", "-i", name, cwd=task) for name in ("packed", "plain"))
    assert packed.returncode == 0 and packed.stdout.count("\n") == 2, packed.stderr
    assert packed.stdout == plain.stdout
    (task / "wide").write_bytes("ba do\n".encode("utf-16"))
    wide = command("translate", "--model", "run", "--input", "wide", cwd=task)
    assert wide.returncode == 2 and "UTF-16" in wide.stderr, wide.stderr


def test_endless_lines_are_cut_and_told(task: Path) -> None:
    assert command("train", "-c", "c.yaml", "--quiet", cwd=task).returncode == 0
    lines = b"ba\n" + b"ba do " * 30_000 + b"\ndo\n"
    done = command("translate", "--model", "run", "--long-lines", "cut", cwd=task, stdin=lines)
    assert done.returncode == 0 and done.stdout.count("\n") == 3, done.stderr
    assert "line 2: source cut 60000→1024 pieces" in done.stderr
