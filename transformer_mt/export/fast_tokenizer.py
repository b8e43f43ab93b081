"""Tokenizers as the library tokenizers reads them: one tokenizer.json that cuts and joins text as ours does.

It holds what happens to a line one step after the other: our own cleaning, SentencePiece's normalisation, its
algorithm, `</s>` behind it; and the way back. Patterns are in Oniguruma's dialect.

User-defined symbols are each one character there, a mark that no text has, so that nothing is merged with a part of
them; what a person reads and writes are the symbols.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from transformer_mt.atomic import write_json
from transformer_mt.data import clean
from transformer_mt.data.model_file import BYTE, CONTROL, NORMAL, UNUSED, USER_DEFINED, Model, read_model
from transformer_mt.data.tokenizer import BOS, EOS, LINE_BREAKS, PAD, UNK, Tokenizer
from transformer_mt.libraries import optional

BLANK = "\u2581"
"""What SentencePiece writes for a blank."""
ROUNDS = 3
"""Times that `normalize` goes over a line here; there it goes on until nothing changes."""
FIRST, UNKNOWN, APART = "\x02", "\x03", "\x01"
"""Marks of a piece's first blank, of an unknown piece, and of a place that divides a character from its accents.

No text has them, since `normalize` drops them.
"""
MARKS = [*map(chr, [*range(0x04, 0x09), *range(0x0E, 0x1C), *range(0x7F, 0x85), *range(0x86, 0xA0)])]
"""Marks for user-defined symbols: further characters that `normalize` drops."""
LIMITS = (
    "Three kinds of text are cut or written another way than by transformer-mt itself: combining marks that Unicode "
    "has since version 10, where they are out of order; joiners in four and more places of one run of combining marks; "
    "and outputs whose byte pieces make no whole characters."
)
ROUNDING = (
    "The tokenizer adds up scores in float64, SentencePiece in float32: of two ways to cut a line that are equally "
    "good, such as those of a long run of one character, it may take the other one."
)
COMPATIBILITY = (
    "A compatibility character that stands for several others, such as a ligature, is composed with an accent behind "
    "it, where SentencePiece leaves the accent by itself."
)
SYMBOLS = (
    "Among the names of its tokens a symbol such as {symbol} is one control character; texts have the symbol itself."
)
_ROUNDING = 1e-5
"""How far two sums of scores, by themselves, may be apart where rounding decides."""
_EXAMPLES = 5
_LAST_CHARACTER = 0x32000
"""No character beyond it is changed by any normalisation."""


def obstacles(tokenizer: Tokenizer) -> list[str]:
    """Why a tokenizer cannot be one tokenizer.json that does the same, one sentence for each reason.

    For one without a vocabulary of its own, whose ids tokenizer.json could not hold.
    """
    source, target = (model.serialized_model_proto() for model in tokenizer.models)
    name = tokenizer.files[0].name
    if source != target:
        return [f"{name} and {tokenizer.files[1].name} are two models, tokenizer.json holds one for both languages"]
    return [f"{name}: {reason}" for reason in _Rules(read_model(source)).obstacles(tokenizer)]


def limits(tokenizer: Tokenizer) -> list[str]:
    """What such a tokenizer.json does another way, one sentence or two for each case."""
    model = read_model(tokenizer.models[0].serialized_model_proto())
    cases = [(LIMITS, True), (ROUNDING, model.algorithm == "unigram"), (COMPATIBILITY, bool(model.character_map))]
    symbols = _Rules(model).of_type(USER_DEFINED)
    told = [SYMBOLS.format(symbol=symbols[0])] if symbols else []
    return [text for text, holds in cases if holds] + told


def write_tokenizer(tokenizer: Tokenizer, folder: Path, longest: int, unknown_marker: str = "⁇") -> None:
    """Writes tokenizer.json and tokenizer_config.json; for a tokenizer without `obstacles`.

    longest: most pieces of a line, with `</s>`; unknown_marker: how an unknown piece is written.
    """
    model = read_model(tokenizer.models[0].serialized_model_proto())
    _Rules(model).tokenizer(unknown_marker).save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        # No unk_token: as a special one it would not be written when a translation is decoded.
        **{name: model.pieces[number] for name, number in (("pad_token", PAD), ("bos_token", BOS), ("eos_token", EOS))},
        "model_max_length": longest,
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # a `</s>` that stands in a text is text
    }
    write_json(folder / "tokenizer_config.json", settings)


def equally_good(tokenizer: Tokenizer, ids: Sequence[int], others: Sequence[int]) -> bool:
    """Whether two ways to cut a line are so near that rounding decides between them."""
    model = tokenizer.models[0]
    if list(ids) == list(others):
        return True
    if read_model(model.serialized_model_proto()).algorithm != "unigram":
        return False
    texts = ["".join(model.id_to_piece(number) for number in row) for row in (ids, others)]
    scores = [sum(model.get_score(number) for number in row) for row in (ids, others)]
    return texts[0] == texts[1] and abs(scores[0] - scores[1]) <= _ROUNDING * max(1.0, abs(scores[0]))


def _pattern(text: str) -> str:
    """A pattern of Python's as Oniguruma reads it."""
    text = text.replace(r"\s", _characters(_SPACES))
    return re.sub(r"[^ -~]", lambda found: rf"\x{{{ord(found[0]):x}}}", text)


def _characters(characters: Sequence[str]) -> str:
    """Characters as they are written between the brackets of a class."""
    return "".join(rf"\x{{{ord(character):x}}}" for character in characters)


_SPACES = [character for character in map(chr, range(0x3001)) if character.isspace()]
"""White space as Python knows it: there is none beyond."""


@dataclass(frozen=True)
class _Rules:
    """What a SentencePiece model does, in the terms of tokenizers."""

    model: Model

    @cached_property
    def marks(self) -> dict[str, str]:
        """The marks that stand for user-defined symbols, longer symbols first: SentencePiece takes the longest."""
        return dict(zip(sorted(self.of_type(USER_DEFINED), key=len, reverse=True), MARKS, strict=False))

    @cached_property
    def pieces(self) -> list[str]:
        """The pieces by id, as tokenizers has them."""
        return [
            self.marks.get(piece, piece) if kind == USER_DEFINED else piece
            for piece, kind in zip(self.model.pieces, self.model.types, strict=True)
        ]

    @cached_property
    def known(self) -> list[str]:
        """Characters that are pieces by themselves."""
        return [*(piece for piece in self.of_type(NORMAL) if len(piece) == 1), *self.marks.values()]

    def of_type(self, *types: int) -> list[str]:
        """The pieces of some types, by id."""
        return [piece for piece, kind in zip(self.model.pieces, self.model.types, strict=True) if kind in types]

    def obstacles(self, tokenizer: Tokenizer) -> list[str]:
        """As the function of this name."""
        model, known = self.model, {*self.known}
        lone = [piece for piece in self.of_type(NORMAL) if not known.issuperset(piece)]
        symbols = self.of_type(USER_DEFINED)
        names = [piece for piece in [*self.of_type(CONTROL, BYTE), model.pieces[UNK]] if len(piece) < 2]
        marked = [piece for piece in model.pieces if {FIRST, UNKNOWN, APART, *MARKS, "\n"}.intersection(piece)]
        found = [
            (model.algorithm not in ("BPE", "unigram"), f"found a {model.algorithm} model, wanted BPE or unigram"),
            (UNUSED in model.types, f"found pieces marked as unused: {_some(self.of_type(UNUSED))}"),
            (
                bool(symbols) and bool(model.character_map),
                f"user-defined symbols, {_some(symbols)}: tokenizers can only have them where the normalisation is "
                "identity",
            ),
            (len(symbols) > len(MARKS), f"found {len(symbols)} user-defined symbols, wanted {len(MARKS)} at most"),
            (
                bool(overlapping := _overlapping(symbols[: len(MARKS)])),
                f"user-defined symbols that may overlap in a text, {_some(overlapping)}",
            ),
            (bool(lone), f"pieces with a character that is no piece itself, {_some(lone)}: there is no way to them"),
            (bool(names), f"special pieces of one character, {_some(names)}: tokenizers finds them in any text"),
            (bool(marked), f"pieces with control characters, {_some(marked)}"),
            (not model.escapes_blanks, "escape_whitespaces: found false, wanted true"),
            (model.blank_behind, "treat_whitespace_as_suffix: found true, wanted false"),
            (model.changes_output, "found a normalisation of decoded text, wanted none"),
            (model.algorithm == "BPE" and self._ties(), "found pieces of equal score, wanted an order of merges"),
        ]
        reasons = [reason for holds, reason in found if holds]
        return reasons or self._other_characters(tokenizer)

    def _ties(self) -> bool:
        scores = [
            score
            for piece, score, kind in zip(self.model.pieces, self.model.scores, self.model.types, strict=True)
            if kind == NORMAL and len(piece) > 1
        ]
        return len(set(scores)) < len(scores)

    def _other_characters(self, tokenizer: Tokenizer) -> list[str]:
        """A reason if single characters come out of the normalisation another way than from SentencePiece's."""
        if not self.model.character_map:
            return []
        characters = [chr(number) for number in range(_LAST_CHARACTER) if not 0xD800 <= number < 0xE000]
        lines = [f"a{character}b" for character in characters]
        theirs = tokenizer.models[0].normalize([clean.normalize(line) for line in lines])
        ours = optional("tokenizers", "huggingface").normalizers.Sequence(list(self.normalizers()))
        other = [
            character
            for character, line, wanted in zip(characters, lines, theirs, strict=True)
            if ours.normalize_str(line) != wanted
        ]
        if not other:
            return []
        return [f"its normalisation is not that of tokenizers for {len(other)} characters, such as {_some(other)}"]

    def tokenizer(self, unknown_marker: str) -> Any:
        """A `tokenizers.Tokenizer`."""
        tokenizers = optional("tokenizers", "huggingface")
        end = self.model.pieces[EOS]
        result = tokenizers.Tokenizer(self._algorithm())
        result.normalizer = tokenizers.normalizers.Sequence([*self.normalizers(), *self._unknown_runs()])
        if self.model.algorithm == "unigram" and self.model.byte_fallback:
            # So that no unknown character is part of what looks like a special piece.
            apart = tokenizers.Regex(f"[^{_characters(self.known)}]")
            result.pre_tokenizer = tokenizers.pre_tokenizers.Split(apart, "isolated")
        result.decoder = tokenizers.decoders.Sequence(list(self._decoders(unknown_marker)))
        result.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"$A {end}", pair=f"$A $B {end}", special_tokens=[(end, EOS)]
        )
        control = [
            tokenizers.AddedToken(piece, special=True, normalized=False)
            for piece, kind in zip(self.model.pieces, self.model.types, strict=True)
            if kind == CONTROL
        ]
        result.add_special_tokens(control)
        return result

    # Text to pieces

    def normalizers(self) -> Iterator[Any]:
        """Our cleaning, then SentencePiece's normalisation, as its model file has it."""
        tokenizers = optional("tokenizers", "huggingface")
        normalizers, regex = tokenizers.normalizers, tokenizers.Regex
        joiners = normalizers.Replace(regex(_pattern(clean.STRAY_JOINERS.pattern).replace("^", r"\A")), "")
        fold = [
            normalizers.Replace(regex(f"[{_characters(_SPACES)}]+"), " "),
            normalizers.Replace(regex(r"\A | \z"), ""),
        ]
        yield normalizers.Replace(regex(_pattern(clean.UNSEEN.pattern)), "")
        yield from [normalizers.NFC(), joiners, *fold]
        yield from [normalizers.NFC(), joiners] * (ROUNDS - 1)
        if self.model.character_map:
            # Precompiled looks at a character with its accents, finds the character, and loses the accents.
            yield normalizers.Replace(regex(r"(?<=[^\n])(?=[\p{M}\x{200c}\x{200d}])"), APART)
            yield normalizers.Precompiled(self.model.character_map)
            yield normalizers.Replace(APART, "")
            yield normalizers.NFC()  # SentencePiece has each accented character in its map, and replaces the whole
            if self.model.folds_blanks:
                yield from fold
        yield normalizers.Replace(" ", BLANK)
        if self.model.adds_blank:
            yield normalizers.Prepend(BLANK)
        if self.model.folds_blanks:
            yield normalizers.Replace(regex(_pattern(rf"{BLANK}+\z")), "")  # a ▁ of the text too
        for symbol, mark in self.marks.items():
            yield normalizers.Replace(symbol, mark)

    def _unknown_runs(self) -> Iterator[Any]:
        """For a unigram model without bytes: one character for each run of unknown ones, which is one unknown piece.

        What is unknown in it cannot look like a special piece then.
        """
        if self.model.algorithm == "unigram" and not self.model.byte_fallback:
            tokenizers = optional("tokenizers", "huggingface")
            run = tokenizers.Regex(f"[^{_characters(self.known)}]+")
            yield tokenizers.normalizers.Replace(run, UNKNOWN)

    def _algorithm(self) -> Any:
        models, model = optional("tokenizers", "huggingface").models, self.model
        if model.algorithm == "BPE":
            vocabulary = {piece: number for number, piece in enumerate(self.pieces)}
            return models.BPE(
                vocabulary,
                self._merges(),
                unk_token=model.pieces[UNK],
                fuse_unk=True,
                byte_fallback=model.byte_fallback,
            )
        return models.Unigram(list(zip(self.pieces, self._scores(), strict=True)), UNK, model.byte_fallback)

    def _merges(self) -> list[tuple[str, str]]:
        """Each way to make a piece of two others, the piece of the highest score first."""
        order = {
            piece: (-score, number)
            for number, (piece, score, kind) in enumerate(
                zip(self.model.pieces, self.model.scores, self.model.types, strict=True)
            )
            if kind == NORMAL
        }
        ranked = sorted(order, key=order.__getitem__)
        cuts = ((piece[:place], piece[place:]) for piece in ranked for place in range(1, len(piece)))
        return [cut for cut in cuts if cut[0] in order and cut[1] in order]

    def _scores(self) -> list[float]:
        """Scores for tokenizers, which looks for every piece in a text.

        What is no text is made worse than any way to cut its name into characters, each of which is a piece: an unknown
        one is kept from it. So much the worse is what tokenizers thinks of unknown characters, which changes nothing,
        since no piece contains one.
        """
        model = self.model
        normal = [score for score, kind in zip(model.scores, model.types, strict=True) if kind == NORMAL]
        longest = max(map(len, [*self.of_type(CONTROL, BYTE), model.pieces[UNK]]))
        never = -2.0 * (longest + 1) * max(1.0, *map(abs, normal))
        scored = zip(model.scores, model.types, strict=True)
        return [score if kind in (NORMAL, USER_DEFINED) else never for score, kind in scored]

    # Pieces to text

    def _decoders(self, unknown_marker: str) -> Iterator[Any]:
        """As `Tokenizer.decode`: what stands between unknown pieces is text by itself, and it is one line."""
        tokenizers, model = optional("tokenizers", "huggingface"), self.model
        decoders = tokenizers.decoders

        def replace(pattern: str, content: str) -> Any:
            return decoders.Replace(tokenizers.Regex(_pattern(pattern)), content)

        for symbol, mark in self.marks.items():
            yield decoders.Replace(mark, symbol)
        unknown = _characters(model.pieces[UNK])
        yield decoders.Replace(tokenizers.Regex(rf"\A{unknown}\z"), UNKNOWN)
        yield replace(rf"\A{BLANK}", FIRST)
        yield decoders.Replace(BLANK, " ")
        if model.byte_fallback:
            yield decoders.ByteFallback()
        yield decoders.Fuse()
        if model.adds_blank or model.folds_blanks:
            yield replace(rf"(?:\A|(?<={UNKNOWN})){FIRST}{'+' if model.folds_blanks else ''}", "")
        yield decoders.Replace(FIRST, " ")
        yield replace(rf"\A[\s]+(?=[^{UNKNOWN}]*{UNKNOWN})", "")
        yield replace(rf"{UNKNOWN}[^{UNKNOWN}]*?\K[\s]+\z", "")
        for pattern, content in (
            (rf"\A{UNKNOWN}\z", unknown_marker), (rf"\A{UNKNOWN}", f"{unknown_marker} "),
            (rf"{UNKNOWN}\z", f" {unknown_marker}"), (UNKNOWN, f" {unknown_marker} "),
        ):  # fmt: skip
            yield replace(pattern, content)
        yield replace(LINE_BREAKS.pattern, " ")


def _overlapping(symbols: Sequence[str]) -> list[str]:
    """Symbols that begin as others end: the one that comes first in a text counts to SentencePiece."""
    parts = [(symbol, [(symbol[:place], symbol[place:]) for place in range(1, len(symbol))]) for symbol in symbols]
    return [
        symbol
        for symbol, cuts in parts
        if {begin for begin, _ in cuts} & {end for other, ends in parts if other != symbol for _, end in ends}
    ]


def _some(pieces: Sequence[str]) -> str:
    more = f" and {len(pieces) - _EXAMPLES} more" if len(pieces) > _EXAMPLES else ""
    return ", ".join(repr(piece) for piece in pieces[:_EXAMPLES]) + more
