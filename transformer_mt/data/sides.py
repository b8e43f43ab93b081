"""One language's half of a tokenizer: a SentencePiece model with its own ids, or with those of a vocabulary.

Lines are expected as `clean.normalize` leaves them.
"""

import os
from collections.abc import Collection, Sequence

import sentencepiece

THREADS = os.cpu_count() or 1
BLANK = "\u2581"
"""What SentencePiece writes for a blank."""


class Side:
    """A SentencePiece model with its own ids."""

    def __init__(self, processor: sentencepiece.SentencePieceProcessor, unknown: int) -> None:
        """`unknown`: the id of what is no piece."""
        self.processor = processor
        self.unknown = unknown
        self.threads = THREADS
        """That cut many lines at a time."""

    @property
    def size(self) -> int:
        """How many pieces there are."""
        return int(self.processor.get_piece_size())

    def piece(self, number: int) -> str:
        """The piece of an id."""
        return str(self.processor.id_to_piece(number))

    def pieces(self) -> list[str]:
        """All pieces, by id."""
        return [self.piece(number) for number in range(self.size)]

    def number(self, piece: str) -> int:
        """The id of a piece, unknown where there is no such piece."""
        return int(self.processor.piece_to_id(piece))

    def byte_ids(self) -> dict[int, int]:
        """The ids that stand for one byte each, with their bytes; none without byte_fallback."""
        names = {byte: f"<0x{byte:02X}>" for byte in range(256)}
        real = {b: name for b, name in names.items() if self.processor.is_byte(self.processor.piece_to_id(name))}
        return {number: byte for byte, name in real.items() if (number := self.number(name)) != self.unknown}

    def normalized(self, line: str) -> str:
        """A line after the model's own normalisation, which comes before it is cut."""
        text: str = self.processor.normalize(line)
        return text.replace(BLANK, " ").strip(" ")

    def text_pieces(self, line: str) -> list[str]:
        """Pieces of a line, unknown ones as they are."""
        return self.processor.encode(line, out_type=str)  # type: ignore[no-any-return]

    def encode(self, lines: list[str]) -> list[list[int]]:
        """Ids of lines."""
        return self.processor.encode(lines, num_threads=self.threads)  # type: ignore[no-any-return]

    def join(self, pieces: Sequence[str]) -> str:
        """The text that pieces of text make."""
        return str(self.processor.decode(list(pieces)))

    def language(self, line: str) -> str:
        """What a line begins with that asks for a language."""
        return ""

    def decode(self, ids: list[int]) -> str:
        """The text of ids, none of them unknown."""
        return str(self.processor.decode(ids))

    def is_one_piece(self, word: str) -> bool:
        """Whether a word that stands by itself is one piece, beside the blank before it."""
        parts = [piece for piece in self.text_pieces(word) if piece != BLANK]
        return len(parts) == 1 and parts[0].removeprefix(BLANK) == word and self.number(parts[0]) != self.unknown


class SideWithVocabulary(Side):
    """A SentencePiece model that only cuts text; which id a piece has is for a vocabulary to say.

    A line may begin with a piece such as `>>deu<<`, which tells a model of several languages the one that is wanted:
    that piece is none of SentencePiece's.
    """

    def __init__(
        self,
        processor: sentencepiece.SentencePieceProcessor,
        unknown: int,
        pieces: list[str],
        never: Collection[int],
    ) -> None:
        """`never`: ids of pieces that text cannot become."""
        super().__init__(processor, unknown)
        self._pieces = pieces
        self._numbers = {piece: number for number, piece in enumerate(pieces) if number not in never}

    @property
    def size(self) -> int:
        """How many pieces there are."""
        return len(self._pieces)

    def piece(self, number: int) -> str:
        """The piece of an id."""
        return self._pieces[number]

    def number(self, piece: str) -> int:
        """The id of a piece, unknown where the vocabulary lacks it."""
        return self._numbers.get(piece, self.unknown)

    def text_pieces(self, line: str) -> list[str]:
        """Pieces of a line, unknown ones as they are."""
        return self._cut([line])[0]

    def encode(self, lines: list[str]) -> list[list[int]]:
        """Ids of lines."""
        number, unknown = self._numbers.get, self.unknown
        return [[number(piece, unknown) for piece in pieces] for pieces in self._cut(lines)]

    def join(self, pieces: Sequence[str]) -> str:
        """The text that pieces of text make."""
        return super().join(pieces).replace(BLANK, " ").strip()  # a piece unknown to SentencePiece keeps its mark

    def decode(self, ids: list[int]) -> str:
        """The text of ids, none of them unknown."""
        return self.join([self._pieces[number] for number in ids])

    def language(self, line: str) -> str:
        """The piece that asks for a language, if a line begins with one."""
        return "".join(self._language(line)[0])

    def _cut(self, lines: Sequence[str]) -> list[list[str]]:
        languages, texts = zip(*map(self._language, lines), strict=True) if lines else ((), ())
        found = self.processor.encode(list(texts), out_type=str, num_threads=self.threads)
        return [[*language, *pieces] for language, pieces in zip(languages, found, strict=True)]

    def _language(self, line: str) -> tuple[list[str], str]:
        """The piece that asks for a language, if a line begins with one, and the rest of the line."""
        end = line.find("<<") + 2 if line.startswith(">>") else 0
        known = end > 2 and line[:end] in self._numbers
        return ([line[:end]], line[end:].lstrip()) if known else ([], line)
