"""From a YAML file and `--set` overrides to a `Config`, with every error told at once, by key, file and line."""

import difflib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from transformer_mt import config as schema
from transformer_mt.atomic import write_text
from transformer_mt.config import SOURCE_KINDS, Config, source_kind
from transformer_mt.config.values import PATTERNS
from transformer_mt.errors import UserError

# What pydantic's kinds of errors want, in a person's words; {names} are those of the error's context.
WANTED = {
    "bool": "true or false",
    "extra_forbidden": "no such key",
    "finite_number": "a finite number",
    "float": "a number",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "int": "a whole number",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "model": "a section",
    "path": "a path",
    "string": "text",
    "string_too_short": "some text",
    "too_long": "a list of at most {max_length}",
    "too_short": "a list of at least {min_length}",
    "tuple": "a list",
}


class Scalar(str):
    """A value as it was written, with the folder that a path in it is relative to."""

    folder: Path | None = None


class Tree(dict[str, Any]):
    """A mapping of the file, with the place (`file:line`) of each key."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, str] = {}


class Items(list[Any]):
    """A list of the file, with the place of each item."""

    places: list[str]


class _Loader(yaml.SafeLoader):
    """Takes every scalar as it is written: the schema gives it its type, so `no`, `010` and `1e-4` mean what a person
    means.

    Anchors, aliases and merge keys (`<<`) work; tags (`!include`, `!!python/...`) are errors.
    """

    def __init__(self, text: str, file: str, folder: Path | None, errors: list[str]) -> None:
        super().__init__(text)
        self.file, self.folder, self.errors = file, folder, errors
        self.open: list[yaml.Node] = []

    def build(self, node: yaml.Node, path: str) -> Any:
        """Plain data of a node; repeated keys and YAML's rarer features become errors."""
        if node in self.open:
            return self._error(path, node, "contains itself, by an alias")
        if not node.tag.startswith("tag:yaml.org,2002:") or "python" in node.tag:
            return self._error(path, node, f"has the tag {node.tag}; tags are not supported")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        self.open.append(node)
        if isinstance(node, yaml.MappingNode):
            built: Any = self._mapping(node, path)
        else:
            built = Items(self.build(item, f"{path}[{index}]") for index, item in enumerate(node.value))
            built.places = [self._place(item) for item in node.value]
        self.open.pop()
        return built

    def _scalar(self, node: yaml.ScalarNode) -> Scalar | None:
        if node.style is None and node.value in ("", "~", "null", "Null", "NULL"):
            return None
        scalar = Scalar(node.value)
        scalar.folder = self.folder
        return scalar

    def _mapping(self, node: yaml.MappingNode, path: str) -> Tree:
        tree = Tree()
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or not key_node.value:
                self._error(path, key_node, "a key has to be a word")
            elif key_node.value == "<<" and key_node.style is None:
                merged += value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
            else:
                key = key_node.value
                full, place = join(path, key), self._place(key_node)
                if key in tree:
                    self.errors.append(f"{full} ({place}): given twice, first at {tree.places[key]}")
                tree.places[key] = place
                tree[key] = self.build(value_node, full)
        for source in merged:
            self._merge(source, tree, path)
        return tree

    def _merge(self, node: yaml.Node, tree: Tree, path: str) -> None:
        """Puts the keys of `<<: *other` into a section, where it does not give them itself."""
        other = self.build(node, path)
        if not isinstance(other, Tree):
            self._error(join(path, "<<"), node, f"found {_shown(other)}, wanted a section")
            return
        for key in other:
            if key not in tree:
                tree[key], tree.places[key] = other[key], other.places[key]

    def _place(self, node: yaml.Node) -> str:
        return _at(self.file, node.start_mark)

    def _error(self, path: str, node: yaml.Node, problem: str) -> None:
        self.errors.append(f"{path or 'the file'} ({self._place(node)}): {problem}")


def join(path: str, key: str) -> str:
    """Dotted path of a key below a path."""
    return f"{path}.{key}" if path else key


def _at(file: str, mark: Any) -> str:
    """`file:line`; an override on the command line has no lines."""
    return file if file.startswith("--set ") or mark is None else f"{file}:{mark.line + 1}"


def _parse(text: str, file: str, folder: Path | None, errors: list[str]) -> Any:
    try:
        loader = _Loader(text, file, folder, errors)
        node = loader.get_single_node()
        return None if node is None else loader.build(node, "")
    except RecursionError:
        raise UserError(f"{file}: lists or mappings in each other, too many for a configuration") from None
    except yaml.reader.ReaderError as error:
        place = _at(file, None) if file.startswith("--set ") else f"{file}:{text[: error.position].count(chr(10)) + 1}"
        raise UserError(f"{place}: not valid YAML: a control character") from None
    except yaml.MarkedYAMLError as error:
        problem = f"{error.context} {error.problem}" if error.context else str(error.problem)
        if "'\\t'" in problem:
            problem = "a tab where only blanks may indent"
        place = _at(file, error.problem_mark or error.context_mark)
        raise UserError(f"{place}: not valid YAML: {problem}") from None


def shipped_folder() -> Path:
    """Where the configs that come with the package are: configs/ of the source tree, or its installed copy."""
    package = Path(__file__).resolve().parent.parent
    tree = package.parent
    return tree / "configs" if (tree / "pyproject.toml").is_file() else package / "configs"


def shipped_configs() -> list[str]:
    """Names of the shipped configs, as `--config` takes them."""
    folder = shipped_folder()
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.yaml"))


def find(name: str) -> tuple[Path, bool]:
    """The file that `--config NAME` means, and whether it is a shipped one."""
    if not name:
        raise UserError("--config: found '', wanted a file or the name of a shipped config")
    path = Path(name).expanduser()
    if path.is_dir() and (path / "config.yaml").is_file():
        return path / "config.yaml", False
    if path.is_dir():
        raise UserError(f"{name} is a folder without a config.yaml; wanted a YAML file or a run folder")
    if path.exists():
        return path, False
    shipped = shipped_configs()
    if name in shipped:
        return shipped_folder() / name, True
    names = {known.removesuffix(".yaml"): known for known in shipped}
    near = [
        match
        for wanted in (name, path.name)
        for match in difflib.get_close_matches(wanted.removesuffix(".yaml"), names)
    ]
    hint = f"; did you mean {names[near[0]]}?" if near else "; `transformer-mt config list` shows the shipped ones"
    raise UserError(
        f"config file {name} not found (looked in {path.parent.absolute()} and among the shipped configs){hint}"
    )


def _read(path: Path) -> str:
    try:
        content = path.read_bytes()
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(f"{path}:{line}: not UTF-8: byte 0x{content[error.start]:02X}") from None
    except OSError as error:
        raise UserError(f"config file {path} cannot be read: {error.strerror}") from None


def load_config(name: str, overrides: Sequence[str] = ()) -> Config:
    """Reads, overrides and checks a configuration.

    `name` is a path, a run folder, or the name of a shipped config; each override is `key.path=value`, the value in
    YAML. Paths in the file are relative to it; in a shipped config and in overrides, to the current folder.
    Raises `UserError` with one message for each thing that is wrong.
    """
    path, shipped = find(name)
    errors: list[str] = []
    tree = _parse(_read(path), str(path), Path.cwd() if shipped else path.parent.absolute(), errors)
    if not isinstance(tree, Tree):
        raise UserError(*errors, f"{path}: a configuration is a mapping of keys, found {_shown(tree)}")
    if path.name == "config.yaml" and Path(name).expanduser().is_dir():
        tree["output"] = name  # the run folder given, wherever the command is run and whatever it was called before
    for override in overrides:
        _apply(tree, override, errors)
    return _checked(tree, str(path), errors)


def config_from_dict(values: dict[str, Any], file: str) -> Config:
    """Checks plain data that a run folder or a checkpoint holds."""
    return _checked(values, file, [])


def _apply(tree: Tree, override: str, errors: list[str]) -> None:
    """Puts one `key.path=value` into the tree; items of lists are `data.train[0].pairs` or `data.train.0.pairs`."""
    path, equals, text = override.partition("=")
    path = path.strip()
    if not equals or not re.fullmatch(r"[^.\[\]\s]+(\.[^.\[\]\s]+|\[\d+\])*", path):
        errors.append(f"--set {override}: wanted key.path=value, such as training.max_steps=1000")
        return
    *sections, last = re.findall(r"[^.\[\]]+", path)
    place = f"--set {path}"
    try:
        value = _parse(text, place, Path.cwd(), errors)
        holder: Any = tree
        for key in sections:
            holder = _step(holder, key, place)
        _step(holder, last, place, value)
    except UserError as error:
        errors += error.messages


_ABSENT = object()


def _step(holder: Any, key: str, place: str, value: Any = _ABSENT) -> Any:
    """What a section or list has at a key, a new section where it has nothing; with a value, puts it there."""
    if isinstance(holder, Items):
        if not key.isdecimal() or int(key) >= len(holder):
            raise UserError(f"{place}: found item {key}, wanted less than {len(holder)}: items count from 0")
        if value is not _ABSENT:
            holder[int(key)], holder.places[int(key)] = value, place
        return holder[int(key)]
    if not isinstance(holder, Tree):
        raise UserError(f"{place}: found {_shown(holder)} above {key}, wanted a section")
    if value is not _ABSENT:
        holder[key], holder.places[key] = value, place
    elif holder.get(key) is None:
        holder[key], holder.places[key] = Tree(), place
    return holder[key]


def _checked(tree: dict[str, Any], file: str, errors: list[str]) -> Config:
    config = None
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        told = {message.partition(": ")[0] for message in errors}
        errors += [text for text in problems(error.errors(), tree, file) if text.partition(": ")[0] not in told]
    if errors or config is None:
        raise UserError(*sorted(dict.fromkeys(errors), key=_line))
    return config


def _line(message: str) -> int:
    """The line that a message speaks of, to sort by; overrides come last."""
    place = re.search(r":(\d+)\)", message)
    return int(place[1]) if place else sys.maxsize if "--set " in message else 0


def problems(errors: Iterable[Any], tree: dict[str, Any], file: str) -> list[str]:
    """Pydantic's errors as sentences: key, place, what was found, what is wanted; a key's alternatives are one."""
    sentences: dict[str, list[str]] = {}
    for error in errors:
        kind, keys = error["type"], _keys(error, tree)
        path, place = _dotted(keys), _place(tree, keys, file)
        head = f"{path} ({place})" if path else file
        if kind == "default_factory_not_called" or (kind == "too_short" and error["input"]):
            continue  # follows from another error, which is told
        if kind == "extra_forbidden":
            sentences[f"unknown key {head}{_hint(keys, tree)}"] = []
        elif kind == "missing":
            sentences[f"missing key {head}"] = []
        elif kind in ("value_error", "unknown_source"):
            sentences[_rule(str(error["msg"]).removeprefix("Value error, "), keys, tree, file)] = []
        else:
            sentences.setdefault(f"{head}: found {_shown(error['input'])}, wanted ", []).append(_wanted(error))
    return [found + " or ".join(dict.fromkeys(wanted)) for found, wanted in sentences.items()]


def _rule(message: str, keys: list[Any], tree: Any, file: str) -> str:
    """A broken rule among several keys, told at the one of them that the message begins with."""
    if named := re.match(r"([a-z_.]+\d?): ", message):
        keys, message = keys + named[1].split("."), message[named.end() :]
    return f"{_dotted(keys)} ({_place(tree, keys, file)}): {message}"


def _wanted(error: Any) -> str:
    """What would be right, in a person's words."""
    kind, context = str(error["type"]), error.get("ctx", {})
    if kind == "string_pattern_mismatch":
        return PATTERNS.get(context["pattern"], f"text of the form {context['pattern']}")
    if kind.startswith("model_") and len(keys := list(getattr(schema, context["class_name"]).model_fields)) <= 8:
        return f"a section with {', '.join(keys)}"
    for known in (kind, kind.partition("_")[0]):
        if known in WANTED:
            whole = {name: int(bound) for name, bound in context.items() if isinstance(bound, float) and bound % 1 == 0}
            return WANTED[known].format(**{**context, **whole}).replace("'", "")
    return str(error["msg"])


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "a section"
    if isinstance(value, (list, tuple)):
        return "a list" if value else "an empty list"
    shown = repr(str(value))
    return "nothing" if value is None else shown if len(shown) <= 80 else f"{shown[:75]}...'"


def _keys(error: Any, tree: Any) -> list[Any]:
    """Where an error is, in the keys and indices of the file: without pydantic's kinds of sources and of types."""
    keys: list[Any] = []
    location = list(error["loc"])
    last = location.pop() if error["type"] == "missing" else None  # the only one that the file does not have
    tagged = False
    for item in location:
        if not tagged and len(keys) == 3 and keys[0] == "data" and item in SOURCE_KINDS:
            tagged = True
        elif (isinstance(tree, dict) and item in tree) or (
            isinstance(tree, (list, tuple)) and isinstance(item, int) and item < len(tree)
        ):
            tree = tree[item]
            keys.append(item)
    return keys if last is None else [*keys, last]


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
        elif isinstance(tree, Items) and isinstance(key, int) and key < len(tree):
            place, tree = tree.places[key], tree[key]
        else:
            break
    return place


def _hint(keys: Sequence[Any], tree: Any) -> str:
    """What an unknown key may have been meant to be."""
    key, known = str(keys[-1]), list(_section_at(keys[:-1], tree).model_fields)
    if "." in key:
        return f": in a file, {key.replace('.', ': {')}: ...{'}' * key.count('.')}"
    if key in SOURCE_KINDS and keys[0] == "data" and len(keys) == 4:
        return f": this source has a {source_kind(tree['data'][keys[1]][keys[2]])} already"
    near = difflib.get_close_matches(key, known, n=1) or list(_elsewhere(key, Config, ""))
    return f", did you mean {near[0]}?" if near else f"; known here: {', '.join(known)}"


def _elsewhere(key: str, section: type[BaseModel], prefix: str) -> Iterator[str]:
    """Keys of other sections that are called so, here or in the paper (`d_model`), as their description says."""
    for name, field in section.model_fields.items():
        if name == key or ("_" in key and (field.description or "").startswith(f"{key}:")):
            yield join(prefix, name)
        elif inner := _section_class(field.annotation):
            yield from _elsewhere(key, inner, join(prefix, name))


def _section_at(keys: Sequence[Any], tree: Any) -> type[BaseModel]:
    """The schema of the section at `keys`."""
    section: type[BaseModel] = Config
    for key in keys:
        tree = tree[key]
        if isinstance(key, int):
            section = _source_class(tree)
        elif key in section.model_fields and (inner := _section_class(section.model_fields[key].annotation)):
            section = inner
    return section


def _section_class(annotation: Any) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _source_class(value: Any) -> type[BaseModel]:
    kind = source_kind(value) or "source"
    found: type[BaseModel] = schema.TextSource if kind == "source" else getattr(schema, f"{kind.capitalize()}Source")
    return found


def write_config(config: Config) -> None:
    """Writes the resolved configuration into the run folder, unless it is there already."""
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    path = config.output / "config.yaml"
    if not path.is_file() or path.read_bytes() != text.encode():
        write_text(path, text)


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Dotted keys in which two plain configurations differ, with both values (None where a key is absent)."""
    for key in sorted({*old, *new}):
        before, after, path = old.get(key), new.get(key), join(prefix, key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from differences(before, after, path)
        elif before != after:
            yield path, before, after
