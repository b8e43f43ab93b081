"""Who may import whom, what a command loads, and the sizes of files and functions."""

import ast
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import transformer_mt

PACKAGE = Path(transformer_mt.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# Every part of the package, and the parts it may import besides itself. A file's own entry goes before its folder's.
BASE = {"config", "errors", "distributed", "atomic", "allocator", "libraries", "progress", "__init__"}
ALLOWED: dict[str, set[str]] = {
    "__init__": {"config", "decode"},  # the public names, loaded when they are asked for
    "__main__": {"cli"},
    "errors": set(),
    "config.file": {"atomic", "config", "errors"},
    "config": set(),
    "atomic": {"errors"},
    "allocator": set(),
    "libraries": {"errors"},
    "distributed": {"errors"},
    "options": {"errors"},
    "progress": set(),
    "streams": set(),
    "cli_tokenizer": {"options", "config", "errors", "commands", "data.tokenizer"},
    "cli": {"__init__", "cli_tokenizer", "options", "config", "errors", "progress", "streams", "distributed", "stages",
            "shares", "commands", "data.shards", "train.log", "decode.translator"},
    "commands": BASE | {"stages", "data", "decode", "evaluate", "export", "model", "train"},
    "stages": BASE | {"shares", "data", "decode", "evaluate", "export", "model", "train"},
    "shares": BASE | {"stages", "data"},
    "data": BASE - {"distributed"},
    "evaluate": BASE - {"distributed"},
    "model.transformer": {"model.kernels"},
    "model.kernels": set(),
    "model.folder": BASE - {"distributed"} | {"data.tokenizer"},
    "model": BASE - {"distributed"},
    "decode.search": set(),
    "decode.beam": {"decode.search"},
    "decode.sample": {"decode.search", "decode.beam"},
    "decode.constrained": {"decode.search", "decode.beam"},
    "decode.sentences": set(),
    "decode.alignment": set(),
    "decode.terms": {"errors", "data.files", "data.clean", "decode.sentences"},
    "decode": BASE | {"model", "evaluate", "data.tokenizer", "data.batching", "data.clean"},
    "export": BASE | {"model", "decode", "data.tokenizer", "data.clean", "data.model_file"},
    "train.loss": set(),
    "train.schedule": set(),
    "train.signals": {"distributed"},
    "train": BASE | {"data", "model", "decode", "evaluate"},
}  # fmt: skip


def part_of(path: Path) -> str:
    """`data.clean` for data/clean.py; the package's own names for its top-level files."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path, *, top_level: bool = False) -> Iterator[str]:
    """Full names of the modules that a file imports; inside functions too, or at module level alone."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in tree.body if top_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                inside = PACKAGE.parent.joinpath(*full.split("."))
                yield full if inside.is_dir() or inside.with_suffix(".py").is_file() else node.module


def ours(path: Path) -> set[str]:
    """Parts of the package that a file imports."""
    found = {name for name in imports(path) if name.partition(".")[0] == "transformer_mt"}
    return {name.partition(".")[2] or "__init__" for name in found}


def allows(rule: set[str], part: str) -> bool:
    return part in rule or part.partition(".")[0] in rule


@pytest.mark.parametrize("path", FILES, ids=part_of)
def test_imports_go_downwards(path: Path) -> None:
    part = part_of(path)
    folder = part.partition(".")[0]
    rule = ALLOWED.get(part, ALLOWED.get(folder))
    assert rule is not None, f"{part} is new: say what it may import"
    same_folder = {folder} if part == folder or part not in ALLOWED or folder in ("model", "config") else set()
    if part in ("model.transformer", "model.kernels"):
        same_folder = set()
    wrong = sorted(other for other in ours(path) - {part} if not allows(rule | same_folder, other))
    assert wrong == []


def test_the_rules_name_only_what_there_is() -> None:
    parts = {part_of(path) for path in FILES}
    folders = {part.partition(".")[0] for part in parts}
    assert set(ALLOWED) <= parts | folders
    assert set().union(*ALLOWED.values()) <= parts | folders


def third_party(path: Path) -> set[str]:
    roots = {name.partition(".")[0] for name in imports(path)}
    return roots - set(sys.stdlib_module_names) - {"transformer_mt"}


@pytest.mark.parametrize("name", ["model/transformer.py", "model/stepwise.py", "decode/search.py", "decode/beam.py"])
def test_the_model_and_the_search_know_torch_alone(name: str) -> None:
    assert third_party(PACKAGE / name) == {"torch"}


def test_only_one_file_knows_torch_distributed() -> None:
    names = ("torch.distributed", "torch.nn.parallel")
    users = {part_of(path) for path in FILES if any(name.startswith(names) for name in imports(path))}
    users |= {
        part_of(path) for path in FILES if "torch.distributed." in ast.unparse(ast.parse(path.read_text("utf-8")))
    }
    assert users == {"distributed"}


def test_nothing_heavy_at_the_top_of_the_command_line() -> None:
    roots = {name.partition(".")[0] for name in imports(PACKAGE / "cli.py", top_level=True)}
    assert roots - set(sys.stdlib_module_names) == {"typer", "transformer_mt"}


# What is loaded, in a fresh process

HEAVY = {"torch", "datasets", "pyarrow", "pandas", "transformers", "sacrebleu", "sentencepiece", "numpy", "tqdm"}


def loaded_by(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after this code."""
    report = "\nimport sys as _sys, json as _json\n_sys.stderr.write(_json.dumps(sorted(_sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in json.loads(done.stderr)}


def test_data_and_evaluate_never_load_torch() -> None:
    modules = [
        f"transformer_mt.{part_of(path)}" for path in FILES if part_of(path).partition(".")[0] in ("data", "evaluate")
    ]
    assert len(modules) > 10
    loaded = loaded_by("import importlib\n" + "\n".join(f"importlib.import_module({name!r})" for name in modules))
    assert "numpy" in loaded  # the report sees what was loaded
    assert not loaded & {"torch", "datasets"}


@pytest.mark.parametrize(
    ("arguments", "may"),
    [
        (["--help"], set()),
        (["--version"], set()),
        (["train", "--help"], set()),
        (["config", "list"], set()),
        (["config", "schema"], set()),
        (["config", "show", "--config", "base.yaml"], set()),
        (["config", "check", "--config", "demo.yaml"], {"numpy", "sentencepiece", "tqdm"}),
    ],
)
def test_light_commands_load_nothing_heavy(arguments: list[str], may: set[str]) -> None:
    code = f"""
import sys, io, contextlib
from transformer_mt.cli import main
sys.argv = ["transformer-mt", *{arguments!r}]
try:
    with contextlib.redirect_stdout(io.StringIO()):
        main()
except SystemExit as leaving:
    assert not leaving.code, leaving.code
"""
    loaded = loaded_by(code)
    assert "typer" in loaded
    assert loaded & HEAVY <= may


def test_help_comes_at_once() -> None:
    command = [sys.executable, "-m", "transformer_mt", "--help"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)  # compiles what has to be compiled
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # About 0.1 s of CPU time here; the guard is for machines that are slow and busy.
    assert after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime < 1.0


# What is never done


@pytest.mark.parametrize("path", FILES, ids=part_of)
def test_nothing_is_evaluated_or_unpickled(path: Path) -> None:
    assert not {"pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"} & {
        name.partition(".")[0] for name in imports(path)
    }
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            assert name not in (
                "eval",
                "exec",
                "compile",
                "__import__",
                "torch.save",
                "yaml.load",
                "os.chdir",
            )
            if name == "torch.load":  # older files of other programs, of which tensors alone are read
                assert part_of(path) == "export.marian_folder"
                assert ast.unparse(node).endswith("weights_only=True)")
            assert not (name.endswith(("np.load", "numpy.load")) and "allow_pickle" in ast.unparse(node))


@pytest.mark.parametrize("path", FILES, ids=part_of)
def test_sizes(path: Path) -> None:
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= 450
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno + 1 <= 70, node.name
