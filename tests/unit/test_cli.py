"""The command line as people meet it: its surface, exit codes, and what is printed where."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import transformer_mt
from transformer_mt import cli
from transformer_mt.config.file import load_config, shipped_configs

Command = Callable[..., tuple[int, str, str]]

LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")

# What scripts may rely on. A change here is a change for everybody who has written one.
SURFACE = {
    "": "--help --version",
    "download": "--config/-c --debug --fresh --help --quiet/-q --set --shard --workers",
    "clean": "--config/-c --debug --dry-run --help --json --quiet/-q --rejected --set --workers",
    "tokenize": "--config/-c --debug --fresh --help --learn-only --quiet/-q --set --shard --workers",
    "train": "--config/-c --debug --device --fresh --help --quiet/-q --reset --set",
    "average": "--best --checkpoint --config/-c --debug --help --last --output/-o --quiet/-q --set",
    "translate": (
        "--alignment-layer --alignments --alpha --batch-size --beam-size --config/-c --debug --device --engine "
        "--format --help --input/-i --interactive --keep --keep-pattern --length-penalty --long-lines "
        "--max-length-extra --max-length-factor --min-length --model/-m --n-best --no-repeat-ngram --output/-o "
        "--precision --quiet/-q --report --sample --seed --set --split-sentences --strict --target-prefix "
        "--temperature --terms --top-k --top-p"
    ),
    "score": (
        "--alpha --batch-size --config/-c --debug --device --format --help --input/-i --length-penalty --model/-m "
        "--output/-o --precision --quiet/-q --set --target/-t"
    ),
    "backtranslate": (
        "--batch-size --beam-size --config/-c --debug --device --engine --help --input/-i --model/-m --output/-o "
        "--precision --quiet/-q --sample --seed --set --shard --shard-lines --temperature --top-k --top-p"
    ),
    "plan": "--config/-c --debug --device --devices --help --json --set",
    "export": "--debug --format --help --model/-m --output/-o --precision --quiet/-q --sentences",
    "import": "--debug --help --output/-o --quiet/-q --sentences --source-language --target-language folder",
    "evaluate": (
        "--alpha --batch-size --beam-size --config/-c --debug --device --engine --help --hypothesis --json "
        "--length-penalty --model/-m --precision --quiet/-q --reference --samples --set --source-language "
        "--target-language"
    ),
    "run": "--config/-c --debug --device --fresh --help --json --precision --quiet/-q --reset --samples --set",
    "tokenizer": "--help",
    "tokenizer inspect": "--config/-c --debug --help --json --model/-m --set --side text",
    "tokenizer report": "--config/-c --debug --help --input/-i --json --lines --model/-m --set --side --split",
    "config": "--help",
    "config show": "--config/-c --debug --help --set",
    "config check": "--config/-c --debug --help --set",
    "config schema": "--help",
    "config list": "--help",
}


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command inside this process, in an empty folder: its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    for name in LAUNCHER:
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["transformer-mt", *arguments])
        with pytest.raises(SystemExit) as leaving:
            cli.main()
        printed = capsys.readouterr()
        return int(leaving.value.code or 0), printed.out, printed.err

    return run


def surface(group: Any, path: str = "") -> dict[str, str]:
    """Every command below a group with its options."""
    options = [*sorted("/".join(option.opts) for option in group.params), "--help"]
    found = {path: " ".join(sorted(options))}
    for name, inner in getattr(group, "commands", {}).items():
        found |= surface(inner, f"{path} {name}".strip())
    return found


def test_the_surface_is_frozen() -> None:
    assert surface(typer.main.get_command(cli.app)) == SURFACE


@pytest.mark.parametrize("path", SURFACE)
def test_every_help_names_its_options_and_explains_them(command: Command, path: str) -> None:
    code, out, err = command(*path.split(), "--help")
    assert (code, err) == (0, "")
    assert all(option.partition("/")[0] in out for option in SURFACE[path].split())
    explained = typer.main.get_command(cli.app)
    for name in path.split():
        explained = explained.commands[name]  # type: ignore[attr-defined]
    assert explained.help
    assert [option.name for option in explained.params if not option.help] == []


def test_version(command: Command) -> None:
    assert command("--version") == (0, f"{transformer_mt.__version__}\n", "")


# Exit code 2: the person's input is at fault


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nonsense"], "nonsense"),
        (["train"], "--config"),
        (["train", "--config", "demo.yaml", "--nonsense"], "--nonsense"),
        (["train", "--config", "base"], "config file base not found"),
        (["train", "--config", "big"], "did you mean big.yaml?"),
        (["train", "--config", "demo.yaml", "--set", "model.heads"], "--set model.heads: wanted key.path=value"),
        (["train", "--config", "demo.yaml", "--set", "model.heads=0"], "model.heads (--set model.heads): found '0'"),
        (["train", "--config", "demo.yaml", "--reset", "model"], "--reset model: wanted optimizer, schedule, data"),
        (["run", "--config", "demo.yaml", "--reset", "model"], "--reset model: wanted"),
        (["run", "--config", "demo.yaml", "--precision", "half"], "--precision half: wanted float32"),
        (["run", "--config", "demo.yaml", "--samples", "-1"], "--samples"),
        (["average", "--config", "demo.yaml", "--last", "0"], "--last"),
        (["average", "--config", "demo.yaml"], "runs/demo has no checkpoints to average"),
        (["translate"], "give --model or --config"),
        (["translate", "--model", "nowhere"], "nowhere"),
        (["translate", "--config", "demo.yaml"], "runs/demo"),
        (["translate", "--config", "demo.yaml", "--format", "xml"], "--format xml: wanted text, moses, jsonl"),
        (["translate", "--config", "demo.yaml", "--precision", "half"], "--precision half: wanted"),
        (["translate", "--config", "demo.yaml", "--device", "abacus"], "--device abacus: wanted auto, cpu, cuda"),
        (["translate", "--config", "demo.yaml", "--beam-size", "0"], "--beam-size"),
        (["translate", "--config", "demo.yaml", "--beam-size", "two"], "--beam-size"),
        (["translate", "--config", "demo.yaml", "--n-best", "0"], "--n-best"),
        (["translate", "--config", "demo.yaml", "--batch-size", "0"], "--batch-size"),
        (["translate", "--config", "demo.yaml", "--length-penalty", "wu"], "--length-penalty wu: wanted none, average"),
        (["translate", "--config", "demo.yaml", "--long-lines", "drop"], "--long-lines drop: wanted split, cut"),
        (["translate", "--config", "demo.yaml", "--engine", "marian"], "--engine marian: wanted native, ctranslate2"),
        (["translate", "--config", "demo.yaml", "--min-length", "-1"], "--min-length"),
        (["translate", "--config", "demo.yaml", "--max-length-factor", "-1"], "--max-length-factor"),
        (["translate", "--config", "demo.yaml", "--max-length-extra", "-1"], "--max-length-extra"),
        (["translate", "--config", "demo.yaml", "--alignment-layer", "0"], "--alignment-layer"),
        (["evaluate"], "give --config, or --hypothesis and --reference"),
        (["evaluate", "--hypothesis", "a"], "--hypothesis and --reference go together"),
        (["evaluate", "--reference", "a"], "--hypothesis and --reference go together"),
        (["evaluate", "--hypothesis", "a", "--reference", "b"], "--target-language is needed"),
        (["evaluate", "--hypothesis", "a", "--reference", "b", "--target-language", "de"], "a does not exist"),
        (["config", "check", "--config", "local-files.yaml"], "train.en"),
        (["config", "show", "--config", "nowhere.yaml"], "config file nowhere.yaml not found"),
    ],
)  # fmt: skip
def test_faulty_input(command: Command, tmp_path: Path, arguments: list[str], told: str) -> None:
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert told in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []  # nothing half-written


def test_no_arguments_show_the_help(command: Command) -> None:
    code, out, err = command()
    assert code == 2
    assert "Usage: transformer-mt" in out + err


@pytest.mark.parametrize("name", ["download", "tokenize", "train", "average", "translate", "evaluate", "run"])
def test_all_commands_take_the_same_file_and_tell_the_same_errors(command: Command, tmp_path: Path, name: str) -> None:
    (tmp_path / "c.yaml").write_text("name: x\ntraining:\n  leaning_rate: 1\n  max_steps: 1\n")
    code, out, err = command(name, "--config", "c.yaml")
    assert (code, out) == (2, "")
    assert err == (
        "error: missing key languages (c.yaml)\n"
        "error: missing key data (c.yaml)\n"
        "error: unknown key training.leaning_rate (c.yaml:3), did you mean learning_rate?\n"
    )


def test_a_traceback_is_for_debug_alone(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("config", "show", "--config", "nowhere.yaml")
    assert "Traceback" not in command(*arguments)[2]
    code, _, err = command(*arguments, "--debug")
    assert code == 2
    assert "Traceback (most recent call last)" in err
    assert err.rstrip().splitlines()[-1].startswith("error: config file nowhere.yaml not found")

    def broken(config: str, overrides: object) -> None:
        raise RuntimeError("a fault of the program")

    monkeypatch.setattr(cli, "_load", broken)
    assert command(*arguments) == (1, "", "error: RuntimeError: a fault of the program (--debug shows where)\n")


@pytest.mark.parametrize(
    ("given", "missing"),
    [(("RANK",), "WORLD_SIZE"), (("RANK", "WORLD_SIZE"), "LOCAL_RANK"), (("LOCAL_RANK", "MASTER_ADDR"), "RANK")],
)
def test_half_a_launcher(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: tuple[str, ...], missing: str
) -> None:
    for name in given:
        monkeypatch.setenv(name, "0")
    code, out, err = command("train", "--config", "demo.yaml", "--device", "cpu")
    assert (code, out) == (2, "")
    assert missing in err
    assert list(tmp_path.iterdir()) == []


def test_only_the_first_of_several_processes_tells_of_faulty_input(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert command("config", "show", "--config", "nowhere.yaml") == (2, "", "")


# config ...


def test_config_list(command: Command) -> None:
    code, out, err = command("config", "list")
    assert (code, err) == (0, "")
    assert out.splitlines() == shipped_configs()
    assert {"base.yaml", "big.yaml", "demo.yaml"} <= set(out.splitlines())


@pytest.mark.parametrize("name", ["base.yaml", "demo.yaml", "local-files.yaml"])
def test_what_config_show_prints_is_the_same_configuration(command: Command, tmp_path: Path, name: str) -> None:
    code, out, err = command("config", "show", "--config", name, "--set", "training.max_steps=7")
    assert (code, err) == (0, "")
    (tmp_path / "shown.yaml").write_text(out, encoding="utf-8")
    shown = load_config("shown.yaml")
    assert shown.model_dump() == load_config(name, ["training.max_steps=7"]).model_dump()
    assert shown.training.max_steps == 7
    assert set(yaml.safe_load(out)["model"]) == set(type(shown.model).model_fields)  # every default is visible


def test_config_check(command: Command, tmp_path: Path) -> None:
    assert command("config", "check", "--config", "demo.yaml") == (0, "demo.yaml: no errors\n", "")
    for name in ("train.en", "train.de"):
        (tmp_path / name).write_text("a\n")
    code, out, err = command("config", "check", "--config", "local-files.yaml")
    assert (code, out) == (2, "")
    assert f"data.validation[0]: {tmp_path / 'dev.en'} does not exist" in err
    assert "train.en" not in err


def defined(part: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    return schema["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part


def fits(value: Any, part: dict[str, Any], schema: dict[str, Any]) -> bool:
    """Whether a value has the shape that a schema wants: the part of JSON schema that ours uses."""
    part = defined(part, schema)
    if alternatives := part.get("anyOf") or part.get("oneOf"):
        return any(fits(value, alternative, schema) for alternative in alternatives)
    if "const" in part or "enum" in part:
        return value in part.get("enum", [part.get("const")])
    kinds: dict[str, Any] = {
        "string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict,
        "null": type(None),
    }  # fmt: skip
    if not isinstance(value, kinds[part["type"]]):
        return False
    if isinstance(value, list):
        return all(fits(item, part["items"], schema) for item in value) if "items" in part else True
    if isinstance(value, dict):
        inside = part["properties"]
        return set(part.get("required", ())) <= set(value) <= set(inside) and all(
            fits(item, inside[key], schema) for key, item in value.items()
        )
    low, high = part.get("minimum", -float("inf")), part.get("maximum", float("inf"))
    return isinstance(value, (str, type(None))) or low <= value <= high


def test_config_schema_fits_the_shipped_configs(command: Command) -> None:
    code, out, err = command("config", "schema")
    assert (code, err) == (0, "")
    schema = json.loads(out)
    for name in ("base.yaml", "big.yaml", "local-files.yaml"):
        shown = yaml.safe_load(command("config", "show", "--config", name)[1])
        assert fits(shown, schema, schema), name
        assert not fits({**shown, "nonsense": 1}, schema, schema)
        assert not fits({**shown, "model": {**shown["model"], "heads": 0}}, schema, schema)
        assert not fits({**shown, "model": {**shown["model"], "norm": "none"}}, schema, schema)
        if importlib.util.find_spec("jsonschema"):
            from jsonschema import validate

            validate(shown, schema)


def test_config_schema_describes_keys_with_their_unit(command: Command) -> None:
    schema = json.loads(command("config", "schema")[1])
    training = schema["$defs"]["Training"]["properties"]
    assert "tokens" in training["batch_tokens"]["description"]
    assert training["batch_tokens"]["minimum"] == 1
    assert schema["additionalProperties"] is False


# The world outside


def run_module(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    inherited = {key: value for key, value in os.environ.items() if key not in (*LAUNCHER, "PYTHONIOENCODING")}
    return subprocess.run(
        [sys.executable, "-m", "transformer_mt", *arguments],
        env={**inherited, **environment}, capture_output=True, timeout=120,
    )  # fmt: skip


def test_output_is_utf8_whatever_the_locale(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "name: größe\nlanguages: {source: en, target: de}\n"
        "data: {train: [{demo: english-german}], validation: [{demo: english-german}]}\n",
        encoding="utf-8",
    )
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = run_module("config", "show", "--config", str(tmp_path / "c.yaml"), **ascii_only)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "name: größe\n" in done.stdout.decode("utf-8")
    assert "unknown_marker: ⁇\n" in done.stdout.decode("utf-8")
    (tmp_path / "c.yaml").write_text("größe: 1\n", encoding="utf-8")
    done = run_module("config", "show", "--config", str(tmp_path / "c.yaml"), **ascii_only)
    assert done.returncode == 2
    assert "unknown key größe" in done.stderr.decode("utf-8")


def test_a_reader_who_leaves_early_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "transformer_mt", "config", "schema"],
        stdout=writing, stderr=subprocess.PIPE, timeout=120,
    )  # fmt: skip
    os.close(writing)
    assert b"Traceback" not in done.stderr
    assert b"error" not in done.stderr
