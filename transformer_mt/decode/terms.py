"""What must appear in a translation: the targets of a list of terms, and what is the same in every language.

Lines and outputs are normalised texts, as `normalize` gives them; the terms that are read are normalised too.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from transformer_mt.data import files
from transformer_mt.data.clean import normalize
from transformer_mt.decode.sentences import without_blanks
from transformer_mt.errors import UserError

_MOST_PROBLEMS = 50
_NAME = r"[A-Za-z0-9][\w:.-]*"
_ATTRIBUTE = r"""\s+[^\s=<>"'/]+\s*=\s*(?:"[^"<]*"|'[^'<]*'|[^\s"'<>=`]+)"""
_CJK_AND_HANGUL = "\u3000-\u9fff\uac00-\ud7af\uff00-\uffef"
_IN_URL = rf"""[^\s<>()"“”„«»{_CJK_AND_HANGUL}]"""
_LETTER = "A-Za-z0-9\u00c0-\u024f"
PATTERNS: Mapping[str, str] = {
    # <b>, </b>, <br/>, <a href="...">, <1>: attributes have values, so that "a <b and c> d" is no tag
    "tags": rf"<(?:/{_NAME}\s*|{_NAME}(?:{_ATTRIBUTE})*\s*/?)>",
    # {{x}}, {0}, {name}, ${var}, %{name}; %s, %1$s, %(name)s, %5.2f, but not "100%ig" and "%C3%A4"; %%; __PH_1__
    "placeholders": r"\{\{[^{}]*\}\}|[%$#]?\{[^{}\s]*\}"
    r"|(?<![\d%])%(?:\(\w+\)|\d+\$)?[-+#]*\d*(?:\.\d+)?(?:hh?|ll?|[zLq])?[sdiufxegc@](?![0-9a-f])|%%"
    r"|__[A-Za-z0-9]+(?:_[A-Za-z0-9]+)*__",
    # without the punctuation that follows, with brackets that were opened inside
    "urls": rf"(?<![A-Za-z0-9])(?:(?:https?|ftp)://|www\.)(?:{_IN_URL}|\({_IN_URL}*\))+(?<![.,;:!?…'’\]*])",
    "emails": rf"(?<![{_LETTER}_%+-])[{_LETTER}_%+-][{_LETTER}._%+-]{{0,63}}@[{_LETTER}-]+"
    rf"(?:\.[{_LETTER}-]*[{_LETTER}])+",
}
"""What survives unchanged, as regular expressions by the name of their group."""


@dataclass(frozen=True)
class Term:
    """What a word, or several, of the source has to become."""

    source: str
    target: str


@dataclass(frozen=True)
class Required:
    """One text that the translation has to hold."""

    text: str
    start: int
    """Where it begins in the source."""
    end: int
    touches_left: bool
    """Whether no white space stands before it in the source, nor the line's beginning: `</b>` in "<b>word</b>"."""
    touches_right: bool
    """The same for what comes after it."""
    term: bool
    """Whether it is a term: words of the output, which begin one of its sentences with a capital letter."""

    @property
    def forms(self) -> tuple[str, ...]:
        """The text, and its capitalised form where that does as well."""
        capitalised = _capitalised(self.text)
        return (self.text, capitalised) if self.term and capitalised != self.text else (self.text,)


# Reading


def read_terms(path: Path) -> list[Term]:
    """Reads lines of source, tab, target; blank ones, and those that are "#" or begin with "# ", are skipped.

    White space around both sides does not count. The same line twice is there once. Raises UserError with all that is
    wrong with the file, one message for each line.
    """
    if problem := files.path_problem(path):
        raise UserError(f"{problem} (a list of terms is a text file: source, tab, target)")
    terms: dict[str, tuple[Term, int]] = {}
    problems = list(islice(_problems(path, terms), _MOST_PROBLEMS + 1))
    if len(problems) > _MOST_PROBLEMS:
        problems[-1] = f"{path}: more of that; only the first {_MOST_PROBLEMS} problems are told"
    if problems:
        raise UserError(*problems)
    return [term for term, _ in terms.values()]


def _problems(path: Path, terms: dict[str, tuple[Term, int]]) -> Iterator[str]:
    """What is wrong with the file; fills `terms`, by source, each with the number of its line."""
    for number, raw in enumerate(files.lines(path), 1):
        try:
            line = files.text_of(raw)
        except UnicodeDecodeError as failure:
            yield str(files.bad_bytes(path, number, failure))
            continue
        if not line.strip() or line == "#" or line.startswith("# "):
            continue
        cells = [normalize(cell) for cell in line.split("\t")]
        if len(cells) != 2:
            found = f"{len(cells)} columns" if len(cells) > 2 else "no tab"
            yield f"{path}, line {number}: found {found}; wanted two columns: source, tab, target"
        elif not all(cells):
            side = "target" if cells[0] else "source"
            yield f"{path}, line {number}: found an empty {side}; wanted text on both sides of the tab"
        else:
            term, first = terms.setdefault(cells[0], (Term(*cells), number))
            if term.target != cells[1]:
                yield (
                    f"{path}, line {number}: found {cells[1]!r} for {cells[0]!r}, which line {first} makes "
                    f"{term.target!r}; wanted one target for each source"
                )


def compiled(groups: Iterable[str], own: Iterable[str] = ()) -> list[re.Pattern[str]]:
    """The patterns of these groups (keys of PATTERNS), and a person's own regular expressions.

    Raises UserError naming the groups that there are not, and the expressions that are none or match the empty text.
    """
    patterns, problems = [], []
    for group in groups:
        if group in PATTERNS:
            patterns.append(re.compile(PATTERNS[group]))
        else:
            problems.append(f"patterns: found {group!r}; wanted one of {', '.join(PATTERNS)}")
    for expression in own:
        try:
            pattern = re.compile(expression)
        except (re.error, RecursionError, OverflowError) as failure:
            problems.append(f"pattern {expression!r}: {failure}; wanted a regular expression as Python's re knows it")
            continue
        if pattern.match(""):
            problems.append(
                f"pattern {expression!r} matches the empty text; wanted one that takes a character at least"
            )
        patterns.append(pattern)
    if problems:
        raise UserError(*problems)
    return patterns


# Finding


class Finder:
    """Finds what translations have to hold in lines of the source."""

    def __init__(self, terms: Iterable[Term], patterns: Sequence[re.Pattern[str]]) -> None:
        """`patterns`: as `compiled` gives them."""
        self._patterns = patterns
        terms = list(terms)
        self._targets = {_capitalised(term.source): term.target for term in terms if term.source.islower()}
        self._targets |= {term.source: term.target for term in terms}
        lengths: dict[str, set[int]] = {}
        for source in self._targets:
            lengths.setdefault(source[:2], set()).add(len(source))
        self._lengths = {begin: sorted(found, reverse=True) for begin, found in lengths.items()}

    def required(self, line: str) -> list[Required]:
        """What the line's translation has to hold, in the order of the source, as often as it is there.

        What patterns match is kept as it is; of several matches the first, then the longest one. Terms are found in
        what is left, from left to right, the longest one first, where no letter or digit stands directly before or
        after them (scripts without blanks have no such borders). Case counts; but a term without capital letters is
        found with a capital first letter as well.
        """
        found: list[Required] = []
        free = 0
        for start, end in [*self._pattern_spans(line), (len(line), len(line))]:
            spans = self._term_spans(line, free, start)
            found += [_required(line, *span, self._targets[line[slice(*span)]], term=True) for span in spans]
            if start < end:
                found.append(_required(line, start, end, line[start:end], term=False))
            free = end
        return found

    def _pattern_spans(self, line: str) -> Iterator[tuple[int, int]]:
        """Where patterns match, without overlaps."""
        matches = [match.span() for pattern in self._patterns for match in pattern.finditer(line) if match[0]]
        free = 0
        for start, end in sorted(matches, key=lambda span: (span[0], -span[1])):
            if start >= free:
                yield start, end
                free = end

    def _term_spans(self, line: str, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Where terms stand between these places."""
        while start < stop:
            begins = (line[start : start + length] for length in (2, 1))
            ends = (start + length for begin in begins for length in self._lengths.get(begin, ()))
            fitting = (end for end in ends if end <= stop and line[start:end] in self._targets)
            if end := next((end for end in fitting if _stands_alone(line, start, end)), None):
                yield start, end
            start = end or start + 1


def _required(line: str, start: int, end: int, text: str, *, term: bool) -> Required:
    left = start > 0 and not line[start - 1].isspace()
    right = end < len(line) and not line[end].isspace()
    return Required(text, start, end, left, right, term)


def _capitalised(text: str) -> str:
    return text[:1].title() + text[1:]


def _stands_alone(line: str, start: int, end: int) -> bool:
    """Whether no word goes on across these places."""
    borders = (line[max(0, place - 1) : place + 1] for place in (start, end))
    return not any(len(around) == 2 and all(map(_is_letter, around)) for around in borders)


def _is_letter(character: str) -> bool:
    """Whether it is a letter, an accent, a joiner or a digit, but of no script without blanks."""
    kind = character.isalnum() or unicodedata.category(character)[0] == "M" or character in "\u200c\u200d"
    return kind and not without_blanks(character)


# Checking


def missing(output: str, required: Iterable[Required]) -> list[str]:
    """The required texts that the output lacks, each as often as it lacks it.

    One place in the output serves for one text, a longer one before a shorter one. Terms are looked for as whole
    words, with a capital first letter too.
    """
    lacking = []
    for order, need in sorted(enumerate(required), key=lambda item: (-len(item[1].text), item[0])):
        free = (place for form in need.forms for place in _places(output, form, need.term))
        if place := next(free, None):
            # What is taken becomes something that no text holds and no word goes on with.
            output = output[: place[0]] + "\n" * (place[1] - place[0]) + output[place[1] :]
        else:
            lacking.append((order, need.text))
    return [text for _, text in sorted(lacking)]


def _places(output: str, text: str, whole: bool) -> Iterator[tuple[int, int]]:
    """Where the text stands in the output, as whole words if so wanted."""
    start = output.find(text)
    while start >= 0:
        end = start + len(text)
        if not whole or _stands_alone(output, start, end):
            yield start, end
        start = output.find(text, start + 1)
