"""The configuration: what a file may hold, what a person is told when it is wrong, and that no key is dead."""

import ast
import re
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

import transformer_mt
from transformer_mt import config as schema
from transformer_mt.config import PRESETS, Config
from transformer_mt.config.file import config_from_dict, differences, load_config
from transformer_mt.config.values import PATTERNS, digest
from transformer_mt.errors import UserError

MINIMAL = """name: tiny
languages: {source: en, target: de}
data:
  train: [{demo: english-german}]
  validation: [{demo: english-german}]
"""
PACKAGE = Path(transformer_mt.__file__).parent

Load = Callable[..., Config]
Refuse = Callable[..., list[str]]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Loads a file `c.yaml` with this text below the smallest one."""
    monkeypatch.chdir(tmp_path)

    def loaded(more: str = "", *overrides: str, base: str = MINIMAL) -> Config:
        (tmp_path / "c.yaml").write_text(base + more, encoding="utf-8")
        return load_config("c.yaml", overrides)

    return loaded


@pytest.fixture
def refuse(load: Load) -> Refuse:
    """The messages with which a file is refused."""

    def refused(more: str = "", *overrides: str, base: str = MINIMAL) -> list[str]:
        with pytest.raises(UserError) as failure:
            load(more, *overrides, base=base)
        assert failure.value.exit_code == 2
        assert not any("\n" in message or "pydantic" in message for message in failure.value.messages)
        return list(failure.value.messages)

    return refused


# YAML 1.1 and what a person means


@pytest.mark.parametrize("written", ["1e-4", "1.0e-4", '"0.0001"', "0.0001"])
def test_numbers_are_read_as_a_person_means_them(load: Load, written: str) -> None:
    assert load(f"training: {{max_steps: 1, optimizer: {{epsilon: {written}}}}}").training.optimizer.epsilon == 1e-4


def test_a_value_that_is_no_number_is_refused_with_its_key(refuse: Refuse) -> None:
    (message,) = refuse("training:\n  max_steps: 1\n  optimizer: {epsilon: 1e-4x}")
    assert message == "training.optimizer.epsilon (c.yaml:8): found '1e-4x', wanted a number"


@pytest.mark.parametrize(("written", "steps"), [("1e5", 100_000), ("25_000", 25_000), ("010", 10), ("7.0", 7)])
def test_whole_numbers(load: Load, written: str, steps: int) -> None:
    assert load(f"training: {{max_steps: {written}}}").training.max_steps == steps


@pytest.mark.parametrize(
    "written", ["12:30", "1.5", "0x10", "ten", "inf", "nan", "true", "2023-01-01", "[1]", "{a: 1}"]
)
def test_not_whole_numbers(refuse: Refuse, written: str) -> None:
    (message,) = refuse(f"training: {{max_steps: {written}}}")
    assert message.startswith("training.max_steps (c.yaml:6): found ")
    assert message.endswith(", wanted a whole number")


def test_a_long_seed_keeps_all_its_digits(load: Load, refuse: Refuse) -> None:
    assert load(f"training: {{max_steps: 1, seed: {2**64 - 1}}}").training.seed == 2**64 - 1
    (message,) = refuse(f"training: {{max_steps: 1, seed: {2**64}}}")
    assert "wanted less than" in message


@pytest.mark.parametrize("code", ["no", "on", "NO", "yes", "nb-NO", "zh-Hans"])
def test_language_codes_stay_text(load: Load, code: str) -> None:
    assert load(base=MINIMAL.replace("source: en", f"source: {code}")).languages.source == code


@pytest.mark.parametrize("text", ["010", "12:30", "1e-4", "no", "2023-01-01", "0x1F", "1_000", "true"])
def test_text_keys_stay_text(load: Load, text: str) -> None:
    assert load(base=MINIMAL.replace("name: tiny", f"name: {text}")).name == text


@pytest.mark.parametrize(
    ("written", "value"),
    [("yes", True), ("on", True), ("True", True), ("no", False), ("off", False), ("false", False)],
)
def test_switches(load: Load, written: str, value: bool) -> None:
    assert load(f"tokenizer: {{byte_fallback: {written}}}").tokenizer.byte_fallback is value


@pytest.mark.parametrize("written", ["null", "~", "", "Null", "NULL"])
def test_null_switches_off(load: Load, written: str) -> None:
    config = load(base=MINIMAL + f"  cleaning:\n    max_words: {written}\n    max_length_ratio: {written}\n")
    assert config.data.cleaning.max_words is None
    assert config.data.cleaning.max_length_ratio is None


def test_quoted_null_is_text(load: Load) -> None:
    assert load(base=MINIMAL.replace("name: tiny", 'name: "null"')).name == "null"


# Keys


def test_an_unknown_key_is_told_with_its_place_and_the_nearest(refuse: Refuse) -> None:
    assert refuse("training:\n  max_steps: 1\n  leaning_rate: 1\n") == [
        "unknown key training.leaning_rate (c.yaml:8), did you mean learning_rate?"
    ]


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("max_steps: 5", "unknown key max_steps (c.yaml:6), did you mean training.max_steps?"),
        ("training.max_steps: 5", "unknown key training.max_steps (c.yaml:6): in a file, training: {max_steps: ...}"),
        ("model: {d_model: 5}", "unknown key model.d_model (c.yaml:6), did you mean model.model_size?"),
        (
            "decoding: {zzz: 5, beam_size: 5}",
            "unknown key decoding.zzz (c.yaml:6); known here: beam_size, sampling, n_best, ",
        ),
        ("decoding: {auto: 5}", "unknown key decoding.auto (c.yaml:6); known here: beam_size"),
        ("decoding: {'a(b)[0]': 5}", "unknown key decoding.a(b)[0] (c.yaml:6); known here: beam_size"),
    ],
)
def test_hints_for_unknown_keys(refuse: Refuse, written: str, told: str) -> None:
    (message,) = refuse(written)
    assert message.startswith(told)


def test_a_source_of_two_kinds(refuse: Refuse) -> None:
    (message,) = refuse("", "data.train=[{hub: a/b, tsv: c}]")
    assert message == "unknown key data.train[0].tsv (--set data.train): this source has a hub already"


def test_an_unknown_key_of_a_source_is_compared_with_the_keys_of_its_kind(refuse: Refuse) -> None:
    (message,) = refuse("  test:\n    - {demo: english-german}\n    - tsv: x\n      column: [0, 1]\n")
    assert message == "unknown key data.test[1].column (c.yaml:9), did you mean columns?"


def test_a_key_given_twice_is_an_error(refuse: Refuse) -> None:
    assert refuse("training:\n  max_steps: 1\n  max_steps: 2\n") == [
        "training.max_steps (c.yaml:8): given twice, first at c.yaml:7"
    ]
    assert refuse("name: again\n") == ["name (c.yaml:6): given twice, first at c.yaml:1"]


def test_several_errors_are_told_at_once_in_the_order_of_the_file(refuse: Refuse) -> None:
    messages = refuse("name: again\nmodel: {heads: 0}\ndecoding: {beam: 1}\ntraining:\n  seed: -1\n", "output=''")
    assert [re.findall(r"c\.yaml:\d+|--set \w+", message)[0] for message in messages] == [
        "c.yaml:6",
        "c.yaml:7",
        "c.yaml:8",
        "c.yaml:10",
        "--set output",
    ]


@pytest.mark.parametrize("key", ["name", "languages", "data"])
def test_missing_keys(refuse: Refuse, key: str) -> None:
    base = yaml.safe_dump({k: v for k, v in yaml.safe_load(MINIMAL).items() if k != key})
    assert refuse(base=base) == [f"missing key {key} (c.yaml)"]


def test_a_missing_key_is_told_at_its_section(refuse: Refuse) -> None:
    assert refuse("  test: [{source: a}]\n") == ["missing key data.test[0].target (c.yaml:6)"]


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("training: [1]", "training (c.yaml:6): found a list, wanted a section"),
        ("training: fast", "training (c.yaml:6): found 'fast', wanted a section"),
        ("training:", "training (c.yaml:6): found nothing, wanted a section"),
        ("decoding: {max_length: 5}", "decoding.max_length (c.yaml:6): found '5', wanted a section with factor, extra"),
        ("evaluation: {metrics: bleu}", "evaluation.metrics (c.yaml:6): found 'bleu', wanted a list"),
        ("evaluation: {metrics: {bleu: 1}}", "evaluation.metrics (c.yaml:6): found a section, wanted a list"),
        (
            "evaluation:\n  metrics:\n  - bleu\n  - x\n",
            "evaluation.metrics[1] (c.yaml:9): found 'x', wanted bleu, chrf ",
        ),
        ("output: [a]", "output (c.yaml:6): found a list, wanted a path"),
        ("output: {a: b}", "output (c.yaml:6): found a section, wanted a path"),
        ("output: ''", "output (c.yaml:6): found '', wanted a path"),
        ("  test: x", "data.test (c.yaml:6): found 'x', wanted a list"),
        ("  test: {hub: x}", "data.test (c.yaml:6): found a section, wanted a list"),
        ("  test: [wmt14]", "data.test[0] (c.yaml:6): a source needs one of the keys hub, source, tsv"),
        ("  test: [{target: a}]", "data.test[0] (c.yaml:6): a source needs one of the keys hub, source, tsv"),
        ("  test: [{hub: [a]}]", "data.test[0].hub (c.yaml:6): found a list, wanted text"),
        ("  test: [{tsv: ''}]", "data.test[0].tsv (c.yaml:6): found '', wanted a path"),
        ("  test: [{tsv: a, columns: [0]}]", "missing key data.test[0].columns[1] (c.yaml:6)"),
        (
            "training: {max_steps: 1, device_tokens: x}",
            "training.device_tokens (c.yaml:6): found 'x', wanted auto or a whole ",
        ),
        ("tokenizer: {shared: perhaps}", "tokenizer.shared (c.yaml:6): found 'perhaps', wanted true or false"),
        (
            "decoding: {length_penalty: {alpha: inf}}",
            "decoding.length_penalty.alpha (c.yaml:6): found 'inf', wanted a finite ",
        ),
    ],
)
def test_wrong_kinds(refuse: Refuse, written: str, told: str) -> None:
    (message,) = refuse(written)
    assert message.startswith(told)


def test_a_long_value_is_shortened(refuse: Refuse) -> None:
    (message,) = refuse(f"model: {{norm: {'x' * 5000}}}")
    assert len(message) < 200


# Every bound and every choice of every field, found in the schema


def sections(model: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """All sections below one, with their dotted paths; every kind of source stands in data.train."""
    yield path, model
    for name, field in model.model_fields.items():
        for inner in models_in(field.annotation):
            below = f"{path}.{name}" if path else name
            if model is not schema.Data or below == "data.train" or below == "data.cleaning":
                yield from sections(inner, f"{below}[0]" if model is schema.Data and name == "train" else below)


def models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) if not isinstance(part, str) for model in models_in(part)]


SECTIONS = list(sections(Config, ""))
SOURCES = [model for _, model in SECTIONS if issubclass(model, schema.data._Source)]


def outside(part: dict[str, Any]) -> list[tuple[Any, str]]:
    """Values just outside of what a part of the JSON schema allows, and what is told about each."""
    found: list[tuple[Any, str]] = []
    steps = {"minimum": -1, "maximum": 1, "exclusiveMinimum": 0, "exclusiveMaximum": 0}
    words = {
        "minimum": "at least",
        "maximum": "at most",
        "exclusiveMinimum": "more than",
        "exclusiveMaximum": "less than",
    }
    found += [(part[name] + step, words[name]) for name, step in steps.items() if name in part]
    if "enum" in part or "const" in part:
        found.append(("no-such-choice", str(part.get("const", part.get("enum", [""])[0]))))
    if part.get("type") in ("integer", "number"):
        found.append(("no-number", "number"))
    if part.get("type") == "boolean":
        found.append(("perhaps", "true or false"))
    if "pattern" in part:
        found.append((".. //", PATTERNS[part["pattern"]]))
    if part.get("minLength"):
        found.append(("", "some text"))
    if part.get("minItems") and "prefixItems" not in part:
        found.append(([], "a list of at least"))
    return found


def violations() -> Iterator[Any]:
    """Each section, key and wrong value, with the words that must be told."""
    for path, model in SECTIONS:
        properties = model.model_json_schema()["properties"]
        for name, field in model.model_fields.items():
            parts = properties[name].get("anyOf", [properties[name]])
            for value, words in [violation for part in parts for violation in outside(part)]:
                yield pytest.param(path, model, name, value, words, id=f"{path}.{name}={value}" + model.__name__)
            if not any(models_in(annotation) for annotation in [field.annotation]):
                yield pytest.param(path, model, name, {"a": 1}, "", id=f"{path}.{name}=section" + model.__name__)


SMALLEST_SOURCE = {
    schema.HubSource: {"hub": "a/b"},
    schema.TextSource: {"source": "a", "target": "b"},
    schema.TsvSource: {"tsv": "a"},
    schema.JsonlSource: {"jsonl": "a"},
    schema.ParquetSource: {"parquet": "a"},
    schema.TmxSource: {"tmx": "a"},
    schema.PoSource: {"po": "a"},
    schema.SacrebleuSource: {"sacrebleu": "wmt13"},
    schema.UrlSource: {"url": "file:///a.csv"},
    schema.DemoSource: {"demo": "english-german"},
}


@pytest.mark.parametrize(("path", "model", "name", "value", "words"), list(violations()))
def test_every_bound_of_every_field_is_enforced(
    path: str, model: type[BaseModel], name: str, value: Any, words: str
) -> None:
    plain: dict[str, Any] = yaml.safe_load(MINIMAL)
    if model in SOURCES:
        plain["data"]["train"] = [{**SMALLEST_SOURCE[model], name: value}]
    else:
        keys = path.split(".") if path else []
        reduce(lambda section, key: section.setdefault(key, {}), keys, plain)[name] = value
    with pytest.raises(UserError) as failure:
        config_from_dict(plain, "c.yaml")
    full = f"{path}.{name}" if path else name
    (message,) = [text for text in failure.value.messages if text.startswith(f"{full} (c.yaml): found ")]
    assert words in message


def test_all_kinds_of_sources_are_tried() -> None:
    assert set(SOURCES) == set(SMALLEST_SOURCE)


def test_every_numeric_field_has_a_bound_or_says_why_not() -> None:
    unbounded = {("decoding.length_penalty", "alpha")}  # any exponent is a penalty or a reward
    for path, model in SECTIONS:
        properties = model.model_json_schema()["properties"]
        for name in model.model_fields:
            for part in properties[name].get("anyOf", [properties[name]]):
                if part.get("type") in ("integer", "number") and (path, name) not in unbounded:
                    assert {"minimum", "exclusiveMinimum"} & set(part), f"{path}.{name}"


@pytest.mark.parametrize(
    "written",
    [
        "label_smoothing: 1",
        "optimizer: {epsilon: 0}",
        "optimizer: {clip_norm: 0}",
        "optimizer: {beta1: 1}",
        "learning_rate: {factor: 0}",
        "checkpoint: {every_steps: 0}",
    ],
)
def test_edges_that_the_schema_must_exclude(refuse: Refuse, written: str) -> None:
    (message,) = refuse(f"training: {{max_steps: 1, {written}}}")
    assert re.search("wanted (more than 0|less than 1|at least 1)$", message)


def test_every_pattern_has_words() -> None:
    patterns = set(re.findall(r"'pattern': '(.*?)'", str(Config.model_json_schema())))
    assert patterns
    assert {pattern.replace("\\\\", "\\") for pattern in patterns} <= set(PATTERNS)


def test_sections_have_descriptions() -> None:
    assert [model.__name__ for _, model in SECTIONS if not model.__doc__] == []


# Presets and defaults


def test_a_preset_is_expanded_visibly(load: Load) -> None:
    big = load("model: {preset: big}").model.model_dump()
    expected = {"model_size": 1024, "feedforward_size": 4096, "heads": 16, "dropout": 0.3, "key_size": 64}
    assert big | expected == big
    later = load("model: {preset: base-t2t}").model
    assert (later.norm, later.attention_dropout, later.activation_dropout) == ("pre", 0.1, 0.1)
    plain, base = load().model.model_dump(), load("model: {preset: base}").model.model_dump()
    assert base == plain | {"preset": "base"}


def test_explicit_keys_win_over_the_preset(load: Load) -> None:
    model = load("model: {heads: 8, dropout: 0.1, preset: big}").model
    assert (model.heads, model.dropout, model.model_size, model.key_size) == (8, 0.1, 1024, 128)
    assert load("model: {preset: big}", "model.dropout=0.2").model.dropout == 0.2
    assert load("model: {dropout: 0.2}", "model.preset=big").model.feedforward_size == 4096


def test_every_preset_can_be_chosen_and_every_choice_is_a_preset() -> None:
    choices = schema.Model.model_json_schema()["properties"]["preset"]["anyOf"][0]["enum"]
    assert list(PRESETS) == choices
    assert all(set(keys) <= set(schema.Model.model_fields) for keys in PRESETS.values())


def test_key_and_value_size_follow_the_model(load: Load) -> None:
    model = load("model: {model_size: 96, heads: 6}").model
    assert (model.key_size, model.value_size) == (16, 16)
    model = load("model: {model_size: 96, heads: 6, key_size: 5}").model
    assert (model.key_size, model.value_size) == (5, 16)
    assert load("model: {model_size: 50, heads: 7, key_size: 5, value_size: 3}").model.value_size == 3


def test_peak_replaces_factor(load: Load) -> None:
    rate = load("training: {max_steps: 1, learning_rate: {peak: 1e-3}}").training.learning_rate
    assert (rate.factor, rate.peak) == (None, 1e-3)
    rate = load().training.learning_rate
    assert (rate.factor, rate.peak, rate.warmup_steps) == (1.0, None, 4000)


def test_output_follows_the_name(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/people/somebody")
    assert load().output == Path("runs/tiny")
    assert load("output: elsewhere/x").output == Path("elsewhere/x")
    assert load("output: ~/x").output == Path("/people/somebody/x")


# Rules among several keys


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("tokenizer: {source_model: a, target_model: b}", "tokenizer.source_model (c.yaml:6): found with shared: true"),
        ("tokenizer: {target_model: b}", "tokenizer.target_model (c.yaml:6): found with shared: true, wanted model"),
        (
            "tokenizer: {shared: no, model: a}\nmodel: {tie_embeddings: none}",
            "tokenizer.model (c.yaml:6): found with shared: false, wanted source_model and target_model",
        ),
        (
            "tokenizer: {shared: no, source_model: a}\nmodel: {tie_embeddings: none}",
            "tokenizer.source_model (c.yaml:6): found one of source_model and target_model, wanted both",
        ),
        (
            "model:\n  heads: 7",
            "model.heads (c.yaml:7): found 7, wanted a divisor of model_size (512), or key_size and",
        ),
        ("model:\n  heads: 7\n  key_size: 4", "model.heads (c.yaml:7): found 7, wanted a divisor of model_size (512)"),
        ("model: {model_size: 7, heads: 7}", "model.model_size (c.yaml:6): found 7, wanted an even number for sinus"),
        (
            "model: {key_size: 7, positions: rotary}",
            "model.key_size (c.yaml:6): found 7, wanted an even number for rot",
        ),
        (
            "training: {max_steps: 1, learning_rate: {peak: 1, factor: 1}}",
            "training.learning_rate.peak (c.yaml:6): found both, wanted either factor or peak",
        ),
        (
            "training: {max_steps: 1, learning_rate: {factor: null}}",
            "training.learning_rate.peak (c.yaml:6): found neither, wanted either factor or peak",
        ),
        (
            "training: {max_steps: 1, checkpoint: {average: 5, keep_last: 4}}",
            "training.checkpoint.average (c.yaml:6): found 5, wanted at most keep_last (4)",
        ),
        (
            "training: {max_steps: 1, validation: {translate: no}}",
            "training.validation.translate (c.yaml:6): found false, wanted true for metric bleu",
        ),
        (
            "training: {max_steps: 1, validation: {translate: no, metric: chrf}}",
            "training.validation.translate (c.yaml:6): found false, wanted true for metric chrf",
        ),
        (
            "training: {seed: 1}",
            "training.max_steps (c.yaml:6): found no limit, wanted max_steps, max_epochs or max_minutes",
        ),
        (
            "training: {max_steps: 1, batch_tokens: 255}",
            "training.batch_tokens (c.yaml:6): found 255, wanted at least max_tokens (256)",
        ),
        ("decoding: {n_best: 5}", "decoding.n_best (c.yaml:6): found 5, wanted at most beam_size (4)"),
        ("tokenizer: {shared: no}", "model.tie_embeddings (c.yaml): found all, wanted decoder or none"),
        (
            "model: {positions: learned, max_positions: 255}",
            "model.max_positions (c.yaml:6): found 255, wanted at least training.max_tokens (256)",
        ),
    ],
)
def test_rules_among_keys(refuse: Refuse, written: str, told: str) -> None:
    (message,) = refuse(written)
    assert message.startswith(told)


@pytest.mark.parametrize("target", ["en", "EN"])
def test_the_two_languages_differ(refuse: Refuse, target: str) -> None:
    (message,) = refuse("", f"languages.target={target}")
    assert message.startswith(
        f"languages.target (--set languages.target): found '{target}', wanted another than source"
    )


@pytest.mark.parametrize(
    "written",
    [
        "tokenizer: {model: a}",
        "tokenizer: {shared: no, source_model: a, target_model: b}\nmodel: {tie_embeddings: decoder}",
        "model: {model_size: 7, heads: 7, positions: learned}",
        "model: {key_size: 8, positions: rotary}",
        "training: {max_epochs: 1}",
        "training: {max_steps: 1, batch_tokens: 256}",
        "training: {max_steps: 1, validation: {translate: no, metric: loss}}",
        "training: {max_steps: 1, checkpoint: {average: 5, keep_last: 5}}",
        "decoding: {n_best: 4}",
        "model: {positions: learned, max_positions: 256}",
    ],
)
def test_the_other_side_of_the_rules(load: Load, written: str) -> None:
    load(written)


# Paths


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "exp").mkdir()
    (tmp_path / "away").mkdir()
    text = MINIMAL + "  test: [{source: ../d/a.en, target: /abs/b.de}, {tsv: ~/c.tsv}]\ntokenizer: {model: spm.model}\n"
    (tmp_path / "exp" / "c.yaml").write_text(text)
    monkeypatch.setenv("HOME", "/people/somebody")
    for folder, name in ((tmp_path, "exp/c.yaml"), (tmp_path / "away", "../exp/c.yaml")):
        monkeypatch.chdir(folder)
        config = load_config(name)
        first, second = config.data.test
        assert first.source.resolve() == tmp_path / "d" / "a.en"
        assert first.source.is_absolute()
        assert first.target == Path("/abs/b.de")
        assert second.tsv == Path("/people/somebody/c.tsv")
        assert config.tokenizer.model.resolve() == tmp_path / "exp" / "spm.model"
        assert config.output == Path("runs/tiny")
        assert Path.cwd() == folder


def test_paths_of_overrides_and_shipped_configs_are_relative_to_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "c.yaml").write_text(MINIMAL)
    monkeypatch.chdir(tmp_path)
    config = load_config("exp/c.yaml", ["data.test=[{tsv: a.tsv}]", "tokenizer.model=spm.model"])
    assert config.data.test[0].tsv == tmp_path / "a.tsv"
    assert config.tokenizer.model == tmp_path / "spm.model"
    assert load_config("local-files.yaml").data.train[0].source == tmp_path / "train.en"


def test_a_file_here_comes_before_a_shipped_one(load: Load, tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(MINIMAL)
    load()
    assert load_config("base.yaml").name == "tiny"
    assert load_config("big.yaml").name == "wmt14-en-de-big"


def test_a_run_folder_stands_for_its_config(load: Load, tmp_path: Path) -> None:
    config = load("output: runs/somewhere")
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved" / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    assert load_config("moved").output == Path("moved")
    assert load_config("moved", ["output=x"]).output == Path("x")
    assert load_config("moved/config.yaml").output == Path("runs/somewhere")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("base", "; did you mean base.yaml?"),
        ("big", "; did you mean big.yaml?"),
        ("configs/bse.yaml", "; did you mean base.yaml?"),
        ("table3/heads-16.yaml", "; did you mean table3/a-heads-16.yaml?"),
        ("zzz", "; `transformer-mt config list` shows the shipped ones"),
        ("../configs/base.yaml", "; did you mean base.yaml?"),
    ],
)
def test_a_missing_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, told: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as failure:
        load_config(name)
    assert str(failure.value).startswith(f"config file {name} not found (looked in {tmp_path}")
    assert str(failure.value).endswith(told)


def test_names_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is a folder without a config\.yaml"):
        load_config(str(tmp_path))
    with pytest.raises(UserError, match="--config: found ''"):
        load_config("")


# --set


def test_overrides(load: Load) -> None:
    config = load(
        "training:\n  max_steps: 7\n",
        "training.max_steps=1e3",
        "training.learning_rate.warmup_steps=5",
        "decoding.length_penalty={form: none}",
        "data.cleaning.max_words=null",
        "languages.source=no",
        "evaluation.metrics=[ter]",
        "training.max_steps=9",
    )
    assert config.training.max_steps == 9
    assert config.training.learning_rate.warmup_steps == 5
    assert config.decoding.length_penalty.form == "none"
    assert config.data.cleaning.max_words is None
    assert config.languages.source == "no"
    assert config.evaluation.metrics == ("ter",)


@pytest.mark.parametrize("path", ["data.train[0].pairs", "data.train.0.pairs"])
def test_overrides_of_items(load: Load, path: str) -> None:
    assert load("", f"{path}=5").data.train[0].pairs == 5


def test_an_item_is_replaced_whole(load: Load) -> None:
    source = load("", "data.train[0]={tsv: a=b.tsv, columns: [1, 0]}", "data.train[0].columns[0]=2").data.train[0]
    assert (source.tsv.name, source.columns) == ("a=b.tsv", (2, 0))


def test_an_override_into_an_empty_section(load: Load) -> None:
    assert load("decoding:\n", "decoding.beam_size=2").decoding.beam_size == 2


@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        (
            f"name={'n' * 101}",
            "wanted a name of at most 100 characters without slashes that does not begin with a dot or a blank",
        ),
        ("tokenizer.max_line_bytes=2e9", "wanted less than 1073741824"),
        ("tokenizer.vocabulary_size=1e10", "wanted less than 2147483648"),
        ("data.train[0].weight=1e18", "wanted at most 10000"),
    ],
)
def test_values_that_no_machine_or_library_takes(refuse: Refuse, override: str, wanted: str) -> None:
    (message,) = refuse("", override)
    assert message.startswith(override.partition("=")[0]) and message.endswith(wanted)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("training", "--set training: wanted key.path=value"),
        ("=3", "--set =3: wanted key.path=value"),
        ("a..b=3", "--set a..b=3: wanted key.path=value"),
        (".a=3", "--set .a=3: wanted key.path=value"),
        ("data.train[x].pairs=3", "--set data.train[x].pairs=3: wanted key.path=value"),
        ("data.train[1].pairs=3", "--set data.train[1].pairs: found item 1, wanted less than 1: items count from 0"),
        ("data.train.first.pairs=3", "--set data.train.first.pairs: found item first, wanted less than 1"),
        ("data.train[1]=3", "--set data.train[1]: found item 1, wanted less than 1"),
        ("name.first=3", "--set name.first: found 'tiny' above first, wanted a section"),
        ("model=[1", "--set model: not valid YAML: "),
        ('output="a\\0b"', r"output (--set output): found 'a\x00b', wanted a path without NUL"),
        ('output="\\ud800"', r"output (--set output): found '\ud800', wanted a path without NUL"),
        ("model.heads=0", "model.heads (--set model.heads): found '0', wanted at least 1"),
        ("model.headz=4", "unknown key model.headz (--set model.headz), did you mean heads?"),
        ("data.train[0].pairs=0", "data.train[0].pairs (--set data.train[0].pairs): found '0', wanted at least 1"),
        ("data.train[0]=x", "data.train[0] (--set data.train[0]): a source needs one of the keys"),
        ("model={heads: 1, heads: 2}", "model.heads (--set model): given twice, first at --set model"),
    ],
)
def test_wrong_overrides(refuse: Refuse, override: str, told: str) -> None:
    if override.startswith("model={"):
        told = told.replace("model.heads", "heads")
    (message,) = refuse("", override)
    assert message.startswith(told)


def test_wrong_overrides_are_told_with_the_other_errors(refuse: Refuse) -> None:
    assert len(refuse("heads: 3\n", "foo", "model.heads=0", "model=[1")) == 4


# Files


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "c.yaml: a configuration is a mapping of keys, found nothing"),
        (b"# nothing yet\n", "c.yaml: a configuration is a mapping of keys, found nothing"),
        (b"- a\n", "c.yaml: a configuration is a mapping of keys, found a list"),
        (b"demo\n", "c.yaml: a configuration is a mapping of keys, found 'demo'"),
        (b"name: a\nmodel:\n\theads: 4\n", "c.yaml:3: not valid YAML: a tab where only blanks may indent"),
        (b"name: a\nmodel: {heads: 4\n", "c.yaml:3: not valid YAML: while parsing a flow mapping expected"),
        (b"name: a\n---\nname: b\n", "c.yaml:2: not valid YAML: expected a single document in the stream but found"),
        (b"name: " + b"[" * 5000 + b"]" * 5000, "c.yaml: lists or mappings in each other, too many"),
        (b"name: a\nmodel: *m\n", "c.yaml:2: not valid YAML: found undefined alias 'm'"),
        (b"name: a\nb: \x07\n", "c.yaml:2: not valid YAML: a control character"),
        (b"name: a\nb: caf\xe9\n", "c.yaml:2: not UTF-8: byte 0xE9"),
        ("name: a\n".encode("utf-16"), "c.yaml:1: not UTF-8: byte 0xFF"),
        (b"a: 1\n? [x]\n: 2\n", "the file (c.yaml:2): a key has to be a word"),
        (b"name: !include x.yaml\n", "name (c.yaml:1): has the tag !include; tags are not supported"),
        (b"name: !!python/name:os.system x\n", "name (c.yaml:1): has the tag tag:yaml.org,2002:python/name:os.system"),
        (b"data: &d {cleaning: *d}\n", "data.cleaning (c.yaml:1): contains itself, by an alias"),
        (b"model: {<<: 3}\n", "model.<< (c.yaml:1): found '3', wanted a section"),
    ],
)
def test_broken_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, told: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_bytes(content)
    with pytest.raises(UserError) as failure:
        load_config("c.yaml")
    assert any(message.startswith(told) for message in failure.value.messages), failure.value


def test_what_follows_from_an_error_of_reading_is_not_told_again(refuse: Refuse) -> None:
    assert refuse("model: !include x.yaml\n") == ["model (c.yaml:6): has the tag !include; tags are not supported"]


def test_a_byte_order_mark_and_carriage_returns_are_no_matter(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_bytes(b"\xef\xbb\xbf" + MINIMAL.replace("\n", "\r\n").encode())
    assert load_config(str(tmp_path / "c.yaml")).name == "tiny"


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.yaml").write_text(MINIMAL)

    def denied(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(UserError, match=r"c\.yaml cannot be read: Permission denied"):
        load_config(str(tmp_path / "c.yaml"))


def test_anchors_aliases_and_merge_keys(load: Load) -> None:
    config = load(
        "  test: &sources [{demo: english-german, pairs: 7}]\n",
        base=MINIMAL.replace(
            "train: [{demo: english-german}]", "train: [&one {demo: english-german, pairs: 5, seed: 3}]"
        ).replace("validation: [{demo: english-german}]", "validation: [{<<: *one, seed: 4}, {seed: 5, <<: [*one]}]"),
    )
    assert [(source.pairs, source.seed) for source in config.data.validation] == [(5, 4), (5, 5)]
    assert config.data.test[0].pairs == 7


def test_a_wrong_merged_key_is_told_where_it_stands(refuse: Refuse) -> None:
    (message,) = refuse("model: &m\n  heads: 4\ndecoding:\n  <<: *m\n")
    assert message == "unknown key decoding.heads (c.yaml:7), did you mean model.heads?"


# Round trips, digests, differences


def test_a_resolved_configuration_is_itself_again(load: Load, tmp_path: Path) -> None:
    config = load(
        "  test: [{tsv: a.tsv}, {hub: a/b, columns: [x, y]}]\nmodel: {preset: big, dropout: 0.1}\n"
        "training: {max_epochs: 3, learning_rate: {peak: 1e-3}}\ndecoding: {unknown_marker: '⁇'}\n"
    )
    plain = config.model_dump(mode="json")
    assert config_from_dict(plain, "state.json").model_dump() == config.model_dump()
    (tmp_path / "shown.yaml").write_text(yaml.safe_dump(plain, allow_unicode=True))
    assert load_config(str(tmp_path / "shown.yaml")).model_dump() == config.model_dump()
    assert digest(load_config(str(tmp_path / "shown.yaml"))) == digest(config)


def test_a_configuration_is_frozen(load: Load) -> None:
    with pytest.raises(ValueError, match="frozen"):
        load().training.seed = 2  # type: ignore[misc]


def test_digest_knows_values_and_not_their_order(load: Load) -> None:
    first = load("model: {heads: 4, dropout: 0.2}\ntraining: {max_steps: 5, seed: 2}\n")
    second = load("training: {seed: 2, max_steps: 5}\nmodel: {dropout: 0.2, heads: 4}\n")
    assert digest(first) == digest(second) == digest(first.model_dump(mode="json"))
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1})
    assert digest({"b": [1, 2]}) != digest({"b": [2, 1]})
    assert digest(first) != digest(load("model: {heads: 4, dropout: 0.2}\ntraining: {max_steps: 5, seed: 3}\n"))


def test_differences() -> None:
    old = {"a": 1, "b": {"c": 2, "d": {"e": 3}}, "gone": 4, "same": [1]}
    new = {"a": 1, "b": {"c": 5, "d": {"e": 6}}, "new": 7, "same": [1]}
    assert list(differences(old, new)) == [("b.c", 2, 5), ("b.d.e", 3, 6), ("gone", 4, None), ("new", None, 7)]
    assert list(differences(old["b"], new["b"], "b")) == [("b.c", 2, 5), ("b.d.e", 3, 6)]
    assert list(differences({"a": {"b": 1}}, {"a": None})) == [("a", {"b": 1}, None)]
    assert list(differences(old, old)) == []


# No dead keys


def attributes_read() -> set[str]:
    """Names read as attributes anywhere in the package but in the schema itself."""
    names: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name != "config":
            tree = ast.parse(path.read_text("utf-8"))
            names |= {
                node.attr
                for node in ast.walk(tree)
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
            }
            names |= {key for node in ast.walk(tree) if isinstance(node, ast.MatchClass) for key in node.kwd_attrs}
    return names


def numbers_of_the_model() -> set[str]:
    """What the Transformer, which takes the model's keys as numbers, reads when it is built."""
    tree = ast.parse((PACKAGE / "model" / "transformer.py").read_text("utf-8"))
    (model,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Transformer"]
    (init,) = [node for node in model.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    return {node.id for node in ast.walk(init) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def test_every_key_is_read_somewhere() -> None:
    attributes, numbers = attributes_read(), numbers_of_the_model()
    # An abbreviation, expanded when the file is read.
    allowed = {"model.preset"}
    keys = {f"{path}.{name}" if path else name for path, model in SECTIONS for name in model.model_fields}
    used = {key for key in keys if key.rpartition(".")[2] in attributes}
    used |= {key for key in keys if key.startswith("model.") and key.removeprefix("model.") in numbers}
    dead = sorted(keys - allowed - used)
    assert dead == []
