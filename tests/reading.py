"""What the tests of reading share: two files made of bytes, and short ways to read, refuse and check a source."""

from collections import Counter
from pathlib import Path

import pytest

from transformer_mt.config import Languages, Source, TextSource
from transformer_mt.data import sources
from transformer_mt.errors import UserError

ENGLISH_GERMAN = Languages(source="en", target="de")


def two_files(
    folder: Path, source: bytes, target: bytes, names: tuple[str, str] = ("train.en", "train.de")
) -> TextSource:
    """The text source of two files with these bytes."""
    for name, content in zip(names, (source, target), strict=True):
        (folder / name).write_bytes(content)
    return TextSource(source=folder / names[0], target=folder / names[1])


def read(source: Source, on_bad_bytes: str = "error", languages: Languages = ENGLISH_GERMAN) -> list[tuple[str, str]]:
    """The source's pairs without their line numbers, which must rise."""
    pairs = list(sources.read(source, languages, on_bad_bytes, Counter()))
    assert [pair.line for pair in pairs] == sorted({pair.line for pair in pairs})
    return [(pair.source, pair.target) for pair in pairs]


def refused(source: Source, on_bad_bytes: str = "error", languages: Languages = ENGLISH_GERMAN) -> str:
    """The one sentence with which reading the source ends."""
    with pytest.raises(UserError) as failure:
        read(source, on_bad_bytes, languages)
    assert len(failure.value.messages) == 1
    assert "\n" not in str(failure.value)
    return str(failure.value)


def check(source: Source, languages: Languages = ENGLISH_GERMAN) -> str:
    """The only problem found."""
    (problem,) = sources.check(source, languages)
    return problem
