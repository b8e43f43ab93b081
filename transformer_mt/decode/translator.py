"""Text in, text out: lines through an engine's search, n lines in, n lines out, in order."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from transformer_mt.config import Decoding
from transformer_mt.data.clean import normalize
from transformer_mt.data.tokenizer import BOS, EOS, LINE_BREAKS, PAD, UNK, Tokenizer
from transformer_mt.decode import alignment
from transformer_mt.decode.constrained import Words
from transformer_mt.decode.engine import Engine, NativeEngine, Source
from transformer_mt.decode.models import mean_of, padded
from transformer_mt.decode.search import Hypothesis, LengthPenalty
from transformer_mt.decode.sentences import Paragraph, split, without_blanks
from transformer_mt.decode.terms import Finder, Required, missing
from transformer_mt.distributed import Process, gather
from transformer_mt.errors import RunError
from transformer_mt.model import folder
from transformer_mt.model.attention import cross_attention
from transformer_mt.model.transformer import Transformer


@dataclass(frozen=True)
class Candidate:
    """One translation of a line."""

    text: str
    log_probability: float
    """Sum over its pieces, `</s>` included, in nats."""
    length: int
    """Its pieces, `</s>` included."""
    score: float
    """log_probability divided by the length penalty."""


@dataclass(frozen=True)
class Translation:
    """What came of one input line; `candidates` are sorted, best first, and never empty."""

    candidates: tuple[Candidate, ...]
    source_length: int = 0
    """Pieces of the line, `</s>` not counted."""
    unknown: int = 0
    """Pieces of the line that the vocabulary does not have."""
    cut_to: int | None = None
    """Pieces that were kept of a line longer than may be read, else None."""
    hit_limit: bool = False
    """The best candidate, or a part of it, is as long as decoding.max_length allows."""
    parts: int = 1
    """Parts of the line that were translated by themselves: its sentences, where it was cut into them."""
    missing: tuple[str, ...] = ()
    """Required texts that the best candidate lacks."""
    alignment: str = ""
    """Pairs of word numbers, source-target, from 0, where they were asked for."""

    @property
    def text(self) -> str:
        """The best candidate."""
        return self.candidates[0].text


ALIGNED_TOGETHER = 64
"""Sentences whose attention is computed together, at most; long ones are fewer."""

EMPTY = Translation((Candidate("", 0.0, 0, 0.0),))
"""The translation of a blank line, which no model is asked for."""


class Translator:
    """An engine, its tokenizer and the settings of its search."""

    def __init__(
        self,
        model: Transformer | Sequence[Transformer],
        tokenizer: Tokenizer,
        settings: Decoding,
        start: int = BOS,
        engine: Engine | None = None,
    ) -> None:
        """Several models of one vocabulary give the mean of their probabilities. `engine`: another one than our own."""
        self.models = [model] if isinstance(model, Transformer) else list(model)
        self.tokenizer, self.settings, self.start = tokenizer, settings, start
        self.engine = engine or NativeEngine(self.models, settings, start, _words(tokenizer))
        self._penalty = LengthPenalty(settings.length_penalty.form, settings.length_penalty.alpha)

    @classmethod
    def load(
        cls, path: str | Path, device: str = "auto", precision: str = "float32", settings: Decoding | None = None
    ) -> "Translator":
        """Loads a run, model or checkpoint folder; `settings` replaces the search settings stored with it."""
        from transformer_mt.distributed import pick_device

        loaded = folder.load(Path(path), pick_device(device), getattr(torch, precision))
        return cls(loaded.model, loaded.tokenizer, settings or loaded.decoding, loaded.start)

    @property
    def most_pieces(self) -> int:
        """Pieces of a line that are read together, at most: one that has more is translated in parts, or cut."""
        return min(self.engine.positions - 1, self.settings.max_source_tokens or sys.maxsize)

    def translate(
        self,
        lines: Sequence[str],
        process: Process | None = None,
        progress: Callable[[int], object] = lambda lines: None,
        interrupted: Callable[[], bool] = lambda: False,
        *,
        prefixes: Sequence[str] = (),
        first: int = 0,
        required: Finder | None = None,
        align: bool = False,
    ) -> list[Translation]:
        """Translates each line; the result has as many entries, in order.

        `prefixes`, as many as lines: what each translation has to begin with, piece by piece; blank ones are free.
        `first`: the number of the first line among all, from 0, which samples depend on. `required` finds what the
        translation of a line has to hold. `align`: tell which words belong together.
        With several processes each does its share of the lines, and all get the whole result. `progress` is told of
        the lines done. Once `interrupted()` is true a process leaves out the rest: the caller then drops the result.
        """
        rank, ranks = (process.rank, process.ranks) if process else (0, 1)
        begins = self.tokenizer.encode_target(prefixes) if prefixes else [[] for _ in lines]
        parts = self._parts(lines, begins, required, first)
        order = sorted(range(len(parts)), key=lambda place: (-len(parts[place].source.ids), place))
        share = [(place, parts[place]) for place in order[rank::ranks]]
        with _evaluating(self.models):
            results = self._translated(share, align, progress, interrupted)
        if ranks > 1:
            results = {place: found for each in gather(results) for place, found in each.items()}
        return self._joined(len(lines), parts, results)

    def _translated(
        self, share: Sequence[tuple[int, "_Part"]], align: bool, progress: Callable[[int], object],
        interrupted: Callable[[], bool],
    ) -> dict[int, Translation]:  # fmt: skip
        """Translations of some parts, by their places among all."""
        results, outputs = {}, {}
        for index, hypotheses in self.engine.search([part.source for _, part in share]):
            place, part = share[index]
            results[place], outputs[place] = self._translation(part, hypotheses), hypotheses
            progress(int(part.place == 0))
            if interrupted():
                return results
        rest = share if align else []
        while rest:  # longest first, and what is held grows with the square of the length
            together = max(1, min(ALIGNED_TOGETHER, self.settings.batch_tokens // len(rest[0][1].source.ids)))
            some, rest = rest[:together], rest[together:]
            told = self._aligned([part for _, part in some], [outputs[place] for place, _ in some])
            for (place, _), text in zip(some, told, strict=True):
                results[place] = replace(results[place], alignment=text)
        return results

    def _parts(
        self, lines: Sequence[str], begins: Sequence[list[int]], required: Finder | None, first: int
    ) -> list["_Part"]:
        """What is translated by itself: the lines that are not blank, or their sentences, as ids that may be read."""
        most = self.most_pieces
        parts = []
        for number, ids in enumerate(self.tokenizer.encode_source(lines)):
            paragraph = self._paragraph(lines[number], ids, most)
            texts = list(paragraph.sentences) if paragraph else [lines[number]]
            if language := self.tokenizer.source_language(lines[number]):  # each sentence asks for it
                texts[1:] = [f"{language} {text}" for text in texts[1:]]
            for place, text in enumerate(texts):
                found = self.tokenizer.encode_source([text])[0] if paragraph else ids
                if not found:
                    continue
                cut = most if len(found) > most else None
                read = self.tokenizer.source_beginning(text, most) if cut else normalize(text)
                needs = required.required(read) if required else []
                source = self._source(found[:most], begins[number] if place == 0 else [], needs, first + number)
                parts.append(_Part(number, place, text, paragraph, source, found, cut, tuple(needs)))
        return parts

    def _paragraph(self, line: str, ids: Sequence[int], most: int) -> Paragraph | None:
        """The sentences of a line that has to be cut into them, None for others."""
        cut = self.settings.long_lines == "split"
        if not self.settings.split_sentences and not (cut and len(ids) > most):
            return None
        paragraph = split(line)
        if cut:
            paragraph = paragraph.within(most, lambda text: len(self.tokenizer.encode_source([text])[0]))
        least = 1 if self.settings.split_sentences else 2
        return paragraph if len(paragraph.sentences) >= least else None

    def _source(self, ids: list[int], prefix: list[int], needs: Sequence[Required], line: int) -> Source:
        room = self.engine.positions - 1
        ways = [[way for form in need.forms for way in self._ways(form, need)] for need in needs]
        phrases = tuple(tuple(dict.fromkeys(each)) for each in ways if each)
        prefix = prefix[:room]
        least = len(prefix) + sum(min(map(len, phrase)) for phrase in phrases)
        limit = int(self.settings.max_length.factor * len(ids)) + self.settings.max_length.extra
        return Source(ids, max(1, min(max(limit, least), room)), prefix, phrases, line)

    def _ways(self, text: str, need: Required) -> list[tuple[int, ...]]:
        """How it may be written: a word that stands alone in the source goes on with no other in the translation."""
        ways = self.tokenizer.ways_to_write(text)
        return ways if not text[:1].isalnum() or need.touches_left or without_blanks(text[0]) else ways[:1]

    def _translation(self, part: "_Part", hypotheses: list[Hypothesis]) -> Translation:
        if not hypotheses:
            raise RunError("the model gives no output: its weights are not finite numbers")
        candidates = tuple(
            Candidate(
                self.tokenizer.decode(found.tokens, self.settings.unknown_marker),
                found.log_probability,
                len(found.tokens) + 1,
                found.score,
            )
            for found in hypotheses
        )
        return Translation(
            candidates,
            len(part.ids),
            list(part.source.ids).count(UNK),
            part.cut_to,
            hit_limit=candidates[0].length > part.source.limit,
            missing=tuple(missing(candidates[0].text, part.required)),
        )

    def _joined(self, lines: int, parts: Sequence["_Part"], results: Mapping[int, Translation]) -> list[Translation]:
        """The translation of each line, from those of its parts; what shows nothing has none."""
        of_line: dict[int, dict[int, Translation]] = {}
        for place, part in enumerate(parts):
            of_line.setdefault(part.line, {})[part.place] = results.get(place, EMPTY)
        paragraphs = {part.line: part.paragraph for part in parts}
        found = [EMPTY] * lines
        for number, own in of_line.items():
            if paragraph := paragraphs[number]:
                found[number] = _together(paragraph, [own.get(n, EMPTY) for n in range(len(paragraph.sentences))])
            else:
                found[number] = own[0]
        return found

    def _aligned(self, parts: Sequence["_Part"], found: Sequence[list[Hypothesis]]) -> list[str]:
        """Alignments of words, by attention in one layer: its mean over heads, and over models."""
        targets = [list(hypotheses[0].tokens) for hypotheses in found]
        sources = [[*part.source.ids, EOS] for part in parts]
        device = next(self.models[0].parameters()).device
        rows = (padded(sources, PAD, device), padded([[self.start, *target] for target in targets], PAD, device))
        layers = [(self.settings.alignment_layer or max(1, len(model.decoder) - 1)) - 1 for model in self.models]
        each = [cross_attention(model, *rows, layer) for model, layer in zip(self.models, layers, strict=True)]
        weights = torch.stack([heads.mean(1) for heads in each]).mean(0)
        told = []
        for part, target, attention in zip(parts, targets, weights.float().cpu().numpy(), strict=True):
            kept = self.tokenizer.source_text_pieces(part.text)[: len(part.source.ids)]
            words = map(alignment.word_of_piece, (kept, self.tokenizer.target_text_pieces(target)))
            told.append(alignment.pharaoh(attention[: len(target), : len(kept)], *words))
        return told

    def score(self, sources: Sequence[str], targets: Sequence[str], process: Process | None = None) -> list[Candidate]:
        """What the model thinks of given translations: each one's log-probability by forced decoding, `</s>` included.

        A blank source with a blank target scores 0. Raises RunError where a side has more pieces than the model has
        positions.
        """
        rows = list(zip(self.tokenizer.encode_source(sources), self.tokenizer.encode_target(targets), strict=True))
        order = sorted((number for number, row in enumerate(rows) if any(row)), key=lambda n: max(map(len, rows[n])))
        rank, ranks = (process.rank, process.ranks) if process else (0, 1)
        sums: dict[int, float] = {}
        batches = list(self._score_batches(order, rows))
        with _evaluating(self.models):
            for batch in batches[rank::ranks]:
                sums.update(zip(batch, self._forced([rows[number] for number in batch]), strict=True))
        if ranks > 1:
            sums = {number: total for share in gather(sums) for number, total in share.items()}
        return [self._scored(text, sums.get(number), len(rows[number][1])) for number, text in enumerate(targets)]

    def _score_batches(self, order: Sequence[int], rows: Sequence[tuple[list[int], list[int]]]) -> Iterator[list[int]]:
        """Pairs of similar length together, within batch_size and batch_tokens."""
        batch: list[int] = []
        for number in order:
            longest = 1 + max(map(len, rows[number]))
            if longest > (room := self.engine.positions):
                raise RunError(f"line {number + 1} has {longest} pieces, model.max_positions is {room}")
            full = len(batch) == self.settings.batch_size or (len(batch) + 1) * longest > self.settings.batch_tokens
            if batch and full:
                yield batch
                batch = []
            batch.append(number)
        if batch:
            yield batch

    def _forced(self, rows: Sequence[tuple[list[int], list[int]]]) -> list[float]:
        """Summed log-probabilities of the targets of some pairs."""
        device = next(self.models[0].parameters()).device
        source = padded([[*source, EOS] for source, _ in rows], PAD, device)
        labels = padded([[*target, EOS] for _, target in rows], PAD, device)
        given = padded([[self.start, *target] for _, target in rows], PAD, device)
        hidden = [model(source, given) for model in self.models]
        totals = torch.zeros(len(rows), dtype=torch.float64, device=device)
        for place in range(labels.shape[1]):  # never the logits of the whole batch
            scores = mean_of([model.logits(x[:, place]) for model, x in zip(self.models, hidden, strict=True)])
            scores = scores.gather(1, labels[:, place, None])[:, 0].double()
            totals += torch.where(torch.tensor([place <= len(row[1]) for row in rows], device=device), scores, 0.0)
        return totals.tolist()

    def _scored(self, text: str, total: float | None, pieces: int) -> Candidate:
        if total is None:
            return Candidate(text, 0.0, 0, 0.0)
        divisor = float(self._penalty(torch.tensor(pieces + 1.0, dtype=torch.float64)))
        return Candidate(text, total, pieces + 1, total / divisor)


def _words(tokenizer: Tokenizer) -> Words:
    """Which pieces of the target language go on with a word, and which end in one."""
    pieces = list(enumerate(tokenizer.target_pieces()))
    return Words(
        [number for number, piece in pieces if number > EOS and _is_of_a_word(piece[:1])],
        frozenset(number for number, piece in pieces if number > EOS and _is_of_a_word(piece[-1:])),
    )


def _is_of_a_word(character: str) -> bool:
    return character.isalnum() and not without_blanks(character)


@contextmanager
def _evaluating(models: Sequence[Transformer]) -> Iterator[None]:
    """Without gradients and dropout."""
    training = [model.training for model in models]
    try:
        for model in models:
            model.eval()
        with torch.no_grad():
            yield
    finally:
        for model, was in zip(models, training, strict=True):
            model.train(was)


def _together(paragraph: Paragraph, parts: Sequence[Translation]) -> Translation:
    """The translation of a line from those of its sentences, with the white space that was between them."""
    filled = paragraph.filled([part.text for part in parts])
    joints = [LINE_BREAKS.sub(" ", joint) for joint in filled.joints]
    joints[0], joints[-1] = (LINE_BREAKS.sub("", joint) for joint in (filled.joints[0], filled.joints[-1]))
    best = [part.candidates[0] for part in parts]
    candidate = Candidate(
        replace(filled, joints=tuple(joints)).text,
        sum(each.log_probability for each in best),
        sum(each.length for each in best),
        sum(each.score for each in best),
    )
    return Translation(
        (candidate,),
        sum(part.source_length for part in parts),
        sum(part.unknown for part in parts),
        sum(part.cut_to or part.source_length for part in parts) if any(part.cut_to for part in parts) else None,
        any(part.hit_limit for part in parts),
        len(parts),
        tuple(text for part in parts for text in part.missing),
        alignment.joined([part.alignment for part in parts], paragraph.first_words(), filled.first_words()),
    )


@dataclass(frozen=True)
class _Part:
    """A line, or a sentence of one."""

    line: int
    place: int
    text: str
    paragraph: Paragraph | None
    source: Source
    ids: list[int]
    cut_to: int | None
    required: tuple[Required, ...]
