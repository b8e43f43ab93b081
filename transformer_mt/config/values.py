"""The kinds of values that a configuration holds: counts, shares, names, paths; each with its bounds."""

import hashlib
import json
import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def whole_number(value: object) -> object:
    """Lets `1e5` and `25_000` stand for whole numbers, as a person means them."""
    if not isinstance(value, str):
        return value
    for read in (int, float):  # int first: a float keeps only 53 bits of a long seed
        try:
            number = read(value)
        except ValueError:
            continue
        return int(number) if number == number // 1 else value
    return value


def _user_path(value: object) -> object:
    """Expands `~`; an empty path would silently mean the current folder."""
    if not isinstance(value, (str, Path)):
        return value
    if not str(value):
        raise ValueError("found '', wanted a path")
    if "\0" in str(value) or not _is_writable(str(value)):
        raise ValueError(f"found {str(value)!a}, wanted a path without NUL and halves of characters")
    return Path(os.path.expanduser(str(value)))


def _is_writable(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def _data_path(value: object) -> object:
    """Makes a path absolute: relative to the file it was written in, or to the current folder."""
    folder = getattr(value, "folder", None) or Path.cwd()
    path = _user_path(value)
    return Path(folder) / path if isinstance(path, Path) else path


def _data_paths(value: object) -> object:
    """One path, or a list of them."""
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, (str, Path)) for item in value):
        return tuple(map(_data_path, value))
    if not isinstance(value, (str, Path)):
        raise ValueError(f"found {value!r}, wanted a path or a list of paths")
    return _data_path(value)


LANGUAGE = r"^[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*$"
NAME = r"^[^\s/\\.\x00-\x1f][^/\\\x00-\x1f]{0,99}$"
HUB = r"^[\w.-]+(/[\w.-]+)?$"
URL = r"^[a-z][a-z0-9+.-]*://\S+$"
WORD = r"^\S+$"
PATTERNS = {
    WORD: "a word without white space",
    LANGUAGE: "a language code such as de or zh-Hans",
    NAME: "a name of at most 100 characters without slashes that does not begin with a dot or a blank",
    URL: "a URL such as https://host/train.parquet",
    HUB: "the name of a data set, such as wmt/wmt14",
}

# The bounds come before the validator, so that the JSON schema has them as minimum and maximum. Libraries take whole
# numbers of 32 bits.
Count = Annotated[int, Field(ge=1, lt=2**31), BeforeValidator(whole_number)]
Natural = Annotated[int, Field(ge=0, lt=2**31), BeforeValidator(whole_number)]
Seed = Annotated[int, Field(ge=0, lt=2**64), BeforeValidator(whole_number)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
Text = Annotated[str, Field(min_length=1)]
UserPath = Annotated[Path, BeforeValidator(_user_path)]
DataPath = Annotated[Path, BeforeValidator(_data_path)]
DataPaths = Annotated[Path | tuple[Path, ...], BeforeValidator(_data_paths)]
"""A path, a pattern, or a list of them."""
Language = Annotated[str, Field(pattern=LANGUAGE)]
Name = Annotated[str, Field(pattern=NAME)]


class Section(BaseModel):
    """A part of the configuration: frozen, strict about names, documented key by key."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False, protected_namespaces=()
    )


PATH_KEYS = {
    "source", "target", "tsv", "jsonl", "parquet", "tmx", "po", "model", "source_model", "target_model", "vocabulary",
}  # fmt: skip
"""Keys whose texts are paths, wherever they stand."""


def without_paths(value: Any) -> Any:
    """Plain settings without the paths in them."""
    if isinstance(value, dict):
        return {key: without_paths(item) for key, item in value.items() if key not in PATH_KEYS or item is None}
    return [without_paths(item) for item in value] if isinstance(value, list) else value


def digest(value: Any) -> str:
    """sha256 of a configuration section or of plain JSON data, independent of the order of keys."""
    plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    return hashlib.sha256(json.dumps(plain, sort_keys=True, ensure_ascii=True).encode()).hexdigest()
