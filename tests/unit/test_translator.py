"""Lines through the search, and lines as they arrive."""

import os
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from transformer_mt.config import Decoding, Model
from transformer_mt.config import Tokenizer as Settings
from transformer_mt.data.tokenizer import EOS, PAD, UNK, Tokenizer, learn
from transformer_mt.decode import translator as translator_module
from transformer_mt.decode.stream import arriving_lines, written
from transformer_mt.decode.translator import EMPTY, Translator
from transformer_mt.errors import RunError, UserError
from transformer_mt.model.folder import build, load_weights, locate
from transformer_mt.model.stepwise import StepDecoder
from transformer_mt.model.transformer import Transformer

LINES = ["ein Hund bellt", "two dogs bark at the moon", "", "a", "ein", " \t ", "moon moon"]


def learned(folder: Path) -> Tokenizer:
    """A tokenizer learned from LINES."""
    text = [line for line in LINES if line.strip()] * 5
    keys = {"vocabulary_size": 60, "vocabulary_limit": "soft", "byte_fallback": False}
    (folder / "spm.model").write_bytes(learn(text, len(text), Settings.model_validate(keys), 1).model)
    return Tokenizer(folder)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return learned(tmp_path_factory.mktemp("tokenizer"))


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


def test_batch_tokens_bound_the_rows(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    original = StepDecoder.step

    def step(self: StepDecoder, tokens: Tensor, rows: Tensor | None) -> Tensor:
        seen.append((len(tokens), max(self.sources)))
        return original(self, tokens, rows)

    monkeypatch.setattr(StepDecoder, "step", step)
    translator(tokenizer, batch_tokens=40, beam_size=4).translate(LINES)
    assert all(slots == 1 or slots * (pieces - 1) * 4 <= 40 for slots, pieces in seen)
    assert max(slots for slots, _ in seen) > 1


def test_an_interrupted_translation_stops(tokenizer: Tokenizer) -> None:
    seen: list[int] = []
    translator(tokenizer).translate(LINES * 3, progress=seen.append, interrupted=lambda: bool(seen))
    assert len(seen) == 1


def test_dropout_is_off_and_the_mode_comes_back(tokenizer: Tokenizer) -> None:
    ours = translator(tokenizer, {"dropout": 0.5})
    ours.models[0].train()
    assert [x.candidates for x in ours.translate(LINES)] == [x.candidates for x in ours.translate(LINES)]
    assert ours.models[0].training


def push(ours: Translator, token: int) -> None:
    """Makes the model love a token more than anything."""
    with torch.no_grad():
        assert ours.models[0].output_bias is not None
        ours.models[0].output_bias[token] = 100.0


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
        ours.models[0].output_bias[EOS] = -100.0  # type: ignore[index]
    (found,) = ours.translate(["ein Hund bellt"])
    assert found.hit_limit and found.candidates[0].length == found.source_length + 3 + 1


LONG = "ein  Hund\tbellt. Two dogs bark!  moon moon moon a"


@pytest.mark.parametrize("keys", [{"max_source_tokens": 6}, {}])
def test_a_line_that_is_too_long_is_cut_or_translated_in_parts(tokenizer: Tokenizer, keys: dict[str, object]) -> None:
    model = {} if keys else {"positions": "learned", "max_positions": 7}
    long, short = translator(tokenizer, model, long_lines="cut", **keys).translate([LONG, "a"])
    assert long.cut_to == 6 and long.source_length == 14 and short.cut_to is None and long.parts == 1
    long, short = translator(tokenizer, model, **keys).translate([LONG, "a"])
    assert long.cut_to is None and long.source_length == 14 and long.parts >= 3 and short.parts == 1
    if not keys:
        assert all(candidate.length <= 7 * long.parts for candidate in long.candidates)


def test_sentences_are_translated_alone_and_put_together_with_their_white_space(tokenizer: Tokenizer) -> None:
    ours = translator(tokenizer, split_sentences=True)
    (found,) = ours.translate([f" {LONG}\r\v"])
    alone = ours.translate(["ein Hund bellt.", "Two dogs bark!  moon moon moon a"])
    assert found.parts == 2 and found.text == f" {alone[0].text} {alone[1].text}"
    for name in ("log_probability", "length"):
        total = sum(getattr(part.candidates[0], name) for part in alone)
        assert getattr(found.candidates[0], name) == pytest.approx(total)


@pytest.mark.parametrize("lost", ["\u200b", "\x00", "\u00ad"])
def test_a_part_that_shows_nothing_takes_no_line_with_it(tokenizer: Tokenizer, lost: str) -> None:
    """Characters that are no text may be more than a part of a long line."""
    ours = translator(tokenizer, max_source_tokens=6)
    texts = ours.translate(["moon" * 8, "ein"])
    found = ours.translate([f"{'moon' * 8}{lost * 99}", f"{lost * 99}{'moon' * 8}{lost * 99}ein", lost * 99, "ein"])
    assert [bool(line.text) for line in found] == [True, True, False, True]
    assert found[0].source_length == texts[0].source_length and found[0].cut_to is None
    assert found[2] == EMPTY and found[3].text == texts[1].text


@pytest.mark.parametrize("keys", [{}, {"split_sentences": True}, {"max_source_tokens": 6}], ids=str)
def test_alignments_of_whole_lines_and_of_parts(tokenizer: Tokenizer, keys: dict[str, object]) -> None:
    lines = [LONG, *LINES, f" {LONG} "]
    ours = translator(tokenizer, **keys)
    found = ours.translate(lines, align=True)
    for line, translation in zip(lines, found, strict=True):
        links = [tuple(map(int, link.split("-"))) for link in translation.alignment.split()]
        words, made = len(line.split()), len(translation.text.split())
        assert {target for _, target in links} == set(range(made))
        assert all(source < words for source, _ in links)
    assert [line.text for line in ours.translate(lines)] == [line.text for line in found]
    assert not any(line.alignment for line in ours.translate(lines))


def test_alignments_of_parts_are_those_of_each_alone(tokenizer: Tokenizer) -> None:
    ours, sentences = translator(tokenizer, split_sentences=True), ["Two  dogs bark.", "Ein Hund!", "Moon moon.", "A"]
    (found,) = ours.translate(["\t".join(sentences)], align=True)
    expected, sources, targets = [], 0, 0
    for sentence, alone in zip(sentences, ours.translate(sentences, align=True), strict=True):
        links = (map(int, link.split("-")) for link in alone.alignment.split())
        expected += [f"{source + sources}-{target + targets}" for source, target in links]
        sources, targets = sources + len(sentence.split()), targets + len(alone.text.split())
    assert found.alignment.split() == expected and expected


def test_attention_of_long_lines_is_held_for_few_at_a_time(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    original = translator_module.cross_attention

    def watched(model: Transformer, source: Tensor, target: Tensor, layer: int) -> Tensor:
        sizes.append(source.shape)
        return original(model, source, target, layer)

    monkeypatch.setattr(translator_module, "cross_attention", watched)
    lines = ["two dogs bark at the moon " * 5, "moon " * 12, *LINES]
    small, large = (translator(tokenizer, batch_tokens=tokens) for tokens in (20, 8000))
    found = small.translate(lines, align=True)
    assert all(count == 1 or count * (length - 1) <= 20 for count, length in sizes) and len(sizes) > 3
    assert [line.alignment for line in found] == [line.alignment for line in large.translate(lines, align=True)]
    assert max(count for count, _ in sizes) == 7


def test_unknown_source_pieces_are_counted(tokenizer: Tokenizer) -> None:
    assert [found.unknown for found in translator(tokenizer).translate(["ein 語 Hund", "ein"])] == [1, 0]


def test_weights_that_are_no_numbers(tokenizer: Tokenizer) -> None:
    ours = translator(tokenizer)
    with torch.no_grad():
        for parameter in ours.models[0].parameters():
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
    model = translator(tokenizer).models[0]
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    name = next(iter(tensors))
    with pytest.raises(UserError, match="has shape"):
        load_weights(model, {**tensors, name: tensors[name][:1]}, Path("here"))
    with pytest.raises(UserError, match=f"here lacks {name}"):
        load_weights(model, {key: value for key, value in tensors.items() if key != name}, Path("here"))


def test_a_batch_without_memory_is_halved_until_it_fits(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, sizes = translator(tokenizer), []
    expected = ours.translate(LINES)
    original = StepDecoder.step

    def small(self: StepDecoder, tokens: Tensor, rows: Tensor | None) -> Tensor:
        sizes.append(len(tokens))
        if len(tokens) > room and len(sizes) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(self, tokens, rows)

    monkeypatch.setattr(StepDecoder, "step", small)
    room = 2
    found = ours.translate(LINES)
    assert [line.text for line in found] == [line.text for line in expected]
    assert max(sizes) == 5 and max(sizes[2:]) == 2
    room = 0
    with pytest.raises(torch.OutOfMemoryError):
        ours.translate(LINES)
