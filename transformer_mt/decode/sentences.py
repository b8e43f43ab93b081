"""A paragraph as sentences and the white space between them, and put together again with no character lost.

The rules know English, German and French abbreviations and otherwise no language. In doubt they do not cut: two
sentences translated as one lose little, half a sentence has lost its sense.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, zip_longest
from math import ceil

_TERMINATORS = re.compile("[.!?…。！？｡．؟۔।॥։።]+")
_NEED_NO_BLANK = frozenset("。！？｡")
_QUOTES = "\"'”’“‘»«›‹"
# What still belongs to a sentence after its full stop: quotes, brackets, a footnote, the end of a tag, and the quote
# that French sets off with a blank. German closes with the quote that Chinese opens with.
_CLOSING = re.compile(rf"(?:[{_QUOTES})\]}}]|\[\d{{1,3}}\]|</\w{{1,20}}>|\s[»›](?=\s|\Z))*")
_CLOSING_CJK = re.compile("[\"'”’)\\]}」』）】》〉］｝〕]*")
_OPENING = re.compile(rf"(?:[{_QUOTES}„‚(\[{{¿¡「『（【《〈［｛〔]|(?<=[«‹])\s|[–—•*-]\s?|<\w[^<>]{{0,200}}>)*")
_OPENING_CJK = frozenset("「『（【《〈［｛〔“‘")
_BLANKS = re.compile(r"\s*")
_ELISION = re.compile("^(?:[cdjlmnst]|qu)['’]", re.IGNORECASE)
_WORD = re.compile(r"[^\W_]{0,20}")
_LONGEST_ABBREVIATION = 24

_ORDINAL = re.compile(r"\d{1,3}(?:[./,–-]+\d{1,3})*|[IVXL]{2,}")
_DOTTED = re.compile(r"[^\W\d_]{1,2}(?:\.-?[^\W\d_]{1,2})+")
_WITHOUT_VOWELS = re.compile(r"[B-DF-HJ-NP-TV-XZ]?[b-df-hj-np-tv-xz]{1,5}")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NEVER_LAST = _words(
    "dr prof mr mrs ms mme mmes mlle mlles mgr hr hrn frl st ste sts hl gen col sgt capt lt gov sen rep hon rev pres "
    "mt dipl ing mag nr nrn bzw bzgl ca vgl sog ggf evtl inkl exkl einschl zzgl abzgl insb insbes mio mrd cf vs viz "
    "approx resp env tél tel e.g i.e z.b d.h u.a o.ä s.o s.u i.d.r m.a.w p.ex c.-à-d geb gest gegr hrsg"
)
_BEFORE_NUMBERS = _words(
    "no nos n° art abs abb anm bd chap ch fig figs kap par para pos sec tab vol ziff pp eq ref réf "
    "jan feb febr mar apr jun jul aug sep sept oct okt nov dec dez janv févr avr juil déc"
)
_RARELY_LAST = _words(
    "etc usw al inc ltd co corp bros jr sr dept est ed eds ave blvd rd ft aufl abt bsp chr jh jhd jahrh jt allg dt "
    "engl frz ehem ex av éd hab mm min max std staatl kath univ"
)
# Words that begin a sentence and are neither a noun after "3." nor a name after "U.S.".
_STARTERS = _words(
    "The He She It They We You I This That These Those There But And However In At On After When If As For What Why "
    "How His Her Its Their Our My Then So Who Where Not No Yes To With From By Only Even Although While Since "
    "Der Die Das Er Sie Es Wir Ihr Ich Dann Danach Aber Und Doch Im Am Auf Bei Nach Mit Von Zu Für Ein Eine Diese "
    "Dieser Dieses Wenn Als Wie Was Wer Warum Auch Seit Dort Hier Heute Nun Seine Ihre Bis Durch Darum Deshalb Jedoch "
    "Le La Les Il Elle Ils Elles On Un Une Des Ce Cette Ces Cet Mais Et En Dans Pour Nous Vous Je Tu Après Avec Qui "
    "Que Quand Si Son Sa Ses Leur Leurs Puis Alors Cependant"
)

# Where a sentence that is too long is cut, best first.
_CLAUSE = re.compile(r"[;:–؛]\s+|[；：]|—+\s*")
_COMMA = re.compile(r"[,،]\s+|[，、､]")
_SPACE = re.compile(r"\s+")
_JOINERS = frozenset("\u200c\u200d")
_FILL = 0.8  # of the limit: parts differ in how many pieces their characters make

_CJK = re.compile("[\u2e80-\u312f\u3190-\u9fff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff9f\U00020000-\U0003ffff]")
_THAI_AND_KIN = re.compile("[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\uaa60-\uaa7f]")


@dataclass(frozen=True)
class Paragraph:
    """Sentences, and the white space around them: one joint more than sentences."""

    sentences: tuple[str, ...]
    """Never blank, without white space at their ends; none at all in a blank text."""
    joints: tuple[str, ...]
    """joints[i] stands before sentence i, the last one at the end of the text."""

    @property
    def text(self) -> str:
        """All of it, as one text."""
        return "".join(chain.from_iterable(zip_longest(self.joints, self.sentences, fillvalue="")))

    def filled(self, texts: Sequence[str]) -> "Paragraph":
        """Other texts, as many, in the places of the sentences, with the white space that was there.

        Chinese and Japanese write no blank between sentences: where the source ends so and the new text does not, a
        blank is put in; where it is the other way round, a single blank is left out.
        """
        joints = list(self.joints)
        ends = [(_ends_in_cjk(old), _ends_in_cjk(new)) for old, new in zip(self.sentences, texts, strict=True)]
        for place, (before, now) in enumerate(ends[:-1], 1):
            if joints[place] == "" and before and not now and texts[place - 1] and texts[place]:
                joints[place] = " "
            elif joints[place] == " " and now and not before:
                joints[place] = ""
        return Paragraph(tuple(texts), tuple(joints))

    def within(self, limit: int, count: Callable[[str], int]) -> "Paragraph":
        """The same text with its sentences cut further until each has at most `limit` pieces; see pieces_within."""
        cut = [pieces_within(sentence, limit, count) for sentence in self.sentences]
        joints = ((*parts.joints[1:-1], joint) for parts, joint in zip(cut, self.joints[1:], strict=True))
        sentences = chain.from_iterable(parts.sentences for parts in cut)
        return Paragraph(tuple(sentences), (self.joints[0], *chain.from_iterable(joints)))

    def first_words(self) -> list[int]:
        """For each sentence the number, from 0, of the word of the whole text that it begins with or within."""
        numbers, words, inside = [], 0, False
        for joint, sentence in zip(self.joints, self.sentences, strict=False):
            inside = inside and not joint and not sentence[:1].isspace()
            numbers.append(words - inside)
            if found := len(sentence.split()):
                words += found - inside
            inside = not sentence[-1:].isspace() if sentence else inside
        return numbers


def split(text: str) -> Paragraph:
    """Cuts a text into its sentences; `split(text).text == text`. Takes time in proportion to its length."""
    return _paragraph(text, _sentence_starts(text))


def pieces_within(text: str, limit: int, count: Callable[[str], int]) -> Paragraph:
    """Cuts a text into parts of similar length, each of at most `limit` pieces as `count` counts them.

    The cuts are made after ; : or a dash, else after a comma, if there is one near; else at the nearest white space;
    only a text without any is cut between its characters. One character may have more pieces than that.
    """
    return _paragraph(text, _cuts(text, 0, 1, limit, count))


def without_blanks(character: str) -> bool:
    """Whether the character is of a script that writes no blanks between words: Chinese, Japanese, Thai and kin."""
    return bool(_CJK.match(character) or _THAI_AND_KIN.match(character))


def _ends_in_cjk(text: str) -> bool:
    return bool(_CJK.match(text.rstrip(_QUOTES + ")]}")[-1:]))


def _paragraph(text: str, places: Iterable[int]) -> Paragraph:
    """The text cut before these places; what is blank between two of them joins its neighbours."""
    sentences, joints = [], [""]
    for begin, end in pairwise([0, *places, len(text)]):
        sentence = text[begin:end].strip()
        lead, part, rest = text[begin:end].partition(sentence) if sentence else (text[begin:end], "", "")
        joints[-1] += lead
        if part:
            sentences.append(part)
            joints.append(rest)
    return Paragraph(tuple(sentences), tuple(joints))


def _skip(pattern: re.Pattern[str], text: str, place: int) -> int:
    """Where the pattern, which may match nothing, ends if it begins here."""
    found = pattern.match(text, place)
    return found.end() if found else place


def _sentence_starts(text: str) -> Iterator[int]:
    """Where sentences begin, but for the first one."""
    begin = 0
    for marks in _TERMINATORS.finditer(text):
        closed = _skip(_CLOSING if _NEED_NO_BLANK.isdisjoint(marks[0]) else _CLOSING_CJK, text, marks.end())
        start = _skip(_BLANKS, text, closed)
        if marks.start() > begin and start < len(text) and _is_end(text, begin, marks, closed, start):
            yield start
            begin = start


def _is_end(text: str, begin: int, marks: re.Match[str], closed: int, start: int) -> bool:
    """Whether the sentence from `begin` ends with these marks, `closed` there, and the next one may `start` there."""
    cjk = not _NEED_NO_BLANK.isdisjoint(marks[0])
    if start == closed and not cjk:
        return False
    first = _skip(_OPENING, text, start)
    following = text[first : first + 1]
    if cjk:  # after a quote the sentence around it may go on: 「はい。」と言った。
        return following.isalnum() and (closed == marks.end() or start > closed or text[start] in _OPENING_CJK)
    begins = following.isdigit() or (following.isalpha() and not following.islower())
    return begins and _ends_after(text, begin, marks, first)


def _ends_after(text: str, begin: int, marks: re.Match[str], first: int) -> bool:
    """What the words before and after the marks say; `first`: where the word after them begins."""
    place, ellipsis = marks.start(), "…" in marks[0] or ".." in marks[0]
    before = text[max(begin, place - _LONGEST_ABBREVIATION) : place]
    words = before.split()
    if not words or words[-1].endswith((".", "…")):
        return False
    word = _ELISION.sub("", words[-1].lstrip(_QUOTES + "„‚([{–—-"))
    if ellipsis:  # "[…] Er", "the great … Smith": something was left out there
        return not before[-1].isspace() and any(map(str.isalnum, word))
    if marks[0] != ".":
        return bool(word)
    following = text[first : _skip(_WORD, text, first)]
    return _is_last(word, following, alone=len(words) == 1 and place - begin <= _LONGEST_ABBREVIATION)


def _is_last(word: str, following: str, alone: bool) -> bool:
    """Whether a full stop after this word ends a sentence; `alone`: the sentence would be this word and no other."""
    key = word.casefold()
    if not word or (len(word) == 1 and word.isalpha()) or key in _NEVER_LAST:
        return False
    if _ORDINAL.fullmatch(word):
        return not alone and following in _STARTERS
    if following[:1].isdigit() and (key in _BEFORE_NUMBERS or key.endswith(("str", "nr"))):
        return False
    if key in _RARELY_LAST or _DOTTED.fullmatch(key) or _WITHOUT_VOWELS.fullmatch(word):
        return following in _STARTERS
    return True


# Sentences that are too long


def _cuts(text: str, offset: int, parts: int, limit: int, count: Callable[[str], int]) -> Iterator[int]:
    """Where to cut a text that begins at `offset` into about so many parts; only single ones are counted."""
    offset += len(text) - len(text.lstrip())
    text = text.strip()
    if len(text) < 2:
        return
    if parts < 2:
        pieces = count(text)
        if pieces <= limit:
            return
        parts = min(len(text), max(2, ceil(pieces / (_FILL * max(1, limit)))))
    place = _best_place(text, len(text) * (parts // 2) // parts)
    left = min(parts - 1, max(1, round(parts * place / len(text))))
    yield from _cuts(text[:place], offset, left, limit, count)
    yield offset + place
    yield from _cuts(text[place:], offset + place, parts - left, limit, count)


def _best_place(text: str, centre: int) -> int:
    """Where to cut in two, neither of them empty, near the centre; the text has no white space at its ends."""
    centre = max(1, centre)
    near = len(text) // 4
    for pattern, reach in (_CLAUSE, near), (_COMMA, near), (_SPACE, near), (_SPACE, len(text)):
        found = pattern.finditer(text, max(0, centre - reach), centre + reach)
        places = (match.end() for match in found if match.end() < len(text))
        if place := min(places, key=lambda place: abs(place - centre), default=0):
            return place
    for place in range(centre, len(text)):  # an accent stays with its letter, an emoji whole
        if unicodedata.category(text[place])[0] != "M" and _JOINERS.isdisjoint(text[place - 1 : place + 1]):
            return place
    return centre
