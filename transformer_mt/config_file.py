"""From a YAML file and `--set` overrides to a `Config`, with every error told at once, by key, file and line."""

import difflib
import re
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import yaml
from pydantic import BaseModel, ValidationError

from transformer_mt.config import SOURCE_KINDS, Config
from transformer_mt.errors import UserError


class Scalar(str):
    """A value as it was written, with the folder that a path in it is relative to."""

    folder: Path | None = None


class Tree(dict[str, Any]):
    """A mapping of the file, with the place (`file:line`) of each key."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, str] = {}


class _Loader(yaml.SafeLoader):
    """Reads every scalar as text: the schema gives it its type, so `no`, `010` and `1e-4` mean what a person means."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {}
    file = ""
    folder: Path | None = None

    def build(self, node: yaml.Node, path: str, errors: list[str]) -> Any:
        """Plain data of a node; repeated keys and YAML's rarer features become errors."""
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, errors)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, f"{path}[{index}]", errors) for index, item in enumerate(node.value)]
        if node.style is None and node.value in ("", "~", "null", "Null", "NULL"):
            return None
        scalar = Scalar(node.value)
        scalar.folder = self.folder
        return scalar

    def _mapping(self, node: yaml.MappingNode, path: str, errors: list[str]) -> Tree:
        tree = Tree()
        for key_node, value_node in node.value:
            key = str(key_node.value)
            full, place = join(path, key), f"{self.file}:{key_node.start_mark.line + 1}"
            if key in tree:
                errors.append(f"{full} ({place}): given twice, first at {tree.places[key]}")
            tree.places[key] = place
            tree[key] = self.build(value_node, full, errors)
        return tree


def join(path: str, key: str) -> str:
    """Dotted path of a key below a path."""
    return f"{path}.{key}" if path else key


def _parse(text: str, file: str, folder: Path | None, errors: list[str]) -> Any:
    loader = _Loader(text)
    loader.file, loader.folder = file, folder
    try:
        node = loader.get_single_node()
        return None if node is None else loader.build(node, "", errors)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{file}:{mark.line + 1}" if mark else file
        raise UserError(f"{where}: not valid YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{file}: not valid YAML: {error}") from None


def shipped_folder() -> Path:
    """Where the configs that come with the package are: configs/ of the source tree, or its copy in the installation."""
    beside = Path(__file__).resolve().parent.parent / "configs"
    if beside.is_dir():
        return beside
    return Path(sysconfig.get_path("data")) / "share" / "transformer-mt" / "configs"


def shipped_configs() -> list[str]:
    """Names of the shipped configs, as `--config` takes them."""
    folder = shipped_folder()
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.yaml"))


def find(name: str) -> tuple[Path, bool]:
    """The file that `--config NAME` means, and whether it is a shipped one."""
    path = Path(name).expanduser()
    if path.is_file():
        return path, False
    if path.is_dir() and (path / "config.yaml").is_file():
        return path / "config.yaml", False
    shipped = shipped_folder() / name
    if not path.is_absolute() and shipped.suffix == ".yaml" and shipped.is_file():
        return shipped, True
    near = difflib.get_close_matches(name, shipped_configs(), n=1)
    hint = f"; did you mean {near[0]}?" if near else "; `transformer-mt config list` shows the shipped ones"
    raise UserError(f"config file {name} not found (looked in {path.parent.absolute()} and among the shipped configs){hint}")


def load_config(name: str, overrides: Sequence[str] = ()) -> Config:
    """Reads, overrides and checks a configuration.

    `name` is a path, or the name of a shipped config; each override is `key.path=value`, the value in YAML.
    Paths in the file are relative to it; in a shipped config and in overrides, to the current folder.
    Raises `UserError` with one message for each thing that is wrong.
    """
    path, shipped = find(name)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (UnicodeDecodeError, OSError) as error:
        raise UserError(f"config file {path} cannot be read: {error}") from None
    errors: list[str] = []
    tree = _parse(text, str(path), Path.cwd() if shipped else path.parent.absolute(), errors)
    if not isinstance(tree, Tree):
        raise UserError(f"{path}: a configuration is a mapping of keys, found {_shown(tree)}")
    for override in overrides:
        _apply(tree, override, errors)
    return _checked(tree, str(path), errors)


def config_from_dict(values: dict[str, Any], file: str) -> Config:
    """Checks plain data that a run folder or a checkpoint holds."""
    return _checked(values, file, [])


def _apply(tree: Tree, override: str, errors: list[str]) -> None:
    """Puts one `key.path=value` into the tree."""
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise UserError(f"--set {override}: wants key.path=value")
    place = f"--set {path}"
    section = tree
    for key in keys[:-1]:
        if not isinstance(section.get(key), Tree):
            section[key] = Tree()
        section.places.setdefault(key, place)
        section = section[key]
    section[keys[-1]] = _parse(text, place, Path.cwd(), errors)
    section.places[keys[-1]] = place


def _checked(tree: dict[str, Any], file: str, errors: list[str]) -> Config:
    config = None
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        errors += _messages(error.errors(), tree, file)
    if errors or config is None:
        raise UserError(*dict.fromkeys(errors))
    return config


def _messages(errors: Iterable[Any], tree: dict[str, Any], file: str) -> list[str]:
    """Pydantic's errors as sentences: key, place, what was found, what is wanted; a key's alternatives are one."""
    messages: list[str] = []
    wanted: dict[str, str] = {}
    for error in errors:
        keys = _keys(error["loc"])
        path, place = _dotted(keys), _place(tree, keys, file)
        if error["type"] == "default_factory_not_called" or (error["type"] == "too_short" and error["input"]):
            continue  # follows from another error, which is told
        if error["type"] == "extra_forbidden":
            near = difflib.get_close_matches(str(keys[-1]), _known_keys(keys[:-1], tree), n=1)
            messages.append(f"unknown key {path} ({place})" + (f", did you mean {near[0]}?" if near else ""))
        elif error["type"] == "missing":
            messages.append(f"missing key {path} ({place})")
        elif error["type"] in ("value_error", "unknown_source"):
            messages.append(f"{path} ({place}): {_wanted(error)}" if path else f"{file}: {_wanted(error)}")
        else:
            found = f"{path} ({place}): found {_shown(error['input'])}, wanted "
            wanted[found] = f"{wanted[found]} or {_wanted(error)}" if found in wanted else _wanted(error)
    return messages + [found + what for found, what in wanted.items()]


def _wanted(error: Any) -> str:
    message = str(error["msg"]).removeprefix("Value error, ")
    for verbose in ("Input should be ", "Value should be "):
        message = message.removeprefix(verbose)
    return re.sub(r", (unable to parse.*|got .*)$", "", message)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "a section"
    if isinstance(value, (list, tuple)):
        return "a list"
    return "nothing" if value is None else repr(str(value))


def _keys(location: tuple[Any, ...]) -> list[Any]:
    """A location without the tags and type names that pydantic puts into it beside keys and indices."""
    keys: list[Any] = []
    for item in location:
        follows_index = bool(keys) and isinstance(keys[-1], int)
        if follows_index and item in SOURCE_KINDS and keys[0] == "data" and not _tagged(keys):
            keys.append(_Tag(item))
        elif isinstance(item, int) or re.fullmatch(r"[^\[\](),]+", str(item)):
            keys.append(item)
    if keys and isinstance(keys[-1], str) and keys[-1] in ("int", "auto", "function-before", "constrained-int"):
        keys.pop()
    return [key for key in keys if not isinstance(key, _Tag)]


class _Tag(str):
    """The kind of a source, which stands in pydantic's locations but not in the file."""


def _tagged(keys: list[Any]) -> bool:
    return any(isinstance(key, _Tag) for key in keys)


def _dotted(keys: Sequence[Any]) -> str:
    path = ""
    for key in keys:
        path = f"{path}[{key}]" if isinstance(key, int) else join(path, str(key))
    return path


def _place(tree: Any, keys: Sequence[Any], file: str) -> str:
    """`file:line` of a key, or of the nearest section above it that the file has."""
    place = file
    for key in keys:
        if isinstance(tree, Tree) and key in tree.places:
            place, tree = tree.places[key], tree.get(key)
        elif isinstance(tree, list) and isinstance(key, int) and key < len(tree):
            tree = tree[key]
            if isinstance(tree, Tree) and tree.places:
                place = next(iter(tree.places.values()))
        else:
            break
    return place


def _known_keys(keys: Sequence[Any], tree: Any) -> list[str]:
    """Keys that the schema has in the section at `keys`."""
    section: type[BaseModel] = Config
    for key in keys:
        tree = tree[key] if isinstance(tree, (dict, list)) else None
        if isinstance(key, int):
            section = _source_class(tree)
        elif key in section.model_fields and (inner := _section_class(section.model_fields[key].annotation)):
            section = inner
    return list(section.model_fields)


def _section_class(annotation: Any) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _source_class(value: Any) -> type[BaseModel]:
    from transformer_mt import config as schema

    kinds = {"source": "TextSource"}
    kind = schema.source_kind(value) or "source"
    found: type[BaseModel] = getattr(schema, kinds.get(kind, f"{kind.capitalize()}Source"))
    return found


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Dotted keys in which two plain configurations differ, with both values (None where a key is absent)."""
    for key in sorted({*old, *new}):
        before, after, path = old.get(key), new.get(key), join(prefix, key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from differences(before, after, path)
        elif before != after:
            yield path, before, after
