"""The tokenizer.json that is made of a SentencePiece model cuts and writes text as our tokenizer does."""

import io
import random
import sys
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from transformer_mt.data.clean import normalize
from transformer_mt.data.model_file import read_model
from transformer_mt.data.tokenizer import EOS, PAD, UNK, Tokenizer
from transformer_mt.errors import UserError
from transformer_mt.export import fast_tokenizer
from transformer_mt.export.fast_tokenizer import equally_good, limits, obstacles, write_tokenizer
from transformer_mt.export.proof import SENTENCES

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

HARD = [
    "", " ", "  two  blanks  ", "\ta tab\tand\nlines\r\n", "</s>", "a</s>b <pad> <s> <unk>", "<0x41><0xFF>",
    "<ctl> <sep>", "a<sep>b<sep><sep>", "<sep>", "<se<sep", "☃x<sep>☃", "<sep></s><sep><0x41>",
    "__x__x__ y,x", "▁", "▁▁a ▁b▁", "☃☃ ☃a☃", "\u0301½", "👍🏽👩\u200d👧", "中文、日本語。한국어",
    "cafe\u0301 e\u0301\u0323", "a\u200bb\u200d \u200dc", "q\u200d\u0301", "\u200d\u200ca",
    "x\u0301\u200d\u0591\u200dy", "\ufeffa\u00a0b\u2028c\u3000d", "a\x00b\x85c\x1cd\x01\x02\x03", "½ ² ﬁ Ａ１ …",
    "ｶﾞ ﾊﾟ", "ª\u0303 º\u0301 ²\u0301", "ß İ ẞ ǆ", "x" * 300, "." * 77, "10000000 000", "\U0010ffff \ufdd0",
    "\ufffd", "K\u212b", "א\u05b7ב العربية हिन्दी",
]  # fmt: skip


def corpus() -> list[str]:
    """A few hundred lines: the words of the sentences in other orders."""
    generator = random.Random(1)
    words = [word for sentence in SENTENCES for word in sentence.split()]
    return [*SENTENCES, *(" ".join(generator.choices(words, k=generator.randint(1, 12))) for _ in range(400))]


def strange_lines(count: int, lines: list[str]) -> list[str]:
    """Hard strings, the lines themselves, lines with a hard string inside, and characters drawn from all of them."""
    generator = random.Random(2)
    characters = [character for line in lines for character in line] + [c for text in HARD for c in text[:40]] * 5
    result = [*HARD, *lines]
    for _ in range(count):
        line = generator.choice(lines)
        place = generator.randrange(len(line))
        result.append(line[:place] + generator.choice(HARD) + line[place:])
        result.append("".join(generator.choices(characters, k=generator.randint(1, 40))))
    return result


def learned(folder: Path, lines: list[str] | None = None, **keys: Any) -> Tokenizer:
    """A tokenizer learned with SentencePiece's own options."""
    model = io.BytesIO()
    options = {
        "vocab_size": 500, "hard_vocab_limit": False, "model_type": "bpe", "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False, "character_coverage": 0.99, "pad_id": 0, "unk_id": 1, "bos_id": 2,
        "eos_id": 3, "minloglevel": 2, "num_threads": 1,
    }  # fmt: skip
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([normalize(line) for line in lines or corpus()]),
        model_writer=model,
        **{**options, **keys},
    )
    (folder / "spm.model").write_bytes(model.getvalue())
    return Tokenizer(folder)


def exported(tokenizer: Tokenizer, folder: Path, unknown_marker: str = "⁇") -> Any:
    assert obstacles(tokenizer) == []
    write_tokenizer(tokenizer, folder, 512, unknown_marker)
    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


KINDS: dict[str, dict[str, Any]] = {
    "bpe": {},
    "bpe, bytes": {"byte_fallback": True},
    "bpe, blanks folded": {"remove_extra_whitespaces": True, "control_symbols": ["<ctl>"]},
    "bpe, bytes, no blank before": {"byte_fallback": True, "add_dummy_prefix": False},
    "bpe, nmt_nfkc": {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True},
    "bpe, bytes, nfkc": {"byte_fallback": True, "normalization_rule_name": "nfkc"},
    "bpe, nmt_nfkc_cf": {"normalization_rule_name": "nmt_nfkc_cf"},
    "bpe, symbols": {"user_defined_symbols": ["<sep>", "<se", "committee", "e", "☃", "__x__", "y,x"]},
    "bpe, bytes, symbols": {"byte_fallback": True, "user_defined_symbols": ["<sep>", "☃x", "</s", "report"]},
    "unigram": {"model_type": "unigram"},
    "unigram, bytes": {"model_type": "unigram", "byte_fallback": True},
    "unigram, symbols": {
        "model_type": "unigram", "user_defined_symbols": ["<sep>", "☃x", "e"], "control_symbols": ["<ctl>"],
    },
    "unigram, bytes, symbols": {
        "model_type": "unigram", "byte_fallback": True, "user_defined_symbols": ["<sep>", "☃", "report"],
    },
    "unigram, bytes, nmt_nfkc": {
        "model_type": "unigram", "byte_fallback": True, "normalization_rule_name": "nmt_nfkc",
        "remove_extra_whitespaces": True, "add_dummy_prefix": False,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_text_are_ours(kind: str, tmp_path: Path) -> None:
    keys = KINDS[kind]
    ours = learned(tmp_path, **keys)
    theirs = exported(ours, tmp_path)
    assert len(theirs) == ours.source_size
    lines = strange_lines(400, corpus())
    if "nfkc" in kind:  # what is said to be another way
        lines = [line for line in lines if "ﬁ" not in line and "\u0301" not in line]
    rounded = 0
    for line, wanted in zip(lines, ours.encode_source(lines), strict=True):
        ids = theirs(line)["input_ids"]
        if ids != [*wanted, EOS]:
            assert keys.get("model_type") == "unigram" and ids[-1] == EOS and equally_good(ours, wanted, ids[:-1]), line
            rounded += 1
        assert theirs.decode(ids, skip_special_tokens=True) == ours.decode(wanted), line
    assert rounded <= len(lines) / 100


@pytest.mark.parametrize(
    "kind", ["bpe", "bpe, blanks folded", "bpe, bytes, no blank before", "bpe, symbols", "unigram, symbols"]
)
def test_any_pieces_are_written_as_ours(kind: str, tmp_path: Path) -> None:
    """Unknown pieces, blanks in odd places, special pieces; bytes of whole characters."""
    ours = learned(tmp_path, **KINDS[kind])
    theirs = exported(ours, tmp_path, "[?]")
    generator = random.Random(3)
    blank = ours.source_pieces().index("▁")
    first = 4 if "bytes" not in kind else 4 + 256
    newline = [4 + 10] if "bytes" in kind else []
    for _ in range(2000):
        draw = [UNK, blank, *newline, *(generator.randrange(first, ours.source_size) for _ in range(4)), EOS, PAD]
        ids = generator.choices(draw, k=generator.randint(0, 7))
        assert theirs.decode(ids, skip_special_tokens=True) == ours.decode(ids, "[?]"), ids


def test_bytes_of_no_character_are_written(tmp_path: Path) -> None:
    ours = learned(tmp_path, byte_fallback=True)
    theirs = exported(ours, tmp_path)
    ids = ours.encode_source(["a☃b"])[0]
    (snowman,) = [place for place, token in enumerate(ids) if token == 4 + 0xE2]
    for part in (ids[: snowman + 2], [*ids[: snowman + 1], *ids[snowman + 3 :]]):
        assert theirs.decode(part) == ours.decode(part) and "\ufffd" in theirs.decode(part)


def test_cleaning_is_ours_for_every_character(tmp_path: Path) -> None:
    ours = learned(tmp_path, add_dummy_prefix=False)
    write_tokenizer(ours, tmp_path, 512)
    normalizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).normalizer
    for number in range(0x11000):
        character = chr(number)
        if 0xD800 <= number < 0xE000:
            continue
        lines = [f"{character}x", f"x{character}\u200d{character}"]
        if unicodedata.combining(character) == unicodedata.ucd_3_2_0.combining(character):  # later marks are a limit
            lines.append(f"e\u0301\u200d{character}\u0323 ")
        for line in lines:
            assert normalizer.normalize_str(line).replace("▁", " ") == normalize(line).replace("▁", " "), ascii(line)


@pytest.mark.parametrize("bytes_too", [False, True])
def test_special_pieces_in_a_text_are_text_where_their_characters_are_unknown(tmp_path: Path, bytes_too: bool) -> None:
    lines = ["ab ba aab bba abab", "a b ab"] * 50
    ours = learned(tmp_path, lines, model_type="unigram", vocab_size=300 if bytes_too else 12, byte_fallback=bytes_too)
    assert not {"<", "/", ">", "s"} & {*ours.source_pieces()}
    theirs = exported(ours, tmp_path)
    for line in ("</s>", "a </s>b", "<pad><unk>", "<0x41>", "<s>☃<s>", "☃</s>☃"):
        assert theirs(line)["input_ids"] == [*ours.encode_source([line])[0], EOS]


def test_lines_are_padded_and_too_long_ones_told(tmp_path: Path) -> None:
    theirs = exported(learned(tmp_path), tmp_path)
    batch = theirs(["a b c", "a"], padding=True)
    assert batch["input_ids"][1][-1] == PAD and batch["attention_mask"][1][-1] == 0 and set(batch) == {
        "input_ids", "attention_mask",
    }  # fmt: skip
    assert theirs.model_max_length == 512 and (theirs.pad_token_id, theirs.eos_token_id) == (PAD, EOS)


def test_the_limits_are_told(tmp_path: Path) -> None:
    told = {name: len(limits(learned(tmp_path, **keys))) for name, keys in KINDS.items()}
    assert told["bpe"] == 1 and told["unigram"] == 2 and told["unigram, bytes, nmt_nfkc"] == 3
    assert told["bpe, symbols"] == 2 and "<sep> is one control" in limits(learned(tmp_path, **KINDS["bpe, symbols"]))[1]
    ours = learned(tmp_path, model_type="unigram")
    right = ours.encode_source(["a report"])[0]
    assert equally_good(ours, right, right) and not equally_good(ours, right, right[:-1])
    assert not equally_good(ours, right, [*ours.encode_source([" ".join("report")])[0]])


# What cannot be expressed


def test_two_models_are_refused(tmp_path: Path) -> None:
    learned(tmp_path)
    (tmp_path / "spm.model").rename(tmp_path / "source.model")
    learned(tmp_path, vocab_size=300)
    (tmp_path / "spm.model").rename(tmp_path / "target.model")
    (reason,) = obstacles(Tokenizer(tmp_path))
    assert "source.model and target.model are two models" in reason


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"model_type": "word"}, "found a word model"),
        ({"model_type": "char"}, "found a character model"),
        ({"user_defined_symbols": ["<sep>"], "normalization_rule_name": "nfkc"}, "user-defined symbols, '<sep>'"),
        ({"user_defined_symbols": ["<sep", "p>", "sep>"]}, "that may overlap in a text, 'p>', 'sep>'"),
        ({"user_defined_symbols": [f"<{n}>" for n in range(200)], "vocab_size": 900}, "found 200 user-defined symbols"),
        ({"control_symbols": ["|"]}, "special pieces of one character, '|'"),
        ({"user_defined_symbols": ["\x02", "\x04"]}, "pieces with control characters, '\\x02', '\\x04'"),
        ({"treat_whitespace_as_suffix": True}, "treat_whitespace_as_suffix: found true"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_differs_is_refused(tmp_path: Path, keys: dict[str, Any], told: str) -> None:
    reasons = obstacles(learned(tmp_path, **keys))
    assert any(told in reason for reason in reasons) and all(reason.startswith("spm.model: ") for reason in reasons)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda model: replace(model, types=[*model.types[:-1], 5]), "marked as unused"),
        (lambda model: replace(model, pieces=[*model.pieces[:-1], "☃x"]), "no piece itself, '☃x'"),
        (lambda model: replace(model, escapes_blanks=False), "escape_whitespaces: found false"),
        (lambda model: replace(model, changes_output=True), "decoded text"),
        (lambda model: replace(model, scores=[0.0] * len(model.scores)), "pieces of equal score"),
    ],
    ids=["unused", "lone", "blanks", "output", "scores"],
)
def test_what_a_trainer_never_writes_is_refused_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any], told: str
) -> None:
    ours = learned(tmp_path)
    monkeypatch.setattr(fast_tokenizer, "read_model", lambda content: change(read_model(content)))
    (reason,) = obstacles(ours)
    assert told in reason


def test_a_normalisation_of_ones_own_is_tried_on_every_character(tmp_path: Path) -> None:
    rules = tmp_path / "rules.tsv"
    rules.write_text("41\t62\n")  # A becomes b
    ours = learned(tmp_path, normalization_rule_tsv=str(rules))
    assert exported(ours, tmp_path)("A")["input_ids"] == [*ours.encode_source(["b"])[0], EOS]
    rules.write_text("41\t65 301\n")  # e and an accent, which stay two characters
    (reason,) = obstacles(learned(tmp_path, normalization_rule_tsv=str(rules)))
    assert "is not that of tokenizers for 1 characters, such as 'A'" in reason


def test_all_reasons_are_told_at_once(tmp_path: Path) -> None:
    keys = {"user_defined_symbols": ["☃x", "x☃"], "control_symbols": ["|"], "treat_whitespace_as_suffix": True}
    assert len(obstacles(learned(tmp_path, **keys))) == 3


def test_a_missing_library_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = learned(tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match=r"pip install 'transformer-mt\[huggingface\]'"):
        write_tokenizer(ours, tmp_path, 512)


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({}, (0, True, False, True, False)),
        ({"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True}, (1, True, True, True, False)),
        ({"add_dummy_prefix": False, "treat_whitespace_as_suffix": True}, (0, False, False, True, True)),
    ],
)
def test_the_rules_are_read_from_the_file(tmp_path: Path, keys: dict[str, Any], found: tuple[object, ...]) -> None:
    model = read_model(learned(tmp_path, **keys).models[0].serialized_model_proto())
    flags = model.adds_blank, model.folds_blanks, model.escapes_blanks, model.blank_behind
    assert (min(1, len(model.character_map)), *flags) == found and not model.changes_output
