"""Random phrases and clauses of the built-in English-German demonstration corpus."""

from __future__ import annotations

import random
from typing import TypeVar

from transformer_mt.data.demo import grammar, lexicon
from transformer_mt.data.demo.grammar import (
    PERSONAL_PRONOUNS,
    TENSES,
    THEY,
    THIRD,
    TIME_OF_MODE,
    Clause,
    MiddleField,
    Pair,
    Phrase,
    VerbGroup,
    in_case,
    noun_phrase,
    prepositional,
    verb_group,
    words,
)  # fmt: skip
from transformer_mt.data.demo.words import (
    ACCUSATIVE,
    ADJECTIVES_BY_KIND,
    DATIVE,
    GENITIVE,
    NOMINATIVE,
    NOUNS,
    NOUNS_BY_KIND,
    NUMERALS,
    VERBS,
    Noun,
    Verb,
    word_pairs,
)  # fmt: skip

Item = TypeVar("Item")
NOTHING: Pair = ("", "")
FRAMES = (
    ("transitive",) * 14 + ("activity",) * 3 + ("happening",) * 2 + ("dative",) * 3 + ("prepositional",) * 4
    + ("giving",) * 3 + ("motion",) * 3 + ("location",) * 2 + ("laying", "comparison") + ("copula",) * 3
)  # fmt: skip
ACTIONS = tuple(frame for frame in FRAMES if frame not in {"copula", "comparison"})
BE = VERBS["copula"][0]
DOINGS = tuple(verb for frame in ("activity", "transitive", "dative") for verb in VERBS[frame] if verb.modal)
VERBS_BY_OBJECT = {
    kind: tuple(verb for frame in ("transitive", "dative") for verb in VERBS[frame] if kind in verb.kinds)
    for kind in lexicon.NOUN_TABLES
}
ANIMAL_VERBS = tuple(
    verb
    for frame in ("activity", "happening", "transitive", "dative")
    for verb in VERBS[frame]
    if words(verb.english, verb.particle) in {
        "sleep", "play", "fall asleep", "wake up", "run away", "come back", "see", "hear", "look for", "eat", "follow",
        "watch", "like", "rest",
    }
)  # fmt: skip
# "They read" and "they put on" would be present and past alike, so the past takes verbs that show it.
_BY_ENGLISH = {words(verb.english, verb.particle): verb for verb in VERBS["transitive"]}
CLEAR_IN_PAST = {_BY_ENGLISH["read"]: _BY_ENGLISH["write"], _BY_ENGLISH["put on"]: _BY_ENGLISH["try on"]}
PERSONS, ANIMALS = NOUNS_BY_KIND["person"], NOUNS_BY_KIND["animal"]
LOCALITIES = tuple(noun for kind in ("venue", "spot", "ground", "room") for noun in NOUNS_BY_KIND[kind])
PETS = tuple(noun for noun in ANIMALS if noun.english[0] in {"dog", "cat", "horse"})
THINGS = tuple(noun for noun in NOUNS if noun.kind not in {"person", "animal"})
INHABITED = {"room", "home", "venue", "spot", "ground"}
NAMES = tuple(lexicon.PEOPLE.split())
CITIES, FREQUENCIES, VEHICLES = map(word_pairs, (lexicon.CITIES, lexicon.FREQUENCIES, lexicon.VEHICLES))
TIMES = {time: word_pairs(table) for time, table in lexicon.TIMES.items()}
MANNERS = word_pairs(lexicon.MANNERS)
IT = Phrase("it", "es", THIRD)


class ClauseComposer:
    """Draws random phrases and clauses; all randomness comes from one generator, so a seed fixes the corpus."""

    def __init__(self, seed: int) -> None:
        """Start the drawing from the seed."""
        self._random = random.Random(seed).random

    def pick(self, items: tuple[Item, ...]) -> Item:
        """One of the items, all equally likely."""
        return items[int(self._random() * len(items))]

    def chance(self, probability: float) -> bool:
        """True with the probability."""
        return self._random() < probability

    # --- phrases ---

    def noun_phrase(self, nouns: tuple[Noun, ...], case: int, style: str) -> Phrase:
        """A noun phrase; the style says which determiners suit its place."""
        noun = self.pick(nouns)
        adjective = self._attribute(noun) if self.chance(0.35) else None
        if style != "negated" and noun.kind != "person" and noun.bond != "unowned" and self.chance(0.07):
            return self._owned(noun, case, adjective)
        determiner = self.pick(self.pick(grammar.DETERMINERS[noun.bond][style]))
        if determiner is grammar.THE and adjective is None and self.chance(0.15):
            superlative = self.pick(noun.adjectives).superlative if noun.adjectives else ("", "")
            adjective = superlative if superlative[0] else None
        return noun_phrase(noun, determiner, case, adjective)

    def _attribute(self, noun: Noun) -> Pair | None:
        if not noun.adjectives:
            return None
        adjective = self.pick(noun.adjectives)
        if adjective.comparative[0] and self.chance(0.2):
            return f"very {adjective.english}", f"sehr {adjective.stem}"
        return adjective.english, adjective.stem

    def _owned(self, noun: Noun, case: int, adjective: Pair | None) -> Phrase:
        if self.chance(0.5):
            name = self.pick(NAMES)
            thing = noun_phrase(noun, grammar.MASS, case, adjective)
            return thing._replace(english=f"{name}'s {thing.english}", german=f"{name}s {thing.german}", definite=True)
        owner = noun_phrase(self.pick(PERSONS), self.pick((grammar.THE, *grammar.MY)), GENITIVE)
        thing = noun_phrase(noun, grammar.THE, case, adjective)
        english = f"{owner.english}'s {thing.english.removeprefix('the ')}"
        return thing._replace(english=english, german=f"{thing.german} {owner.german}")

    def person_subject(self, negated: bool = False) -> Phrase:
        """A person, or people, in the nominative."""
        kind = self._random()
        if kind < 0.45:
            return self._short_person(kind < 0.3)
        person = self.noun_phrase(PERSONS, NOMINATIVE, "definite" if negated or kind > 0.93 else "subject")
        if kind > 0.93:
            other = self.noun_phrase(PERSONS, NOMINATIVE, "definite")
            return Phrase(f"{person.english} and {other.english}", f"{person.german} und {other.german}", THEY)
        return self._subject_with_relative(person) if self.chance(0.12) else person

    def _short_person(self, pronoun: bool) -> Phrase:
        if pronoun:
            english, _, german, _, _, agreement = self.pick(PERSONAL_PRONOUNS)
            return Phrase(english, german, agreement)
        name = self.pick(NAMES)
        return Phrase(name, name, THIRD, kind="name")

    def simple_subject(self) -> Phrase:
        """A short definite subject, as suits a clause inside another."""
        if self.chance(0.5):
            return self._short_person(self.chance(0.7))
        return noun_phrase(self.pick(PERSONS), self.pick((grammar.THE, *grammar.MY)), NOMINATIVE)

    def person_object(self, case: int, agreement: int, style: str) -> Phrase:
        """A person as object: a pronoun other than the subject, a name or a noun phrase."""
        kind = self._random()
        if kind < 0.35:
            row = PERSONAL_PRONOUNS[self.pick(grammar.OBJECT_PRONOUNS[agreement])]
            return Phrase(row[1], row[3] if case == ACCUSATIVE else row[4], THIRD, kind="pronoun")
        return self._short_person(False) if kind < 0.5 else self.noun_phrase(PERSONS, case, style)

    def with_relative(self, head: Phrase) -> Phrase:
        """The phrase with a relative clause, whose German pronoun agrees with the head and stands first."""
        pronouns, mode = grammar.RELATIVES[head.gender], self.pick(grammar.MODES)
        if head.kind in INHABITED and self.chance(0.5):
            clause = self.clause(self.pick(VERBS["activity"]), mode, self.simple_subject(), bare=True)
            place, german = lexicon.PLACE_PREPOSITIONS[head.kind]
            english, pronoun = f"{place} which", f"{german} {pronouns[DATIVE]}"
        elif head.kind == "person" and self.chance(0.6):
            subject = Phrase("who", pronouns[NOMINATIVE], head.agreement, kind="pronoun")
            clause = self.clause(self.action(), mode, subject, simple=True)
            english, pronoun = "", ""
        else:
            verb = self.pick(VERBS_BY_OBJECT[head.kind])
            clause = self.clause(verb, mode, self.simple_subject(), gap=True)
            english, pronoun = ("whom" if head.kind == "person" else "that"), pronouns[verb.case]
        relative = words(head.english, english, clause.statement())
        return head._replace(english=relative, tail=clause.subordinate(pronoun))

    def _subject_with_relative(self, head: Phrase) -> Phrase:
        phrase = self.with_relative(head)
        return phrase._replace(german=phrase.german + phrase.tail, tail="")

    # --- clauses ---

    def action(self) -> Verb:
        """A verb of any frame with a person as subject."""
        return self.pick(VERBS[self.pick(ACTIONS)])

    def any_clause(
        self, mode: str, time: Pair = NOTHING, negated: bool = False, steady: bool = False, nested: bool = False
    ) -> Clause:
        """A clause about a person, an animal, a thing or the weather; a steady one has no adverb of frequency.

        One nested in another is neither about a thing nor about "no" person.
        """
        kind = self._random() * (0.9 if nested else 1)
        if kind < 0.84:
            frame, subject = self.pick(FRAMES), self.person_subject(negated or nested)
            if frame in {"copula", "comparison"}:
                return self.state(mode, subject, time, negated)
            return self.clause(self.pick(VERBS[frame]), mode, subject, time=time, negated=negated, steady=steady)
        if kind < 0.89:
            subject = self.noun_phrase(ANIMALS, NOMINATIVE, "definite" if negated or nested else "subject")
            return self.clause(
                self.pick(ANIMAL_VERBS), mode, subject, time=time, negated=negated, simple=True, steady=steady
            )
        if kind >= 0.9:
            subject = self.noun_phrase(THINGS, NOMINATIVE, "definite")
            if VERBS_BY_OBJECT[subject.kind] and self.chance(0.3):
                subject = self._subject_with_relative(subject)
            return self.state(mode, subject, time, negated)
        return self.clause(self.pick(VERBS["weather"]), TIME_OF_MODE[mode], IT, time=time, negated=negated, steady=True)

    def state(self, mode: str, subject: Phrase, time: Pair, negated: bool) -> Clause:
        """A clause with "be" and an adjective or a comparison."""
        kind = subject.kind if subject.kind in NOUNS_BY_KIND else "person"
        adjective = self.pick(ADJECTIVES_BY_KIND[kind])
        complement: Pair = (adjective.english, adjective.german)
        if adjective.comparative[0] and self.chance(0.5):
            other = self.noun_phrase(NOUNS_BY_KIND[kind], NOMINATIVE, "definite")
            if self.chance(0.7):
                (english, german), link = adjective.comparative, ("than", "als")
            else:
                english, german, link = f"as {adjective.english}", f"so {adjective.german}", ("as", "wie")
            complement = words(english, link[0], other.english), words(german, link[1], other.german)
        elif adjective.comparative[0] and self.chance(0.4):
            complement = f"very {adjective.english}", f"sehr {adjective.german}"
        return self.clause(BE, TIME_OF_MODE[mode], subject, time=time, negated=negated, complement=complement)

    def clause(
        self, verb: Verb, mode: str, subject: Phrase, *, time: Pair = NOTHING, negated: bool = False, gap: bool = False,
        bare: bool = False, simple: bool = False, steady: bool = False, complement: Pair = NOTHING,
    ) -> Clause:  # fmt: skip
        """A clause with the verb: a gap replaces the object, bare is without adjuncts, simple without nesting."""
        if not verb.modal:
            mode = TIME_OF_MODE[mode]
        if mode == "past":
            verb = CLEAR_IN_PAST.get(verb, verb)
        group = verb_group(verb, mode, subject.agreement, negated)
        field = MiddleField(time, negated)
        field.complement = complement
        if verb.reflexive:
            field.pronouns = grammar.REFLEXIVES[subject.agreement]
        plain = not (bare or gap or steady or negated or time[0] or subject.english.startswith("no "))
        if plain and mode in TENSES[:2] and self.chance(0.15):
            group = self._with_frequency(field, group, verb)
        self._complements(field, verb, subject.agreement, gap, simple or bare or subject.kind == "pronoun")
        if not (bare or gap or field.tail) and verb.modal:
            self._adjuncts(field, verb)
        return Clause(subject, group, field.english_text(), field.german_text(), field.tail)

    def _with_frequency(self, field: MiddleField, group: VerbGroup, verb: Verb) -> VerbGroup:
        english, field.frequency = self.pick(FREQUENCIES)
        statement = (group.statement, english) if verb is BE else (english, group.statement)
        return group._replace(statement=words(*statement), question_rest=words(english, group.question_rest))

    def _complements(self, field: MiddleField, verb: Verb, agreement: int, gap: bool, simple: bool) -> None:
        field.particle, field.particle_first = verb.particle, verb.particle in {"for", "to"}
        if verb.frame in {"transitive", "dative", "laying"} and not gap:
            self._object(field, verb, agreement, simple)
        if verb.frame == "laying":
            place = self.noun_phrase(NOUNS_BY_KIND["furniture"], ACCUSATIVE, "adverbial")
            field.complement = in_case(place[:2], "on", "auf")
        elif verb.frame == "prepositional":
            thing = self._one_of(verb, agreement, "definite" if field.negated else "adverbial")
            field.particle = ""
            field.complement = words(verb.particle, thing.english), prepositional(verb.preposition, thing.german)
        elif verb.frame == "giving":
            field.place(self.person_object(DATIVE, agreement, "definite"), DATIVE)
            field.place(self.noun_phrase(verb.nouns, ACCUSATIVE, self._object_style(field)), ACCUSATIVE)
        elif verb.frame == "motion":
            field.complement = self._direction(verb)
        elif verb.frame == "location":
            field.complement = self._location(verb)

    def _object_style(self, field: MiddleField) -> str:
        """Negation is "kein" with an indefinite object, and then leaves out "nicht"."""
        if not field.negated:
            return "object"
        field.negated = self.chance(0.5)
        return "definite" if field.negated else "negated"

    def _object(self, field: MiddleField, verb: Verb, agreement: int, simple: bool) -> None:
        style = self._object_style(field)
        thing = self._one_of(verb, agreement, style)
        if style == "object" and thing.kind in NOUNS_BY_KIND and not simple and VERBS_BY_OBJECT[thing.kind]:
            kind = self._random()
            if kind < 0.12 and not field.time[0] and verb.frame != "laying":
                thing = self.with_relative(thing)
            elif 0.12 < kind < 0.17:
                other = self.noun_phrase(verb.nouns, verb.case, "definite" if thing.definite else "adverbial")
                if other.definite == thing.definite and other.english:
                    german = f"{thing.german} und {other.german}"
                    thing = thing._replace(english=f"{thing.english} and {other.english}", german=german)
        field.place(thing, verb.case)

    def _one_of(self, verb: Verb, agreement: int, style: str) -> Phrase:
        if verb.kinds[0] == "person" and style != "negated" and self.chance(0.6):
            return self.person_object(verb.case, agreement, style)
        return self.noun_phrase(verb.nouns, verb.case, style)

    def _direction(self, verb: Verb) -> Pair:
        if "city" in verb.kinds and (not verb.nouns or self.chance(0.6)):
            english, german = self.pick(CITIES)
            return f"to {english}", f"nach {german}"
        noun = self.pick(verb.nouns)
        inside = noun.kind in {"venue", "room"}
        return in_case(self._place_phrase(noun, ACCUSATIVE if inside else DATIVE), "to", "in" if inside else "zu")

    def _location(self, verb: Verb) -> Pair:
        if "city" in verb.kinds and self.chance(0.4):
            return in_case(self.pick(CITIES), "in", "in")
        return self._place(verb.nouns)

    def _place(self, nouns: tuple[Noun, ...]) -> Pair:
        noun = self.pick(nouns)
        return in_case(self._place_phrase(noun, DATIVE), *lexicon.PLACE_PREPOSITIONS[noun.kind])

    def _place_phrase(self, noun: Noun, case: int) -> Pair:
        determiner = self.pick(self.pick(grammar.PLACE_DETERMINERS[noun.bond]))
        english, german, *_ = noun_phrase(noun, determiner, case, self._attribute(noun) if self.chance(0.3) else None)
        return english, german

    def _adjuncts(self, field: MiddleField, verb: Verb) -> None:
        kind = self._random()
        if verb.frame == "motion" and verb.english in {"travel", "come", "return"} and kind < 0.3:
            field.companion = self.pick(VEHICLES)
        elif kind < 0.1 and not field.indefinite and verb.frame in {"transitive", "activity", "motion", "laying"}:
            field.manner = self.pick(MANNERS)
        elif kind < 0.2 and verb.frame in {"transitive", "activity", "motion", "location"}:
            companion = self.noun_phrase(PERSONS if kind < 0.18 else PETS, DATIVE, "definite")
            field.companion = in_case(companion[:2], "with", "mit")
        elif kind < 0.25 and verb.english in {"buy", "write", "bake", "order", "build", "paint"}:
            field.companion = in_case(self.noun_phrase(PERSONS, ACCUSATIVE, "adverbial")[:2], "for", "für")
        if verb.frame in {"transitive", "activity", "dative", "giving", "prepositional"} and self.chance(0.2):
            field.locality = self._place(LOCALITIES)

    def time(self, mode: str) -> Pair:
        """An adverbial of time that suits the mode."""
        tense, kind = TIME_OF_MODE[mode], self._random()
        if kind < 0.2 and tense != "present":
            english, german = self.pick(NUMERALS[:30])
            unit = self.pick((("days", "Tagen"), ("weeks", "Wochen"), ("years", "Jahren"), ("months", "Monaten")))
            if tense == "past":
                return f"{english} {unit[0]} ago", f"vor {german} {unit[1]}"
            return f"in {english} {unit[0]}", f"in {german} {unit[1]}"
        if kind < 0.3:
            english, german = self.pick(NUMERALS[:11])
            return f"at {english} o'clock", f"um {german} Uhr"
        return self.pick(TIMES["any"] if kind < 0.5 else TIMES[tense])
