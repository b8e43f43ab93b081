"""Cleaning: what text becomes, and which pairs are dropped for what reason."""

import unicodedata

import pytest

from transformer_mt.config import Cleaning
from transformer_mt.data.clean import Cleaner, normalize, reason_to_drop
from transformer_mt.data.sources import Pair

OFF = Cleaning(max_words=None, max_characters=None, max_length_ratio=None, deduplicate=False, remove_test_overlap=False)
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
PERSIAN = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"


def clean(cleaner: Cleaner, *pairs: tuple[str, str]) -> list[Pair]:
    return list(cleaner.clean(Pair(source, target, line) for line, (source, target) in enumerate(pairs, start=1)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello, world!", "Hello, world!"),
        ("Grüße 你好", "Grüße 你好"),
        ("", ""),
        ("  a  b ", "a b"),
        (" a", "a"),
        ("a ", "a"),
        ("a  b", "a b"),
        ("\ta\tb\t", "a b"),
        ("a\xa0b\u3000c\u2003d\u202fe\u2009f", "a b c d e f"),
        ("a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1dh\x1ei\x1fj", "a b c d e f g h i j"),
        ("a\r\nb\rc", "a b c"),
        (" \t\xa0\u3000\u2003", ""),
        ("nu\0ll", "null"),
        ("\x1b[31mred\x08\x01\x7f\x9b", "[31mred"),
        ("\ufeffmark", "mark"),
        ("zero\u200bwidth so\xadft wo\u2060rd le\u200eft ri\u200fght", "zerowidth soft word left right"),
        ("Au\u200dto \u200dRad\u200c", "Auto Rad"),
        ("ä\u200dx", "äx"),
        ("\u200d\u200c", ""),
        (FAMILY, FAMILY),
        (PERSIAN, PERSIAN),
        ("a \u200b b", "a b"),
        ("</s> <unk> ▁ @@ <2de>", "</s> <unk> ▁ @@ <2de>"),
    ],
)
def test_normalize(text: str, expected: str) -> None:
    assert normalize(text) == expected


def test_the_two_forms_of_an_umlaut_become_one() -> None:
    assert normalize("u\u0308ber") == normalize("über") == "über"
    # Only what stands between them kept these two apart.
    assert normalize("u\u200b\u0308ber") == normalize("u\u200d\u0308ber") == "über"


def test_normalizing_twice_changes_nothing() -> None:
    characters = "a ä\u0301\u0308\u200b\u200c\u200d\xa0\t\0\ufeffم\u1100\u1161"
    texts = [first + second + third + "\u200d" for first in characters for second in characters for third in characters]
    for text in texts:
        once = normalize(text)
        assert normalize(once) == once
        assert unicodedata.is_normalized("NFC", once)


def test_a_normalized_text_has_no_odd_space_or_line_break_left() -> None:
    every = "x".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))
    result = normalize(every)
    assert [*filter(str.isspace, set(result))] == [" "]
    assert len(result.splitlines()) == 1
    assert not any(unicodedata.category(character) == "Cc" for character in set(result))


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("a", "b", None),
        ("", "b", "empty_source"),
        ("a", "", "empty_target"),
        ("", "", "empty_source"),
        ("a b c d", "a b c d", None),
        ("a b c d e", "a", "too_many_words"),
        ("a", "a b c d e", "too_many_words"),
        ("x" * 21, "y", "too_many_characters"),
        ("x", "y" * 20, None),
    ],
)
def test_reasons_by_length(source: str, target: str, expected: str | None) -> None:
    cleaning = OFF.model_copy(update={"max_words": 4, "max_characters": 20})
    assert reason_to_drop(source, target, cleaning) == expected


@pytest.mark.parametrize(
    ("words", "other_words", "expected"),
    [
        (10, 4, None),
        (10, 3, "length_ratio"),
        (3, 10, "length_ratio"),
        (9, 1, None),
        (12, 4, None),
        (13, 4, "length_ratio"),
    ],
)
def test_the_length_ratio_counts_from_ten_words_on(words: int, other_words: int, expected: str | None) -> None:
    cleaning = OFF.model_copy(update={"max_length_ratio": 3.0})
    assert reason_to_drop("w " * (words - 1) + "w", "w " * (other_words - 1) + "w", cleaning) == expected


def test_filters_that_are_off_drop_nothing_but_empty_pairs() -> None:
    assert reason_to_drop("x" * 100_000, "w " * 10_000, OFF) is None
    assert reason_to_drop("x", "", OFF) == "empty_target"


def test_a_pair_is_dropped_whole() -> None:
    cleaner = Cleaner(OFF, [])
    assert clean(cleaner, ("a", "x"), ("", "y"), ("c", " "), ("d", "w")) == [Pair("a", "x", 1), Pair("d", "w", 4)]
    assert cleaner.counts == {"read": 4, "empty_source": 1, "empty_target": 1, "kept": 2}


def test_the_first_of_equal_pairs_stays() -> None:
    cleaner = Cleaner(Cleaning(), [])
    # Equal means after normalising; another translation of the same source is another pair, and so is another split.
    pairs = [("a", "x"), ("a ", "x"), ("a", "y"), ("ab", "c"), ("a", "bc"), ("a", "x")]
    assert [pair.line for pair in clean(cleaner, *pairs)] == [1, 3, 4, 5]
    assert cleaner.counts["duplicate"] == 2
    assert clean(cleaner, ("a", "y")) == []  # in a second source too
    assert len(clean(Cleaner(OFF, []), *pairs)) == 6


def test_sources_of_the_test_data_are_left_out_of_training() -> None:
    held_out = ["A  test\tsentence.", ""]
    cleaner = Cleaner(Cleaning(), held_out)
    assert clean(cleaner, ("A test sentence.", "x"), ("Another.", "A test sentence.")) == [
        Pair("Another.", "A test sentence.", 2)
    ]
    assert cleaner.counts["test_overlap"] == 1
    assert len(clean(Cleaner(OFF, held_out), ("A test sentence.", "x"))) == 1


def test_half_a_surrogate_pair_does_not_stop_the_cleaning() -> None:
    assert len(clean(Cleaner(Cleaning(), []), ("\ud83d", "x"))) == 1


def test_a_warning_when_both_sides_are_the_same_text() -> None:
    cleaner = Cleaner(Cleaning(), [])
    clean(cleaner, ("one", "one"), ("two", "two"), ("", ""))
    assert cleaner.warnings() == ["all 2 pairs are identical on both sides: very likely the wrong file"]
    clean(cleaner, ("three", "drei"))
    assert "2 of 3 pairs are identical" in cleaner.warnings()[0]
    clean(cleaner, ("four", "vier"))
    assert cleaner.warnings() == []


def test_a_warning_when_most_pairs_repeat() -> None:
    cleaner = Cleaner(Cleaning(), [])
    clean(cleaner, *[("a", "x"), ("b", "y")] * 5)
    assert cleaner.warnings() == ["only 2 distinct pairs of 10: the rest repeats them"]
    assert Cleaner(Cleaning(), []).warnings() == []
