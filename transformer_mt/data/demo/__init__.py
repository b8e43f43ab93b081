"""The built-in demonstration corpus: English-German sentence pairs from a small hand-written grammar of both.

A newcomer has no corpus at hand, and a downloaded one takes hours to learn. These sentences need no download, show
real grammar (gender, case, verb-second and verb-final order, separable verbs, ...), and can be learned in minutes.
Every choice fixes both languages at once, so each English sentence has exactly one German translation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from transformer_mt.data.demo import grammar, lexicon
from transformer_mt.data.demo.clauses import (
    ANIMALS,
    BE,
    DOINGS,
    LOCALITIES,
    NOTHING,
    PERSONS,
    THINGS,
    VERBS_BY_OBJECT,
    ClauseComposer,
)  # fmt: skip
from transformer_mt.data.demo.grammar import (
    TENSES,
    THIRD,
    TIME_OF_MODE,
    Clause,
    Pair,
    Phrase,
    noun_phrase,
    verb_group,
    words,
)  # fmt: skip
from transformer_mt.data.demo.words import ACCUSATIVE, DATIVE, NOUNS, VERBS, word_pairs

LANGUAGE_PAIRS = {"english-german": ("en", "de")}
# Far fewer than the grammar has, so that drawing until a new sentence comes up stays quick.
MOST_PAIRS = 10_000_000
FEWEST_WORDS, MOST_WORDS = 3, 22

Sentence = tuple[str, str, str]  # English, German, final mark
COMMENTS = word_pairs(lexicon.COMMENTS)
SUBORDINATORS = word_pairs(lexicon.SUBORDINATORS)
QUESTION_WORDS = (("why", "warum"), ("when", "wann"), ("how often", "wie oft"), ("where", "wo"))
UTTERANCE_TENSES = ("present",) * 4 + ("past",) * 3 + ("future",)
INDIRECT_QUESTIONS = (("whether", "ob"),) * 3 + QUESTION_WORDS
CONJUNCTIONS = (("and", " und"), ("but", ", aber"), ("or", " oder"))
DOINGS_TO_PERSONS = tuple(verb for verb in VERBS_BY_OBJECT["person"] if verb.kinds[0] == "person")
DOINGS_TO_THINGS = tuple(verb for verb in VERBS["transitive"] if verb.kinds[0] != "person")
THINGS_AND_BEINGS = PERSONS + ANIMALS + tuple(n for n in THINGS if n.kind in {"thing", "furniture", "food", "vehicle"})
ASKABLE = tuple(noun for noun in NOUNS if noun.countable and VERBS_BY_OBJECT[noun.kind])
TO_INFINITIVES = {verb.infinitive: verb.to_infinitive for verbs in VERBS.values() for verb in verbs}
WHO = Phrase("who", "wer", THIRD)


class SentenceComposer(ClauseComposer):
    """Draws random sentences of each type."""

    def statement(self) -> Sentence:
        """A main clause, maybe with an adverbial of time last or first, or a comment first."""
        mode, kind, negated = self.pick(grammar.MODES), self._random(), self.chance(0.18)
        if kind < 0.3:
            return self._plain(self.any_clause(mode, self.time(mode), negated))
        if kind < 0.65:
            english, german = self.time(mode)
            clause = self.any_clause(mode, NOTHING, negated, steady=True)
            return words(english, clause.statement()), clause.main(german), "."
        clause = self.any_clause(mode, NOTHING, negated)
        if kind < 0.75:
            english, german = self.pick(COMMENTS)
            return f"{english} {clause.statement()}", clause.main(german), "."
        return self._plain(clause)

    @staticmethod
    def _plain(clause: Clause) -> Sentence:
        return clause.statement(), clause.main(), "."

    def yes_no_question(self) -> Sentence:
        """A question that starts with the verb."""
        mode = self.pick(grammar.MODES)
        clause = self.any_clause(mode, self.time(mode) if self.chance(0.5) else NOTHING)
        return clause.question(), clause.german_question(), "?"

    def adverb_question(self) -> Sentence:
        """A question with an adverb: why, when, how often, where."""
        clause, (english, german) = self._bare_doing(), self.pick(QUESTION_WORDS)
        return clause.question(english), clause.german_question(german), "?"

    def _bare_doing(self) -> Clause:
        return self.clause(self.pick(DOINGS), self.pick(grammar.MODES), self.person_subject(True), bare=True)

    def object_question(self) -> Sentence:
        """A question about the subject or the object: who, whom, what, which, how many."""
        kind, mode = self._random(), self.pick(grammar.MODES)
        if kind < 0.3:
            clause = self.clause(
                self.action(), mode, WHO, time=self.time(mode) if kind < 0.15 else NOTHING, simple=True
            )
            return clause.statement(), clause.main(), "?"
        if kind < 0.6:
            noun = self.pick(ASKABLE)
            determiner = self.pick((grammar.WHICH, grammar.WHICH_PLURAL, grammar.HOW_MANY))
            verb = self.pick(VERBS_BY_OBJECT[noun.kind])
            english, german, *_ = noun_phrase(noun, determiner, verb.case)
        else:
            verb = self.pick(DOINGS_TO_PERSONS if kind < 0.75 else DOINGS_TO_THINGS)
            dative = verb.case == DATIVE
            english, german = ("whom", "wem" if dative else "wen") if kind < 0.75 else ("what", "was")
        clause = self.clause(verb, mode, self.simple_subject(), gap=True)
        return clause.question(english), clause.german_question(german), "?"

    def adverbial_clause(self) -> Sentence:
        """A main clause with a subordinate one before or after it: because, although, when, if, ..."""
        mode, kind = self.pick(grammar.MODES), self._random()
        tense = TIME_OF_MODE[mode]
        english, german = self.pick(SUBORDINATORS)
        dependent = mode if tense != "past" else "past"
        if kind < 0.3:
            english, german = ("when", "als" if tense == "past" else "wenn")
        elif kind < 0.45 and tense != "past":
            english, german = ("if", "wenn")
        if english in {"because", "although"}:
            dependent = self.pick(grammar.MODES_BY_TIME[tense])
        elif tense == "future":
            dependent = "present"
        free = english in {"because", "although", "if"}
        main = self.any_clause(mode, negated=free and self.chance(0.25), steady=True, nested=True)
        other = self.any_clause(dependent, negated=free and self.chance(0.25), steady=True, nested=True)
        if self.chance(0.35):
            front = other.subordinate(german).removeprefix(", ")
            return f"{english} {other.statement()}, {main.statement()}", main.main(front), "."
        return f"{main.statement()} {english} {other.statement()}", main.main() + other.subordinate(german), "."

    def content_clause(self) -> Sentence:
        """A verb of saying with "that", or of asking with "whether" or a question word, and a clause."""
        mode, negated = self.pick(UTTERANCE_TENSES), self.chance(0.15)
        subject = self.person_subject(negated)
        if self.chance(0.6):
            inner_mode = self.pick(grammar.MODES_BY_TIME["past"] if mode == "past" else grammar.MODES)
            time = self.time(inner_mode) if self.chance(0.3) else NOTHING
            verb, (english, german) = self.pick(VERBS["saying"]), ("that", "dass")
            inner = self.any_clause(inner_mode, time, self.chance(0.12))
        else:
            verb, (english, german) = self.pick(VERBS["asking"]), self.pick(INDIRECT_QUESTIONS)
            inner = self._bare_doing()
        outer = self.clause(verb, mode, subject, negated=negated, bare=True)
        return f"{outer.statement()} {english} {inner.statement()}", outer.main() + inner.subordinate(german), "."

    def infinitive_clause(self) -> Sentence:
        """A clause with an infinitive: "try to ...", or of purpose: "... in order to ..."."""
        mode, subject, verb = self.pick(UTTERANCE_TENSES), self.person_subject(), self.action()
        inner = self.clause(verb if verb.modal else self.pick(DOINGS), "future", subject, bare=True)
        english, infinitive = inner.group.statement.removeprefix("will"), TO_INFINITIVES[inner.group.end]
        if self.chance(0.6):
            outer, link, german = self.clause(self.pick(VERBS["intending"]), mode, subject, bare=True), " to", ""
        else:
            doing = self.pick(VERBS["motion"])
            outer, link, german = self.clause(doing, mode, subject, bare=True), " in order to", "um"
        text = words(outer.statement() + link + english, inner.english)
        return text, f"{outer.main()}, {words(german, inner.german, infinitive)},", "."

    def coordination(self) -> Sentence:
        """Two main clauses, or two predicates of one subject."""
        mode = self.pick(grammar.MODES)
        if self.chance(0.5):
            english, german = self.pick(CONJUNCTIONS)
            first = self.any_clause(mode)
            second = self.any_clause(self.pick(grammar.MODES_BY_TIME[TIME_OF_MODE[mode]]))
            return f"{first.statement()} {english} {second.statement()}", f"{first.main()}{german} {second.main()}", "."
        tense, subject = self.pick(TENSES[:2]), self.person_subject()
        first, second = (self.clause(self.action(), tense, subject, steady=True) for _ in range(2))
        # "hat ... gekauft und gelesen": the second auxiliary goes if it is the same.
        shared = tense == "past" and first.group.finite == second.group.finite and bool(first.group.end)
        english = words(second.group.statement, second.english)
        return f"{first.statement()} and {english}", f"{first.main()} und {second.predicate(not shared)}", "."

    def existence(self) -> Sentence:
        """ "There is ..." with a place; German "es gibt" takes the accusative."""
        tense = self.pick(TENSES)
        thing = self.noun_phrase(THINGS_AND_BEINGS, ACCUSATIVE, "adverbial")
        while thing.definite:
            thing = self.noun_phrase(THINGS_AND_BEINGS, ACCUSATIVE, "adverbial")
        english, german = self._place(LOCALITIES)
        group = verb_group(BE, tense, thing.agreement)
        finite, end = {"present": ("gibt", ""), "past": ("gab", ""), "future": ("wird", "geben")}[tense]
        return f"there {group.statement} {thing.english} {english}", words(german, finite, "es", thing.german, end), "."

    def sentence(self) -> Pair:
        """A finished sentence in English and in German."""
        english, german, mark = self.pick(SENTENCE_TYPES)(self)
        return finish(english, mark), finish(german, mark)


def finish(text: str, mark: str) -> str:
    """The text with a capital letter, without doubled commas, and with its final mark."""
    if "," in text:
        text = text.replace(", ,", ",").replace(",,", ",").replace(" ,", ",").removesuffix(",")
    return text[0].upper() + text[1:] + mark


_SHARES: tuple[tuple[Callable[[SentenceComposer], Sentence], int], ...] = (
    (SentenceComposer.statement, 40),
    (SentenceComposer.adverbial_clause, 20),
    (SentenceComposer.content_clause, 11),
    (SentenceComposer.coordination, 9),
    (SentenceComposer.yes_no_question, 7),
    (SentenceComposer.object_question, 5),
    (SentenceComposer.infinitive_clause, 5),
    (SentenceComposer.adverb_question, 4),
    (SentenceComposer.existence, 2),
)
SENTENCE_TYPES = tuple(sentence_type for sentence_type, share in _SHARES for _ in range(share))


def generate(name: str, pairs: int, seed: int) -> Iterator[Pair]:
    """Yield distinct (English, German) sentence pairs; the same arguments give the same pairs on any machine.

    Fewer pairs are a prefix of more. A name or a number of pairs that cannot be served is refused at the call.
    """
    if name not in LANGUAGE_PAIRS:
        raise ValueError(f"unknown demonstration corpus {name!r}; there is {', '.join(sorted(LANGUAGE_PAIRS))}")
    if not 0 <= pairs <= MOST_PAIRS:
        raise ValueError(f"{pairs} pairs asked for, but the {name} corpus gives from 0 to {MOST_PAIRS}")
    return _distinct(SentenceComposer(seed), pairs)


def _distinct(composer: SentenceComposer, pairs: int) -> Iterator[Pair]:
    seen: set[str] = set()
    while len(seen) < pairs:
        english, german = composer.sentence()
        if english not in seen and FEWEST_WORDS <= english.count(" ") + 1 <= MOST_WORDS:
            seen.add(english)
            yield english, german
