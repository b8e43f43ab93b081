"""Beam search for outputs that have to hold given phrases.

Dynamic beam allocation (Post and Vilar 2018): beams are shared out among hypotheses by how many tokens of the phrases
they lack, so that those which lack all of them and those which lack none go on side by side.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from transformer_mt.decode.beam import BeamSearch, top
from transformer_mt.decode.search import PAPERS_PENALTY, LengthPenalty, Live

Phrase = tuple[tuple[int, ...], ...]
"""Ways to write what an output has to hold: each a sequence of ids, any of them will do."""


Reading = tuple[tuple[Phrase, ...], tuple[int, ...]]
"""The phrases that an output does not hold yet, and its last tokens, taken as the beginning of one of them."""


@dataclass(frozen=True)
class Progress:
    """How far a hypothesis is with the phrases of its sentence.

    Phrases may begin alike, or one be a part of another. So it keeps every reading that may lead to all of them.
    """

    readings: frozenset[Reading]
    completes: bool = False
    """Whether its last token was the last one of a phrase."""

    @classmethod
    def start(cls, phrases: Sequence[Phrase]) -> "Progress":
        """That of an output without a token."""
        return cls(frozenset({(tuple(phrases), ())}))

    @cached_property
    def needed(self) -> int:
        """Fewest tokens until all phrases are held."""
        return min(
            sum(map(_shortest, unmet))
            + min((len(way) - _shortest(phrase) for phrase, way in _going_on(unmet, begun)), default=0)
            - len(begun)
            for unmet, begun in self.readings
        )

    def next_tokens(self) -> set[int]:
        """Tokens that bring a phrase further."""
        return {way[len(begun)] for unmet, begun in self.readings for _, way in _going_on(unmet, begun)}

    def after(self, token: int | None) -> "Progress":
        """The same with a token more, or with one of no phrase (None)."""
        readings: set[Reading] = {(unmet, begun) for unmet, begun in self.readings if not begun}
        completes = False
        for unmet, begun in self.readings:
            recent = (*begun, token)
            for phrase, way in _going_on(unmet, begun):
                if way == recent:
                    completes = True
                    place = unmet.index(phrase)
                    readings.add(((*unmet[:place], *unmet[place + 1 :]), ()))
                elif way[: len(recent)] == recent:
                    readings.add((unmet, way[: len(recent)]))
        return Progress(frozenset(each for each in readings if not _is_surpassed(each, readings)), completes)


def _shortest(phrase: Phrase) -> int:
    return min(map(len, phrase))


def _going_on(unmet: Sequence[Phrase], begun: tuple[int, ...]) -> Iterator[tuple[Phrase, tuple[int, ...]]]:
    """Phrases, and ways to write them, that begin so and go on."""
    ways = ((phrase, way) for phrase in unmet for way in phrase if len(way) > len(begun))
    return ((phrase, way) for phrase, way in ways if way[: len(begun)] == begun)


def _is_surpassed(reading: Reading, readings: Iterable[Reading]) -> bool:
    """Whether another reading has all that this one has, and more."""
    unmet, begun = reading
    shorter = (other for other, same in readings if same == begun and len(other) < len(unmet))
    return any(not Counter(other) - Counter(unmet) for other in shorter)


@dataclass(frozen=True)
class Words:
    """What tokens mean for words, so that no phrase is a part of a longer one."""

    going_on: Sequence[int] = ()
    """Tokens that go on with a word."""
    ending: frozenset[int] = frozenset()
    """Tokens whose last character is of a word."""


NO_WORDS = Words()


@dataclass(frozen=True)
class _Candidate:
    total: float
    parent: int
    token: int
    progress: Progress


class ConstrainedBeamSearch(BeamSearch):
    """`BeamSearch` for sentences whose outputs have to hold phrases, by sentence number."""

    def __init__(
        self, live: Live, phrases: Sequence[Sequence[Phrase]], n_best: int = 1,
        penalty: LengthPenalty = PAPERS_PENALTY, *, widths: Sequence[int] | None = None, words: Words = NO_WORDS,
    ) -> None:  # fmt: skip
        """`widths`: how many of the beams each sentence has, where it is not all of them."""
        super().__init__(live, n_best, penalty)
        self.phrases, self.widths, self.words = phrases, widths, words
        self.progress: list[list[Progress]] = []

    def resize(self, kept: Sequence[int], slots: int) -> None:
        """As `Live.resize`."""
        super().resize(kept, slots)
        self.progress = [self.progress[slot] for slot in kept] + [[] for _ in range(slots - len(kept))]

    def admit(self, slot: int, number: int) -> None:
        """Begins a sentence."""
        super().admit(slot, number)
        self.progress[slot] = [Progress.start(self.phrases[number])] * self.width

    def advance(self, live: Live, scores: Tensor, eos: int) -> Tensor:
        """Keeps outputs that end with all phrases in them; shares the beams out among the others."""
        beams = self._beams_of_rows(live)
        ending = self._hold_back_ends(live, scores, beams, eos)
        if ending:
            self._keep(live, scores[:, eos], ending)
            scores[:, eos] = -torch.inf
        self._end_words(live, scores, beams)
        found = self._candidates(live, scores, beams)
        chosen = [self._shared_out(items, self._width(live, slot)) for slot, items in enumerate(found)]
        self.progress = [[item.progress for item in items] for items in chosen]
        parents = torch.zeros_like(live.tokens)
        tokens, sums = torch.zeros_like(live.tokens), torch.full_like(live.sums, -torch.inf)
        for slot, items in enumerate(chosen):
            for beam, item in enumerate(items):
                parents[slot, beam], tokens[slot, beam], sums[slot, beam] = item.parent, item.token, item.total
        lengths = live.sums.new_tensor(live.lengths)
        live.sums = sums
        live.go_on(tokens, parents)
        live.alive = self._hopeful(live, lengths)
        return parents

    def _width(self, live: Live, slot: int) -> int:
        return self.widths[live.numbers[slot]] if self.widths and live.numbers[slot] >= 0 else self.width

    def _end_words(self, live: Live, scores: Tensor, beams: Sequence[tuple[int, int]]) -> None:
        """Rules out what would go on with the word that a phrase has just ended in."""
        newest = live.of_rows(live.tokens).tolist()
        rows = [
            row
            for row, (slot, beam) in enumerate(beams)
            if self.progress[slot][beam].completes and newest[row] in self.words.ending
        ]
        if rows and self.words.going_on:
            scores[torch.tensor(rows)[:, None], torch.tensor(self.words.going_on)] = -torch.inf

    def _beams_of_rows(self, live: Live) -> list[tuple[int, int]]:
        """(slot, beam) of each row."""
        flat = range(live.alive.numel()) if live.rows is None else live.rows.tolist()
        return [divmod(row, self.width) for row in flat]

    def _hold_back_ends(self, live: Live, scores: Tensor, beams: Sequence[tuple[int, int]], eos: int) -> list[int]:
        """Rules the end out where phrases are lacking, unless nothing else may come; rows that may end."""
        ending = []
        for row, (slot, beam) in enumerate(beams):
            if self.progress[slot][beam].needed <= 0 or live.lengths[slot] >= live.limits[slot]:
                ending.append(row)
            else:
                scores[row, eos] = -torch.inf
        return ending

    def _keep(self, live: Live, ends: Tensor, ending: Sequence[int]) -> None:
        """Keeps what ends now."""
        gained = torch.full_like(ends, -torch.inf)
        gained[list(ending)] = ends[list(ending)]
        sums = live.sums + live.grid(gained, -torch.inf)
        lengths = live.sums.new_tensor(live.lengths)
        scores = torch.where(live.alive, sums / self.penalty(lengths[:, None] + 1), -torch.inf)
        self.finished.add(scores, sums, live.past(), lengths)

    def _candidates(self, live: Live, scores: Tensor, beams: Sequence[tuple[int, int]]) -> list[list[_Candidate]]:
        """What may come next in each slot: the best tokens of each beam, and those that bring a phrase further."""
        values, tokens = (part.tolist() for part in top(scores, 2 * self.width))
        sums = live.of_rows(live.sums).tolist()
        found: list[list[_Candidate]] = [[] for _ in live.numbers]
        for row, (slot, beam) in enumerate(beams):
            before = self.progress[slot][beam]
            further = {token: before.after(token) for token in sorted(before.next_tokens())}
            elsewhere = before.after(None)
            best = list(zip(tokens[row], values[row], strict=True))[: 2 * self._width(live, slot)]
            options = {token: value for token, value in best if value > -torch.inf}
            if further:
                options |= zip(further, scores[row, list(further)].tolist(), strict=True)
            found[slot] += (
                _Candidate(sums[row] + value, beam, token, further.get(token, elsewhere))
                for token, value in options.items()
                if value > -torch.inf
            )
        return [self._in_time(live, slot, items) for slot, items in enumerate(found)]

    def _in_time(self, live: Live, slot: int, candidates: list[_Candidate]) -> list[_Candidate]:
        """Those that can still hold all phrases within the limit; where nothing can, an output without them will do."""
        left = live.limits[slot] - live.lengths[slot] - 1
        fitting = [item for item in candidates if item.progress.needed <= left]
        return fitting if fitting or self.finished.hypotheses(slot) else candidates

    def _shared_out(self, candidates: list[_Candidate], width: int) -> list[_Candidate]:
        """The best of each number of tokens lacking, then the second best of each, and so on; fewest lacking first."""
        banks: dict[int, list[_Candidate]] = {}
        for item in sorted(candidates, key=lambda item: (-item.total, item.parent, item.token)):
            banks.setdefault(item.progress.needed, []).append(item)
        order = sorted(banks)
        longest = max(map(len, banks.values()), default=0)
        turns = [banks[bank][place] for place in range(longest) for bank in order if place < len(banks[bank])]
        return turns[:width]
