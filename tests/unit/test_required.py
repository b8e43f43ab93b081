"""Terms and kept texts through the translator: what is required is in the output, or the translation says it is not."""

import re
from collections import Counter
from pathlib import Path

import pytest
import sentencepiece
import torch

from tests.unit import test_translator
from transformer_mt.config import Tokenizer as Settings
from transformer_mt.data.tokenizer import BOS, EOS, PAD, UNK, Tokenizer, learn
from transformer_mt.decode.terms import Finder, Term, compiled
from transformer_mt.decode.translator import Translation, Translator

TEXT = ["ein Hund bellt", "two dogs bark at the moon", "<b>moon</b> {x} and <i>ein</i>", "a moon; {name} at <b>the</b>"]
KEPT = compiled(["tags", "placeholders"])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    keys = {"vocabulary_size": 90, "vocabulary_limit": "soft", "byte_fallback": False}
    (folder / "spm.model").write_bytes(learn(TEXT * 5, 20, Settings.model_validate(keys), 1).model)
    return Tokenizer(folder)


def translator(tokenizer: Tokenizer, model: dict[str, object] | None = None, **keys: object) -> Translator:
    """One whose outputs are lively, and never what is required without being made so."""
    ours = test_translator.translator(tokenizer, {"output_bias": True, **(model or {})}, **keys)
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in ours.models[0].eval().parameters():
            parameter.mul_(1.5).add_(0.2 * torch.randn_like(parameter))
        for number, piece in enumerate(tokenizer.target_pieces()):
            if re.search("[<>{}/]|moon", piece):
                ours.models[0].output_bias[number] = -15.0
    return ours


def translated(ours: Translator, line: str, terms: dict[str, str] | None = None, **keys) -> Translation:
    finder = Finder([Term(*pair) for pair in (terms or {}).items()], KEPT)
    return ours.translate([line], required=finder, **keys)[0]


@pytest.mark.parametrize("beam_size", [1, 4])
def test_kept_texts_come_as_often_as_they_are_there(tokenizer: Tokenizer, beam_size: int) -> None:
    ours = translator(tokenizer, beam_size=beam_size)
    for line in (*TEXT, "<b>a</b> <b>a</b> {x}{x} {x}", "{x}", "<i><b>a</b></i>"):
        texts = [found.group() for pattern in KEPT for found in pattern.finditer(line)]
        found = translated(ours, line)
        assert found.missing == ()
        assert all(found.text.count(text) >= count for text, count in Counter(texts).items())
        assert not texts or found.text != ours.translate([line])[0].text


def test_scores_are_those_of_forced_decoding(tokenizer: Tokenizer) -> None:
    ours = translator(tokenizer, n_best=3)
    for item in translated(ours, TEXT[2]).candidates:
        (forced,) = ours.score([TEXT[2]], [item.text])
        if forced.length == item.length:  # else the search took other pieces for this text
            assert forced.log_probability == pytest.approx(item.log_probability, abs=1e-9)
        else:
            assert forced.length < item.length


def test_a_model_that_glues_gets_its_tags_without_blanks(tokenizer: Tokenizer) -> None:
    ours = translator(tokenizer)
    with torch.no_grad():
        for number, piece in enumerate(tokenizer.target_pieces()):
            if piece.startswith("▁"):
                ours.models[0].output_bias[number] = -40.0
    found = translated(ours, "<b>ein</b> {x}")
    assert found.missing == () and " " not in found.text


def test_a_term_becomes_its_target(tokenizer: Tokenizer) -> None:
    ours, terms = translator(tokenizer), {"Hund": "moon", "bark at": "two dogs"}
    for line, texts in (("ein Hund", ["moon"]), ("Hund Hund", ["moon"] * 2), ("Hund bark at", ["moon", "two dogs"])):
        text = translated(ours, line, terms).text.lower()  # a term may begin a sentence
        assert all(text.count(target) >= texts.count(target) for target in texts)
        assert "moon" not in ours.translate([line])[0].text


def test_a_term_is_a_word_of_its_own(tokenizer: Tokenizer) -> None:
    for size in (1, 2, 4, 6):
        ours = translator(tokenizer, beam_size=size)
        for line in ("ein Hund bellt", "Hund", "two dogs bark", "a moon Hund at"):
            assert translated(ours, line, {"Hund": "a", "dogs": "the moon", "moon": "ein"}).missing == ()


def test_what_the_vocabulary_lacks_is_told_and_costs_nothing_else(tokenizer: Tokenizer) -> None:
    ours = translator(tokenizer)
    found = translated(ours, "ein Hund {x}", {"Hund": "日本", "ein": "moon"})
    assert "日本" in found.missing and "moon" in found.text and "{x}" in found.text
    assert translated(ours, "Hund", {"Hund": "日本"}).text == ours.translate(["Hund"])[0].text
    assert ours.tokenizer.ways_to_write("日本") == ours.tokenizer.ways_to_write("moon 日") == []


def test_room_is_made_for_what_is_required(tokenizer: Tokenizer) -> None:
    """More pieces than the limit would let; and more than the model has positions, which it survives."""
    long = {"Hund": "two dogs bark at the moon"}
    free = translator(tokenizer, max_length={"factor": 0, "extra": 1})
    assert long["Hund"] in translated(free, "Hund", long).text.lower()
    few = translator(tokenizer, {"positions": "learned", "max_positions": 5})
    found = translated(few, "Hund", long)
    assert found.missing == (long["Hund"],) and found.candidates[0].length <= 5
    assert translated(few, "Hund", {"Hund": "moon"}).text.count("moon") == 1


def test_each_sentence_holds_its_own(tokenizer: Tokenizer) -> None:
    ours = translator(tokenizer, split_sentences=True)
    found = translated(ours, "ein {x} bellt. Two dogs bark. At <b>the</b> moon.")
    parts = [ours.translate(["Two dogs bark."])[0].text]
    assert found.parts == 3 and found.missing == () and parts[0] in found.text
    assert found.text.index("{x}") < found.text.index(parts[0]) < found.text.index("<b>")
    lacking = translated(ours, "Hund. Two dogs. Hund.", {"Hund": "日本"})
    assert lacking.missing == ("日本",) * 2


def test_lines_without_requirements_are_translated_as_ever(tokenizer: Tokenizer) -> None:
    ours = translator(tokenizer, n_best=2)
    lines = ["two dogs bark", "ein {x}", "a", "", "<b>moon</b> {x} {name}"]
    found = ours.translate(lines, required=Finder([], KEPT))
    for line, translation in zip(lines, found, strict=True):
        if not any(pattern.search(line) for pattern in KEPT):
            (alone,) = ours.translate([line])
            assert [item.text for item in translation.candidates] == [item.text for item in alone.candidates]
            scores = [item.score for item in alone.candidates]
            assert [item.score for item in translation.candidates] == pytest.approx(scores, abs=1e-9)


def test_lines_with_requirements_do_not_depend_on_their_company(tokenizer: Tokenizer) -> None:
    ours = translator(tokenizer, n_best=2)
    lines = ["{x} ein Hund", "<b>moon</b> {x} {name} <i>a</i>", "two {x} dogs bark", "a <b>b</b>"]
    finder = Finder([], KEPT)
    alone = [ours.translate([line], required=finder)[0] for line in lines]
    for one, other in zip(ours.translate(lines, required=finder), alone, strict=True):
        assert [item.text for item in one.candidates] == [item.text for item in other.candidates]


def test_the_beginning_of_a_translation_may_be_given_as_well(tokenizer: Tokenizer) -> None:
    found = translator(tokenizer).translate(["ein {x}"], prefixes=["two dogs"], required=Finder([], KEPT))[0]
    assert found.text.startswith("two dogs") and "{x}" in found.text


def test_what_was_cut_off_is_not_required(tokenizer: Tokenizer) -> None:
    kept = "ein ë {x}"  # a character that the vocabulary lacks is read all the same
    room = len(tokenizer.encode_source([kept])[0])
    cut = translator(tokenizer, long_lines="cut", max_source_tokens=room)
    found = translated(cut, f"{kept} moon <b>the</b>")
    assert found.cut_to == room and "{x}" in found.text and found.missing == ()
    assert "<b>" not in found.text and found.candidates == translated(cut, kept).candidates


@pytest.mark.parametrize("text", ["moon", "a", "two dogs", "<b>", "</b>", "{x}", "at the <b>moon</b>", "ark"])
def test_ways_to_write_a_text(tokenizer: Tokenizer, text: str) -> None:
    """After a blank, and without one, whatever stands before."""
    before = tokenizer.encode_target(["ein"])[0]
    ways = tokenizer.ways_to_write(text)
    assert [tokenizer.decode([*before, *way]) for way in ways] == [f"ein {text}", f"ein{text}"]


def test_no_way_is_found_for_what_is_no_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.ways_to_write("") == tokenizer.ways_to_write(" \u200b") == []


def test_ways_of_a_model_that_puts_no_blank_before_a_line(tmp_path: Path) -> None:
    """And of one that has no blank at all."""
    for text, ways in ((TEXT, ["ein moon", "einmoon"]), (["einmoon", "moonein"], ["einmoon"])):
        with (tmp_path / "spm.model").open("wb") as file:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(text * 5), model_writer=file, vocab_size=90, hard_vocab_limit=False,
                model_type="bpe", add_dummy_prefix=False, remove_extra_whitespaces=False, minloglevel=2,
                pad_id=PAD, unk_id=UNK, bos_id=BOS, eos_id=EOS,
            )  # fmt: skip
        theirs = Tokenizer(tmp_path)
        before = theirs.encode_target(["ein"])[0]
        assert [theirs.decode([*before, *way]) for way in theirs.ways_to_write("moon")] == ways
        assert theirs.ways_to_write("") == theirs.ways_to_write("語") == []
