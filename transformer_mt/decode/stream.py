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

from transformer_mt.decode.translator import Translation, Translator
from transformer_mt.distributed import Process
from transformer_mt.errors import UserError

WINDOW_LINES = 16_384
READ_BYTES = 1 << 16


def arriving_lines(file: BinaryIO, most: int = WINDOW_LINES) -> Iterator[list[bytes]]:
    """Groups of lines, without their LF: as many as are there, at most about `most`, waiting only when none is.

    A last line without LF counts as a line. Nothing but LF ends one.
    """
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


REPEATED_GRAM, REPEATS = 4, 8
"""An output in which a sequence of four words comes eight times is told of."""


@dataclass
class Summary:
    """What happened to the lines of one run: how many there were, and which of them somebody should look at."""

    lines: int = 0
    pieces: int = 0
    unknown_pieces: int = 0
    """Pieces of the sources that the vocabulary does not have."""
    seconds: float = 0.0
    found: dict[str, list[int]] = field(
        default_factory=lambda: {"empty": [], "source cut": [], "hit length limit": [], "unknown": [], "repeats": []}
    )
    """Numbers of lines, from 1, by what was found in them."""

    def text(self) -> str:
        """One line for people."""
        counts = {reason: len(lines) for reason, lines in self.found.items() if reason != "unknown"}
        counts |= {"unknown pieces": self.unknown_pieces}
        told = "".join(f", {reason} {count}" for reason, count in counts.items() if count)
        speed = self.pieces / self.seconds if self.seconds else 0.0
        return f"{self.lines} lines{told}, {speed:.0f} pieces/s"

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


def translate_stream(
    translator: Translator,
    groups: Iterable[list[bytes]],
    write: Callable[[str], None],
    *,
    name: str,
    form: str,
    process: Process,
    say: Callable[[str], None],
    prefixes: Iterator[str] | None = None,
) -> Summary:
    """Translates groups of lines in order, writing each as soon as it is done; n lines in, n out.

    `prefixes` gives what each translation has to begin with. Raises UserError naming the line and the byte when a line
    is not UTF-8, and when there are fewer prefixes than lines.
    """
    summary = Summary()
    for group in groups:
        begin = time.perf_counter()
        texts = [_decoded(line, summary.lines + number, name) for number, line in enumerate(group, 1)]
        begins = list(islice(prefixes, len(texts))) if prefixes else []
        if prefixes and len(begins) < len(texts):
            raise UserError(f"{name} has more lines than there are prefixes ({summary.lines + len(begins)})")
        translations = translator.translate(texts, process, prefixes=begins, first=summary.lines)
        for translation in translations:
            _note(summary, translation, say)
            write(written(summary.lines - 1, translation, form))
        write("")
        summary.seconds += time.perf_counter() - begin
    return summary


def _note(summary: Summary, translation: Translation, say: Callable[[str], None]) -> None:
    summary.lines += 1
    summary.pieces += translation.candidates[0].length
    summary.unknown_pieces += translation.unknown
    facts = {
        "empty": translation.source_length == 0,
        "source cut": translation.cut_to is not None,
        "hit length limit": translation.hit_limit,
        "unknown": translation.unknown > 0,
        "repeats": _repeats(translation.text),
    }
    for reason, true in facts.items():
        if true:
            summary.found[reason].append(summary.lines)
    if translation.cut_to is not None:
        cut = f"{translation.source_length}→{translation.cut_to}"
        say(f"warning: line {summary.lines}: source cut {cut} pieces (decoding.max_source_tokens, model.max_positions)")


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
