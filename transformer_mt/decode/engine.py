"""Sources in, hypotheses out: our own search over one model or several, with memory and processors in view."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from transformer_mt.config import Decoding
from transformer_mt.data.batching import mix
from transformer_mt.data.tokenizer import BOS, EOS, PAD, UNK
from transformer_mt.decode.beam import BeamSearch
from transformer_mt.decode.constrained import NO_WORDS, ConstrainedBeamSearch, Phrase, Words
from transformer_mt.decode.models import ModelSteps
from transformer_mt.decode.sample import Sampling
from transformer_mt.decode.search import Hypothesis, LengthPenalty, Live, Rules, Strategy, search
from transformer_mt.decode.workers import can_fork, side_by_side
from transformer_mt.distributed import is_out_of_memory
from transformer_mt.model.transformer import Transformer

UNLIMITED = 1 << 30
SENTENCES_FOR_A_WORKER = 16
"""Fewer are not worth a worker of their own."""
FULL_BATCHES = 4
"""So many workers have batches of decoding.batch_size; more of them share what those hold, as memory is not theirs."""
LEAST_BATCH = 32
"""Sentences that a worker may have together all the same."""
MOST_EXTRA_BEAMS = 12
"""Beams that required phrases add to decoding.beam_size: one for each of their tokens, at most so many."""


@dataclass(frozen=True)
class Source:
    """One sentence to be translated."""

    ids: Sequence[int]
    """Its pieces, without `</s>`."""
    limit: int
    """Most pieces of its translation, `</s>` not counted."""
    prefix: Sequence[int] = ()
    """What its translation has to begin with."""
    phrases: Sequence[Phrase] = ()
    """What its translation has to hold."""
    line: int = 0
    """Number of its line among all, from 0: samples depend on it."""


class Engine(Protocol):
    """What looks for translations."""

    positions: int
    """Most positions that the model has: for pieces of a source with `</s>`, and for those of a translation."""

    def search(self, sources: Sequence[Source]) -> Iterator[tuple[int, list[Hypothesis]]]:
        """The n_best hypotheses of each source, best first, with its place among the sources; in any order."""
        ...


class NativeEngine:
    """Our own search: exact scores, stops only when nothing better can come, the same in whatever company."""

    def __init__(self, models: Sequence[Transformer], settings: Decoding, start: int, words: Words = NO_WORDS) -> None:
        self.models, self.settings, self.start, self.words = models, settings, start, words
        self._device = next(models[0].parameters()).device
        learned = [model.max_positions for model in models if model.positions == "learned"]
        self.positions = min(learned, default=UNLIMITED)
        self._penalty = LengthPenalty(settings.length_penalty.form, settings.length_penalty.alpha)

    def search(self, sources: Sequence[Source]) -> Iterator[tuple[int, list[Hypothesis]]]:
        """As `Engine.search`. Where there are sentences enough, each processor searches by itself.

        Two searches of one thread are faster than one of two: they wait for each other at no matrix product.
        """
        threads = torch.get_num_threads()
        workers = min(threads, len(sources) // SENTENCES_FOR_A_WORKER)
        if self._device.type != "cpu" or workers < 2 or not can_fork():
            yield from self._search(sources)
            return
        order = _longest_first(sources)
        shares = [order[first::workers] for first in range(workers)]
        engine = NativeEngine(self.models, _shared_out(self.settings, workers), self.start, self.words)

        def work(places: Sequence[int]) -> Iterator[tuple[int, list[Hypothesis]]]:
            for index, hypotheses in engine._search([sources[place] for place in places]):
                yield places[index], hypotheses

        yield from side_by_side(work, shares)

    def _search(self, sources: Sequence[Source]) -> Iterator[tuple[int, list[Hypothesis]]]:
        """What does not fit into memory is tried again, half as much together."""
        order = _longest_first(sources)
        free = [place for place in order if not sources[place].phrases]
        bound = [place for place in order if sources[place].phrases]
        for places in (free, bound):
            together = self.settings.batch_size
            while places:
                done = set()
                try:
                    for number, hypotheses in self._searched([sources[place] for place in places], together):
                        yield places[number], hypotheses
                        done.add(places[number])
                except (RuntimeError, MemoryError) as error:
                    together = min(together, len(places))
                    together = self._room(len(sources[places[0]].ids), self._rows_each(), together) // 2
                    if together < 1 or not is_out_of_memory(error):
                        raise
                places = [place for place in places if place not in done]

    def _rows_each(self) -> int:
        """Rows of a batch that a sentence takes."""
        return self.settings.n_best if self.settings.sampling else self.settings.beam_size

    def _room(self, pieces: int, rows: int, most: int) -> int:
        """Sentences of so many pieces that are searched together: within batch_size and batch_tokens."""
        return max(1, min(most, self.settings.batch_tokens // (pieces * rows)))

    def _searched(self, sources: Sequence[Source], most: int) -> Iterator[tuple[int, list[Hypothesis]]]:
        """One search; all sources have phrases, or none has."""
        width = max(map(self._width, sources))
        live = Live(width, self._device)
        rules = Rules(
            eos=EOS,
            forbidden=(PAD, BOS) if self.settings.allow_unknown else (PAD, UNK, BOS),
            min_length=self.settings.min_length,
            no_repeat_ngram=self.settings.no_repeat_ngram,
            prefixes=[source.prefix for source in sources] if any(source.prefix for source in sources) else (),
        )
        recorded = self.settings.cuda_graphs and self._device.type == "cuda"
        yield from search(
            ModelSteps(self.models, [[*source.ids, EOS] for source in sources], width, recorded=recorded),
            self._strategy(sources, live),
            live,
            [source.limit for source in sources],
            start=self.start,
            rules=rules,
            room=lambda number: self._room(len(sources[number].ids), width, most),
        )

    def _width(self, source: Source) -> int:
        """Beams of a sentence: more of them where it has phrases."""
        extra = sum(min(map(len, phrase)) for phrase in source.phrases)
        return self._rows_each() + min(MOST_EXTRA_BEAMS, extra)

    def _strategy(self, sources: Sequence[Source], live: Live) -> Strategy:
        settings, n_best = self.settings, self.settings.n_best
        if settings.sampling is None:
            if any(source.phrases for source in sources):
                phrases, widths = [source.phrases for source in sources], list(map(self._width, sources))
                return ConstrainedBeamSearch(live, phrases, n_best, self._penalty, widths=widths, words=self.words)
            return BeamSearch(live, n_best, self._penalty)
        sampling = settings.sampling
        lines = np.asarray([source.line for source in sources], np.uint64)

        def draws(numbers: Sequence[int], lengths: Sequence[int]) -> Tensor:
            steps, samples = np.asarray(lengths, np.uint64)[:, None], np.arange(n_best, dtype=np.uint64)
            hashed = mix(sampling.seed, lines[list(numbers), None], steps, samples)
            return torch.from_numpy((hashed >> np.uint64(11)).astype(np.float64) / 2**53).to(live.device)

        return Sampling(
            live, draws, self._penalty, temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p
        )


def _shared_out(settings: Decoding, workers: int) -> Decoding:
    """What each of several workers may hold at once."""
    many = max(1, workers / FULL_BATCHES)
    size = min(settings.batch_size, max(LEAST_BATCH, int(settings.batch_size / many)))
    return settings.model_copy(update={"batch_size": size, "batch_tokens": max(1, int(settings.batch_tokens / many))})


def _longest_first(sources: Sequence[Source]) -> list[int]:
    return sorted(range(len(sources)), key=lambda place: (-len(sources[place].ids), place))
