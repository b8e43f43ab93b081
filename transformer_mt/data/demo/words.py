"""The vocabulary of the built-in demonstration corpus, read from the tables of `lexicon` and inflected."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from transformer_mt.data.demo import lexicon

MASCULINE, FEMININE, NEUTER, PLURAL = range(4)
NOMINATIVE, ACCUSATIVE, DATIVE, GENITIVE = range(4)


class Adjective(NamedTuple):
    """An adjective: German has a predicative form and a stem for endings; the comparison is empty where odd."""

    english: str
    german: str
    stem: str
    comparative: tuple[str, str]
    superlative: tuple[str, str]


class Noun(NamedTuple):
    """A noun; forms are indexed by number (0 or 1), German ones then by case."""

    english: tuple[str, str]
    german: tuple[tuple[str, ...], tuple[str, ...]]
    gender: int
    kind: str
    bond: str
    countable: bool
    adjectives: tuple[Adjective, ...]


@dataclass(frozen=True, eq=False)  # compared by identity, so that a cache can key on it cheaply
class Verb:
    """A verb with its principal parts; `present` is indexed by the agreement of the subject (I, you, it, we, they)."""

    frame: str
    english: str
    particle: str
    past: str
    present: tuple[str, ...]
    prefix: str
    stem_infinitive: str
    participle: str
    takes_sein: bool
    reflexive: bool
    modal: bool
    preposition: str
    case: int
    kinds: tuple[str, ...]
    nouns: tuple[Noun, ...]

    @property
    def infinitive(self) -> str:
        """The German infinitive, prefix joined."""
        return self.prefix + self.stem_infinitive

    @property
    def to_infinitive(self) -> str:
        """The German infinitive with "zu", which stands between a separable prefix and the stem."""
        return f"{self.prefix}zu{self.stem_infinitive}" if self.prefix else f"zu {self.stem_infinitive}"


def entries(table: str) -> list[str]:
    """The entries of a table, one string each with single spaces."""
    return [" ".join(entry.split()) for entry in table.split(";") if entry.strip()]


def word_pairs(table: str) -> tuple[tuple[str, str], ...]:
    """A table of "english german" entries as pairs, underscores turned into spaces."""
    pairs = (entry.split(" ") for entry in entries(table))
    return tuple((english.replace("_", " "), german.replace("_", " ")) for english, german in pairs)


def english_s_form(word: str) -> str:
    """The word with the -s of the plural or of the third person."""
    if word == "have":
        return "has"
    if re.search("[^aeiou]y$", word):
        return word[:-1] + "ies"
    return word + ("es" if re.search("(s|sh|ch|x|z|go)$", word) else "s")


def genitive_singular(word: str) -> str:
    """The genitive of a strong masculine or neuter noun: -es after one syllable or a sibilant, otherwise -s."""
    syllables = len(re.findall("[aeiouyäöü]+", word.lower()))
    return word + ("es" if syllables == 1 or re.search("(s|ß|z|x|sch)$", word) else "s")


def numerals() -> tuple[tuple[str, str], ...]:
    """The numbers two to ninety-nine in words."""
    ones, tens = (
        list(zip(*map(str.split, lexicon.ONES), strict=True)),
        list(zip(*map(str.split, lexicon.TENS), strict=True)),
    )
    result = ones[1:]
    for english, german in tens:
        result.append((english, german))
        result += [(f"{english}-{one}", f"{eins}und{german}") for one, eins in ones[:9]]
    return tuple((english, german) for english, german in result)


def _noun(entry: str, kind: str, adjectives: tuple[Adjective, ...]) -> Noun:
    english, german, gender, plural = entry.split(" ")
    singular, _, irregular = english.replace("_", " ").partition("/")
    if gender == "w":
        forms: tuple[str, ...] = (german, plural, plural, plural)
    else:
        forms = (german,) * 3 + (german if gender == "f" else genitive_singular(german),)
    dative = plural if plural[-1] in "ns" else plural + "n"
    return Noun(
        (singular, irregular or english_s_form(singular)), (forms, (plural, plural, dative, plural)),
        {"m": MASCULINE, "w": MASCULINE, "f": FEMININE, "n": NEUTER}[gender], kind, _bond(singular, kind, plural),
        plural != "-", adjectives,
    )  # fmt: skip


def _bond(english: str, kind: str, plural: str) -> str:
    if plural == "-":
        return "mass"
    if english in lexicon.KIN:
        return "kin"
    alive = kind in {"person", "animal"}
    stranger = alive and english not in lexicon.ACQUAINTANCES and english not in lexicon.PETS_AND_FARM_ANIMALS
    return "unowned" if stranger or kind in lexicon.UNOWNED_KINDS else "own"


def _adjectives() -> dict[str, tuple[Adjective, ...]]:
    comparisons = {entry.split(" ")[0]: entry.split(" ")[1:] for entry in entries(lexicon.COMPARISONS)}
    by_kind: dict[str, list[Adjective]] = {kind: [] for kind in lexicon.NOUN_TABLES}
    for block in re.split(r"\n(?=\S)", lexicon.ADJECTIVES.strip()):
        kinds, _, table = block.partition(":")
        for entry in entries(table):
            english, german, *stem = entry.split(" ")
            grades = [word.replace("_", " ") for word in comparisons.get(english, [""] * 4)]
            adjective = Adjective(
                english, german, (stem or [german.removesuffix("e")])[0], (grades[0], grades[2]), (grades[1], grades[3])
            )
            for kind in kinds.split():
                by_kind[kind].append(adjective)
    return {kind: tuple(adjectives) for kind, adjectives in by_kind.items()}


def _present(infinitive: str, third: str) -> tuple[str, ...]:
    if infinitive in {"wissen", "mögen"}:
        return third, third + ("t" if third == "weiß" else "st"), third, infinitive, infinitive
    if infinitive == "haben":
        return "habe", "hast", "hat", infinitive, infinitive
    if infinitive == "sein":
        return "bin", "bist", "ist", "sind", "sind"
    stem = infinitive[:-2] if infinitive.endswith("en") else infinitive[:-1]
    first = (stem[:-2] + "l" if infinitive.endswith("eln") else stem) + "e"
    second = third if re.search("(s|ß|z|x)t$", third) else third[:-1] + "st"
    return first, second, third, infinitive, infinitive


def _verb(entry: str, frame: str) -> Verb:
    words, _, details = entry.partition(" : ")
    english_part, _, german_part = words.partition(" = ")
    english, past = english_part.split(" ")
    base, _, particle = english.replace("_", " ").partition(" ")
    infinitive, third = german_part.removeprefix("sich ").split(" ")[:2]
    prefix, _, stem = infinitive.rpartition(".")
    kinds = details.split()
    preposition, case = "", ACCUSATIVE if frame != "dative" else DATIVE
    if frame == "prepositional":
        preposition, case = kinds[0], {"acc": ACCUSATIVE, "dat": DATIVE}[kinds[1]]
        kinds = kinds[2:]
    nouns = tuple(noun for noun in NOUNS if noun.kind in kinds or "+" + noun.english[0] in kinds)
    return Verb(
        frame, base, particle, past, _present(stem, third), prefix, stem, german_part.split(" ")[-1],
        " ist " in german_part, german_part.startswith("sich "), "*" not in kinds, preposition, case,
        tuple(kinds), nouns,
    )  # fmt: skip


ADJECTIVES_BY_KIND = _adjectives()
NOUNS = tuple(
    _noun(entry, kind, ADJECTIVES_BY_KIND[kind])
    for kind, table in lexicon.NOUN_TABLES.items()
    for entry in entries(table)
)
NOUNS_BY_KIND = {kind: tuple(noun for noun in NOUNS if noun.kind == kind) for kind in lexicon.NOUN_TABLES}
VERBS = {frame: tuple(_verb(entry, frame) for entry in entries(table)) for frame, table in lexicon.VERB_TABLES.items()}
NUMERALS = numerals()
