"""Text to ids and back with SentencePiece."""

import random
from pathlib import Path

import pytest
import sentencepiece

from transformer_mt.config import Tokenizer as Settings
from transformer_mt.data.tokenizer import BOS, EOS, PAD, UNK, Tokenizer, learn, load_model
from transformer_mt.errors import UserError

TEXT = ["½ und ¼ … ² ™", "日本 und 中国", "ein Hund bellt", "two dogs bark", "Grüße an alle"] * 20


def settings(**keys: object) -> Settings:
    return Settings.model_validate(
        {"vocabulary_size": 320, "vocabulary_limit": "soft", "character_coverage": 1, **keys}
    )


def tokenizer(folder: Path, lines: list[str] = TEXT, **keys: object) -> Tokenizer:
    (folder / "spm.model").write_bytes(learn(lines, len(lines), settings(**keys), 1).model)
    return Tokenizer(folder)


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_identity_comes_back(tmp_path: Path, algorithm: str) -> None:
    ours = tokenizer(tmp_path, algorithm=algorithm)
    for line in {*TEXT, "½ … ² ™"}:
        assert ours.decode(ours.encode_source([line])[0]) == line


def test_normalization_is_a_key(tmp_path: Path) -> None:
    ours = tokenizer(tmp_path, normalization="nmt_nfkc")
    one, other = ours.encode_source(["a … b", "a ... b"])
    assert one == other
    (tmp_path / "plain").mkdir()
    plain = tokenizer(tmp_path / "plain", normalization="identity")
    one, other = plain.encode_source(["a … b", "a ... b"])
    assert one != other


def test_bytes_stand_in_for_what_is_rare(tmp_path: Path) -> None:
    ours = tokenizer(tmp_path, byte_fallback=True)
    (ids,) = ours.encode_source(["a 語 b"])
    assert UNK not in ids and ours.decode(ids) == "a 語 b"
    model = load_model(tmp_path / "spm.model")
    broken = [model.piece_to_id("▁a"), model.piece_to_id("<0xE6>")]
    assert ours.decode([model.piece_to_id("<0xE6>")]) == "\ufffd"
    assert ours.decode(broken).endswith("\ufffd")


def test_output_holds_no_line_break(tmp_path: Path) -> None:
    ours = tokenizer(tmp_path, byte_fallback=True)
    model = load_model(tmp_path / "spm.model")
    for text in ("\n", "\r", "\u2028", "\u2029", "\x85", "\x0b", "\x0c"):
        ids = [model.piece_to_id(f"<0x{byte:02X}>") for byte in text.encode()]
        decoded = ours.decode([*ids, *ours.encode_target(["bellt"])[0]])
        assert len(decoded.splitlines()) == 1 and "bellt" in decoded


def test_text_never_makes_a_special_id(tmp_path: Path) -> None:
    ours = tokenizer(tmp_path)
    for line in ("a </s> b", "<s>", "<pad> <unk>", "</s>", "\x02"):
        assert not {PAD, BOS, EOS} & set(ours.encode_source([line])[0])
    one, two, three = ours.encode_source(["a\tb", "a  b ", "a\u2028b"])
    assert one == two == three
    assert ours.encode_source(["", " \t\u3000"]) == [[], []]


def test_unknown_pieces_have_a_marker(tmp_path: Path) -> None:
    ours = tokenizer(tmp_path, byte_fallback=False)
    (ids,) = ours.encode_source(["Hund"])
    assert ours.decode([UNK, *ids], "[?]") == "[?] Hund"
    assert ours.decode([*ids, UNK], "[?]") == "Hund [?]"
    assert ours.encode_source(["語"])[0].count(UNK) == 1


def test_sampling_is_bounded_even_and_told() -> None:
    lines = [f"line {number:05d}" for number in range(4000)]
    learned = learn(lines, 4000, settings(sample_lines=1000, byte_fallback=False), 1)
    assert learned.lines == 4000 and 850 < learned.sampled < 1150
    again = learn(lines, 4000, settings(sample_lines=1000, byte_fallback=False), 1)
    assert again.model == learned.model
    assert Settings().sample_lines == 4_000_000


def test_rare_options_are_explained() -> None:
    with pytest.raises(UserError, match=r"tokenizer.vocabulary_size: found 9, too small"):
        learn(TEXT, len(TEXT), settings(vocabulary_size=9, byte_fallback=False), 1)
    with pytest.raises(UserError, match=r"at most \d+ pieces"):
        learn(TEXT, len(TEXT), settings(vocabulary_size=5000, vocabulary_limit="hard"), 1)
    with pytest.raises(UserError, match="training text is empty"):
        learn([], 0, settings(), 1)


def test_special_ids_are_ours(tmp_path: Path) -> None:
    processor = load_model(tokenizer(tmp_path).files[0])
    assert isinstance(processor, sentencepiece.SentencePieceProcessor)
    assert [processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()] == [0, 1, 2, 3]


def test_learning_is_repeatable() -> None:
    generator = random.Random(1)
    lines = ["".join(generator.choices("abcdef ", k=30)) for _ in range(300)]
    for algorithm in ("bpe", "unigram"):
        models = [learn(lines, 300, settings(algorithm=algorithm, byte_fallback=False), 1).model for _ in range(2)]
        assert models[0] == models[1]
