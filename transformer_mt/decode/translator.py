"""Text in, text out: batches of lines through the beam search, n lines in, n lines out, in order."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from transformer_mt.config import Decoding
from transformer_mt.data.tokenizer import BOS, EOS, PAD, UNK, Tokenizer
from transformer_mt.decode.beam import Hypothesis, LengthPenalty, beam_search
from transformer_mt.distributed import Process, gather
from transformer_mt.errors import RunError
from transformer_mt.model import folder
from transformer_mt.model import transformer as architecture


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
    """Pieces that were kept of a line longer than the model can read, else None."""
    hit_limit: bool = False
    """The best candidate is as long as decoding.max_length allows."""

    @property
    def text(self) -> str:
        """The best candidate."""
        return self.candidates[0].text


EMPTY = Translation((Candidate("", 0.0, 0, 0.0),))
"""The translation of a blank line, which no model is asked for."""


class Translator:
    """A model, its tokenizer and the settings of its search."""

    def __init__(
        self, model: architecture.Transformer, tokenizer: Tokenizer, settings: Decoding, start: int = BOS
    ) -> None:
        self.model, self.tokenizer, self.settings, self.start = model, tokenizer, settings, start
        form, alpha = settings.length_penalty.form, settings.length_penalty.alpha
        self._penalty = LengthPenalty(form, alpha)

    @classmethod
    def load(
        cls, path: str | Path, device: str = "auto", precision: str = "float32", settings: Decoding | None = None
    ) -> "Translator":
        """Loads a run, model or checkpoint folder; `settings` replaces the search settings stored with it."""
        from transformer_mt.distributed import pick_device

        loaded = folder.load(Path(path), pick_device(device), getattr(torch, precision))
        return cls(loaded.model, loaded.tokenizer, settings or loaded.decoding, loaded.start)

    def translate(
        self,
        lines: Sequence[str],
        process: Process | None = None,
        progress: Callable[[int], object] = lambda lines: None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> list[Translation]:
        """Translates each line; the result has as many entries, in order.

        With several processes each does its share of the batches, and all get the whole result. `progress` is told
        of the lines done. Once `interrupted()` is true a process leaves out the rest of its batches: the caller then
        drops the result.
        """
        results: dict[int, Translation] = {}
        batches = self._batches(self._encode(lines))
        rank, ranks = (process.rank, process.ranks) if process else (0, 1)
        training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                for batch in batches[rank::ranks]:
                    if interrupted():
                        break
                    results.update(self._translate(batch))
                    progress(len(batch))
        finally:
            self.model.train(training)
        if ranks > 1:
            results = {number: line for share in gather(results) for number, line in share.items()}
        return [results.get(number, EMPTY) for number in range(len(lines))]

    def _encode(self, lines: Sequence[str]) -> list["_Source"]:
        """The lines that are not blank, as ids, cut to max_source_tokens and to a table of learned positions."""
        room = min(self._room() - 1, self.settings.max_source_tokens or sys.maxsize)
        sources = []
        for number, ids in enumerate(self.tokenizer.encode_source(lines)):
            if ids:
                cut = room if len(ids) > room else None
                sources.append(_Source(number, ids[:cut], len(ids), cut))
        return sources

    def _room(self) -> int:
        """Positions that the model has: unlimited unless they are learned."""
        return self.model.max_positions if self.model.positions == "learned" else 1 << 30

    def _batches(self, sources: list["_Source"]) -> list[list["_Source"]]:
        """Lines of similar length together, longest first, within batch_size and batch_tokens."""
        batches: list[list[_Source]] = []
        room = 0
        for source in sorted(sources, key=lambda source: (-len(source.ids), source.number)):
            if room == 0:
                batches.append([])
                fitting = self.settings.batch_tokens // (len(source.ids) * self.settings.beam_size)
                room = min(self.settings.batch_size, max(1, fitting))
            batches[-1].append(source)
            room -= 1
        return batches

    def _translate(self, batch: list["_Source"]) -> Iterator[tuple[int, Translation]]:
        device = next(self.model.parameters()).device
        longest = max(len(source.ids) for source in batch) + 1
        rows = [source.ids + [EOS] + [PAD] * (longest - 1 - len(source.ids)) for source in batch]
        limits = [self._limit(source) for source in batch]
        found = beam_search(
            architecture.Decoding(self.model, torch.tensor(rows, device=device)),
            torch.tensor(limits, device=device),
            start=self.start,
            eos=EOS,
            forbidden=(PAD, BOS) if self.settings.allow_unknown else (PAD, UNK, BOS),
            beam_size=self.settings.beam_size,
            n_best=self.settings.n_best,
            penalty=self._penalty,
            min_length=self.settings.min_length,
        )
        for source, limit, hypotheses in zip(batch, limits, found, strict=True):
            yield source.number, self._translation(source, limit, hypotheses)

    def _limit(self, source: "_Source") -> int:
        limit = int(self.settings.max_length.factor * len(source.ids)) + self.settings.max_length.extra
        return max(1, min(limit, self._room() - 1))

    def _translation(self, source: "_Source", limit: int, hypotheses: list[Hypothesis]) -> Translation:
        candidates = tuple(
            Candidate(
                self.tokenizer.decode(hypothesis.tokens, self.settings.unknown_marker),
                hypothesis.log_probability,
                len(hypothesis.tokens) + 1,
                hypothesis.score,
            )
            for hypothesis in hypotheses
        )
        if not candidates:
            raise RunError("the model gives no output: its weights are not finite numbers")
        return Translation(
            candidates,
            source.length,
            source.ids.count(UNK),
            source.cut_to,
            hit_limit=candidates[0].length > limit,
        )


@dataclass(frozen=True)
class _Source:
    number: int
    ids: list[int]
    length: int
    cut_to: int | None
