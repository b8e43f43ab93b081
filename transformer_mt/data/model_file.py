"""What a SentencePiece model file holds, as far as the library's interface does not tell it.

The file is a protobuf message, ModelProto of SentencePiece's published sentencepiece_model.proto; the numbers of
fields and types below are that file's.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

ALGORITHMS = {1: "unigram", 2: "BPE", 3: "word", 4: "character"}
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Types of pieces; unknown, control and byte pieces never come from a merge."""


@dataclass
class Model:
    """Pieces by id and what decides how they are used."""

    algorithm: str = ALGORITHMS[1]
    """By this entry, trainer_spec.model_type, the library itself chooses what it does."""
    byte_fallback: bool = False
    blank_behind: bool = False
    """Whether the blank between two words belongs to the first one's last piece."""
    pieces: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    character_map: bytes = b""
    """What its normalisation replaces by what, compiled; empty where it replaces nothing."""
    adds_blank: bool = True
    """Whether a blank is put before every line that is not empty."""
    folds_blanks: bool = True
    """Whether blanks at the ends are dropped, and of several blanks all but one."""
    escapes_blanks: bool = True
    """Whether ▁ stands for a blank."""
    changes_output: bool = False
    """Whether decoded text is normalised."""


def read_model(content: bytes) -> Model:
    """Reads a serialised model that the library has accepted."""
    model = Model()
    for number, value in _fields(content):
        if number == 1:
            piece = dict(_fields(value))
            model.pieces.append(piece.get(1, b"").decode())
            model.scores.append(struct.unpack("<f", piece.get(2, bytes(4)))[0])
            model.types.append(piece.get(3, NORMAL))
        elif number == 2:
            trainer = dict(_fields(value))
            model.algorithm = ALGORITHMS.get(trainer.get(3, 1), "unknown")
            model.byte_fallback = bool(trainer.get(35, False))
            model.blank_behind = bool(trainer.get(24, False))
        elif number == 3:
            rules = dict(_fields(value))
            model.character_map = rules.get(2, b"")
            model.adds_blank = bool(rules.get(3, True))
            model.folds_blanks = bool(rules.get(4, True))
            model.escapes_blanks = bool(rules.get(5, True))
        elif number == 5:
            model.changes_output = bool(dict(_fields(value)).get(2))
    return model


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values of a message's fields, as protobuf.dev/programming-guides/encoding describes them.

    Values are whole numbers, or the bytes of anything else.
    """
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = message[place]
            place += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    while place < len(message):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            yield number, varint()
        else:
            size = varint() if kind == 2 else {1: 8, 5: 4}[kind]
            yield number, message[place : place + size]
            place += size
