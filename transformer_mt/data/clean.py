"""What happens to text before a tokenizer sees it, and which training pairs are left out for what reason."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf

import numpy as np
from numpy.typing import NDArray

from transformer_mt.config import Cleaning, Languages
from transformer_mt.data.languages import Direction, is_foreign, scripts_of
from transformer_mt.data.readers import LeftOut, Pair

# Control characters that are not white space, and characters that show nothing: soft hyphen, zero-width space,
# direction marks, word joiner and its kin, byte order mark.
UNSEEN = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]+")
# Joiners shape emoji and the scripts of Persia and India; after a Latin letter (or its accents), white space or
# nothing they are debris of copying.
_LATIN = (
    "A-Za-z\xaa\xba\xc0-\xd6\xd8-\xf6\xf8-\u02af\u0300-\u036f\u1e00-\u1eff\u2c60-\u2c7f\ua722-\ua7ff"
    "\uff21-\uff3a\uff41-\uff5a"
)
STRAY_JOINERS = re.compile(rf"(?:^|(?<=[{_LATIN}\s]))[\u200c\u200d]+")

RATIO_FROM_WORDS = 10
"""Shorter pairs vary too much in length for a ratio to mean anything."""
EXAMPLES = 3
"""Pairs that a report shows of each reason."""
EXAMPLE_CHARACTERS = 200


def normalize(text: str) -> str:
    """NFC, with unseen characters dropped and every run of white space one blank; none at the ends.

    White space is what Unicode calls so: tab, no-break and ideographic spaces, U+2028 and the like. The same
    for training and for translation. Applying it twice changes nothing.
    """
    # isprintable() is false for every control, format and space character but the plain blank.
    if text.isprintable() and "  " not in text and text[:1] != " " and text[-1:] != " ":
        return unicodedata.normalize("NFC", text)
    before = None
    while text != before:  # a dropped character may bring together what then composes
        before = text
        text = unicodedata.normalize("NFC", UNSEEN.sub("", text))
        text = " ".join(STRAY_JOINERS.sub("", text).split())
    return text


# Filters: pure functions of the two normalised sides; True drops the pair.


def empty_source(source: str, target: str) -> bool:
    """Nothing is left of the source side."""
    return not source


def empty_target(source: str, target: str) -> bool:
    """Nothing is left of the target side."""
    return not target


def too_many_characters(source: str, target: str, most: int) -> bool:
    """A side has more than `most` characters: catches endless lines without a blank."""
    return max(len(source), len(target)) > most


def too_many_words(source: str, target: str, most: int) -> bool:
    """A side has more than `most` words, separated by blanks."""
    return max(source.count(" "), target.count(" ")) >= most


def length_ratio(source: str, target: str, most: float) -> bool:
    """One side has more than `most` times the words of the other, and at least RATIO_FROM_WORDS."""
    shorter, longer = sorted((source.count(" ") + 1, target.count(" ") + 1))
    return longer >= RATIO_FROM_WORDS and longer > most * shorter


def identical(source: str, target: str) -> bool:
    """Both sides are the same text."""
    return source == target


def wrong_script(source: str, target: str, scripts: tuple[frozenset[str], frozenset[str]]) -> bool:
    """More than half of the letters of a side are not of the scripts that its language is written in."""
    return is_foreign(source, scripts[0]) or is_foreign(target, scripts[1])


@dataclass(frozen=True)
class Filter:
    """A filter as the configuration sets it."""

    name: str
    """The reason in reports."""
    setting: str
    """Its key and value; "" for what is always on."""
    on: bool
    drops: Callable[[str, str], bool]
    """Of the normalised sides of a pair."""


def filters(cleaning: Cleaning, languages: Languages) -> list[Filter]:
    """The filters that look at one pair alone, in their order: the first that drops a pair is its reason."""
    scripts = scripts_of(languages.source), scripts_of(languages.target)
    characters, words, ratio = cleaning.max_characters, cleaning.max_words, cleaning.max_length_ratio

    def limited(limit: float | None, drops: Callable[..., bool]) -> Callable[[str, str], bool]:
        return lambda source, target: limit is not None and drops(source, target, limit)

    rows: list[tuple[Callable[..., bool], str, object, Callable[[str, str], bool]]] = [
        (empty_source, "", True, empty_source),
        (empty_target, "", True, empty_target),
        (too_many_characters, "max_characters", characters, limited(characters, too_many_characters)),
        (too_many_words, "max_words", words, limited(words, too_many_words)),
        (length_ratio, "max_length_ratio", ratio, limited(ratio, length_ratio)),
        (identical, "remove_identical", cleaning.remove_identical, identical),
        (wrong_script, "check_script", cleaning.check_script, lambda one, other: wrong_script(one, other, scripts)),
    ]
    return [
        Filter(rule.__name__, f"{key} {str(value).lower()}" if key else "", value not in (None, False), drops)
        for rule, key, value, drops in rows
    ]


@dataclass(frozen=True)
class Chunk:
    """Pairs as they were read, from one file (or one split) alone."""

    part: int
    """Number of the file among those of all training sources."""
    sources: list[str]
    targets: list[str]
    lines: NDArray[np.int64]
    """(N,): the line or row that each pair comes from, counted from 1."""
    reading: Counter[str] = field(default_factory=Counter)
    """What was left out or changed in reading them, by reason."""
    left_out: list[LeftOut] = field(default_factory=list)
    """Pairs left out in reading them: all of them, or the first few of each reason."""


@dataclass
class Cleaned:
    """What stays of a chunk, and why the rest does not."""

    part: int
    read: int
    source: bytes
    """Lines of the pairs that stay, each ended by LF."""
    target: bytes
    lines: NDArray[np.int64]
    keys: NDArray[np.uint64]
    """(N,): equal for pairs that are equal."""
    dropped: Counter[str] = field(default_factory=Counter)
    noticed: Counter[str] = field(default_factory=Counter)
    """Pairs that filters which are off would drop; and, of those whose direction was looked at (`looked_at`), how many
    are `as_named` and how many `swapped`."""
    reading: Counter[str] = field(default_factory=Counter)
    rejected: list[LeftOut] = field(default_factory=list)
    """Pairs that are dropped or were left out in reading: all of them, or the first few of each reason."""
    spared: list[LeftOut] = field(default_factory=list)
    """The same of the first few pairs that filters which are off would drop."""


class Cleaner:
    """Normalises the pairs of a chunk and drops those that do not serve training, never one side alone.

    What it makes of a chunk depends on nothing but the chunk, so chunks may be shared out among processes. Pairs that
    repeat another are found elsewhere, by their keys.
    """

    def __init__(
        self, cleaning: Cleaning, languages: Languages, held_out: frozenset[int], *, keep_rejected: bool = False
    ) -> None:
        """`held_out`: `keys_of` the validation and test data; `keep_rejected` keeps every dropped pair."""
        self._held_out, self._drops_overlap = held_out, cleaning.remove_test_overlap
        self._filters = filters(cleaning, languages)
        self._max_characters = cleaning.max_characters or inf
        self._direction = Direction(languages.source, languages.target)
        self._keep_rejected = keep_rejected

    def __call__(self, chunk: Chunk) -> Cleaned:
        """What stays of a chunk."""
        sources, targets, lines, keys = [], [], [], []
        result = Cleaned(chunk.part, len(chunk.sources), b"", b"", chunk.lines[:0], np.zeros(0, np.uint64))
        result.reading, result.rejected = chunk.reading, list(chunk.left_out)
        sides = map(self._normalized, chunk.sources), map(self._normalized, chunk.targets)
        pairs = zip(*sides, chunk.lines.tolist(), strict=True)
        for number, (source, target, line) in enumerate(pairs):
            reason, spared_by = self._reason(source, target)
            for name in spared_by:
                result.noticed[name] += 1
                if result.noticed[name] <= EXAMPLES:
                    result.spared.append((name, line, source, target))
            # A thousand pairs of each chunk, and some of the others, tell enough of the direction.
            if (number < 1000 or number % 16 == 0) and source and target:
                self._look(source, target, result.noticed)
            if reason:
                result.dropped[reason] += 1
                if self._keep_rejected or result.dropped[reason] <= EXAMPLES:
                    result.rejected.append((reason, line, source, target))
                continue
            sources.append(source + "\n")
            targets.append(target + "\n")
            lines.append(line)
            keys.append(key_of(f"{source}\0{target}"))
        result.source, result.target = "".join(sources).encode(), "".join(targets).encode()
        result.lines, result.keys = np.asarray(lines, np.int64), np.asarray(keys, np.uint64)
        return result

    def _normalized(self, text: str) -> str:
        """`normalize`, but for what is too long in any case: NFC takes the square of the time for twice the accents."""
        limit = 4 * self._max_characters  # it makes at least one character of four
        if len(text) > limit:
            shorter = " ".join(STRAY_JOINERS.sub("", UNSEEN.sub("", text)).split())
            if len(shorter) > limit:
                return shorter
        return normalize(text)

    def _reason(self, source: str, target: str) -> tuple[str | None, list[str]]:
        """The first filter that drops a pair, and those that would if they were on."""
        spared_by: list[str] = []
        for rule in self._filters:
            if rule.drops(source, target):
                if rule.on:
                    return rule.name, spared_by
                spared_by.append(rule.name)
        # A reference may come back as the target of a pair that a machine made (back-translation).
        if not self._held_out or self._held_out.isdisjoint(_keys(source, target)):
            return None, spared_by
        return ("test_overlap", spared_by) if self._drops_overlap else (None, [*spared_by, "test_overlap"])

    def _look(self, source: str, target: str, noticed: Counter[str]) -> None:
        if self._direction.can_tell:
            noticed["looked_at"] += 1
            if way := self._direction.of(source, target):
                noticed["as_named" if way > 0 else "swapped"] += 1


def key_of(text: str) -> int:
    """64 bits of a digest: the same in every process, as hash() is not."""
    return int.from_bytes(blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "big")


def keys_of(pairs: Iterable[Pair]) -> frozenset[int]:
    """The keys of both sides of pairs after `normalize`; the same text on the other side has another one."""
    return frozenset(key for pair in pairs for key in _keys(normalize(pair.source), normalize(pair.target)))


def _keys(source: str, target: str) -> tuple[int, int]:
    return key_of(source), key_of(f"\0{target}")


def warnings(read: int, kept: int, dropped: Counter[str], noticed: Counter[str]) -> list[str]:
    """Sentences about what looks wrong in all that was read; [] when nothing does."""
    sentences = []
    filled = read - dropped["empty_source"] - dropped["empty_target"]
    same = dropped["identical"] + noticed["identical"]
    if same > filled / 2:
        share = "all" if same == filled else f"{same} of"
        sentences.append(f"{share} {filled} pairs are identical on both sides: very likely the wrong file")
    candidates = kept + dropped["duplicate"]
    if dropped["duplicate"] > candidates / 2:
        sentences.append(f"only {kept} distinct pairs of {candidates}: the rest repeats them")
    told = noticed["as_named"] + noticed["swapped"]
    if noticed["swapped"] * 20 > told:
        sentences.append(
            f"{noticed['swapped'] / told:.0%} of the pairs whose languages can be told ({told} of "
            f"{noticed['looked_at']} looked at) have their sides swapped: is source the source language?"
        )
    return sentences
