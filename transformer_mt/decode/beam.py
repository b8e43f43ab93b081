"""Beam search in tensor2tensor's form.

W live hypotheses always go on; finished ones are kept apart, so one that ends early takes nobody's place.
Letters in shapes: A slots (one sentence in each), W beams, R rows (the beams that still live, of A x W), C candidates,
N hypotheses wanted, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from transformer_mt.decode.search import PAPERS_PENALTY, Hypothesis, LengthPenalty, Live, moved

BLOCK = 32


def top(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row (M, V), largest first; equal ones by index. Values and indices (M, count).

    Which indices stand for scores of minus infinity does not matter, and one may do so twice.
    """
    rows = torch.arange(len(scores), device=scores.device)[:, None]
    return _top_of_parts(scores, rows, scores.new_zeros(len(scores), 1), min(count, scores.shape[1]))


def _top_of_parts(scores: Tensor, rows: Tensor, gains: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` best of each sentence, whose parts are rows (A, W) of scores (R, V), with `gains` (A, W) added.

    An index counts through the parts, one after the other. Scores are read once, for the largest of each block: the
    `count` best blocks hold the `count` best scores.
    """
    sentences, width = len(rows), scores.shape[1]
    blocks = -(-width // BLOCK)
    whole = width // BLOCK
    largest = scores[:, : whole * BLOCK].view(len(scores), whole, BLOCK).amax(2)
    if whole < blocks:
        largest = torch.cat([largest, scores[:, whole * BLOCK :].amax(1, keepdim=True)], 1)
    best = _top((largest[rows] + gains[:, :, None]).view(sentences, -1), count)[1].sort(dim=1).values
    part, within = best // blocks, torch.arange(BLOCK, device=scores.device)
    places = ((best % blocks)[:, :, None] * BLOCK + within).view(sentences, -1)
    part = part.repeat_interleave(BLOCK, 1)
    beyond, places = places >= width, places.clamp(max=width - 1)
    values = scores.flatten()[rows.gather(1, part) * width + places] + gains.gather(1, part)
    values, order = _top(values.masked_fill_(beyond, -torch.inf), count)
    return values, (part * width + places).gather(1, order)


def _top(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    count = min(count, scores.shape[1])
    values, indices = scores.topk(min(count + 1, scores.shape[1]), dim=1)
    # topk takes any of equal ones. Among those of minus infinity it does not matter which.
    tied = ((values[:, count - 1] == values[:, -1]) & (values[:, -1] > -torch.inf)).nonzero()[:, 0]
    indices = indices[:, :count]
    if values.shape[1] > count and len(tied):
        indices[tied] = _first_of_equals(scores[tied], values[tied, count - 1, None], count)
    indices = indices.sort(dim=1).values
    values, order = scores.gather(1, indices).sort(dim=1, descending=True, stable=True)
    return values, indices.gather(1, order)


def _first_of_equals(scores: Tensor, lowest: Tensor, count: int) -> Tensor:
    """Indices of all scores above `lowest` and of the first ones equal to it, `count` in each row, in any order."""
    above, equal = scores > lowest, scores == lowest
    places = count - above.sum(1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(1) <= places))
    return chosen.nonzero()[:, 1].view(len(scores), count)


class Finished:
    """The N best finished hypotheses of the sentence in each slot, best first; empty places score minus infinity."""

    def __init__(self, wanted: int, live: Live) -> None:
        self.scores = live.sums.new_zeros(0, wanted)
        self.sums, self.lengths = self.scores, torch.zeros_like(self.scores, dtype=torch.long)
        self.tokens = self.lengths.new_zeros(0, wanted, 0)

    def resize(self, kept: Sequence[int], slots: int) -> None:
        """As `Live.resize`."""
        self.scores, self.sums, self.lengths, self.tokens = (
            moved(part, kept, slots) for part in (self.scores, self.sums, self.lengths, self.tokens)
        )
        self.scores[len(kept) :] = -torch.inf

    def begin(self, slot: int) -> None:
        """Forgets what was in a slot."""
        self.scores[slot] = -torch.inf

    def add(self, scores: Tensor, sums: Tensor, outputs: Tensor, lengths: Tensor) -> None:
        """Offers candidates: scores and sums (A, C), outputs (A, C, longest), lengths (A,); earlier ones win ties."""
        wanted = self.scores.shape[1]
        self.scores, order = _top(torch.cat([self.scores, scores], 1), wanted)
        self.sums = torch.cat([self.sums, sums], 1).gather(1, order)
        self.lengths = torch.cat([self.lengths, lengths.long()[:, None].expand(-1, scores.shape[1])], 1).gather(
            1, order
        )
        more = max(0, outputs.shape[2] - self.tokens.shape[2])
        known = torch.nn.functional.pad(self.tokens, (0, more))
        outputs = torch.nn.functional.pad(outputs, (0, known.shape[2] - outputs.shape[2]))
        every = torch.cat([known, outputs], 1)
        self.tokens = every.gather(1, order[:, :, None].expand(-1, -1, every.shape[2]))

    def hypotheses(self, slot: int) -> list[Hypothesis]:
        """Those found for a sentence, best first."""
        rows = zip(
            self.scores[slot].tolist(), self.sums[slot].tolist(), self.lengths[slot].tolist(),
            self.tokens[slot].tolist(), strict=True,
        )  # fmt: skip
        return [
            Hypothesis(tuple(tokens[:length]), total, score)
            for score, total, length, tokens in rows
            if score > -torch.inf
        ]


class BeamSearch:
    """Looks for the n_best best outputs of each sentence (fewer if no more exist); width 1 is greedy search.

    Ties go to the lower beam, then the lower id. A live hypothesis is given up as soon as it cannot beat the n-th
    finished one at any length up to the limit; with the last of them the sentence is done. That changes no output: at
    one length a hypothesis with a lower sum cannot beat it either, so who takes the place has no better prospects.
    Log-probabilities are the model's, whatever is ruled out: those that forced decoding gives.
    """

    beams_at_first = 1

    def __init__(self, live: Live, n_best: int = 1, penalty: LengthPenalty = PAPERS_PENALTY) -> None:
        self.width, self.penalty = live.width, penalty
        self.finished = Finished(n_best, live)

    def resize(self, kept: Sequence[int], slots: int) -> None:
        """As `Live.resize`."""
        self.finished.resize(kept, slots)

    def admit(self, slot: int, number: int) -> None:
        """Begins a sentence."""
        self.finished.begin(slot)

    def advance(self, live: Live, scores: Tensor, eos: int) -> Tensor | None:
        """The best candidates that do not end become the new live hypotheses; those that end are kept."""
        candidates = 1 if self.width == 1 else 2 * self.width
        sums = live.sums.masked_fill(~live.alive, -torch.inf)
        totals, indices = _top_of_parts(scores, live.row_of_beam, sums, candidates)
        parents, tokens = indices // scores.shape[1], indices % scores.shape[1]
        ends = (tokens == eos) & (totals > -torch.inf)
        lengths = live.sums.new_tensor(live.lengths)
        if bool(ends.any()):
            past = live.past()
            outputs = past.gather(1, parents[:, :, None].expand(-1, -1, past.shape[2]))
            normalised = torch.where(ends, totals / self.penalty(lengths[:, None] + 1), -torch.inf)
            self.finished.add(normalised, totals, outputs, lengths)
        order = ends.to(torch.uint8).sort(dim=1, stable=True).indices[:, : self.width]
        live.sums = totals.gather(1, order).masked_fill(ends.gather(1, order), -torch.inf)
        parents = parents.gather(1, order)
        live.go_on(tokens.gather(1, order), parents if self.width > 1 else None)
        live.alive = self._hopeful(live, lengths)
        return parents if self.width > 1 else None

    def _hopeful(self, live: Live, lengths: Tensor) -> Tensor:
        """(A, W): which live hypotheses can still beat the n-th finished one, at the length that suits them best."""
        limits = live.sums.new_tensor(live.limits)
        ends = [self.penalty(length)[:, None] for length in (lengths + 2, limits + 1)]
        bound = torch.maximum(live.sums / ends[0], live.sums / ends[1])
        return (live.sums > -torch.inf) & (bound > self.finished.scores[:, -1:]) & (lengths < limits)[:, None]

    def results(self, slot: int) -> list[Hypothesis]:
        """The outputs of a sentence, best first."""
        return self.finished.hypotheses(slot)
