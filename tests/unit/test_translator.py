"""Lines through the search, and lines as they arrive."""

import os
import threading
from pathlib import Path

import pytest
import torch

from transformer_mt.config import Decoding, Model
from transformer_mt.config import Tokenizer as Settings
from transformer_mt.data.tokenizer import EOS, PAD, UNK, Tokenizer, learn
from transformer_mt.decode.stream import arriving_lines, written
from transformer_mt.decode.translator import EMPTY, Translator
from transformer_mt.errors import RunError, UserError
from transformer_mt.model.folder import build, load_weights, locate

LINES = ["ein Hund bellt", "two dogs bark at the moon", "", "a", "ein", " \t ", "moon moon"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    text = [line for line in LINES if line.strip()] * 5
    keys = {"vocabulary_size": 60, "vocabulary_limit": "soft", "byte_fallback": False}
    (folder / "spm.model").write_bytes(learn(text, len(text), Settings.model_validate(keys), 1).model)
    return Tokenizer(folder)


def translator(tokenizer: Tokenizer, model: dict[str, object] | None = None, **keys: object) -> Translator:
    small = {"encoder_layers": 1, "decoder_layers": 1, "model_size": 16, "feedforward_size": 16, "heads": 2}
    torch.manual_seed(3)
    built = build(Model.model_validate({**small, **(model or {})}), tokenizer.source_size, tokenizer.target_size)
    settings = Decoding.model_validate({"max_length": {"factor": 1, "extra": 3}, **keys})
    return Translator(built.double(), tokenizer, settings)


def test_batches_change_nothing_and_order_stays(tokenizer: Tokenizer) -> None:
    alone = [translator(tokenizer).translate([line])[0] for line in LINES]
    for size in (1, 2, 64):
        together = translator(tokenizer, batch_size=size).translate(LINES)
        assert [found.text for found in together] == [found.text for found in alone]
        for one, other in zip(together, alone, strict=True):
            assert one.candidates[0].score == pytest.approx(other.candidates[0].score, abs=1e-9)
    assert alone[2] == alone[5] == EMPTY


def test_batch_tokens_bound_the_rows(tokenizer: Tokenizer) -> None:
    ours = translator(tokenizer, batch_tokens=40, beam_size=4)
    for batch in ours._batches(ours._encode(LINES)):
        assert len(batch) == 1 or len(batch) * max(len(source.ids) for source in batch) * 4 <= 40


def test_dropout_is_off_and_the_mode_comes_back(tokenizer: Tokenizer) -> None:
    ours = translator(tokenizer, {"dropout": 0.5})
    ours.model.train()
    assert [x.candidates for x in ours.translate(LINES)] == [x.candidates for x in ours.translate(LINES)]
    assert ours.model.training


def push(ours: Translator, token: int) -> None:
    """Makes the model love a token more than anything."""
    with torch.no_grad():
        assert ours.model.output_bias is not None
        ours.model.output_bias[token] = 100.0


@pytest.mark.parametrize("token", [PAD, UNK, EOS])
def test_what_may_not_be_produced(tokenizer: Tokenizer, token: int) -> None:
    ours = translator(tokenizer, {"output_bias": True})
    push(ours, token)
    found = ours.translate(["ein Hund", "a"])
    for translation in found:
        assert "⁇" not in translation.text
        assert translation.candidates[0].length >= 2


def test_unknown_where_it_is_allowed(tokenizer: Tokenizer) -> None:
    ours = translator(tokenizer, {"output_bias": True}, allow_unknown=True, unknown_marker="[?]")
    push(ours, UNK)
    assert "[?]" in ours.translate(["ein Hund"])[0].text


def test_the_limit_is_told(tokenizer: Tokenizer) -> None:
    ours = translator(tokenizer, {"output_bias": True})
    with torch.no_grad():
        ours.model.output_bias[EOS] = -100.0  # type: ignore[index]
    (found,) = ours.translate(["ein Hund bellt"])
    assert found.hit_limit and found.candidates[0].length == found.source_length + 3 + 1


def test_learned_positions_cut(tokenizer: Tokenizer) -> None:
    ours = translator(tokenizer, {"positions": "learned", "max_positions": 6})
    long, short = ours.translate(["ein Hund bellt moon moon moon a", "a"])
    assert long.cut_to == 5 and long.source_length > 5 and short.cut_to is None
    assert long.candidates[0].length <= 6


def test_unknown_source_pieces_are_counted(tokenizer: Tokenizer) -> None:
    assert [found.unknown for found in translator(tokenizer).translate(["ein 語 Hund", "ein"])] == [1, 0]


def test_weights_that_are_no_numbers(tokenizer: Tokenizer) -> None:
    ours = translator(tokenizer)
    with torch.no_grad():
        for parameter in ours.model.parameters():
            parameter.fill_(torch.nan)
    with pytest.raises(RunError, match="not finite"):
        ours.translate(["ein"])


def test_n_best_is_sorted(tokenizer: Tokenizer) -> None:
    (found,) = translator(tokenizer, n_best=3).translate(["ein Hund"])
    scores = [candidate.score for candidate in found.candidates]
    assert len(scores) == 3 and scores == sorted(scores, reverse=True)
    assert written(4, found, "moses").count("\n") == 3 and written(4, found, "text") == found.text + "\n"
    assert written(4, found, "jsonl").startswith('{"line": 5,')


def test_arriving_lines_come_when_they_are_there() -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb") as file:
        groups = arriving_lines(file)
        os.write(write, b"one\ntw")
        assert next(groups) == [b"one"]
        os.write(write, b"o\n\r\n\xe2\x80\xa8\nlast")
        assert next(groups) == [b"two", b"\r", b"\xe2\x80\xa8"]
        threading.Timer(0.05, os.close, [write]).start()
        assert list(groups) == [[b"last"]]


def test_arriving_lines_of_a_large_file(tmp_path: Path) -> None:
    lines = [b"x" * (number % 300) for number in range(50_000)]
    (tmp_path / "text").write_bytes(b"\n".join(lines) + b"\n")
    with (tmp_path / "text").open("rb") as file:
        groups = list(arriving_lines(file, 1000))
    assert [line for group in groups for line in group] == lines
    assert max(map(len, groups)) < 70_000 and len(groups) > 10


def test_locate_takes_the_best_then_the_newest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no model"):
        locate(tmp_path)
    for name in ("step-000000005", "step-000000010"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        (tmp_path / "checkpoints" / name / "model.safetensors").write_bytes(b"")
    assert locate(tmp_path).name == "step-000000010"
    (tmp_path / "checkpoints" / "best").symlink_to("step-000000005")
    assert locate(tmp_path).name == "step-000000005"
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"")
    assert locate(tmp_path) == tmp_path / "model"
    assert locate(tmp_path / "checkpoints" / "best").name == "best"


def test_foreign_weights_are_told_by_name(tokenizer: Tokenizer) -> None:
    model = translator(tokenizer).model
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    name = next(iter(tensors))
    with pytest.raises(UserError, match="has shape"):
        load_weights(model, {**tensors, name: tensors[name][:1]}, Path("here"))
    with pytest.raises(UserError, match=f"here lacks {name}"):
        load_weights(model, {key: value for key, value in tensors.items() if key != name}, Path("here"))


def test_a_batch_without_memory_is_halved_until_it_fits(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, sizes = translator(tokenizer), []
    expected = ours.translate(LINES)
    original = Translator._translate

    def small(self: Translator, batch: list) -> object:
        sizes.append(len(batch))
        if len(batch) > room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(self, batch)

    monkeypatch.setattr(Translator, "_translate", small)
    room = 2
    found = ours.translate(LINES)
    assert [line.text for line in found] == [line.text for line in expected]
    assert max(sizes) == 5 and sum(size for size in sizes if size <= room) == 5
    room = 0
    with pytest.raises(torch.OutOfMemoryError):
        ours.translate(LINES)
