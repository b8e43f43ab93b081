"""Cleaning: what text becomes, and which pairs are dropped for what reason."""

import unicodedata
from collections import Counter

import numpy as np
import pytest

from transformer_mt.config import Cleaning, Languages
from transformer_mt.data.clean import Chunk, Cleaned, Cleaner, filters, keys_of, normalize, warnings
from transformer_mt.data.readers import Pair

OFF = Cleaning(max_words=None, max_characters=None, max_length_ratio=None, deduplicate=False, remove_test_overlap=False)
ENGLISH_GERMAN = Languages(source="en", target="de")
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
PERSIAN = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"


def clean(
    cleaning: Cleaning, *pairs: tuple[str, str], held_out: list[tuple[str, str]] | None = None, **keys: bool
) -> Cleaned:
    cleaner = Cleaner(cleaning, ENGLISH_GERMAN, keys_of(Pair(*pair, 1) for pair in held_out or []), **keys)
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    return cleaner(Chunk(0, sources, targets, np.arange(1, len(pairs) + 1)))


def reason_to_drop(source: str, target: str, cleaning: Cleaning, languages: Languages = ENGLISH_GERMAN) -> str | None:
    """By the pure predicates alone."""
    rules = filters(cleaning, languages)
    return next((rule.name for rule in rules if rule.on and rule.drops(source, target)), None)


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


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("the same", "the same", "identical"),
        ("the same", "The same", None),
        ("Это русский", "Das ist deutsch", "wrong_script"),
        ("This is English", "这是中文", "wrong_script"),
        ("The word 这是中文", "Das Wort 这是中文", None),  # as many letters of each
        ("12 + 30 = 42 😀", "12 + 30 = 43 😀", None),  # no letters at all
    ],
)
def test_filters_that_are_off_by_default(source: str, target: str, expected: str | None) -> None:
    cleaning = Cleaning(remove_identical=True, check_script=True)
    assert reason_to_drop(source, target, cleaning) == expected
    assert reason_to_drop(source, target, Cleaning()) is None
    noticed = clean(Cleaning(), (source, target))
    assert noticed.noticed[expected or ""] == int(expected is not None)
    assert [row[0] for row in noticed.spared] == ([expected] if expected else [])


def test_every_filter_that_is_off_is_noticed() -> None:
    cleaned = clean(Cleaning(), ("Это русский", "Это русский"))
    assert cleaned.noticed["identical"] == cleaned.noticed["wrong_script"] == 1
    assert [row[0] for row in cleaned.spared] == ["identical", "wrong_script"]


def test_scripts_follow_the_language() -> None:
    cleaning = Cleaning(check_script=True)
    pair = ("Это русский", "Das ist deutsch")
    for source, target, expected in [("ru", "de", None), ("de", "ru", "wrong_script"), ("sr-Cyrl", "de", None),
                                     ("sr-Latn", "de", "wrong_script"), ("qaa", "qab", None)]:  # fmt: skip
        assert reason_to_drop(*pair, cleaning, Languages(source=source, target=target)) == expected


def test_a_pair_is_dropped_whole() -> None:
    cleaned = clean(OFF, ("a", "x"), ("", "y"), ("c", " "), ("d", "w"))
    assert (cleaned.source, cleaned.target, cleaned.lines.tolist()) == (b"a\nd\n", b"x\nw\n", [1, 4])
    assert cleaned.read == 4 and cleaned.dropped == {"empty_source": 1, "empty_target": 1}


def test_equal_pairs_have_equal_keys() -> None:
    """Equal after normalising; another translation of the same source is another pair, and so is another split."""
    keys = clean(Cleaning(), ("a", "x"), ("a ", "x"), ("a", "y"), ("ab", "c"), ("a", "bc"), ("a", "x")).keys.tolist()
    assert keys[0] == keys[1] == keys[5] and len(set(keys)) == 4


def test_either_side_of_the_test_data_is_left_out_of_training() -> None:
    """A reference may come back as the target of a pair whose source a machine made."""
    held_out = [("A  test\tsentence.", "Ein Satz."), ("", "")]
    pairs = [
        ("A test sentence.", "x"),
        ("Another.", "A test sentence."),
        ("Other.", "Ein\u00a0Satz."),
        ("Ein Satz.", "y"),
    ]
    cleaned = clean(Cleaning(), *pairs, held_out=held_out)
    assert cleaned.lines.tolist() == [2, 4] and cleaned.dropped == {"test_overlap": 2}
    off = clean(OFF, *pairs, held_out=held_out)
    assert off.lines.tolist() == [1, 2, 3, 4] and off.noticed["test_overlap"] == 2


def test_a_line_of_a_million_accents_is_too_long_at_once() -> None:
    """To compose them would take hours. White space and what is not seen do not count before it is gone."""
    accents = "a" + "\u0316\u0301" * 500_000
    padded = "a" + " \u200d" * 50_000 + "\u0301"
    decomposed = "\u03c9\u0314\u0342\u0345" * 4000
    cleaned = clean(Cleaning(), ("a", accents), ("b", padded), ("c", decomposed))
    assert cleaned.dropped == {"too_many_characters": 1} and cleaned.lines.tolist() == [2, 3]
    assert cleaned.target.decode().split("\n")[1] == "\u1fa7" * 4000


def test_half_a_surrogate_pair_does_not_stop_the_cleaning() -> None:
    with pytest.raises(UnicodeEncodeError):  # a reader that lets one through is at fault
        clean(Cleaning(), ("\ud83d", "x"))


def test_dropped_pairs_are_kept_as_examples_or_all() -> None:
    pairs = [("", f"t{number}") for number in range(9)] + [("s", ""), ("a", "b")]
    first = clean(Cleaning(), *pairs).rejected
    assert first == [*(("empty_source", line, "", f"t{line - 1}") for line in (1, 2, 3)), ("empty_target", 10, "s", "")]
    assert len(clean(Cleaning(), *pairs, keep_rejected=True).rejected) == 10


def told(*pairs: tuple[str, str], kept: int | None = None, **dropped: int) -> list[str]:
    """The warnings about these pairs."""
    cleaned = clean(Cleaning(), *pairs)
    reasons = cleaned.dropped + Counter(dropped)
    return warnings(cleaned.read, len(cleaned.lines) if kept is None else kept, reasons, cleaned.noticed)


def test_a_warning_when_both_sides_are_the_same_text() -> None:
    pairs = [("one", "one"), ("two", "two"), ("", "")]
    assert told(*pairs) == ["all 2 pairs are identical on both sides: very likely the wrong file"]
    assert "2 of 3 pairs are identical" in told(*pairs, ("three", "drei"))[0]
    assert told(*pairs, ("three", "drei"), ("four", "vier")) == []


def test_a_warning_when_most_pairs_repeat() -> None:
    assert told(kept=2, duplicate=8) == ["only 2 distinct pairs of 10: the rest repeats them"]
    assert told(kept=5, duplicate=5) == []


def test_a_warning_when_sides_are_swapped() -> None:
    straight = ("it is the house of the man", "das ist nicht der Mann und die Frau")
    (sentence,) = told(*[straight] * 8, *[straight[::-1]] * 2, ("Linux", "Linux kernel"))
    assert sentence.startswith(
        "20% of the pairs whose languages can be told (10 of 11 looked at) have their sides swap"
    )
    assert told(*[straight] * 40, straight[::-1]) == []
