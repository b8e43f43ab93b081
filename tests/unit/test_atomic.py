"""Files and folders that are whole or absent."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from transformer_mt.atomic import in_turn, locked, new_folder, sha256, whole_file, write_json, write_text
from transformer_mt.errors import UserError


def test_folder_appears_whole_and_replaces_the_old_one(tmp_path: Path) -> None:
    final = tmp_path / "deep" / "final"
    for content in ("one", "two"):
        with new_folder(final) as partial:
            (partial / content).write_text(content)
            assert not (final / content).exists()
        assert [path.name for path in final.iterdir()] == [content]
        assert os.listdir(final.parent) == ["final"]


def test_failure_leaves_the_old_folder(tmp_path: Path) -> None:
    final = tmp_path / "final"
    with new_folder(final) as partial:
        (partial / "old").write_text("old")
    with pytest.raises(KeyboardInterrupt), new_folder(final) as partial:
        (partial / "new").write_text("new")
        raise KeyboardInterrupt
    assert [path.name for path in final.iterdir()] == ["old"]
    assert os.listdir(tmp_path) == ["final"]


def test_leftovers_of_a_crash_are_cleared(tmp_path: Path) -> None:
    for name in (".final.partial", ".final.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "debris").write_text("x")
    with new_folder(tmp_path / "final") as partial:
        assert list(partial.iterdir()) == []
    assert os.listdir(tmp_path) == ["final"]


def test_text_is_utf8_with_line_feeds(tmp_path: Path) -> None:
    write_text(tmp_path / "a" / "text", "Grüße\r\n")
    assert (tmp_path / "a" / "text").read_bytes() == "Grüße\r\n".encode()
    write_json(tmp_path / "json", {"ü": 1})
    assert (tmp_path / "json").read_text("utf-8") == '{\n "ü": 1\n}\n'


def test_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "text"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["text"]


def test_lock_names_its_holder_and_ends_with_it(tmp_path: Path) -> None:
    holder = f"in use by another process .process {os.getpid()}"
    with locked(tmp_path), pytest.raises(UserError, match=holder), locked(tmp_path):
        pass
    code = (
        "import os, sys; from pathlib import Path; from transformer_mt.atomic import locked\n"
        "with locked(Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, tmp_path]).returncode == -9
    with locked(tmp_path):
        pass


def test_digest(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc" * 1_000_000)
    known = subprocess.run(["sha256sum", tmp_path / "x"], capture_output=True, text=True, check=True).stdout[:64]
    assert sha256(tmp_path / "x") == known


def test_there_is_no_turn_to_wait_for_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    with in_turn(tmp_path / "file" / "turn"):
        assert (tmp_path / "file").is_file()


def test_a_name_of_a_descriptor_is_written_to_as_it_is(tmp_path: Path) -> None:
    """A file behind it is not replaced: others write there too."""
    with (tmp_path / "log").open("wb", buffering=0) as log:
        log.write(b"before\n")
        with whole_file(Path(f"/dev/fd/{log.fileno()}")) as file:
            file.write(b"in between\n")
        log.seek(0, 2)
        log.write(b"after\n")
    assert (tmp_path / "log").read_bytes() == b"before\nin between\nafter\n"


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no such disk here")
def test_a_disk_in_memory_is_a_disk() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "a"
        path.write_bytes(b"before")
        with whole_file(path) as file:
            file.write(b"now")
            assert path.read_bytes() == b"before"
        assert path.read_bytes() == b"now"
