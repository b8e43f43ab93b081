"""What is known of languages: scripts, small words, and which way round a pair is."""

import pytest

from transformer_mt.data.languages import _CODES, Direction, function_words, is_foreign, script_of, scripts_of


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("en", {"LATIN"}), ("de-AT", {"LATIN"}), ("RU", {"CYRILLIC"}), ("zh", {"CJK"}), ("zh-Hant", {"CJK"}),
        ("ja", {"HIRAGANA", "KATAKANA", "CJK"}), ("sr", {"CYRILLIC", "LATIN"}), ("sr-Latn", {"LATIN"}),
        ("sr_cyrl", {"CYRILLIC"}), ("pa", {"GURMUKHI"}), ("tlh", set()),
        ("deu", {"LATIN"}), ("rus_Cyrl", {"CYRILLIC"}), ("RUS", {"CYRILLIC"}), ("srp-Latn", {"LATIN"}),
    ],
)  # fmt: skip
def test_scripts_of_languages(language: str, expected: set[str]) -> None:
    assert scripts_of(language) == expected


def test_codes_of_two_and_of_three_letters_are_one_to_one() -> None:
    codes = [code for row in _CODES.split(", ") for code in row.split()]
    assert len(set(codes)) == len(codes) and {len(code) for code in codes} == {2, 3}
    assert all(scripts_of(code) for code in codes)


def test_scripts_of_letters() -> None:
    assert [script_of(letter) for letter in "aßＡяא中あア한1 -"] == [
        "LATIN", "LATIN", "LATIN", "CYRILLIC", "HEBREW", "CJK", "HIRAGANA", "KATAKANA", "HANGUL", "", "", "",
    ]  # fmt: skip


def test_every_script_is_called_as_unicode_calls_it() -> None:
    """A word of each language is of its own script."""
    for language, text in {
        "am": "አማርኛ", "ar": "عربي", "bn": "বাংলা", "el": "ελληνικά", "gu": "ગુજ",
        "he": "עברית", "hi": "हिन्दी", "hy": "հայ", "ka": "ქარ", "km": "ខ្ម", "kn": "ಕನ",
        "ko": "한국어", "lo": "ລາວ", "ml": "മല", "my": "မြန", "or": "ଓଡ", "pa": "ਪੰਜ", "ru": "русский",
        "si": "සිං", "ta": "தமி", "te": "తెలు", "th": "ไทย", "ja": "日本語ですカタ", "zh": "中文", "vi": "tiếng Việt",
    }.items():  # fmt: skip
        assert not is_foreign(text, scripts_of(language)), language
        assert is_foreign(text, scripts_of("el" if language != "el" else "ru")), language


def test_half_of_the_letters_may_be_of_another_script() -> None:
    latin = scripts_of("en")
    assert not is_foreign("abc абв", latin) and is_foreign("ab абв", latin)
    assert not is_foreign("", latin) and not is_foreign("абв", frozenset())


def test_the_small_words_tell_the_direction() -> None:
    direction = Direction("en", "de")
    english, german = "that is the name of the file and not of the folder", "das ist der Name der Datei und nicht die"
    assert direction.can_tell
    assert direction.of(english, german) == 1 and direction.of(german, english) == -1
    assert Direction("eng_Latn", "ger").of(german, english) == -1
    assert direction.of("apt-get install", "apt-get install") == 0 == direction.of(english, english)
    assert Direction("en", "ru").of("Это русский", "This is English") == -1
    assert not Direction("en", "qaa").can_tell and Direction("zh", "en").can_tell


def test_small_words_are_words_of_their_own() -> None:
    for language in ("en", "de", "fr", "ru", "pt-BR"):
        words = function_words(language)
        assert len(words) > 12 and all(word == word.lower() for word in words)
    assert function_words("qaa") == frozenset()
