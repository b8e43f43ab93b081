"""Beam search for outputs that have to hold given phrases.

Dynamic beam allocation (Post and Vilar 2018): beams are shared out among hypotheses by how many tokens of the phrases
they have, so that those which have none yet and those which have all go on side by side.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from transformer_mt.decode.beam import BeamSearch, top
from transformer_mt.decode.search import PAPERS_PENALTY, LengthPenalty, Live

Phrase = tuple[tuple[int, ...], ...]
"""Ways to write what an output has to hold: each a sequence of ids, any of them will do."""


@dataclass(frozen=True)
class Progress:
    """How far a hypothesis is with the phrases of its sentence."""

    phrases: Sequence[Phrase]
    met: frozenset[int] = frozenset()
    """Which of the phrases it holds."""
    begun: tuple[int, ...] = ()
    """Its last tokens, as far as they begin a phrase that it does not hold yet."""
    have: int = field(default=0, compare=False)
    """Tokens of phrases: those held and those begun."""

    @property
    def needed(self) -> int:
        """Fewest tokens until all phrases are held."""
        unmet = self._unmet()
        whole = sum(min(map(len, phrase)) for phrase in unmet.values())
        begun = len(self.begun)
        going_on = (
            len(way) - begun - min(map(len, phrase))
            for phrase in unmet.values()
            for way in phrase
            if begun and way[:begun] == self.begun
        )
        return whole + min(going_on, default=0)

    def next_tokens(self) -> Iterator[int]:
        """Tokens that bring a phrase further."""
        for phrase in self._unmet().values():
            for way in phrase:
                yield way[0]
                if way[: len(self.begun)] == self.begun and len(way) > len(self.begun):
                    yield way[len(self.begun)]

    def after(self, token: int) -> "Progress":
        """The same with a token more. A phrase begun and not gone on with is begun anew, where its end begins one."""
        unmet = self._unmet()
        complete = sum(min(map(len, self.phrases[number])) for number in self.met)
        recent = (*self.begun, token)
        while recent:
            for number, phrase in unmet.items():
                if recent in phrase:
                    return Progress(self.phrases, self.met | {number}, (), complete + min(map(len, phrase)))
            if any(way[: len(recent)] == recent for phrase in unmet.values() for way in phrase):
                return Progress(self.phrases, self.met, recent, complete + len(recent))
            recent = recent[1:]
        return Progress(self.phrases, self.met, (), complete)

    def _unmet(self) -> dict[int, Phrase]:
        return {number: phrase for number, phrase in enumerate(self.phrases) if number not in self.met}


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
        penalty: LengthPenalty = PAPERS_PENALTY,
    ) -> None:  # fmt: skip
        super().__init__(live, n_best, penalty)
        self.phrases = phrases
        self.progress: list[list[Progress]] = []

    def resize(self, kept: Sequence[int], slots: int) -> None:
        """As `Live.resize`."""
        super().resize(kept, slots)
        self.progress = [self.progress[slot] for slot in kept] + [[] for _ in range(slots - len(kept))]

    def admit(self, slot: int, number: int) -> None:
        """Begins a sentence."""
        super().admit(slot, number)
        self.progress[slot] = [Progress(self.phrases[number])] * self.width

    def advance(self, live: Live, logits: Tensor, normaliser: Tensor, eos: int) -> Tensor:
        """Keeps outputs that end with all phrases in them; shares the beams out among the others."""
        beams = self._beams_of_rows(live)
        ending = self._hold_back_ends(live, logits, beams, eos)
        scores = logits - normaliser[:, None]
        if ending:
            self._keep(live, scores[:, eos], ending)
            scores[:, eos] = -torch.inf
        chosen = [self._shared_out(found) for found in self._candidates(live, scores, beams)]
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

    def _beams_of_rows(self, live: Live) -> list[tuple[int, int]]:
        """(slot, beam) of each row."""
        flat = range(live.alive.numel()) if live.rows is None else live.rows.tolist()
        return [divmod(row, self.width) for row in flat]

    def _hold_back_ends(self, live: Live, logits: Tensor, beams: Sequence[tuple[int, int]], eos: int) -> list[int]:
        """Rules the end out where phrases are lacking, unless nothing else may come; rows that may end."""
        ending = []
        for row, (slot, beam) in enumerate(beams):
            if self.progress[slot][beam].needed <= 0 or live.lengths[slot] >= live.limits[slot]:
                ending.append(row)
            else:
                logits[row, eos] = -torch.inf
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
        wanted = [sorted(set(self.progress[slot][beam].next_tokens())) for slot, beam in beams]
        sums = live.of_rows(live.sums).tolist()
        found: list[list[_Candidate]] = [[] for _ in live.numbers]
        for row, (slot, beam) in enumerate(beams):
            extra = scores[row, wanted[row]].tolist() if wanted[row] else []
            options = dict(zip(tokens[row], values[row], strict=True)) | dict(zip(wanted[row], extra, strict=True))
            left = live.limits[slot] - live.lengths[slot] - 1
            for token, value in options.items():
                progress = self.progress[slot][beam].after(token)
                if value > -torch.inf and progress.needed <= left:
                    found[slot].append(_Candidate(sums[row] + value, beam, token, progress))
        return found

    def _shared_out(self, candidates: list[_Candidate]) -> list[_Candidate]:
        """The best of each number of tokens had, then the second best of each, and so on; most tokens first."""
        banks: dict[int, list[_Candidate]] = {}
        for item in sorted(candidates, key=lambda item: (-item.total, item.parent, item.token)):
            banks.setdefault(item.progress.have, []).append(item)
        order = sorted(banks, reverse=True)
        longest = max(map(len, banks.values()), default=0)
        turns = [banks[bank][place] for place in range(longest) for bank in order if place < len(banks[bank])]
        return turns[: self.width]
