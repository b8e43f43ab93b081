"""Models converted for CTranslate2: every kind of model, the check of each, and where they are kept."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from transformer_mt.atomic import read_json
from transformer_mt.config import Model
from transformer_mt.config import Tokenizer as Settings
from transformer_mt.data.tokenizer import EOS, Tokenizer, learn
from transformer_mt.decode.ctranslate2 import RECORD
from transformer_mt.decode.translator import Translator
from transformer_mt.errors import RunError, UserError
from transformer_mt.export import ctranslate2 as export
from transformer_mt.model.folder import FORMAT, build, weights, write_model

pytest.importorskip("ctranslate2")
torch.set_num_threads(1)  # the models are so small that threads only wait for each other

TEXT = ["ein Hund bellt", "two dogs bark at the moon", "a moon", "der Mond und das Haus", "dogs and a house"]
KINDS: dict[str, dict[str, Any]] = {
    "paper": {},
    "pre-norm learned": {"norm": "pre", "positions": "learned", "max_positions": 64},
    "rotary": {"positions": "rotary", "attention_bias": True, "start_symbol": "eos"},
    "keys smaller": {"key_size": 4, "value_size": 6, "activation": "swiglu", "output_bias": True, "noise": 0.02},
    "values smaller": {"key_size": 6, "value_size": 4, "positions": "rotary", "attention_bias": True},
    "wide heads": {"key_size": 8, "value_size": 8, "activation": "gelu", "tie_embeddings": "none"},
    "depths apart": {"encoder_layers": 1, "decoder_layers": 3, "activation": "swish", "tie_embeddings": "decoder"},
    "pre-norm": {"norm": "pre", "start_symbol": "pad"},
}


def write_tokenizer(folder: Path, **sizes: int) -> Path:
    """A model of pieces for both languages, or one for each of the given names, of so many pieces."""
    folder.mkdir(exist_ok=True)
    for name, size in (sizes or {"spm": 60}).items():
        keys = {"vocabulary_size": size, "vocabulary_limit": "soft", "byte_fallback": False}
        learned = learn(TEXT * 5, 5 * len(TEXT), Settings.model_validate(keys), 1)
        (folder / f"{name}.model").write_bytes(learned.model)
    return folder


def write_folder(
    folder: Path,
    tokenizer: Path,
    *,
    seed: int = 1,
    bias: Mapping[int, float] | None = None,
    noise: float = 0.2,
    **keys: Any,
) -> Path:
    """A model folder; the weights are random, but so that its probabilities differ much from step to step.

    `bias` is added to the logits of some pieces.
    """
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "model_size": 16, "feedforward_size": 24, "heads": 2}
    settings = Model.model_validate({**sizes, **keys, **({"output_bias": True} if bias else {})})
    vocabularies = Tokenizer(tokenizer)
    torch.manual_seed(seed)
    net = build(settings, vocabularies.source_size, vocabularies.target_size)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.5).add_(noise * torch.randn_like(parameter))
        for token, value in (bias or {}).items():
            net.output_bias[token] = value  # type: ignore[index]
    folder.mkdir(parents=True, exist_ok=True)
    languages = {"source": "de", "target": "en"}
    config = {"format": FORMAT, "languages": languages, "model": settings.model_dump(mode="json"), "decoding": {}}
    write_model(folder, weights(net), config, tokenizer, "a model")
    return folder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def folder(tmp_path: Path, tokenizer: Path) -> Path:
    return write_folder(tmp_path / "model", tokenizer)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "transformer-mt" / "ctranslate2"


def kept(folder: Path) -> list[str]:
    """What a folder holds beside the lock."""
    return sorted(path.name for path in folder.glob("*") if path.name != ".lock")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_converted(tmp_path: Path, tokenizer: Path, kind: str) -> None:
    """The conversion checks itself, so it is enough that it is there, and how near it came."""
    origin = write_folder(tmp_path / "model", tokenizer, **KINDS[kind])
    export.convert(origin, tmp_path / "converted")
    assert kept(tmp_path) == ["converted", "model"]
    record = read_json(tmp_path / "converted" / RECORD)
    assert record["positions"] == {"learned": 64, "rotary": None}.get(KINDS[kind].get("positions", ""), 4096)
    checked = record["checked"]
    assert checked["greedy_outputs"] == 15 and checked["greedy_pieces"] > 200 and checked["scored_pieces"] > 600
    assert 0 <= checked["largest_difference"] < 5e-4 and 0 <= checked["largest_difference_of_logits"] < 1e-3


@pytest.mark.parametrize("tied", ["decoder", "none"])
def test_each_language_may_have_its_own_pieces(tmp_path: Path, tied: str) -> None:
    pieces = write_tokenizer(tmp_path / "pieces", source=60, target=45)
    assert Tokenizer(pieces).source_size > Tokenizer(pieces).target_size
    origin = write_folder(tmp_path / "model", pieces, tie_embeddings=tied)
    export.convert(origin, tmp_path / "converted")
    names = {path.name for path in (tmp_path / "converted").iterdir()}
    assert {"source_vocabulary.json", "target_vocabulary.json"} <= names


def broken(part: str) -> Callable[..., Any]:
    """Changes one tensor of a finished specification."""
    right = export.specification

    def wrong(*arguments: Any) -> Any:
        spec = right(*arguments)
        owner, name = {
            "weight": (spec.decoder.layer[1].ffn.linear_1, "weight"),
            "norm": (spec.encoder.layer[0].self_attention.layer_norm, "beta"),
            "positions": (spec.encoder.position_encodings, "encodings"),
            "scale": (spec.decoder.projection, "weight"),
        }[part]
        changed = getattr(owner, name).copy()
        if part == "scale":  # the same order of pieces
            changed *= 1.01
        else:
            changed[3] += 0.05
        setattr(owner, name, changed)
        return spec

    return wrong


@pytest.mark.parametrize("part", ["weight", "norm", "positions", "scale"])
def test_a_wrong_number_is_noticed_and_nothing_is_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr(export, "specification", broken(part))
    with pytest.raises(RunError, match="is not this one") as failure:
        export.cached(folder, Translator.load(folder, "cpu"), print)
    assert failure.value.exit_code == 1
    assert kept(folder / "ctranslate2") == []


def test_a_wrong_start_is_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    right = export.specification
    monkeypatch.setattr(export, "specification", lambda model, tokenizer, start: right(model, tokenizer, EOS))
    with pytest.raises(RunError, match="is not this one"):
        export.convert(folder, tmp_path / "converted")


def test_another_piece_is_noticed_and_a_tie_is_none(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces 10 and 11 are equally good everywhere: whichever is taken is right, but piece 12 is not."""
    origin = write_folder(tmp_path / "model", tokenizer, tie_embeddings="none", bias={10: 9.0, 11: 9.0})
    loaded = export.load(origin, torch.device("cpu"))
    with torch.no_grad():
        for matrix in (loaded.model.output.weight, loaded.model.target_embedding.tokens.weight):
            matrix[11] = matrix[10]
    monkeypatch.setattr(export, "load", lambda *arguments: loaded)
    right, instead = export._greedy, 11

    def greedy(*arguments: Any) -> tuple[list[list[int]], list[torch.Tensor]]:
        outputs, logits = right(*arguments)
        return [[instead if token == 10 else token for token in row] for row in outputs], [each[:1] for each in logits]

    monkeypatch.setattr(export, "_greedy", greedy)
    export.convert(origin, tmp_path / "converted")
    instead = 12
    with pytest.raises(RunError, match=r"[1-9]\d* of 16 greedy outputs or their logits differ"):
        export.convert(origin, tmp_path / "converted")


def test_an_output_for_an_empty_line_is_noticed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = export._greedy

    def greedy(*arguments: Any) -> tuple[list[list[int]], list[torch.Tensor]]:
        outputs, logits = right(*arguments)
        return [row or [5] for row in outputs], logits

    monkeypatch.setattr(export, "_greedy", greedy)
    with pytest.raises(RunError, match="1 of 16 greedy outputs or their logits differ"):
        export.convert(folder, tmp_path / "converted")


def test_weights_that_are_no_numbers_are_not_converted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = export.load(folder, torch.device("cpu"))
    with torch.no_grad():
        loaded.model.output.weight.fill_(torch.nan)
    monkeypatch.setattr(export, "load", lambda *arguments: loaded)
    with pytest.raises(RunError, match="is not this one"):
        export.convert(folder, tmp_path / "converted")
    assert kept(tmp_path) == ["model"]


def test_it_is_converted_once_and_again_for_other_weights(folder: Path, tokenizer: Path) -> None:
    said: list[str] = []
    first = export.cached(folder, Translator.load(folder, "cpu"), said.append)
    assert first.parent == folder / "ctranslate2" and (first / "model.bin").is_file() and len(said) == 2
    before = (first / "model.bin").stat().st_mtime_ns
    assert export.cached(folder, Translator.load(folder, "cpu"), said.append) == first
    assert len(said) == 2 and (first / "model.bin").stat().st_mtime_ns == before
    write_folder(folder, tokenizer, seed=2)
    second = export.cached(folder, Translator.load(folder, "cpu"), said.append)
    assert second != first and kept(folder / "ctranslate2") == [second.name] and len(said) == 4


@pytest.mark.parametrize("keys", [{"heads": 4}, {"activation": "gelu"}, {"start_symbol": "eos"}], ids=str)
def test_what_the_weights_do_not_tell_counts_too(folder: Path, tokenizer: Path, keys: dict[str, Any]) -> None:
    first = export.cached(folder, Translator.load(folder, "cpu"), print)
    write_folder(folder, tokenizer, **keys)
    assert export.cached(folder, Translator.load(folder, "cpu"), print) != first


def test_the_model_of_the_file_is_converted_whatever_the_precision(folder: Path) -> None:
    found = export.cached(folder, Translator.load(folder, "cpu", "bfloat16"), print)
    assert read_json(found / RECORD)["checked"]["largest_difference"] < 1e-3


def test_a_folder_that_cannot_be_written(folder: Path, home: Path, tmp_path: Path, tokenizer: Path) -> None:
    """A file where the folder would be: that stops root too."""
    (folder / "ctranslate2").write_text("")
    translator = Translator.load(folder, "cpu")
    first = export.cached(folder, translator, print)
    assert first.parent.parent == home and export.cached(folder, translator, pytest.fail) == first
    other = write_folder(tmp_path / "other", tokenizer)
    (other / "ctranslate2").write_text("")
    assert export.cached(other, Translator.load(other, "cpu"), print).parent != first.parent
    write_folder(folder, tokenizer, seed=2)
    second = export.cached(folder, Translator.load(folder, "cpu"), print)
    assert kept(first.parent) == [second.name] and second != first


def test_what_is_there_is_used_even_if_nothing_can_be_written(folder: Path) -> None:
    first = export.cached(folder, Translator.load(folder, "cpu"), print)
    (folder / "ctranslate2" / ".lock").unlink()
    (folder / "ctranslate2" / ".lock").mkdir()
    assert export.cached(folder, Translator.load(folder, "cpu"), pytest.fail) == first


def test_no_place_at_all(folder: Path, home: Path) -> None:
    (folder / "ctranslate2").write_text("")
    home.parent.mkdir(parents=True)
    home.write_text("")
    with pytest.raises(UserError, match="no place for the converted model"):
        export.cached(folder, Translator.load(folder, "cpu"), print)


def test_another_process_was_faster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it made while we waited for the lock is taken."""
    translator = Translator.load(folder, "cpu")
    real = export.fcntl.flock
    made: list[Path] = []

    def other_process(*arguments: Any) -> None:
        monkeypatch.setattr(export.fcntl, "flock", real)
        made.append(export.cached(folder, translator, print))

    monkeypatch.setattr(export.fcntl, "flock", other_process)
    assert export.cached(folder, translator, pytest.fail) == made[0]


def test_a_missing_library_is_told(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(UserError, match=r"pip install 'transformer-mt\[ctranslate2\]'"):
        export.convert(folder, tmp_path / "converted")
