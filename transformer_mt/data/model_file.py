"""What a SentencePiece model file holds, as far as the library's interface does not tell it.

The file is a protobuf message, ModelProto of SentencePiece's published sentencepiece_model.proto; the numbers of
fields and types below are that file's.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

ALGORITHMS = {1: "unigram", 2: "BPE", 3: "word", 4: "character"}
NORMAL, USER_DEFINED, UNUSED = 1, 4, 5
"""Types of pieces; the others (unknown, control, byte) never come from a merge."""


@dataclass
class Model:
    """Pieces by id and what decides how they are used."""

    algorithm: str = ALGORITHMS[1]
    """By this entry, trainer_spec.model_type, the library itself chooses what it does."""
    byte_fallback: bool = False
    pieces: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    types: list[int] = field(default_factory=list)


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
