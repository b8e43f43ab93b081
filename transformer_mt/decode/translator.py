"""Text in, text out: batches of lines through the beam search, n lines in, n lines out, in order."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from transformer_mt.config import Decoding
from transformer_mt.data.batching import mix
from transformer_mt.data.tokenizer import BOS, EOS, PAD, UNK, Tokenizer
from transformer_mt.decode.beam import Hypothesis, LengthPenalty, Rules, beam_search
from transformer_mt.decode.sample import sample
from transformer_mt.distributed import Process, gather, is_out_of_memory
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
        *,
        prefixes: Sequence[str] = (),
        first: int = 0,
    ) -> list[Translation]:
        """Translates each line; the result has as many entries, in order.

        `prefixes`, as many as lines: what each translation has to begin with, piece by piece; blank ones are free.
        `first`: the number of the first line among all, from 0, which samples depend on.
        With several processes each does its share of the batches, and all get the whole result. `progress` is told
        of the lines done. Once `interrupted()` is true a process leaves out the rest of its batches: the caller then
        drops the result.
        """
        results: dict[int, Translation] = {}
        batches = self._batches(self._encode(lines, prefixes, first))
        rank, ranks = (process.rank, process.ranks) if process else (0, 1)
        training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                waiting = batches[rank::ranks][::-1]
                while waiting and not interrupted():
                    batch = waiting.pop()
                    if (found := self._translate_if_it_fits(batch)) is None:
                        waiting += [batch[len(batch) // 2 :], batch[: len(batch) // 2]]
                    else:
                        results.update(found)
                        progress(len(batch))
        finally:
            self.model.train(training)
        if ranks > 1:
            results = {number: line for share in gather(results) for number, line in share.items()}
        return [results.get(number, EMPTY) for number in range(len(lines))]

    def _encode(self, lines: Sequence[str], prefixes: Sequence[str] = (), first: int = 0) -> list["_Source"]:
        """The lines that are not blank, as ids, cut to max_source_tokens and to a table of learned positions."""
        room = min(self._room() - 1, self.settings.max_source_tokens or sys.maxsize)
        begins = self.tokenizer.encode_target(prefixes) if prefixes else [[] for _ in lines]
        sources = []
        for number, (ids, prefix) in enumerate(zip(self.tokenizer.encode_source(lines), begins, strict=True)):
            if ids:
                cut = room if len(ids) > room else None
                sources.append(_Source(number, ids[:cut], len(ids), cut, prefix[: self._room() - 1], first + number))
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
                fitting = self.settings.batch_tokens // (len(source.ids) * self._rows_each())
                room = min(self.settings.batch_size, max(1, fitting))
            batches[-1].append(source)
            room -= 1
        return batches

    def _rows_each(self) -> int:
        """Rows of a batch that a sentence takes."""
        return self.settings.n_best if self.settings.sampling else self.settings.beam_size

    def _translate_if_it_fits(self, batch: list["_Source"]) -> dict[int, Translation] | None:
        """The translations of a batch, by line; None if there is no memory for so many lines together."""
        try:
            return dict(self._translate(batch))
        except (RuntimeError, MemoryError) as error:
            if len(batch) == 1 or not is_out_of_memory(error):
                raise
            return None

    def _translate(self, batch: list["_Source"]) -> Iterator[tuple[int, Translation]]:
        device = next(self.model.parameters()).device
        longest = max(len(source.ids) for source in batch) + 1
        rows = [source.ids + [EOS] + [PAD] * (longest - 1 - len(source.ids)) for source in batch]
        limits = [self._limit(source) for source in batch]
        steps = architecture.Decoding(self.model, torch.tensor(rows, device=device))
        found = self._hypotheses(batch, steps, torch.tensor(limits, device=device))
        for source, limit, hypotheses in zip(batch, limits, found, strict=True):
            yield source.number, self._translation(source, limit, hypotheses)

    def _hypotheses(
        self, batch: list["_Source"], steps: architecture.Decoding, limits: Tensor
    ) -> list[list[Hypothesis]]:
        """The n_best hypotheses of each source, searched for or drawn."""
        rules = Rules(
            eos=EOS,
            forbidden=(PAD, BOS) if self.settings.allow_unknown else (PAD, UNK, BOS),
            min_length=self.settings.min_length,
            no_repeat_ngram=self.settings.no_repeat_ngram,
            prefixes=[source.prefix for source in batch],
        )
        sampling, n_best = self.settings.sampling, self.settings.n_best
        if sampling is None:
            return beam_search(
                steps, limits, start=self.start, beam_size=self.settings.beam_size, n_best=n_best,
                penalty=self._penalty, rules=rules,
            )  # fmt: skip
        lines = np.asarray([source.line for source in batch], np.uint64)

        def draws(numbers: Sequence[int], step: int) -> Tensor:
            hashed = mix(sampling.seed, lines[list(numbers), None], step, np.arange(n_best, dtype=np.uint64))
            return torch.from_numpy((hashed >> np.uint64(11)).astype(np.float64) / 2**53).to(limits.device)

        return sample(
            steps, limits, start=self.start, samples=n_best, draws=draws, rules=rules, penalty=self._penalty,
            temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p,
        )  # fmt: skip

    def _limit(self, source: "_Source") -> int:
        limit = int(self.settings.max_length.factor * len(source.ids)) + self.settings.max_length.extra
        return max(1, len(source.prefix), min(limit, self._room() - 1))

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
        training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                for batch in batches[rank::ranks]:
                    sums.update(zip(batch, self._forced([rows[number] for number in batch]), strict=True))
        finally:
            self.model.train(training)
        if ranks > 1:
            sums = {number: total for share in gather(sums) for number, total in share.items()}
        return [self._scored(text, sums.get(number), len(rows[number][1])) for number, text in enumerate(targets)]

    def _score_batches(self, order: Sequence[int], rows: Sequence[tuple[list[int], list[int]]]) -> Iterator[list[int]]:
        """Pairs of similar length together, within batch_size and batch_tokens."""
        batch: list[int] = []
        for number in order:
            longest = 1 + max(map(len, rows[number]))
            if longest > self._room():
                raise RunError(f"line {number + 1} has {longest} pieces, model.max_positions is {self._room()}")
            full = len(batch) == self.settings.batch_size or (len(batch) + 1) * longest > self.settings.batch_tokens
            if batch and full:
                yield batch
                batch = []
            batch.append(number)
        if batch:
            yield batch

    def _forced(self, rows: Sequence[tuple[list[int], list[int]]]) -> list[float]:
        """Summed log-probabilities of the targets of some pairs."""
        device = next(self.model.parameters()).device

        def padded(lines: list[list[int]]) -> Tensor:
            longest = max(map(len, lines))
            return torch.tensor([line + [PAD] * (longest - len(line)) for line in lines], device=device)

        source = padded([[*source, EOS] for source, _ in rows])
        labels = padded([[*target, EOS] for _, target in rows])
        hidden = self.model(source, padded([[self.start, *target] for _, target in rows]))
        wide = torch.promote_types(hidden.dtype, torch.float32)
        totals = torch.zeros(len(rows), dtype=torch.float64, device=device)
        for place in range(labels.shape[1]):  # never the logits of the whole batch
            scores = self.model.logits(hidden[:, place]).log_softmax(-1, dtype=wide)
            scores = scores.gather(1, labels[:, place, None])[:, 0].double()
            totals += torch.where(torch.tensor([place <= len(row[1]) for row in rows], device=device), scores, 0.0)
        return totals.tolist()

    def _scored(self, text: str, total: float | None, pieces: int) -> Candidate:
        if total is None:
            return Candidate(text, 0.0, 0, 0.0)
        divisor = float(self._penalty(torch.tensor(pieces + 1.0, dtype=torch.float64)))
        return Candidate(text, total, pieces + 1, total / divisor)

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
    prefix: list[int]
    line: int
