"""Inflection and word order of the built-in English-German demonstration corpus.

Determiners, adjective endings, verb groups, and the clause whose parts are put into main, subordinate and question
order. Nothing here is random: what to say is chosen in `demo`, the words come from `words`.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from transformer_mt.data.demo.words import DATIVE, NUMERALS, PLURAL, Noun, Verb, english_s_form

# The agreement of a subject with its verb: I, you, he/she/it, we, they.
FIRST, SECOND, THIRD, WE, THEY = range(5)

# Endings by gender (masculine, feminine, neuter, plural) and case (nominative, accusative, dative, genitive).
ADJECTIVE_ENDINGS = {
    "weak": ("e en en en", "e e en en", "e e en en", "en en en en"),
    "mixed": ("er en en en", "e e en en", "es es en en", "en en en en"),
    "strong": ("er en em en", "e e er er", "es es em en", "e e en er"),
}
DEFINITE_FORMS = ("der den dem des", "die die der der", "das das dem des", "die die den der")
EIN_ENDINGS = ("- en em es", "e e er er", "- - em es", "e e en er")
DIES_ENDINGS = ("er en em es", "e e er er", "es es em es", "e e en er")
RELATIVE_PRONOUNS = ("der den dem", "die die der", "das das dem", "die die denen")
PERSONAL_PRONOUNS = (
    # subject, object, German accusative, German dative, agreement
    ("I", "me", "ich", "mich", "mir", FIRST),
    ("you", "you", "du", "dich", "dir", SECOND),
    ("he", "him", "er", "ihn", "ihm", THIRD),
    ("she", "her", "sie", "sie", "ihr", THIRD),
    ("we", "us", "wir", "uns", "uns", WE),
    ("they", "them", "sie", "sie", "ihnen", THEY),
)
OBJECT_PRONOUNS = {
    FIRST: (1, 2, 3, 5),
    SECOND: (0, 2, 3, 4, 5),
    THIRD: (0, 1, 2, 3, 4, 5),
    WE: (1, 2, 3, 5),
    THEY: (0, 1, 2, 3, 4),
}
REFLEXIVES = ("mich", "dich", "sich", "uns", "sich")
CONTRACTIONS = {
    "in dem": "im", "an dem": "am", "zu dem": "zum", "von dem": "vom", "bei dem": "beim",
    "zu der": "zur", "in das": "ins", "an das": "ans",
}  # fmt: skip

# mode: its time, the German modal by agreement
MODALS = {
    "can": ("future", "kann kannst kann können können"),
    "could": ("past", "konnte konntest konnte konnten konnten"),
    "must": ("future", "muss musst muss müssen müssen"),
    "had to": ("past", "musste musstest musste mussten mussten"),
    "want": ("future", "will willst will wollen wollen"),
    "wanted": ("past", "wollte wolltest wollte wollten wollten"),
    "should": ("future", "sollte solltest sollte sollten sollten"),
    "may": ("future", "darf darfst darf dürfen dürfen"),
    "might": ("past", "durfte durftest durfte durften durften"),
}
TIME_OF_MODE = {"present": "present", "past": "past", "future": "future"} | {m: t for m, (t, _) in MODALS.items()}
TENSES = ("present", "past", "future")
MODES = ("present",) * 9 + ("past",) * 9 + ("future",) * 4 + tuple(MODALS) + ("can", "must", "want")
MODES_BY_TIME = {time: tuple(m for m in MODES if TIME_OF_MODE[m] == time) for time in ("present", "past", "future")}
SEIN = ("bin", "bist", "ist", "sind", "sind")
HABEN = ("habe", "hast", "hat", "haben", "haben")
WERDEN = ("werde", "wirst", "wird", "werden", "werden")
MODAL_FORMS = {mode: tuple(forms.split()) for mode, (_, forms) in MODALS.items()}
PRESENT_BE, PAST_BE = ("am", "are", "is", "are", "are"), ("was", "were", "was", "were", "were")
SIMPLE_PASTS = {
    "sein": ("war", "warst", "war", "waren", "waren"),
    "wissen": ("wusste", "wusstest", "wusste", "wussten", "wussten"),
    "mögen": ("mochte", "mochtest", "mochte", "mochten", "mochten"),
    "haben": ("hatte", "hattest", "hatte", "hatten", "hatten"),
}


Pair = tuple[str, str]


class Determiner(NamedTuple):
    """A determiner; the German forms are indexed by gender (or plural), then case."""

    english: str
    plural: bool
    forms: tuple[tuple[str, ...], ...]
    declension: str
    definite: bool


class Phrase(NamedTuple):
    """A noun phrase or pronoun in one German case."""

    english: str
    german: str
    agreement: int
    definite: bool = True
    gender: int = PLURAL
    kind: str = "person"
    tail: str = ""


class VerbGroup(NamedTuple):
    """The verbal parts of a clause: English for statements and for questions, German around the middle field."""

    statement: str
    question_auxiliary: str
    question_rest: str
    finite: str
    end: str
    final: str


class Clause(NamedTuple):
    """A clause, from which the word order of any sentence type is read off."""

    subject: Phrase
    group: VerbGroup
    english: str
    german: str
    tail: str = ""  # a relative clause of the object, which German moves behind the last verb

    def main(self, front: str = "") -> str:
        """German main clause: the finite verb stands second, after the fronted element or the subject."""
        if front:
            return words(front, self.group.finite, self.subject.german, self.german, self.group.end) + self.tail
        return words(self.subject.german, self.predicate())

    def predicate(self, with_finite: bool = True) -> str:
        """German main clause from the finite verb on, or from behind it."""
        return words(self.group.finite if with_finite else "", self.german, self.group.end) + self.tail

    def subordinate(self, introduction: str) -> str:
        """German subordinate clause between commas, its finite verb last."""
        return f", {words(introduction, self.subject.german, self.german, self.group.final)}{self.tail},"

    def statement(self) -> str:
        """English statement."""
        return words(self.subject.english, self.group.statement, self.english)

    def question(self, front: str = "") -> str:
        """English question, after a question word if there is one."""
        return words(front, self.group.question_auxiliary, self.subject.english, self.group.question_rest, self.english)

    def german_question(self, front: str = "") -> str:
        """German question: verb first, or second after the question word."""
        text = words(front, self.group.finite, self.subject.german, self.german, self.group.end)
        return text + self.tail


def words(*parts: str) -> str:
    """The parts that are not empty, joined with spaces."""
    return " ".join([part for part in parts if part])


def _table(rows: tuple[str, ...], stem: str = "") -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(stem + ending.replace("-", "") for ending in row.split()) for row in rows)


def _unchanging(english: str, german: str) -> Determiner:
    return Determiner(english, True, ((german,) * 4,) * 4, "strong", False)


def _both_numbers(english: str, stem: str) -> tuple[Determiner, Determiner]:
    forms = _table(EIN_ENDINGS, stem)
    return Determiner(english, False, forms, "mixed", True), Determiner(english, True, forms, "mixed", True)


ENDINGS = {name: _table(rows) for name, rows in ADJECTIVE_ENDINGS.items()}
RELATIVES = _table(RELATIVE_PRONOUNS)
THE = Determiner("the", False, _table(DEFINITE_FORMS), "weak", True)
THE_PLURAL = THE._replace(plural=True)
THIS = Determiner("this", False, _table(DIES_ENDINGS, "dies"), "weak", True)
THESE = THIS._replace(english="these", plural=True)
EVERY = Determiner("every", False, _table(DIES_ENDINGS, "jed"), "weak", True)
WHICH = Determiner("which", False, _table(DIES_ENDINGS, "welch"), "weak", True)
WHICH_PLURAL = WHICH._replace(plural=True)
A = Determiner("a", False, _table(EIN_ENDINGS, "ein"), "mixed", False)
NO = Determiner("no", False, _table(EIN_ENDINGS, "kein"), "mixed", False)
NO_PLURAL = NO._replace(plural=True)
NOT_A, NOT_ANY = NO._replace(english="a"), NO_PLURAL._replace(english="any")
BARE = _unchanging("", "")
MASS = BARE._replace(plural=False)
ALL = Determiner("all", True, _table(DIES_ENDINGS, "all"), "weak", True)
MANY, SOME = (
    Determiner(english, True, _table(DIES_ENDINGS, stem), "strong", False)
    for english, stem in (("many", "viel"), ("some", "einig"))
)
POSSESSIVES = [
    _both_numbers(english, stem)
    for english, stem in (
        ("my", "mein"), ("your", "dein"), ("his", "sein"), ("her", "ihr"), ("our", "unser"), ("their", "ihr")
    )
]  # fmt: skip
MY, MY_PLURAL = tuple(pair[0] for pair in POSSESSIVES), tuple(pair[1] for pair in POSSESSIVES)
NUMBERS = tuple(_unchanging(english, german) for english, german in NUMERALS)

HOW_MANY = MANY._replace(english="how many", forms=_table(DIES_ENDINGS, "wie viel"))

Groups = tuple[tuple[Determiner, ...], ...]


def _styles(
    definite: Groups, adverbial: Groups, objects: Groups, subject: Groups, negated: Groups
) -> dict[str, Groups]:
    """Groups of determiners to draw from, by what the context lets in; each style adds to the one before."""
    adverbial = definite + adverbial
    objects = adverbial + objects
    return {
        "definite": definite, "adverbial": adverbial, "object": objects, "subject": objects + subject,
        "negated": negated,
    }  # fmt: skip


# How often each group of determiners is drawn, by the bond of the noun and the style of its context.
_INDEFINITE: Groups = ((A,),) * 4 + (NUMBERS[:9], (MANY,))
_QUANTIFIED: Groups = ((EVERY,), (ALL,), (SOME,), (BARE,), NUMBERS)
_NONE: Groups = ((NO,), (NO_PLURAL,))
_NEGATED: Groups = ((NOT_A,), (NOT_A,), (NOT_ANY,))
_DEFINITE: Groups = ((THE,),) * 7 + ((THIS,), (THE_PLURAL,), (THE_PLURAL,), (THESE,))
DETERMINERS: dict[str, dict[str, Groups]] = {
    "own": _styles(_DEFINITE + (MY,) * 4 + (MY_PLURAL,), _INDEFINITE, _QUANTIFIED, _NONE, _NEGATED),
    "unowned": _styles(_DEFINITE, _INDEFINITE, _QUANTIFIED, _NONE, _NEGATED),
    "kin": _styles((MY,), (), (), (), _NEGATED),
    "mass": _styles(
        ((THE,), (THE,), (THE,), MY, (THIS,)), ((MASS,),) * 3, (), (), ((NO._replace(english="any"),),)
    ),
}  # fmt: skip
PLACE_DETERMINERS: dict[str, Groups] = {
    "own": ((THE,), (THE,), (THE,), MY, (A,)), "unowned": ((THE,),) * 6 + ((THIS,), (A,), (THE_PLURAL,)),
}  # fmt: skip


def noun_phrase(noun: Noun, determiner: Determiner, case: int, adjective: Pair | None = None) -> Phrase:
    """The noun with a determiner and maybe an adjective (English word, German stem), inflected for the case."""
    number, gender = (1, PLURAL) if determiner.plural else (0, noun.gender)
    english, german = noun.english[number], noun.german[number][case]
    if adjective:
        english = f"{adjective[0]} {english}"
        german = f"{adjective[1]}{ENDINGS[determiner.declension][gender][case]} {german}"
    article = determiner.english
    if article == "a" and english[0] in "aeiouh" and starts_with_vowel_sound(english):
        article = "an"
    agreement = THEY if determiner.plural else THIRD
    english, german = words(article, english), words(determiner.forms[gender][case], german)
    return Phrase(english, german, agreement, determiner.definite, gender, noun.kind)


def starts_with_vowel_sound(english: str) -> bool:
    """Whether "an" goes before the text: the letter decides but for "honest" and "university"."""
    return english.startswith("honest") or (english[0] in "aeiou" and not english.startswith("uni"))


def prepositional(preposition: str, german: str) -> str:
    """A German prepositional phrase, contracted wherever the preposition has a contraction with the article."""
    article, _, rest = german.partition(" ")
    contraction = CONTRACTIONS.get(f"{preposition} {article}") if rest else None
    return f"{contraction} {rest}" if contraction else f"{preposition} {german}"


def in_case(phrase: Pair, english: str, german: str) -> Pair:
    """The pair of prepositions put before the pair of phrases."""
    return f"{english} {phrase[0]}", prepositional(german, phrase[1])


class MiddleField:
    """What stands between the finite verb and the end of a German clause, with the English for it.

    German order: pronouns, time, dative, definite accusative, nicht, adjuncts, indefinite accusative, complement.
    """

    def __init__(self, time: Pair = ("", ""), negated: bool = False) -> None:
        """Start with the adverbial of time, and a "nicht" if the clause is negated."""
        self.time, self.negated = time, negated
        self.pronouns = self.dative = self.definite = self.indefinite = self.frequency = self.tail = ""
        self.particle, self.particle_first = "", False
        self.objects: list[Phrase] = []
        self.manner: Pair = ("", "")
        self.complement: Pair = ("", "")
        self.companion: Pair = ("", "")
        self.locality: Pair = ("", "")

    def place(self, phrase: Phrase, case: int) -> None:
        """Add an object where its kind and its case put it."""
        self.tail += phrase.tail
        self.objects.append(phrase)
        if phrase.kind == "pronoun":
            self.pronouns = words(self.pronouns, phrase.german)
        elif case == DATIVE:
            self.dative = phrase.german
        elif phrase.definite:
            self.definite = phrase.german
        else:
            self.indefinite = phrase.german

    def german_text(self) -> str:
        """The German middle field."""
        return words(
            self.pronouns, self.time[1], self.frequency, self.dative, self.definite, "nicht" if self.negated else "",
            self.companion[1], self.manner[1], self.locality[1], self.indefinite, self.complement[1],
        )  # fmt: skip

    def english_text(self) -> str:
        """The English after the verb; a separable particle follows a pronoun and precedes a longer object."""
        objects = words(*(phrase.english for phrase in self.objects))
        after = bool(self.objects) and self.objects[0].kind == "pronoun" and not self.particle_first
        objects = words(objects, self.particle) if after else words(self.particle, objects)
        return words(objects, self.manner[0], self.complement[0], self.companion[0], self.locality[0], self.time[0])


@cache
def verb_group(verb: Verb, mode: str, agreement: int, negated: bool = False) -> VerbGroup:
    """The verb in a tense or with a modal verb, agreeing with the subject."""
    return VerbGroup(*_english_group(verb, mode, agreement, negated), *_german_group(verb, mode, agreement))


def _english_group(verb: Verb, mode: str, agreement: int, negated: bool) -> tuple[str, str, str]:
    if verb.english == "be" and mode in {"present", "past"}:
        be = (PRESENT_BE if mode == "present" else PAST_BE)[agreement]
        return (f"{be} not" if negated else be), be, ""
    base = verb.english
    do, be = ("does" if agreement == THIRD else "do"), PRESENT_BE[agreement]
    if mode == "present":
        statement = english_s_form(base) if agreement == THIRD else base
        return (f"{do} not {base}" if negated else statement), do, base
    if mode == "past":
        return (f"did not {base}" if negated else verb.past), "did", base
    if mode in {"future", "can", "could", "should"}:
        auxiliary = "will" if mode == "future" else mode
        refusal = "cannot" if mode == "can" else f"{auxiliary} not"
        return f"{refusal if negated else auxiliary} {base}", auxiliary, base
    if mode in {"may", "might"}:
        be = be if mode == "may" else PAST_BE[agreement]
        return f"{be} {'not ' if negated else ''}allowed to {base}", be, f"allowed to {base}"
    rest = f"{'want' if mode in {'want', 'wanted'} else 'have'} to {base}"
    if mode in {"had to", "wanted"}:
        return (f"did not {rest}" if negated else f"{mode.removesuffix(' to')} to {base}"), "did", rest
    positive = f"must {base}" if mode == "must" else f"{'wants' if agreement == THIRD else 'want'} to {base}"
    return (f"{do} not {rest}" if negated else positive), do, rest


def _german_group(verb: Verb, mode: str, agreement: int) -> tuple[str, str, str]:
    if mode == "present":
        finite = verb.present[agreement]
        return finite, verb.prefix, verb.prefix + finite
    if mode == "past" and verb.infinitive in SIMPLE_PASTS:
        finite = SIMPLE_PASTS[verb.infinitive][agreement]
        return finite, "", finite
    if mode == "past":
        finite, end = (SEIN if verb.takes_sein else HABEN)[agreement], verb.participle
    else:
        finite, end = (WERDEN if mode == "future" else MODAL_FORMS[mode])[agreement], verb.infinitive
    return finite, end, f"{end} {finite}"
