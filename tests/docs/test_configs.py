"""Every shipped configuration loads and says what the paper says; parameter counts are those of the paper."""

from pathlib import Path
from typing import Any

import pytest
import torch

from transformer_mt.config import Config
from transformer_mt.config.file import load_config, shipped_configs, shipped_folder
from transformer_mt.model.folder import build

TABLE_3 = {
    # Row: what differs from base, and the stated number of parameters in millions where the paper states one.
    "base": ({}, 65),
    "table3/a-heads-1": ({"heads": 1, "key_size": 512, "value_size": 512}, None),
    "table3/a-heads-4": ({"heads": 4, "key_size": 128, "value_size": 128}, None),
    "table3/a-heads-16": ({"heads": 16, "key_size": 32, "value_size": 32}, None),
    "table3/a-heads-32": ({"heads": 32, "key_size": 16, "value_size": 16}, None),
    "table3/b-key-16": ({"key_size": 16}, 58),
    "table3/b-key-32": ({"key_size": 32}, 60),
    "table3/c-layers-2": ({"encoder_layers": 2, "decoder_layers": 2}, 36),
    "table3/c-layers-4": ({"encoder_layers": 4, "decoder_layers": 4}, 50),
    "table3/c-layers-8": ({"encoder_layers": 8, "decoder_layers": 8}, 80),
    "table3/c-model-256": ({"model_size": 256, "key_size": 32, "value_size": 32}, 28),
    "table3/c-model-1024": ({"model_size": 1024, "key_size": 128, "value_size": 128}, 168),
    "table3/c-feedforward-1024": ({"feedforward_size": 1024}, 53),
    "table3/c-feedforward-4096": ({"feedforward_size": 4096}, 90),
    "table3/d-dropout-0.0": ({"dropout": 0.0}, None),
    "table3/d-dropout-0.2": ({"dropout": 0.2}, None),
    "table3/d-smoothing-0.0": ({}, None),
    "table3/d-smoothing-0.2": ({}, None),
    "table3/e-learned-positions": ({"positions": "learned"}, None),
    "big": ({"preset": "big", "model_size": 1024, "feedforward_size": 4096, "heads": 16, "dropout": 0.3}, 213),
}
SMOOTHING = {"table3/d-smoothing-0.0": 0.0, "table3/d-smoothing-0.2": 0.2}
PAPER = ["base", "big", "wmt14-en-fr-base", "wmt14-en-fr-big", *(name for name in TABLE_3 if "/" in name)]


def shipped(name: str) -> Config:
    return load_config(f"{name}.yaml")


def parameters(config: Config, vocabulary: int, **changes: Any) -> int:
    """How many parameters the configured model has, without making them."""
    settings = config.model.model_copy(update=changes)
    with torch.device("meta"):
        model = build(settings, vocabulary, vocabulary)
    return sum(parameter.numel() for parameter in model.parameters())


def formula(vocabulary: int, width: int, inner: int, *, bias: bool) -> int:
    """Six layers a side, keys and values of width / heads, one embedding matrix, LayerNorms with gain and bias."""
    attention = 4 * width * width + (4 * width if bias else 0)
    feedforward = 2 * width * inner + inner + width
    norm = 2 * width
    encoder_layer = attention + feedforward + 2 * norm
    decoder_layer = 2 * attention + feedforward + 3 * norm
    return vocabulary * width + 6 * (encoder_layer + decoder_layer)


@pytest.mark.parametrize("name", shipped_configs())
def test_every_shipped_config_loads(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config(name)
    assert config.output == Path("runs") / config.name
    assert load_config(str(shipped_folder() / name)).name == config.name
    assert (shipped_folder() / name).read_text("utf-8").startswith("# ")  # says what it is


def test_no_two_configs_share_a_run_folder() -> None:
    outputs = [load_config(name).output for name in shipped_configs()]
    assert len(set(outputs)) == len(outputs)


def test_what_is_shipped_is_what_is_promised() -> None:
    promised = {"demo", "local-files", "base-t2t", *PAPER}
    assert {name.removesuffix(".yaml") for name in shipped_configs()} == promised


@pytest.mark.parametrize("name", PAPER)
def test_training_and_search_are_the_papers(name: str) -> None:
    config, big = shipped(name), "big" in name
    training, decoding = config.training, config.decoding
    assert training.batch_tokens == 25_000
    assert training.max_steps == (300_000 if big else 100_000)
    assert training.max_epochs is None
    assert training.max_tokens == 256
    assert training.label_smoothing == SMOOTHING.get(name, 0.1)
    rate = training.learning_rate
    assert (rate.schedule, rate.warmup_steps, rate.factor, rate.peak) == ("inverse_sqrt", 4000, 1.0, None)
    adam = training.optimizer
    assert (adam.beta1, adam.beta2, adam.epsilon, adam.clip_norm) == (0.9, 0.98, 1e-9, None)
    assert training.checkpoint.average == (1 if "/" in name else 20 if big else 5)
    assert (decoding.beam_size, decoding.n_best) == (4, 1)
    assert (decoding.length_penalty.form, decoding.length_penalty.alpha) == ("gnmt", 0.6)
    assert (decoding.max_length.factor, decoding.max_length.extra) == (1.0, 50)


@pytest.mark.parametrize("name", PAPER)
def test_data_is_the_papers(name: str) -> None:
    config, french = shipped(name), "en-fr" in name
    assert (config.languages.source, config.languages.target) == ("en", "fr" if french else "de")
    assert (config.tokenizer.algorithm, config.tokenizer.shared) == ("bpe", True)
    assert config.tokenizer.vocabulary_size == (32_000 if french else 37_000)
    sources = {key: [(source.hub, source.subset, source.split) for source in getattr(config.data, key)]
               for key in ("train", "validation", "test")}  # fmt: skip
    subset = "fr-en" if french else "de-en"
    assert sources["train"] == [("wmt/wmt14", subset, "train")]
    assert sources["validation"] == [("wmt/wmt14", subset, "validation")]
    # Table 3 was measured on newstest2013, which is the validation split; table 2 on newstest2014.
    assert sources["test"] == [("wmt/wmt14", subset, "validation" if "/" in name else "test")]


@pytest.mark.parametrize("name", TABLE_3)
def test_models_of_table_3(name: str) -> None:
    changes, stated = TABLE_3[name]
    base = {
        "preset": "base",
        "encoder_layers": 6,
        "decoder_layers": 6,
        "model_size": 512,
        "feedforward_size": 2048,
        "heads": 8,
        "key_size": 64,
        "value_size": 64,
        "dropout": 0.1,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "norm": "post",
        "positions": "sinusoidal",
        "activation": "relu",
        "attention_bias": False,
        "output_bias": False,
        "tie_embeddings": "all",
    }
    config = shipped(name)
    model = config.model.model_dump(exclude={"start_symbol", "max_positions"})
    assert model == base | changes
    if stated is not None:
        assert parameters(config, 41_000) / 1e6 == pytest.approx(stated, rel=0.03 if name == "big" else 0.01)


def test_models_of_the_other_papers_rows() -> None:
    assert shipped("wmt14-en-fr-base").model == shipped("base").model
    big = shipped("big").model.model_dump()
    assert shipped("wmt14-en-fr-big").model.model_dump() == big | {"dropout": 0.1}


def test_base_as_tensor2tensor_had_it_later() -> None:
    config = shipped("base-t2t")
    changes = {"preset": "base-t2t", "norm": "pre", "attention_dropout": 0.1, "activation_dropout": 0.1}
    assert config.model.model_dump() == shipped("base").model.model_dump() | changes
    assert (config.training.learning_rate.warmup_steps, config.training.learning_rate.factor) == (8000, 2.0)
    assert config.training.optimizer.beta2 == 0.997
    assert config.training.batch_tokens == 8 * 4096
    assert config.decoding.max_length.extra == 100


@pytest.mark.parametrize(
    ("vocabulary", "base", "base_with_bias", "big"),
    [
        (32_000, 60.49, 60.52, 209.05),
        (32_768, 60.88, 60.92, 209.84),
        (37_000, 63.05, 63.08, 214.17),
        (40_960, 65.07, 65.11, 218.23),
    ],
)
def test_parameter_counts(vocabulary: int, base: float, base_with_bias: float, big: float) -> None:
    counts = (
        parameters(shipped("base"), vocabulary),
        parameters(shipped("base"), vocabulary, attention_bias=True),
        parameters(shipped("big"), vocabulary),
    )
    assert counts == (
        formula(vocabulary, 512, 2048, bias=False),
        formula(vocabulary, 512, 2048, bias=True),
        formula(vocabulary, 1024, 4096, bias=False),
    )
    assert [count / 1e6 for count in counts] == pytest.approx([base, base_with_bias, big], abs=0.006)


def test_the_demonstration_needs_nothing_from_outside() -> None:
    config = shipped("demo")
    sources = [*config.data.train, *config.data.validation, *config.data.test]
    assert {source.demo for source in sources} == {"english-german"}
    assert len({source.seed for source in sources}) == len(sources)
    assert parameters(config, config.tokenizer.vocabulary_size) < 3e6


def test_local_files_are_looked_for_where_the_command_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shipped("local-files").data.train[0].target == tmp_path / "train.de"
