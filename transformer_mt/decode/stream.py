"""Lines as they arrive, translations as they are made: a file, a pipe that waits for each answer, or standard input."""

import json
import os
import select
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any, BinaryIO

from transformer_mt.decode.terms import Finder
from transformer_mt.decode.translator import Translation, Translator
from transformer_mt.distributed import Process
from transformer_mt.errors import UserError

WINDOW_LINES = 16_384
READ_BYTES = 1 << 16


def arriving_lines(file: BinaryIO, most: int = WINDOW_LINES, *, one_by_one: bool = False) -> Iterator[list[bytes]]:
    """Groups of lines, without their LF: as many as are there, at most about `most`, waiting only when none is.

    A last line without LF counts as a line. Nothing but LF ends one. `one_by_one`: no group has more than one.
    """
    if one_by_one:
        yield from ([line] for group in arriving_lines(file, most) for line in group)
        return
    handle, rest, ended = file.fileno(), b"", False
    while not ended:
        chunks, newlines = [rest], 0
        while True:
            chunk = os.read(handle, READ_BYTES)
            ended = not chunk
            chunks.append(chunk)
            newlines += chunk.count(b"\n")
            if ended or newlines >= most or (newlines and not select.select([handle], [], [], 0)[0]):
                break
        *lines, rest = b"".join(chunks).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]


SHOWN_LINES = 10
REPEATED_GRAM, REPEATS = 4, 8
"""An output in which a sequence of four words comes eight times is told of."""


FAILURES = ("source cut", "hit length limit", "required text missing")
"""What nobody wants who asks for translations of the whole text."""


@dataclass
class Summary:
    """What happened to the lines of one run: how many there were, and which of them somebody should look at."""

    lines: int = 0
    pieces: int = 0
    unknown_pieces: int = 0
    """Pieces of the sources that the vocabulary does not have."""
    seconds: float = 0.0
    found: dict[str, list[int]] = field(
        default_factory=lambda: {reason: [] for reason in (*FAILURES, "empty", "in parts", "unknown", "repeats")}
    )
    """Numbers of lines, from 1, by what was found in them."""

    def text(self) -> str:
        """One line for people."""
        counts = {reason: len(lines) for reason, lines in self.found.items() if reason != "unknown"}
        counts |= {"unknown pieces": self.unknown_pieces}
        told = "".join(f", {reason} {count}" for reason, count in counts.items() if count)
        speed = self.pieces / self.seconds if self.seconds else 0.0
        return f"{self.lines} lines{told}, {speed:.0f} pieces/s"

    def failures(self) -> str:
        """Which lines are not as they were asked for, for people; empty if there are none."""
        found = {reason: self.found[reason] for reason in FAILURES if self.found[reason]}
        return "; ".join(
            f"{reason} {len(lines)} (line{'s' if len(lines) > 1 else ''} {', '.join(map(str, lines[:SHOWN_LINES]))}"
            + (", ...)" if len(lines) > SHOWN_LINES else ")")
            for reason, lines in found.items()
        )

    def report(self) -> dict[str, Any]:
        """All of it as JSON data."""
        reasons = {reason.replace(" ", "_"): numbers for reason, numbers in self.found.items()}
        return {"lines": self.lines, "pieces": self.pieces, "seconds": self.seconds, "line_numbers": reasons}


def written(number: int, translation: Translation, form: str) -> str:
    """A translation as lines of output: text (the best one), moses (id ||| text ||| score), or jsonl."""
    if form == "text":
        return translation.text + "\n"
    if form == "moses":
        return "".join(
            f"{number} ||| {candidate.text} ||| {candidate.score:.6f}\n" for candidate in translation.candidates
        )
    record = {"line": number + 1, "translations": [asdict(candidate) for candidate in translation.candidates]}
    return json.dumps(record, ensure_ascii=False) + "\n"


@dataclass
class Stream:
    """Where lines come from and translations go: each is written as soon as it is done, n lines in, n out."""

    translator: Translator
    write: Callable[[str], None]
    form: str
    say: Callable[[str], None]
    process: Process
    name: str
    """What the lines are called in messages."""
    prefixes: Iterator[str] | None = None
    """What each translation has to begin with."""
    required: Finder | None = None
    """Finds what the translation of a line has to hold."""
    align: Callable[[str], None] | None = None
    """Takes the alignment of each line."""
    summary: Summary = field(default_factory=Summary)

    def translate(self, groups: Iterable[list[bytes]]) -> Summary:
        """Translates groups of lines in order.

        Raises UserError naming the line and the byte when a line is not UTF-8, and when there are fewer prefixes than
        lines.
        """
        for group in groups:
            begin = time.perf_counter()
            for translation in self._translations(group):
                self._note(translation)
                self.write(written(self.summary.lines - 1, translation, self.form))
                if self.align:
                    self.align(translation.alignment + "\n")
            for write in filter(None, (self.write, self.align)):
                write("")
            self.summary.seconds += time.perf_counter() - begin
        return self.summary

    def _translations(self, group: list[bytes]) -> list[Translation]:
        before = self.summary.lines
        texts = [_decoded(line, before + number, self.name) for number, line in enumerate(group, 1)]
        begins = list(islice(self.prefixes, len(texts))) if self.prefixes else []
        if self.prefixes and len(begins) < len(texts):
            raise UserError(f"{self.name} has more lines than there are prefixes ({before + len(begins)})")
        return self.translator.translate(
            texts, self.process, prefixes=begins, first=before, required=self.required, align=self.align is not None
        )

    def _note(self, translation: Translation) -> None:
        summary = self.summary
        summary.lines += 1
        summary.pieces += translation.candidates[0].length
        summary.unknown_pieces += translation.unknown
        facts = {
            "empty": translation.source_length == 0,
            "source cut": translation.cut_to is not None,
            "in parts": translation.parts > 1,
            "hit length limit": translation.hit_limit,
            "required text missing": bool(translation.missing),
            "unknown": translation.unknown > 0,
            "repeats": _repeats(translation.text),
        }
        for reason, true in facts.items():
            if true:
                summary.found[reason].append(summary.lines)
        self._warn(translation)

    def _warn(self, translation: Translation) -> None:
        line, keys = self.summary.lines, "(decoding.max_source_tokens, model.max_positions)"
        if translation.cut_to is not None:
            self.say(f"warning: line {line}: source cut {translation.source_length}→{translation.cut_to} pieces {keys}")
        if translation.parts > 1 and not self.translator.settings.split_sentences:
            told = f"{translation.source_length} pieces, translated in {translation.parts} parts"
            self.say(f"warning: line {line}: {told} {keys}")
        if translation.missing:
            self.say(f"warning: line {line}: the translation lacks {', '.join(map(repr, translation.missing))}")


def _repeats(text: str) -> bool:
    """Whether the same few words come again and again, as a model that lost its way writes them."""
    words = text.split(" ")
    grams = Counter(zip(*(words[place:] for place in range(REPEATED_GRAM)), strict=False))
    return bool(grams) and max(grams.values()) >= REPEATS


def _decoded(line: bytes, number: int, name: str) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{name}: line {number} is not UTF-8: byte 0x{line[error.start]:02X} at byte {error.start + 1} of the line"
        ) from None
