"""Preparing shared out among machines: what comes of it is what one machine makes, whatever happens on the way."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.hub import Hub
from tests.running import assert_plain, command, digests, patched, start, write_config, write_task

SMALL = "from transformer_mt.data import corpus, prepare\ncorpus.CHUNK_PAIRS = prepare.CHUNK_PAIRS = 40\n"
UNEQUAL = ["stage.json", "config.yaml"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return patched(tmp_path, SMALL)


def run(folder: Path, *arguments: str, env: dict[str, str], code: int = 0) -> str:
    name, *rest = arguments
    done = command(name, "-c", "c.yaml", *rest, cwd=folder, env=env)
    assert done.returncode == code, done.stderr
    assert_plain(done.stderr)
    return done.stderr


def test_shares_come_to_what_one_machine_makes(tmp_path: Path, environment: dict[str, str]) -> None:
    """In any order, one of them twice, and one killed on its way."""
    one, many = tmp_path / "one", tmp_path / "many"
    for folder in (one, many):
        write_task(folder, 400)
        write_config(folder)
    run(one, "tokenize", env=environment)
    for share in ("3/3", "1/3"):
        assert f"share {share} of download is made" in run(many, "download", "--shard", share, env=environment)
    refused = run(many, "download", env=environment, code=2)
    assert "lacks the shares 2/3: run them, or delete the folder" in refused
    assert not (many / "run/corpus").exists()
    run(many, "download", "--shard", "2/3", "--workers", "2", env=environment)
    run(many, "download", "--shard", "1/3", env=environment)
    # Once all is there, the sources are not read for it again, only looked at.
    run(many, "tokenize", "--learn-only", env=environment)
    assert not (many / "run/parts/download").exists() and not (many / "run/ids").exists()
    process = start("tokenize", "-c", "c.yaml", "--shard", "1/2", cwd=many, **environment)
    while not list((many / "run").glob("parts/encode/*.npz")) and process.poll() is None:
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    for share in ("1/2", "2/2"):
        run(many, "tokenize", "--shard", share, env=environment)
    assert "up to date" in run(many, "tokenize", env=environment)
    assert digests(many / "run", without=UNEQUAL) == digests(one / "run", without=UNEQUAL)
    assert "run/ids: up to date" in run(many, "tokenize", "--shard", "1/2", env=environment)
    # What a kill, or a share that came late, has left of a stage that is made.
    (many / "run/parts/download").mkdir(parents=True)
    (many / "run/parts/download/made-from.json").write_text("{}", "utf-8")
    run(many, "download", env=environment)
    assert not (many / "run/parts").exists()


def test_shares_of_something_else_are_refused(tmp_path: Path, environment: dict[str, str]) -> None:
    write_task(tmp_path, 100)
    write_config(tmp_path)
    assert "is not ready" in run(tmp_path, "tokenize", "--shard", "1/2", env=environment, code=2)
    run(tmp_path, "download", "--shard", "1/2", env=environment)
    for changed in (["--shard", "1/3"], ["--shard", "2/2", "--set", "data.cleaning.max_words=3"]):
        told = run(tmp_path, "download", *changed, env=environment, code=2)
        assert "holds shares made with other settings, inputs or number of shares: delete it" in told
    with (tmp_path / "train.en").open("a") as one, (tmp_path / "train.de").open("a") as other:
        one.write("ba\n")
        other.write("ba\n")
    assert "holds shares made with other" in run(tmp_path, "download", env=environment, code=2)
    shutil.rmtree(tmp_path / "run/parts")
    run(tmp_path, "download", env=environment)


def test_a_damaged_part_is_named_and_made_again(tmp_path: Path, environment: dict[str, str]) -> None:
    write_task(tmp_path, 200)
    write_config(tmp_path)
    for share in ("1/2", "2/2"):
        run(tmp_path, "download", "--shard", share, env=environment)
    part = tmp_path / "run/parts/download/0000001.npz"
    whole = part.read_bytes()
    for damage in (whole[: len(whole) // 2], b"", None):
        part.unlink()
        if damage is not None:
            part.write_bytes(damage)
        told = run(tmp_path, "download", env=environment, code=1)
        assert "0000001.npz is missing or damaged" in told and "delete it, and run share 2/2 again" in told
    run(tmp_path, "download", "--shard", "2/2", env=environment)
    assert part.read_bytes() == whole
    run(tmp_path, "download", env=environment)


@pytest.mark.parametrize("wrong", ["0/2", "3/2", "1", "a/b", "1/0"])
def test_shares_are_given_as_two_numbers(tmp_path: Path, wrong: str) -> None:
    write_task(tmp_path, 20)
    write_config(tmp_path)
    assert f"error: --shard {wrong}: wanted I/N" in run(tmp_path, "download", "--shard", wrong, env={}, code=2)


def test_shares_of_a_streamed_data_set(tmp_path: Path, environment: dict[str, str]) -> None:
    rows = [{"en": f"word {number}", "de": f"Wort {number}"} for number in range(150)]
    data = {
        split: [{"hub": "wmt/wmt14", "split": split, "streaming": True}] for split in ("train", "validation", "test")
    }
    for name in ("one", "many"):
        (tmp_path / name).mkdir()
        write_config(tmp_path / name, data=data)
    with Hub({"de-en": {"train": rows, "validation": rows[:3], "test": rows[3:5]}}) as hub:
        env = {**environment, **hub.environment(tmp_path / "cache")}
        run(tmp_path / "one", "download", env=env)
        for share in ("2/2", "1/2"):
            run(tmp_path / "many", "download", "--shard", share, env=env)
        run(tmp_path / "many", "download", env=env)
    expected, found = (digests(tmp_path / name / "run", without=UNEQUAL) for name in ("one", "many"))
    assert found == expected and "corpus/train.en" in found
