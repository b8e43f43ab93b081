"""Words of pieces, links from attention, and the links of parts joined."""

import io
import random

import numpy as np
import pytest
import sentencepiece

from transformer_mt.decode.alignment import joined, pharaoh, word_of_piece
from transformer_mt.decode.sentences import split


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([], []),
        (["▁Hal", "lo", "▁Welt"], [0, 0, 1]),
        (["Hal", "lo", "▁", "Welt", "▁"], [0, 0, -1, 1, -1]),
        (["▁", "▁▁", "a", "▁a▁b", "c"], [-1, -1, 0, 1, 2]),
        (["▁a", "<0xC3>", "<0xA4>", "▁b"], [0, 0, 0, 1]),
        (["a", "<0xC2>", "<0xA0>", "b"], [0, -1, -1, 1]),  # a no-break space
        (["a", "<0xE3>", "<0x80>", "<0x80>", "<0x62>"], [0, -1, -1, -1, 1]),  # an ideographic space
        (["a", "<0x09>", "b", "<0x20>"], [0, -1, 1, -1]),
        (["<0xE2>", "<0x96>", "<0x81>", "a"], [0, 0, 0, 0]),  # the bytes of ▁ are that character, no blank
        (["<0xC2>", "a", "<0xA0>", "▁<0x", "b"], [0, 0, 0, 1, 1]),  # halves of a character, and text
        (["a", "\u3000", "b\tc", "\u00a0d"], [0, -1, 1, 3]),
        (["▁Hal", "▁⁇▁", "lo"], [0, 1, 2]),
    ],
)
def test_the_words_of_pieces(pieces: list[str], words: list[int]) -> None:
    assert word_of_piece(pieces) == words


def test_bytes_are_text_without_byte_fallback() -> None:
    assert word_of_piece(["a", "<0x09>", "b"], byte_fallback=False) == [0, 0, 0]


TEXT = [
    "the dog barks at the cat",
    "der Hund bellt die Katze an",
    "ein Tier, zwei Tiere: 12 <0x09>",
    "two  blanks   here",
]
ODD = [*"aehtdr    \t\u00a0\u3000\u2003▁😀é語ß,.:<0x9>1", "the ", " Hund", "Tiere", "  ", "<0x09>", "\u0301"]


def learned(byte_fallback: bool, algorithm: str = "unigram") -> sentencepiece.SentencePieceProcessor:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT * 20), model_writer=model, vocab_size=340 if byte_fallback else 70, minloglevel=2,
        hard_vocab_limit=False, model_type=algorithm, byte_fallback=byte_fallback, remove_extra_whitespaces=False,
        normalization_rule_name="identity", num_threads=1,
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


@pytest.mark.parametrize(("byte_fallback", "algorithm"), [(True, "unigram"), (False, "unigram"), (True, "bpe")])
def test_words_are_those_of_the_decoded_text(byte_fallback: bool, algorithm: str) -> None:
    """In texts that people write and in what a model may make up."""
    model, rng = learned(byte_fallback, algorithm), random.Random(1)
    for _ in range(800):
        check(model, model.encode("".join(rng.choices(ODD, k=rng.randrange(25))), out_type=str), byte_fallback)
        ids = rng.choices(range(4, model.get_piece_size()), k=rng.randrange(25))
        check(model, [model.id_to_piece(number) for number in ids], byte_fallback)


def check(model: sentencepiece.SentencePieceProcessor, pieces: list[str], byte_fallback: bool) -> None:
    """A piece's last word is the last one of the text decoded so far."""
    found = word_of_piece(pieces, byte_fallback)
    assert len(found) == len(pieces)
    for place, (piece, word) in enumerate(zip(pieces, found, strict=True)):
        inner = len(piece.replace("▁", " ").split())
        so_far = model.decode_pieces(pieces[: place + 1])
        if byte_fallback and piece.startswith("<0x"):
            # As long as a character is not complete it is told by what it will be.
            if not so_far.endswith("\ufffd"):
                assert word == (-1 if so_far[-1:].isspace() else len(so_far.split()) - 1)
        else:
            assert word == (len(so_far.split()) - inner if inner else -1)
    if not any(len(piece.replace("▁", " ").split()) > 1 for piece in pieces):
        assert sorted(set(found) - {-1}) == list(range(len(model.decode_pieces(pieces).split())))


def test_each_target_word_links_to_its_strongest_source_word() -> None:
    source = [*word_of_piece(["▁der", "▁Hu", "nd", "▁"]), -1]
    target = [*word_of_piece(["▁the", "▁", "▁do", "g"]), -1]
    weights = np.array(
        [
            [0.5, 0.2, 0.2, 0.0, 0.1],
            [1.0, 0.0, 0.0, 0.0, 0.0],  # a blank has no say
            [0.6, 0.2, 0.2, 0.0, 0.0],
            [0.1, 0.3, 0.3, 0.0, 0.3],  # with the piece before: 0.35 against 0.5
            [1.0, 0.0, 0.0, 0.0, 0.0],
        ]
    )
    assert pharaoh(weights, source, target) == "0-0 1-1"
    assert pharaoh(weights.astype(np.float16), source, target) == "0-0 1-1"
    assert pharaoh(weights[:, ::-1], source[::-1], target) == "0-0 1-1"


def test_pieces_of_a_word_are_averaged() -> None:
    """And those of a source word summed: the strongest single piece does not decide."""
    weights = np.array([[0.4, 0.3, 0.3]])
    assert pharaoh(weights, [0, 1, 1], [0]) == "1-0"
    assert pharaoh(np.array([[0.5, 0.5]]), [0, 1], [0]) == "0-0"
    assert pharaoh(np.array([[0.9, 0.0, 0.1], [0.0, 0.0, 1.0]]), [0, -1, 1], [0, 0]) == "1-0"


def test_no_words_no_links() -> None:
    assert pharaoh(np.ones((0, 0)), [], []) == ""
    assert pharaoh(np.ones((1, 2)), [-1, -1], [0]) == ""
    assert pharaoh(np.ones((2, 1)), [0], [-1, -1]) == ""
    assert pharaoh(np.array([[0.0, 1.0], [1.0, 0.0]]), [0, -1], [0, 1]) == "0-1"
    with pytest.raises(ValueError):
        pharaoh(np.ones((2, 2)), [0, 1, 2], [0, 1])


def test_parts_are_joined() -> None:
    assert joined([], [], []) == ""
    assert joined(["0-0", "", "1-0 0-1"], [0, 1, 4], [0, 1, 1]) == "0-0 5-1 4-2"
    assert joined(["0-9 0-10"], [0], [0]) == "0-9 0-10"


def test_parts_of_a_paragraph() -> None:
    source = split("他 来了。她走了。")
    target = source.filled(["He came.", "She went."])
    assert source.first_words() == [0, 1] and target.first_words() == [0, 2]
    assert joined(["0-0 1-1", "0-0 0-1"], source.first_words(), target.first_words()) == "0-0 1-1 1-2 1-3"
    back = target.filled(source.sentences)
    assert joined(["0-0 1-1", "0-0 1-0"], target.first_words(), back.first_words()) == "0-0 1-1 2-1 3-1"
    assert joined(["1-1", "0-0"], [0, 1], [0, 1]) == "1-1"
