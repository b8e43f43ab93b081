"""The built-in demonstration corpus: English-German sentence pairs from a small hand-written grammar of both.

A newcomer has no corpus at hand, and a downloaded one takes hours to learn. These sentences need no download, show
real grammar (gender, case, verb-second and verb-final order, separable verbs, ...), and can be learned in minutes.
Every choice fixes both languages at once, so each English sentence has exactly one German translation.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TypeVar

from transformer_mt.data import demo_grammar as grammar
from transformer_mt.data import demo_lexicon as lexicon
from transformer_mt.data.demo_grammar import (
    PERSONAL_PRONOUNS, THEY, THIRD, Clause, Pair, Phrase, noun_phrase, prepositional, verb_group, words,
)  # fmt: skip
from transformer_mt.data.demo_lexicon import ACCUSATIVE, DATIVE, GENITIVE, NOMINATIVE, Noun, Verb

LANGUAGE_PAIRS = {"english-german": ("en", "de")}
# Far fewer than the grammar has, so that drawing until a new sentence comes up stays quick.
MOST_PAIRS = 10_000_000
FEWEST_WORDS, MOST_WORDS = 3, 22

Item = TypeVar("Item")

FRAMES = (
    ("transitive",) * 14 + ("activity",) * 3 + ("happening",) * 2 + ("dative",) * 3 + ("prepositional",) * 4
    + ("giving",) * 3 + ("motion",) * 3 + ("location",) * 2 + ("laying",) + ("copula",) * 4 + ("comparison",)
)  # fmt: skip
ACTIONS = ("transitive",) * 5 + ("activity", "dative", "prepositional", "giving", "motion", "location", "happening")
PLACES = tuple(noun for kind in ("venue", "spot", "ground", "room") for noun in lexicon.NOUNS_BY_KIND[kind])
PERSONS, ANIMALS = lexicon.NOUNS_BY_KIND["person"], lexicon.NOUNS_BY_KIND["animal"]
THINGS = tuple(noun for noun in lexicon.NOUNS if noun.kind not in {"person", "animal"} and noun.adjectives)
NAMES = tuple(lexicon.PEOPLE.split())
CITIES, FREQUENCIES = lexicon.word_pairs(lexicon.CITIES), lexicon.word_pairs(lexicon.FREQUENCIES)
MANNERS, COMMENTS = lexicon.word_pairs(lexicon.MANNERS), lexicon.word_pairs(lexicon.COMMENTS)
SUBORDINATORS = lexicon.word_pairs(lexicon.SUBORDINATORS)
TIMES = {time: lexicon.word_pairs(table) for time, table in lexicon.TIMES.items()}
SAYING, ASKING, INTENDING = lexicon.VERBS["saying"], lexicon.VERBS["asking"], lexicon.VERBS["intending"]
QUESTION_WORDS = (("why", "warum"), ("when", "wann"), ("how often", "wie oft"), ("where", "wo"))


class Composer:
    """Draws random sentences; all randomness comes from one generator, so a seed fixes the corpus."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def pick(self, items: tuple[Item, ...]) -> Item:
        """One of the items, all equally likely."""
        return items[int(self._random() * len(items))]

    def chance(self, probability: float) -> bool:
        """True with the probability."""
        return self._random() < probability

    # --- phrases ---

    def noun_phrase(self, nouns: tuple[Noun, ...], case: int, style: str = "any") -> Phrase:
        """A noun phrase; the style says which determiners suit its place."""
        noun = self.pick(nouns)
        adjective = self._attribute(noun) if self.chance(0.35) else None
        if style != "negated" and noun.kind != "person" and self.chance(0.07):
            return self._owned(noun, case, adjective)
        tables = grammar.DETERMINERS if noun.countable else grammar.MASS_DETERMINERS
        determiner = self.pick(self.pick(tables[style]))
        if determiner is grammar.THE and adjective is None and self.chance(0.15):
            superlative = self.pick(noun.adjectives).superlative if noun.adjectives else ("", "")
            adjective = superlative if superlative[0] else None
        return noun_phrase(noun, determiner, case, adjective)

    def _attribute(self, noun: Noun) -> Pair | None:
        if not noun.adjectives:
            return None
        adjective = self.pick(noun.adjectives)
        return (f"very {adjective.english}", f"sehr {adjective.stem}") if self.chance(0.1) else adjective[0:3:2]

    def _owned(self, noun: Noun, case: int, adjective: Pair | None) -> Phrase:
        if self.chance(0.5):
            name = self.pick(NAMES)
            thing = noun_phrase(noun, grammar.MASS, case, adjective)
            return thing._replace(english=f"{name}'s {thing.english}", german=f"{name}s {thing.german}", definite=True)
        owner = noun_phrase(self.pick(PERSONS), self.pick((grammar.THE, *grammar.MY)), GENITIVE)
        thing = noun_phrase(noun, grammar.THE, case, adjective)
        english = f"{owner.english}'s {thing.english.removeprefix('the ')}"
        return thing._replace(english=english, german=f"{thing.german} {owner.german}")

    def subject(self, negated: bool = False, relative: bool = False) -> Phrase:
        """A person, or people, in the nominative."""
        kind = self._random()
        if kind < 0.3:
            english, _, german, _, _, agreement = self.pick(PERSONAL_PRONOUNS)
            return Phrase(english, german, agreement)
        if kind < 0.45:
            name = self.pick(NAMES)
            return Phrase(name, name, THIRD)
        person = self.noun_phrase(PERSONS, NOMINATIVE, "definite" if negated or kind > 0.9 else "any")
        if kind > 0.92:
            other = self.noun_phrase(PERSONS, NOMINATIVE, "definite")
            return Phrase(f"{person.english} and {other.english}", f"{person.german} und {other.german}", THEY)
        return self.with_relative(person) if relative and self.chance(0.15) else person

    def person(self, case: int, agreement: int, style: str) -> Phrase:
        """A person as object: a pronoun other than the subject, a name or a noun phrase."""
        kind = self._random()
        if kind < 0.3:
            row = PERSONAL_PRONOUNS[self.pick(grammar.OBJECT_PRONOUNS[agreement])]
            return Phrase(row[1], row[2 + case], row[5], True, kind="pronoun")
        if kind < 0.45:
            name = self.pick(NAMES)
            return Phrase(name, name, THIRD)
        return self.noun_phrase(PERSONS, case, style)

    def with_relative(self, head: Phrase) -> Phrase:
        """The phrase with a relative clause, whose German pronoun agrees with the head and ends in commas."""
        pronouns = grammar.RELATIVES[head.gender]
        mode = self.pick(grammar.MODES)
        if head.kind in WHERE_KINDS:
            clause = self.clause(self.pick(ACTIVE), mode, self.simple_subject(), bare=True)
            place, german = lexicon.PLACE_PREPOSITIONS[head.kind]
            english = f"{place} which {clause.statement()}"
            relative = clause.subordinate(f"{german} {pronouns[DATIVE]}")
        elif head.kind == "person" and self.chance(0.6):
            who = Phrase("who", pronouns[NOMINATIVE], head.agreement)
            clause = self.clause(self.action(), mode, who)
            english, relative = clause.statement(), clause.subordinate("")
        else:
            clause, case = self._gapped(head, mode)
            english = f"{'whom' if head.kind == 'person' else 'that'} {clause.statement()}"
            relative = clause.subordinate(pronouns[case])
        return head._replace(english=f"{head.english} {english}", german=head.german + relative)

    def _gapped(self, head: Phrase, mode: str) -> tuple[Clause, int]:
        verb = self.pick(VERBS_BY_OBJECT[head.kind])
        return self.clause(verb, mode, self.simple_subject(), gap=True), verb.case

    def simple_subject(self) -> Phrase:
        """A short definite subject, as suits a clause inside another."""
        if self.chance(0.4):
            english, _, german, _, _, agreement = self.pick(PERSONAL_PRONOUNS)
            return Phrase(english, german, agreement)
        return noun_phrase(self.pick(PERSONS), self.pick((grammar.THE, *grammar.MY)), NOMINATIVE)

    # --- clauses ---

    def action(self) -> Verb:
        """A verb of any frame a person can be the subject of, being excepted."""
        return self.pick(lexicon.VERBS[self.pick(ACTIONS)])

    def clause(
        self, verb: Verb, mode: str, subject: Phrase, *, time: Pair = ("", ""), negated: bool = False, gap: bool = False,
        bare: bool = False,
    ) -> Clause:  # fmt: skip
        """A clause with the verb; a gap leaves the object out, a bare one has no adjuncts."""
        if mode not in grammar.TENSES and not verb.modal:
            mode = grammar.TIME_OF_MODE[mode]
        if mode == "past" and verb.past == verb.english and not negated:
            mode = "future"  # as in "they read", which would be present and past alike
        group = verb_group(verb, mode, subject.agreement, negated)
        field = MiddleField(time, negated)
        if verb.reflexive:
            field.pronouns = grammar.REFLEXIVES[subject.agreement]
        frequency = ("", "")
        if not negated and not time[0] and mode in {"present", "past"} and self.chance(0.15):
            frequency = self.pick(FREQUENCIES)
            field.time = frequency[1]
            be = verb.english == "be"
            statement = words(*((group.statement, frequency[0]) if be else (frequency[0], group.statement)))
            group = group._replace(statement=statement, question_rest=words(frequency[0], group.question_rest))
        self._complements(field, verb, subject.agreement, gap)
        if not bare and not gap:
            self._adjuncts(field, verb)
        return Clause(subject, group, field.english_text(), field.german_text())

    def _complements(self, field: MiddleField, verb: Verb, agreement: int, gap: bool) -> None:
        frame = verb.frame
        if frame in {"transitive", "dative", "laying"}:
            self._object(field, verb, agreement, gap)
            if frame == "laying":
                place = self.noun_phrase(lexicon.NOUNS_BY_KIND["furniture"], ACCUSATIVE, "adverbial")
                field.complement = f"on {place.english}", prepositional("auf", place.german)
            return
        field.particle = verb.particle
        if frame == "prepositional":
            thing = self._one_of(verb, agreement, "adverbial")
            field.complement = words(verb.particle, thing.english), prepositional(verb.preposition, thing.german)
            field.particle = ""
        elif frame == "giving":
            field.place(self.person(DATIVE, agreement, "definite"), DATIVE)
            field.place(self.noun_phrase(verb.nouns, ACCUSATIVE, "negated" if self._says_no(field) else "any"), ACCUSATIVE)
        elif frame == "motion":
            field.complement = self._direction(verb)
        elif frame == "location":
            field.complement = self._location(verb)

    def _says_no(self, field: MiddleField) -> bool:
        if field.negated and self.chance(0.5):
            field.negated = False
            return True
        return False

    def _object(self, field: MiddleField, verb: Verb, agreement: int, gap: bool) -> None:
        field.particle = verb.particle
        field.particle_first = verb.particle in {"for", "to"}
        if gap:
            return
        style = "negated" if self._says_no(field) else "definite" if field.negated else "any"
        thing = self._one_of(verb, agreement, style)
        if style == "any" and self.chance(0.08) and thing.gender is not None and thing.kind in VERBS_BY_OBJECT:
            thing = self.with_relative(thing)
        field.place(thing, verb.case)

    def _one_of(self, verb: Verb, agreement: int, style: str) -> Phrase:
        if verb.kinds[0] == "person" and style != "negated" and self.chance(0.6):
            return self.person(verb.case, agreement, style)
        return self.noun_phrase(verb.nouns, verb.case, style)
