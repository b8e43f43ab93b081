"""What a vocabulary makes of text: pieces a word, what is unknown or written as bytes, how much of it is used.

A report is JSON data: an entry for each language that was read, `source` and `target`, with

- `lines`, `words` (separated by white space), `characters` (blanks included) and `pieces` (without `</s>`) of the text
- `pieces_per_word`, also called fertility, and `pieces_per_line`
- `one_piece_words`: the share of the words that are one piece each
- `unknown_pieces` and `byte_pieces`: their shares of the pieces
- `vocabulary`: the pieces there are, `vocabulary_used`: those that occur, `vocabulary_coverage`: their share
- `rare_characters`: the most frequent characters that are no pieces; how often, and whether as bytes or as unknown

Shares are null where there is nothing to divide by.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_mt.config import Languages
from transformer_mt.data import files
from transformer_mt.data.clean import normalize
from transformer_mt.data.drawing import drawn_evenly
from transformer_mt.data.model_file import read_model
from transformer_mt.data.sides import BLANK, Side
from transformer_mt.data.tokenizer import Tokenizer
from transformer_mt.errors import UserError

CHUNK_LINES = 2000
SHOWN_CHARACTERS = 10
SIDES = ("source", "target")
_SEED = 1
_NAMES = {
    "lines": "lines",
    "words": "words",
    "characters": "characters",
    "pieces": "pieces",
    "pieces_per_word": "pieces a word",
    "pieces_per_line": "pieces a line",
    "one_piece_words": "words of one piece",
    "unknown_pieces": "unknown pieces",
    "byte_pieces": "byte pieces",
    "vocabulary": "vocabulary",
    "vocabulary_used": "pieces of it that occur",
    "vocabulary_coverage": "their share",
}
"""How a person reads the keys."""
_SHARES = ("one_piece_words", "unknown_pieces", "byte_pieces", "vocabulary_coverage")


def report(tokenizer: Tokenizer, source_lines: Iterable[str], target_lines: Iterable[str]) -> dict[str, Any]:
    """The report of both languages' lines, which are read one after the other and never kept."""
    both = zip(SIDES, tokenizer.sides, (source_lines, target_lines), strict=True)
    return {name: report_side(side, lines) for name, side, lines in both}


def report_side(side: Side, lines: Iterable[str]) -> dict[str, Any]:
    """The entry of one language."""
    counts = _Counts(side)
    iterator = map(normalize, lines)
    while chunk := list(islice(iterator, CHUNK_LINES)):
        counts.add(chunk)
    return counts.result()


def report_of_run(
    corpus: Path, tokenizer_folder: Path, languages: Languages, lines: int, split: str = "train"
) -> dict[str, Any]:
    """The report of a run's corpus, of at most so many pairs of lines, drawn evenly.

    It also has `split`, the languages' codes under `language`, and `lines_of_corpus`.
    """
    paths = [corpus / f"{split}.{language}" for language in (languages.source, languages.target)]
    for path in paths:
        if not path.is_file():
            raise UserError(f"{path} not found: run `download` or `train` with this configuration first")
    count = files.count_lines(paths[0])
    drawn = (drawn_lines(path, lines, count) for path in paths)
    found = report(Tokenizer(tokenizer_folder), *drawn)
    for name, language in zip(SIDES, (languages.source, languages.target), strict=True):
        found[name] = {"language": language, **found[name]}
    return {"split": split, "lines_of_corpus": count, **found}


def drawn_lines(path: Path, most: int, count: int) -> Iterator[str]:
    """`most` lines of a file that has `count`, evenly drawn: the same ones of each file of so many lines."""
    return drawn_evenly(files.text_lines(path), count, most, _SEED)


class _Counts:
    """What is counted in one language, chunk by chunk; its size depends on the vocabulary and the characters alone."""

    def __init__(self, side: Side) -> None:
        self._side, self._unknown = side, side.unknown
        pieces = side.pieces()
        self._bytes = side.byte_ids()
        self._is_byte = np.zeros(len(pieces), bool)
        self._is_byte[list(self._bytes)] = True
        self._blank_behind = read_model(side.processor.serialized_model_proto()).blank_behind
        mark = str.endswith if self._blank_behind else str.startswith
        self._at_border = np.asarray([mark(piece, BLANK) for piece in pieces])
        """Whether a piece is where a word begins, or where it ends if the blank belongs to the end."""
        words = [piece.strip(BLANK) for piece in pieces]
        self._whole = np.asarray([word != "" and BLANK not in word for word in words])
        self._whole[self._unknown] = False
        self._used = np.zeros(len(pieces), np.int64)
        self._lines = self._words = self._characters = self._one_piece = 0
        self._rare: dict[str, Counter[str]] = {"unknown": Counter(), "bytes": Counter()}

    def add(self, lines: Sequence[str]) -> None:
        """Counts normalised lines."""
        self._lines += len(lines)
        self._words += sum(len(line.split()) for line in lines)
        self._characters += sum(map(len, lines))
        rows = self._side.encode(list(lines))
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        ids = np.fromiter((number for row in rows for number in row), np.int64, int(lengths.sum()))
        if not len(ids):
            return
        self._used += np.bincount(ids, minlength=len(self._used))
        borders = self._at_border[ids]
        firsts = np.cumsum(lengths) - lengths
        for row in np.unique(np.searchsorted(firsts, np.flatnonzero(ids == self._unknown), "right") - 1):
            borders[firsts[row] : firsts[row] + lengths[row]] = self._add_unknown(lines[row], rows[row])
        self._one_piece += self._words_of_one_piece(ids, borders, firsts[lengths > 0])
        # A character is written with all of its bytes: they are whole characters also end to end.
        spelled = bytes(self._bytes[number] for number in ids[self._is_byte[ids]].tolist())
        self._rare["bytes"].update(spelled.decode(errors="replace"))

    def _add_unknown(self, line: str, ids: Sequence[int]) -> list[bool]:
        """Counts the characters of a line's unknown pieces; returns which of its pieces are at a word's border."""
        pieces = self._side.text_pieces(line)
        for piece, number in zip(pieces, ids, strict=True):
            if number == self._unknown:
                self._rare["unknown"].update(piece.replace(BLANK, ""))
        return [piece.endswith(BLANK) if self._blank_behind else piece.startswith(BLANK) for piece in pieces]

    def _words_of_one_piece(self, ids: NDArray[np.int64], borders: NDArray[np.bool_], firsts: NDArray[np.int64]) -> int:
        """How many words are one piece. firsts: where lines begin, those without pieces left out."""
        first = np.zeros(len(ids) + 1, bool)
        first[firsts] = first[-1] = True
        begins = first.copy()
        if self._blank_behind:
            begins[1:] |= borders
        else:
            begins[:-1] |= borders
        return int((begins[:-1] & begins[1:] & self._whole[ids]).sum())

    def result(self) -> dict[str, Any]:
        """The entry."""
        pieces, used = int(self._used.sum()), int(np.count_nonzero(self._used))
        return {
            "lines": self._lines,
            "words": self._words,
            "characters": self._characters,
            "pieces": pieces,
            "pieces_per_word": _ratio(pieces, self._words),
            "pieces_per_line": _ratio(pieces, self._lines),
            "one_piece_words": _ratio(self._one_piece, self._words),
            "unknown_pieces": _ratio(int(self._used[self._unknown]), pieces),
            "byte_pieces": _ratio(int(self._used[self._is_byte].sum()), pieces),
            "vocabulary": self._side.size,
            "vocabulary_used": used,
            "vocabulary_coverage": _ratio(used, self._side.size),
            "rare_characters": self._rare_characters(),
        }

    def _rare_characters(self) -> list[dict[str, Any]]:
        found = [(count, text, how) for how, counter in self._rare.items() for text, count in counter.items()]
        found.sort(key=lambda one: (-one[0], one[1]))
        return [
            {"character": text, "code": f"U+{ord(text):04X}", "count": count, "written_as": how}
            for count, text, how in found[:SHOWN_CHARACTERS]
        ]


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


# What a person reads


def lines(found: Mapping[str, Any]) -> list[str]:
    """The report as a table with a column for each language, and its rare characters below."""
    sides = {name: found[name] for name in SIDES if name in found}
    names = [side.get("language", name) for name, side in sides.items()]
    rows = [("", *names)]
    rows += [(text, *(_shown(key, side[key]) for side in sides.values())) for key, text in _NAMES.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    texts = [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
    for name, side in zip(names, sides.values(), strict=True):
        for how, told in (("unknown", "unknown"), ("bytes", "written as bytes")):
            rare = [one for one in side["rare_characters"] if one["written_as"] == how]
            if rare:
                texts.append(f"{told} in {name}: " + ", ".join(map(_character, rare)))
    return texts


def short_lines(found: Mapping[str, Any]) -> list[str]:
    """A line for each language: what is worth a look after learning."""
    texts = []
    for name, side in ((name, found[name]) for name in SIDES if name in found):
        shown = {key: _shown(key, side[key]) for key in _NAMES}
        lost = ("byte_pieces", "bytes") if side["byte_pieces"] else ("unknown_pieces", "unknown")
        texts.append(
            f"{side.get('language', name)}: {shown['pieces_per_word']} pieces a word, {shown['one_piece_words']} of "
            f"the words are one piece; {shown[lost[0]]} of the pieces are {lost[1]}; {shown['vocabulary_coverage']} "
            "of the vocabulary occurs"
        )
    return texts


def _shown(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    if key in _SHARES:
        return f"{value:.2%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def _character(one: Mapping[str, Any]) -> str:
    shown = f"{one['character']} " if one["character"].isprintable() else ""
    return f"{shown}{one['code']} {one['count']:,}"
