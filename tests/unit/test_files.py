"""Compressed files are told by their content, and never half read."""

import bz2
import gzip
import lzma
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from tests.reading import ENGLISH_GERMAN, check, read, refused, two_files
from transformer_mt.data import files, sources
from transformer_mt.errors import UserError

TEXT = "".join(f"Satz {number} hält an.\n" for number in range(3000)).encode()


def zstd(content: bytes) -> bytes:
    """Two frames behind a skippable one, as the parallel tools write them."""
    half, compressor = len(content) // 2, zstandard.ZstdCompressor()
    frames = compressor.compress(content[:half]), compressor.compress(content[half:])
    return b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + b"".join(frames)


Packer = Callable[[bytes], bytes]
PACKERS: dict[str, Packer] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstd,
}


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("named", [True, False])
def test_compression_is_told_by_content(tmp_path: Path, suffix: str, named: bool) -> None:
    name = f"train.en.{suffix}" if named else "train.en"
    source = two_files(tmp_path, PACKERS[suffix](b"\xef\xbb\xbf" + TEXT), TEXT, (name, "train.de"))
    assert sources.check(source, ENGLISH_GERMAN) == []
    pairs = read(source)
    assert len(pairs) == 3000
    assert pairs[0] == ("Satz 0 hält an.",) * 2
    assert all(one == other for one, other in pairs)


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("share", [0.3, 0.66, 0.999])
def test_a_cut_file_is_never_half_read(tmp_path: Path, suffix: str, share: float) -> None:
    packed = PACKERS[suffix](TEXT)
    source = two_files(tmp_path, packed[: int(len(packed) * share)], TEXT, (f"train.en.{suffix}", "train.de"))
    assert f"train.en.{suffix} is incomplete" in refused(source)


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_damaged_file_is_named(tmp_path: Path, suffix: str) -> None:
    packed = bytearray(PACKERS[suffix](TEXT))
    middle = slice(len(packed) // 2, len(packed) // 2 + 64)
    packed[middle] = bytes(255 - byte for byte in packed[middle])
    message = refused(two_files(tmp_path, bytes(packed), TEXT, (f"train.en.{suffix}", "train.de")))
    assert f"train.en.{suffix} is " in message
    assert "damaged" in message or "incomplete" in message


def test_plain_text_with_the_name_of_an_archive_is_text(tmp_path: Path) -> None:
    assert read(two_files(tmp_path, b"a\n", b"x\n", ("train.en.gz", "train.de"))) == [("a", "x")]


def test_zstd_without_its_extra_is_told_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = two_files(tmp_path, zstd(TEXT), TEXT)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert "train.en is compressed with zstd" in check(source)
    assert "[formats]" in refused(source)


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz", "zst"])
def test_streams_that_follow_each_other_are_read_to_the_end_or_refused(tmp_path: Path, suffix: str) -> None:
    """As parallel packers and `cat` make them; what is cut off or damaged is never a shorter text."""
    packer = zstandard.ZstdCompressor().compress if suffix == "zst" else PACKERS[suffix]
    one, other = packer(b"first\n" * 50), packer(b"second\n" * 50)
    path, wanted = tmp_path / "t", b"first\n" * 50 + b"second\n" * 50
    path.write_bytes(one + other)
    assert b"".join(files.lines(path)) == wanted
    if suffix == "xz":  # the format allows of this between streams
        path.write_bytes(one + b"\0" * 8 + other + b"\0" * 4)
        assert b"".join(files.lines(path)) == wanted
    for end in range(1, len(other)):
        path.write_bytes(one + other[:end])
        with pytest.raises(UserError, match=r"incomplete|damaged"):
            list(files.lines(path))
    for place in range(2):
        damaged = bytearray(one + other)
        damaged[len(one) + place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"incomplete|damaged"):
            list(files.lines(path))
