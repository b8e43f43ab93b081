"""Text to ids and back with SentencePiece."""

import io
import json
import random
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from transformer_mt.config import Tokenizer as Settings
from transformer_mt.data.model_file import USER_DEFINED, read_model
from transformer_mt.data.tokenizer import (
    BOS,
    EOS,
    PAD,
    SPECIAL_PIECES,
    UNK,
    VOCABULARY,
    Tokenizer,
    learn,
    load_model,
    missing_symbols,
    read_processor,
    symbol_problems,
    write_vocabulary,
)
from transformer_mt.errors import UserError

TEXT = ["½ und ¼ … ² ™", "日本 und 中国", "ein Hund bellt", "two dogs bark", "Grüße an alle"] * 20


def settings(**keys: object) -> Settings:
    return Settings.model_validate(
        {"vocabulary_size": 320, "vocabulary_limit": "soft", "character_coverage": 1, **keys}
    )


def tokenizer(
    folder: Path, lines: list[str] = TEXT, *, symbols: tuple[str, ...] = (), name: str = "spm", **keys: object
) -> Tokenizer:
    (folder / f"{name}.model").write_bytes(learn(lines, len(lines), settings(**keys), 1, symbols).model)
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


def options_given(monkeypatch: pytest.MonkeyPatch, lines: list[str], **keys: object) -> dict[str, Any]:
    """What SentencePiece is given to learn from these lines, the lines among it."""
    given: dict[str, Any] = {}

    def train(*, sentence_iterator: Any, model_writer: Any, **options: Any) -> None:
        given.update(options, lines=list(sentence_iterator))

    monkeypatch.setattr(sentencepiece.SentencePieceTrainer, "train", train)
    learn(lines, len(lines), Settings.model_validate(keys), 1)
    return given


def test_sampling_is_bounded_even_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"{side} {number:05d}" for side in ("source", "target") for number in range(2000)]
    learned = learn(lines, 4000, settings(sample_lines=1000, byte_fallback=False), 1)
    assert (learned.lines, learned.sampled) == (4000, 1000)
    again = learn(lines, 4000, settings(sample_lines=1000, byte_fallback=False), 1)
    assert again.model == learned.model
    drawn = options_given(monkeypatch, lines, sample_lines=1000)["lines"]
    assert len(drawn) == 1000 and 420 < sum(line.startswith("source") for line in drawn) < 580
    assert 420 < sum(int(line[-5:]) < 1000 for line in drawn) < 580


def test_by_default_a_few_million_lines_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    given = options_given(monkeypatch, ["a"])
    assert given["input_sentence_size"] == 4_000_000 and given["shuffle_input_sentence"] is True


def test_lines_that_are_too_long_are_counted() -> None:
    lines = [*TEXT, "ж" * 2200, "x" * 4192, "y" * 4193]
    learned = learn(lines, len(lines), settings(), 1)
    assert (learned.lines, learned.sampled, learned.too_long) == (103, 101, 2)


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


LEARNING = """
import hashlib, os, random, sys
os.cpu_count = lambda: int(sys.argv[1])
if hasattr(os, "process_cpu_count"):
    os.process_cpu_count = os.cpu_count
os.sched_getaffinity = lambda process: set(range(int(sys.argv[1])))
os.environ["OMP_NUM_THREADS"] = sys.argv[1]
from transformer_mt.config import Tokenizer
from transformer_mt.data.tokenizer import learn
generator = random.Random(1)
words = ["".join(generator.choices("abcdefghijklmnop", k=generator.randint(2, 9))) for _ in range(3000)]
weights = [1 / rank for rank in range(1, 3001)]
lines = [" ".join(generator.choices(words, weights, k=12)) for _ in range(4000)]
for algorithm in ("bpe", "unigram"):
    settings = Tokenizer(algorithm=algorithm, vocabulary_size=900, sample_lines=3000)
    print(algorithm, hashlib.sha256(learn(lines, len(lines), settings, 1, ["<bt>"]).model).hexdigest())
"""


def test_processors_change_nothing_that_is_learned() -> None:
    done = [
        subprocess.run([sys.executable, "-c", LEARNING, count], capture_output=True, text=True, timeout=300, check=True)
        for count in ("1", "2", "4")
    ]
    assert done[0].stdout.startswith("bpe ") and "unigram " in done[0].stdout
    assert done[0].stdout == done[1].stdout == done[2].stdout


# Symbols

SYMBOLS = ("<bt>", "<b", "__x__", "<a,b>", '"', "Hun", "日", "=")


@pytest.mark.parametrize("byte_fallback", [True, False])
@pytest.mark.parametrize("normalization", ["identity", "nmt_nfkc_cf"])
@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_a_symbol_is_one_piece_wherever_it_stands(
    tmp_path: Path, algorithm: str, normalization: str, byte_fallback: bool
) -> None:
    keys = {"algorithm": algorithm, "normalization": normalization, "byte_fallback": byte_fallback}
    text = [*TEXT, *(f"a{symbol} {symbol} {symbol}<b{symbol}x" for symbol in SYMBOLS)]
    ours = tokenizer(tmp_path, text, symbols=SYMBOLS, **keys)
    assert [ours.source_pieces().index(symbol) for symbol in SYMBOLS] == list(range(4, 12))
    generator = random.Random(1)
    for _ in range(300):
        parts = generator.choices([*SYMBOLS, " ", "ein", "unda", "bellt "], k=8)
        pieces = [ours.source_pieces()[number] for number in ours.encode_source(["".join(parts)])[0]]
        assert [p for p in pieces if p in SYMBOLS] == [part for part in parts if part in SYMBOLS]
        assert not any(symbol in piece for piece in pieces if piece not in SYMBOLS for symbol in SYMBOLS)


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_text_with_symbols_comes_back(tmp_path: Path, algorithm: str) -> None:
    ours = tokenizer(tmp_path, symbols=SYMBOLS, algorithm=algorithm, vocabulary_size=400)
    for line in ("<bt> ein Haus", "<bt>", "ein<bt>Haus <a,b>", '<bt> <bt><b "__x__" 日本', "Hunde = Hunn"):
        assert ours.decode(ours.encode_source([line])[0]) == line
    assert ours.source_text_pieces("<bt> ein Hund")[:2] == ["▁", "<bt>"]


def test_symbols_given_twice_are_one(tmp_path: Path) -> None:
    model = read_model(learn(TEXT, 100, settings(), 1, ["<bt>", "<x>", "<bt>"]).model)
    kinds = zip(model.pieces, model.types, strict=True)
    assert [piece for piece, kind in kinds if kind == USER_DEFINED] == ["<bt>", "<x>"]


@pytest.mark.parametrize(
    ("symbol", "told"),
    [
        *((piece, "a special piece") for piece in SPECIAL_PIECES),
        *((piece, "stands for a byte") for piece in ("<0x41>", "<0xFF>", "<0xaf>")),
        *((symbol, "without white space") for symbol in ("", "a b", "a\tb", "\u00a0", "\u3000x", "a\n")),
        *((symbol, "which stands for a blank") for symbol in ("▁", "▁a", "a▁b")),
        ("e\u0301", r"'e\\u0301'.*it is '\\xe9' there"),
        ("a\u200bb", r"'a\\u200bb'.*it is 'ab' there"),
        ("\u200b", r"it is '' there"),
    ],
)
def test_symbols_that_cannot_be_are_refused(symbol: str, told: str) -> None:
    with pytest.raises(UserError, match=rf"^tokenizer\.symbols and tags of sources: found .*{told}") as refused:
        learn(TEXT, 100, settings(), 1, ["<bt>", symbol])
    assert len(refused.value.messages) == 1 and symbol_problems(["<bt>"], settings()) == []


def test_all_that_is_wrong_with_symbols_is_told_at_once() -> None:
    symbols = ["<s>", "<0x00>", *(f"<{number}>" for number in range(99))]
    with pytest.raises(UserError) as refused:
        learn(TEXT, 100, settings(vocabulary_size=300), 1, symbols)
    assert len(refused.value.messages) == 3
    assert refused.value.messages[2] == (
        "tokenizer.vocabulary_size: found 300, too small for 4 special pieces, 256 bytes (tokenizer.byte_fallback) and "
        "101 of tokenizer.symbols and tags of sources"
    )
    assert symbol_problems(symbols[2:42], settings(vocabulary_size=300)) == []
    assert symbol_problems(symbols[2:], settings(vocabulary_size=103, byte_fallback=False)) == []
    [message] = symbol_problems(symbols[2:], settings(vocabulary_size=102, byte_fallback=False))
    assert "too small for 4 special pieces and 99 of tokenizer.symbols" in message
    [message] = symbol_problems([], settings(vocabulary_size=100))
    assert message.endswith("too small for 4 special pieces and 256 bytes (tokenizer.byte_fallback)")


def test_a_sample_smaller_than_the_library_takes() -> None:
    learned = learn(TEXT, len(TEXT), settings(sample_lines=5), 1)
    assert learned.sampled == 5


def test_symbols_that_leave_no_room_for_characters_are_told() -> None:
    symbols = [f"<{number}>" for number in range(30)]
    with pytest.raises(UserError, match=r"too small for the \d+ pieces .*, 30 of tokenizer.symbols and tags and"):
        learn(TEXT, 100, settings(vocabulary_size=35, byte_fallback=False), 1, symbols)


def test_symbols_that_a_given_model_lacks_are_found(tmp_path: Path) -> None:
    symbols = ("<bt>", "Hund", "<url>", "</s>", "bellt", "Grüße")
    plain = tokenizer(tmp_path, vocabulary_size=400)
    assert missing_symbols(tmp_path, symbols) == ["<bt>", "<url>", "</s>"]
    assert missing_symbols(load_model(plain.files[0]), [*symbols, "<bt>"]) == ["<bt>", "<url>", "</s>"]
    tokenizer(tmp_path, symbols=("<bt>",), vocabulary_size=400)
    assert missing_symbols(tmp_path, symbols) == ["<url>", "</s>"]


def test_tags_are_wanted_of_the_source_language_alone(tmp_path: Path) -> None:
    (tmp_path / "source.model").write_bytes(learn(TEXT, 100, settings(), 1, ["<bt>"]).model)
    tokenizer(tmp_path, name="target")
    assert missing_symbols(tmp_path, ["<bt>"]) == ["<bt>"]
    assert missing_symbols(tmp_path, ["<bt>"], target=False) == []


def test_an_unknown_piece_is_no_symbol(tmp_path: Path) -> None:
    tokenizer(tmp_path, ["ab ba"] * 20, byte_fallback=False, vocabulary_size=12)
    assert missing_symbols(tmp_path, ["<", "ab"]) == ["<"]


# A vocabulary of its own, as imported models have it


def foreign(
    folder: Path, lines: list[str] = TEXT, *, shared: bool = True, more: tuple[str, ...] = (), **keys: object
) -> Tokenizer:
    """Two models with SentencePiece's own ids, and a vocabulary that has their pieces in another order."""
    folder.mkdir(exist_ok=True)
    vocabularies = []
    for name in ("source", "target"):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=model, vocab_size=300, hard_vocab_limit=False, minloglevel=2,
            **keys,
        )  # fmt: skip
        (folder / f"{name}.model").write_bytes(model.getvalue())
        processor = read_processor(folder / f"{name}.model")
        assert (processor.unk_id(), processor.bos_id(), processor.eos_id()) == (0, 1, 2)
        vocabularies.append([processor.id_to_piece(number) for number in range(processor.get_piece_size())][:2:-1])
    if shared:
        vocabularies = [list(dict.fromkeys(chain(*vocabularies)))]
    write_vocabulary(folder / VOCABULARY, [[*SPECIAL_PIECES, *pieces, *more] for pieces in vocabularies])
    return Tokenizer(folder)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_a_vocabulary_says_which_piece_has_which_id(tmp_path: Path, algorithm: str, shared: bool) -> None:
    ours = foreign(tmp_path, shared=shared, model_type=algorithm)
    content = json.loads((tmp_path / VOCABULARY).read_text("utf-8"))
    assert ours.source_pieces() == content["shared" if shared else "source"]
    assert ours.target_pieces() == content["shared" if shared else "target"]
    assert (ours.source_size, ours.target_size) == (len(ours.source_pieces()), len(ours.target_pieces()))
    assert [path.name for path in ours.files] == ["source.model", "target.model", VOCABULARY]
    for line in TEXT:
        (ids,) = ours.encode_target([line])
        wanted = read_processor(tmp_path / "target.model").encode(line, out_type=str)
        assert ours.target_text_pieces(ids) == wanted and ours.decode(ids) == unicodedata.normalize("NFKC", line)
        (ids,) = ours.encode_source([line])
        pieces = ours.source_text_pieces(line)
        assert pieces == read_processor(tmp_path / "source.model").encode(line, out_type=str)
        assert ids == [ours.source_pieces().index(p) if p in ours.source_pieces() else UNK for p in pieces]
        assert ours.source_beginning(line, 2) == read_processor(tmp_path / "source.model").decode(pieces[:2])


def test_text_makes_no_special_id_of_a_vocabulary_either(tmp_path: Path) -> None:
    """SentencePiece gives a stretch of characters that it does not know as one piece."""
    ours = foreign(tmp_path, ["ein Hund", "am Mond", "bellt"] * 20)
    assert ours.source_text_pieces("</s>") == ["▁", "</s>"]
    for line in ("</s>", "<pad>", "<s> a", "<unk>", ">>deu<< ein", "語</s>語"):
        for (ids,) in (ours.encode_source([line]), ours.encode_target([line])):
            assert UNK in ids and not {PAD, BOS, EOS} & set(ids)
    assert ours.encode_source(["", "  "]) == [[], []] and ours.encode_source([]) == []


def test_pieces_that_one_model_lacks_are_joined_as_well(tmp_path: Path) -> None:
    ours = foreign(tmp_path, more=("▁Zürich", ">>deu<<"))
    place, (ids,) = ours.target_pieces().index("▁Zürich"), ours.encode_target(["ein Hund"])
    assert ours.decode([place, *ids, place]) == "Zürich ein Hund Zürich"
    assert ours.decode([place + 1, *ids]) == ">>deu<< ein Hund"


def test_a_piece_that_asks_for_a_language_is_no_text(tmp_path: Path) -> None:
    ours = foreign(tmp_path, more=(">>deu<<", ">>zh_Hans<<"))
    plain = ours.encode_source(["ein Hund"])[0]
    for line in (">>deu<< ein Hund", ">>deu<<ein Hund", " >>deu<<   ein Hund "):
        assert ours.encode_source([line]) == [[ours.source_pieces().index(">>deu<<"), *plain]]
    assert ours.source_language(" >>zh_Hans<< ein") == ">>zh_Hans<<"
    assert ours.source_language(">>nob<< ein") == ours.source_language("ein >>deu<<") == ""
    assert ours.source_beginning(">>zh_Hans<< ein Hund bellt", 99) == ">>zh_Hans<< ein Hund bellt"
    assert ours.source_beginning(">>zh_Hans<< ein Hund bellt", 1) == ">>zh_Hans<<"
    assert missing_symbols(tmp_path, [">>deu<<", ">>nob<<"]) == [">>nob<<"]


def test_words_can_be_written_with_a_vocabulary(tmp_path: Path) -> None:
    ours = foreign(tmp_path)
    ways = ours.ways_to_write("Hund")
    texts = ["".join(ours.target_text_pieces(way)) for way in ways]
    assert texts == ["▁Hund", "Hund"] and all(UNK not in way for way in ways)
    assert ours.decode([*ours.encode_target(["ein"])[0], *ways[0]]) == "ein Hund"
    assert ours.ways_to_write("語") == []


def test_a_vocabulary_that_is_none_is_told(tmp_path: Path) -> None:
    foreign(tmp_path)
    special = json.dumps(SPECIAL_PIECES)[1:-1]
    for text, told in {
        "": "is no JSON file",
        "[1]": "wanted the key shared, or the keys source and target",
        '{"source": []}': "wanted the key shared, or the keys source and target",
        '{"shared": [1]}': "shared is no list of pieces",
        '{"shared": ["<unk>", "<pad>", "<s>", "</s>", "a"]}': "shared begins with ",
        f'{{"source": [{special}, "a"], "target": [{special}, "b", "c", "b"]}}': "target has the piece 'b' twice",
    }.items():
        (tmp_path / VOCABULARY).write_text(text)
        with pytest.raises(UserError, match=told):
            Tokenizer(tmp_path)
    (tmp_path / VOCABULARY).unlink()
    with pytest.raises(UserError, match=r"source\.model has the special ids"):
        Tokenizer(tmp_path)


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), UserError("line 7 is no text")])
def test_what_the_lines_raise_is_no_refusal_of_sentencepiece(failure: BaseException) -> None:
    def lines() -> Iterator[str]:
        yield from ["a line"] * 50
        raise failure

    with pytest.raises(type(failure)) as raised:
        learn(lines(), 100, Settings(vocabulary_size=300), 1)
    assert raised.value is failure
