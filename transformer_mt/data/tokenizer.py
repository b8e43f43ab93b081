"""Text to ids and back with SentencePiece: learning a model, checking a given one, using it."""

import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import sentencepiece

from transformer_mt.config import Tokenizer as Settings
from transformer_mt.data.clean import normalize
from transformer_mt.data.drawing import drawn_evenly
from transformer_mt.data.sides import BLANK, Side, SideWithVocabulary
from transformer_mt.errors import UserError

PAD, UNK, BOS, EOS = 0, 1, 2, 3
SPECIAL_PIECES = ["<pad>", "<unk>", "<s>", "</s>"]
"""How they are written, by id."""
VOCABULARY = "vocabulary.json"
"""The file that holds the pieces by id where these are not the SentencePiece models' own."""
LINE_BREAKS = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")
LANGUAGE = re.compile(">>.+<<")
BYTE_PIECE = re.compile("<0x[0-9A-Fa-f]{2}>")
LEARNING_THREADS = 16
"""Threads that learn, however many processors there are: which sums SentencePiece's unigram algorithm rounds depends on
their number, and so would the pieces; and it writes the number into the model."""


@dataclass
class Learned:
    """What came of learning one model."""

    model: bytes
    lines: int
    """Lines of the corpus."""
    sampled: int
    """Lines learned from."""
    too_long: int
    """Lines left out because they are longer than tokenizer.max_line_bytes."""
    failure: BaseException | None = None
    """What the lines raised: an error of reading, or a wish to stop."""


def learn(lines: Iterable[str], count: int, settings: Settings, seed: int, symbols: Sequence[str] = ()) -> Learned:
    """Learns a model from normalised lines, of which there are `count`; at most sample_lines of them are used.

    Each of `symbols` is one piece wherever it stands in a text, also in one that was not meant to ask for it; no other
    piece reaches into it. What is learned depends on these arguments alone: not on processors, threads or machines.
    """
    symbols = list(dict.fromkeys(symbols))
    if problems := symbol_problems(symbols, settings):
        raise UserError(*problems)
    result = Learned(b"", count, 0, 0)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_sampled(lines, result, settings, seed),
            model_writer=model,
            model_type=settings.algorithm,
            vocab_size=settings.vocabulary_size,
            hard_vocab_limit=settings.vocabulary_limit == "hard",
            normalization_rule_name=settings.normalization,
            remove_extra_whitespaces=False,
            byte_fallback=settings.byte_fallback,
            character_coverage=settings.character_coverage,
            user_defined_symbols=symbols,
            input_sentence_size=max(101, settings.sample_lines),  # it takes no fewer; `_sampled` gives no more
            shuffle_input_sentence=True,
            max_sentence_length=settings.max_line_bytes,
            num_threads=LEARNING_THREADS,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        if result.failure:  # SentencePiece tells what its lines raise as an error of its own
            raise result.failure from None
        raise _explained(str(error), result, settings, len(symbols)) from None
    result.model = model.getvalue()
    return result


def symbol_problems(symbols: Sequence[str], settings: Settings) -> list[str]:
    """Why a learned vocabulary cannot have these symbols, in sentences for people; [] if it can."""
    key = "tokenizer.symbols and tags of sources"
    problems = [f"{key}: {problem}" for symbol in symbols if (problem := _symbol_problem(symbol))]
    others = len(SPECIAL_PIECES) + (256 if settings.byte_fallback else 0)
    if len(symbols) + others > settings.vocabulary_size:
        held = [f"{len(SPECIAL_PIECES)} special pieces"]
        held += ["256 bytes (tokenizer.byte_fallback)"] if settings.byte_fallback else []
        held += [f"{len(symbols)} of tokenizer.symbols and tags of sources"] if symbols else []
        problems.append(f"tokenizer.vocabulary_size: found {settings.vocabulary_size}, too small for {_and(held)}")
    return problems


def _and(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _symbol_problem(symbol: str) -> str | None:
    if not symbol or any(character.isspace() for character in symbol):
        return f"found {symbol!r}, wanted a word without white space"
    if BLANK in symbol:
        return f"found {symbol!r}, wanted one without {BLANK}, which stands for a blank"
    if symbol in SPECIAL_PIECES:
        return f"found {symbol!r}, a special piece, which no text may become"
    if BYTE_PIECE.fullmatch(symbol):
        return f"found {symbol!r}, which stands for a byte"
    if normalize(symbol) != symbol:
        return f"found {symbol!a}, which no text holds after it is cleaned: it is {normalize(symbol)!a} there"
    return None


def missing_symbols(
    model: Path | sentencepiece.SentencePieceProcessor, symbols: Iterable[str], *, target: bool = True
) -> list[str]:
    """Those of the symbols that are not one piece, where they stand by themselves, of a model that was given.

    model: a SentencePiece model with our special ids, or the folder of a tokenizer. Of a folder both languages are
    asked, or the source language alone, which is the one that tags are for.
    """
    sides = Tokenizer(model).sides if isinstance(model, Path) else (Side(model, UNK),)
    asked = sides if target else sides[:1]
    return [symbol for symbol in dict.fromkeys(symbols) if not all(side.is_one_piece(symbol) for side in asked)]


def _sampled(lines: Iterable[str], result: Learned, settings: Settings, seed: int) -> Iterator[str]:
    """Draws lines evenly over the whole corpus, and counts them."""
    try:
        for line in drawn_evenly(lines, result.lines, settings.sample_lines, seed):
            if len(line.encode()) > settings.max_line_bytes:
                result.too_long += 1
            else:
                result.sampled += 1
                yield line
    except GeneratorExit:
        raise
    except BaseException as failure:
        result.failure = failure
        raise


def _explained(message: str, result: Learned, settings: Settings, symbols: int) -> UserError:
    """SentencePiece's refusals in our key's names."""
    size = settings.vocabulary_size
    if limit := re.search(r"too high.*<= (\d+)", message):
        return UserError(
            f"tokenizer.vocabulary_size: found {size}, but this corpus allows at most {limit[1]} pieces "
            "(lower it, or set tokenizer.vocabulary_limit: soft)"
        )
    if limit := re.search(
        r"vocabulary size is too small.*?(\d+)\D*$|smaller than required_chars\D*\d+ vs (\d+)", message, re.I
    ):
        named = f", {symbols} of tokenizer.symbols and tags" if symbols else ""
        return UserError(
            f"tokenizer.vocabulary_size: found {size}, too small for the {limit[1] or limit[2]} pieces that "
            f"must be there: characters of the corpus, special pieces{named} and, with byte_fallback, 256 bytes "
            "(raise it, or lower tokenizer.character_coverage)"
        )
    if not result.sampled:
        reason = (
            f"all {result.too_long} lines are longer than tokenizer.max_line_bytes {settings.max_line_bytes}"
            if result.too_long
            else "the training text is empty"
        )
        return UserError(f"no text to learn the tokenizer from: {reason}")
    return UserError(f"tokenizer: SentencePiece refused to learn {size} pieces: {message}")


def load_model(path: Path) -> sentencepiece.SentencePieceProcessor:
    """A SentencePiece model whose special ids are ours; anything else is told what it is and what is wanted."""
    processor = read_processor(path)
    found = {"pad": processor.pad_id(), "unk": processor.unk_id(), "bos": processor.bos_id(), "eos": processor.eos_id()}
    if list(found.values()) != [PAD, UNK, BOS, EOS]:
        ids = ", ".join(f"{name} {number}" for name, number in found.items())
        remedy = "train it with --pad_id=0 --unk_id=1 --bos_id=2 --eos_id=3, or leave tokenizer.model out"
        if (path.parent / VOCABULARY).is_file():
            remedy = f"of an imported model? then give {path.parent / VOCABULARY} as tokenizer.vocabulary"
        raise UserError(f"{path} has the special ids {ids}; wanted 0, 1, 2, 3 ({remedy})")
    return processor


def read_processor(path: Path) -> sentencepiece.SentencePieceProcessor:
    """A SentencePiece model, whatever its ids are: it goes with a vocabulary of its own."""
    if not path.is_file():
        raise UserError(f"tokenizer model {path} not found")
    content = path.read_bytes()
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(content)
    except RuntimeError:
        kind = "a text file" if _is_text(content) else "another kind of file"
        hint = " (a .vocab list? the .model file beside it is wanted)" if path.suffix == ".vocab" else ""
        raise UserError(f"{path} is {kind}, wanted a SentencePiece .model{hint}") from None
    return processor


def _is_text(content: bytes) -> bool:
    try:
        content[:4096].decode("utf-8", "strict")
    except UnicodeDecodeError as error:
        return error.start > 4000
    return b"\0" not in content[:4096]


def read_vocabulary(path: Path) -> list[list[str]]:
    """The pieces by id that a vocabulary.json holds: one list for both languages, or one for each."""
    if not path.is_file():
        raise UserError(f"vocabulary {path} not found")
    try:
        content = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is no JSON file: {error}") from None
    names = ["shared"] if isinstance(content, dict) and "shared" in content else ["source", "target"]
    if not isinstance(content, dict) or sorted(content) != names:
        raise UserError(f"{path}: wanted the key shared, or the keys source and target")
    problems = []
    for name in names:
        pieces = content[name]
        if not isinstance(pieces, list) or not all(isinstance(piece, str) for piece in pieces):
            problems.append(f"{path}: {name} is no list of pieces")
        elif pieces[: len(SPECIAL_PIECES)] != SPECIAL_PIECES:
            problems.append(f"{path}: {name} begins with {pieces[:4]}, wanted {SPECIAL_PIECES}")
        elif len(set(pieces)) < len(pieces):
            twice, _ = Counter(pieces).most_common(1)[0]
            problems.append(f"{path}: {name} has the piece {twice!r} twice")
    if problems:
        raise UserError(*problems)
    return [content[name] for name in names]


def write_vocabulary(path: Path, vocabularies: Sequence[list[str]]) -> None:
    """Writes what `read_vocabulary` reads."""
    names = ["shared"] if len(vocabularies) == 1 else ["source", "target"]
    content = dict(zip(names, vocabularies, strict=True))
    path.write_text(json.dumps(content, ensure_ascii=False, indent=0) + "\n", "utf-8")


class Tokenizer:
    """Both languages' models: lines to ids and ids to lines."""

    def __init__(self, folder: Path) -> None:
        shared, vocabulary = folder / "spm.model", folder / VOCABULARY
        self.files = [shared] if shared.is_file() else [folder / "source.model", folder / "target.model"]
        """All that its behaviour depends on."""
        sides: list[Side]
        self.has_vocabulary = vocabulary.is_file()
        """Whether a vocabulary.json says which id a piece has: then SentencePiece's own ids mean nothing."""
        if self.has_vocabulary:
            processors, pieces = [read_processor(path) for path in self.files], read_vocabulary(vocabulary)
            never = (PAD, BOS, EOS)
            sides = [SideWithVocabulary(processors[place], UNK, pieces[place], never) for place in (0, -1)]
            self.files.append(vocabulary)
        else:
            sides = [Side(load_model(path), UNK) for path in self.files]
        self._source, self._target = sides[0], sides[-1]

    @property
    def sides(self) -> tuple[Side, Side]:
        """Source and target, for what treats both languages alike; they want lines that are normalised."""
        return self._source, self._target

    @property
    def models(self) -> tuple[sentencepiece.SentencePieceProcessor, sentencepiece.SentencePieceProcessor]:
        """SentencePiece's models of source and target, one and the same where they are shared.

        With a vocabulary of its own a tokenizer has other ids than they have.
        """
        return self._source.processor, self._target.processor

    @property
    def source_size(self) -> int:
        """Pieces of the source vocabulary."""
        return self._source.size

    @property
    def target_size(self) -> int:
        """Pieces of the target vocabulary."""
        return self._target.size

    def source_pieces(self) -> list[str]:
        """The pieces of the source vocabulary, by id."""
        return self._source.pieces()

    def languages(self) -> list[str]:
        """The pieces by which a line asks a model of several languages for one of them, such as `>>deu<<`."""
        pieces = self.source_pieces() if self.has_vocabulary else []
        return [piece for piece in pieces if LANGUAGE.fullmatch(piece)]

    def target_pieces(self) -> list[str]:
        """The pieces of the target vocabulary, by id."""
        return self._target.pieces()

    def source_text_pieces(self, line: str) -> list[str]:
        """The pieces of a line of the source language as its own text, unknown ones too."""
        return self._source.text_pieces(normalize(line))

    def source_language(self, line: str) -> str:
        """The piece by which a line asks a model of several languages for one of them, as in `>>deu<<`, or nothing."""
        return self._source.language(normalize(line))

    def source_beginning(self, line: str, count: int) -> str:
        """The text of the first so many pieces of a line of the source language."""
        return self._source.join(self.source_text_pieces(line)[:count])

    def target_text_pieces(self, ids: Sequence[int]) -> list[str]:
        """Ids of the target language as text; an unknown one is a word by itself, as `decode` writes it."""
        return ["▁⁇▁" if token == UNK else self._target.piece(int(token)) for token in ids]

    def encode_source(self, lines: Sequence[str]) -> list[list[int]]:
        """Ids of each line after `normalize`, without `</s>`; text can never produce a special id but unk."""
        return self._source.encode([normalize(line) for line in lines])

    def encode_target(self, lines: Sequence[str]) -> list[list[int]]:
        """The same for the target language."""
        return self._target.encode([normalize(line) for line in lines])

    def ways_to_write(self, text: str) -> list[tuple[int, ...]]:
        """Ids that stand for a text of the target language: after a blank, and without one before it.

        None at all where the vocabulary lacks a character of it.
        """
        text = normalize(text)
        (after_blank,) = self._target.encode([text])
        if not after_blank:
            return []
        first, rest = self._target.piece(after_blank[0]), after_blank[1:]
        if first.startswith("▁"):
            glued = [*self._cut(first[1:]), *rest] if len(first) > 1 else rest
        else:  # a model that puts no blank before a line
            (with_blank,) = self._target.encode([f" {text}"])
            after_blank, glued = with_blank, after_blank
        ways = dict.fromkeys((tuple(after_blank), tuple(glued)))
        return [way for way in ways if way and UNK not in way]

    def _cut(self, piece: str) -> list[int]:
        """Ids that make up the characters of a piece: itself if there is such a piece, else its parts."""
        number = self._target.number(piece)
        if number != UNK or len(piece) < 2:
            return [number]
        half = max(range(1, len(piece)), key=lambda place: (self._target.number(piece[:place]) != UNK, place))
        return [*self._cut(piece[:half]), *self._cut(piece[half:])]

    def decode(self, ids: Sequence[int], unknown_marker: str = "⁇") -> str:
        """One line of text; bytes that are no character become U+FFFD, and it can never hold a line break."""
        parts: list[list[int]] = [[]]
        for token in ids:
            if token == UNK:
                parts.append([])
            else:
                parts[-1].append(int(token))
        text = f" {unknown_marker} ".join(self._target.decode(part) for part in parts)
        return LINE_BREAKS.sub(" ", text.strip() if len(parts) > 1 else text)
