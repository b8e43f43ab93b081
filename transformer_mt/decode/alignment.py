"""From attention between pieces to links between words, in the Pharaoh format: "0-0 1-2", source before target.

Words are what white space separates, counted from 0.
"""

import re
from collections.abc import Iterator, Sequence

import numpy as np

_BYTE = re.compile("<0x([0-9A-F]{2})>")
_BLANK = "▁"


def word_of_piece(pieces: Sequence[str], byte_fallback: bool = True) -> list[int]:
    """For each SentencePiece piece the word of the decoded text that its first visible character belongs to.

    -1 for a piece that shows nothing: blanks alone, or a byte of white space. What white space is, str.split() says.
    Give a piece that the vocabulary lacks as the text it stands for, or as "▁⁇▁" where it is decoded to a word of its
    own. byte_fallback: whether "<0xC3>" is a byte, not text.
    """
    words = [-1] * len(pieces)
    word, inside = -1, False
    for place, blank in _characters(pieces, byte_fallback):
        if not blank:
            word += not inside
            if words[place] < 0:
                words[place] = word
        inside = not blank
    return words


def _characters(pieces: Sequence[str], byte_fallback: bool) -> Iterator[tuple[int, bool]]:
    """The number of the piece and whether it is white space, for each character and each byte of a byte piece."""
    run: list[tuple[int, int]] = []  # byte pieces side by side: number and byte
    for place, piece in enumerate(pieces):
        if byte_fallback and (byte := _BYTE.fullmatch(piece)):
            run.append((place, int(byte[1], 16)))
            continue
        yield from _blank_bytes(run)
        run = []
        for character in piece:
            yield place, character == _BLANK or character.isspace()
    yield from _blank_bytes(run)


def _blank_bytes(run: list[tuple[int, int]]) -> Iterator[tuple[int, bool]]:
    """Which bytes belong to a character that is white space; one that is part of no character is none."""
    text = bytes(byte for _, byte in run).decode(errors="surrogateescape")
    places = iter(run)
    for character in text:
        for _ in character.encode(errors="surrogateescape"):
            yield next(places)[0], character.isspace()


def pharaoh(weights: np.ndarray, source_words: Sequence[int], target_words: Sequence[int]) -> str:
    """Links each target word with the source word that it attends to most, the first of equal ones.

    weights (T, S): attention of each target piece to each source piece; source_words (S), target_words (T): their
    words as word_of_piece gives them, -1 for `</s>`. The pieces of a source word are summed, those of a target word
    averaged. A word that attends to no source word at all has no link.
    """
    from_words, to_words = _membership(source_words), _membership(target_words)
    if not from_words.size:
        return ""
    attention = to_words.T @ weights @ from_words  # summed over target pieces: the strongest is that of the average
    strongest = attention.argmax(1)
    return " ".join(f"{source}-{word}" for word, source in enumerate(strongest.tolist()) if attention[word, source] > 0)


def _membership(words: Sequence[int]) -> np.ndarray:
    """(pieces, words): 1 where the piece is of the word."""
    numbers = np.asarray(words, np.int64).reshape(-1, 1)
    member: np.ndarray = numbers == np.arange(numbers.max(initial=-1) + 1)
    return member.astype(np.float64)


def joined(alignments: Sequence[str], sources: Sequence[int], targets: Sequence[int]) -> str:
    """The alignments of parts as one alignment of the whole; `sources`, `targets`: the word that each part begins with.

    Parts that meet within a word may both name the same link: it is there once.
    """
    links: set[tuple[int, int]] = set()
    for alignment, source, target in zip(alignments, sources, targets, strict=True):
        for link in alignment.split():
            left, _, right = link.partition("-")
            links.add((target + int(right), source + int(left)))
    return " ".join(f"{source}-{target}" for target, source in sorted(links))
