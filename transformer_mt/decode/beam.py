"""Beam search in tensor2tensor's form. It knows no model and no text: only steps, scores and ids.

W live hypotheses always go on; finished ones are kept apart, so one that ends early takes nobody's place.
Letters in shapes: B sentences, A of them still searched, W beam, N hypotheses wanted, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Steps(Protocol):
    """What the search drives: R = A x W rows, the W rows of a sentence side by side."""

    def step(self, tokens: Tensor) -> Tensor:
        """Takes in the newest tokens (R,), gives the logits of the next ones (R, V)."""
        ...

    def select(self, rows: Tensor | None, sentences: Tensor | None) -> None:
        """Makes new row i continue old row rows[i], and new sentence i be old sentence sentences[i]; None: as it is."""
        ...


@dataclass(frozen=True)
class LengthPenalty:
    """What a sum of log-probabilities is divided by: none 1, average n, power n^alpha, gnmt ((5 + n) / 6)^alpha.

    n is the number of tokens with `</s>`.
    """

    form: str = "gnmt"
    alpha: float = 0.6

    def __call__(self, length: Tensor) -> Tensor:
        """Lengths -> divisors, of the same shape."""
        if self.form == "none":
            return torch.ones_like(length)
        if self.form == "average":
            return length
        return (length if self.form == "power" else (5 + length) / 6) ** self.alpha


@dataclass(frozen=True)
class Hypothesis:
    """One finished output: its tokens without `</s>`, log-probability with `</s>`, and that divided by the penalty."""

    tokens: tuple[int, ...]
    log_probability: float
    score: float


@dataclass(frozen=True)
class Rules:
    """What may not come next, whatever the model says of it."""

    eos: int
    forbidden: Sequence[int] = ()
    """Ids that are never produced."""
    min_length: int = 1
    """Fewest tokens of an output, `</s>` not counted."""
    no_repeat_ngram: int = 0
    """No sequence of so many tokens comes twice in an output; 0 lets any."""
    prefixes: Sequence[Sequence[int]] = ()
    """What each sentence's output has to begin with; none at all: anything."""

    def apply(self, scores: Tensor, so_far: Tensor, numbers: Sequence[int], limits: Tensor, lowest_limit: int) -> None:
        """Sets what is ruled out to minus infinity, in place.

        scores (A, W, V): log-probabilities of the next token; so_far (A, W, length): the tokens before it; numbers (A):
        the sentences among all; limits (A,): most tokens of an output, none of them below lowest_limit. At its limit an
        output ends, even if a model rules `</s>` out: then its score says so. A row with a logit that is no number is
        ruled out whole.
        """
        length = so_far.shape[2]
        broken = scores[:, :, self.eos].isnan()  # one logit that is no number spoils its whole row
        untouched = scores.clone() if length < self._longest_prefix() else scores
        scores[:, :, list(self.forbidden)] = -torch.inf
        if length < self.min_length:
            scores[length < limits, :, self.eos] = -torch.inf
        if 0 < self.no_repeat_ngram <= length:
            self._block_repeats(scores, so_far)
        if length >= lowest_limit:
            self._leave_only(scores, length >= limits, self.eos, scores[:, :, self.eos].clone())
        for index, number in enumerate(numbers) if length < self._longest_prefix() else ():
            prefix = self.prefixes[number]
            if length < len(prefix):
                one = torch.arange(len(scores), device=scores.device) == index
                self._leave_only(scores, one, prefix[length], untouched[:, :, prefix[length]])
        if bool(broken.any()):
            scores[broken] = -torch.inf

    def _longest_prefix(self) -> int:
        return max(map(len, self.prefixes), default=0)

    def _leave_only(self, scores: Tensor, sentences: Tensor, token: int, values: Tensor) -> None:
        """Rules out all but one token for some sentences (A,); values (A, W) are its scores."""
        scores.masked_fill_(sentences[:, None, None], -torch.inf)
        scores[:, :, token] = torch.where(sentences[:, None], values.clamp(min=-1e30), scores[:, :, token])

    def _block_repeats(self, scores: Tensor, so_far: Tensor) -> None:
        """Rules out tokens that would end an n-gram that is there already."""
        count = self.no_repeat_ngram
        grams = so_far.unfold(2, count, 1)  # (A, W, places, n)
        last = so_far[:, :, so_far.shape[2] - count + 1 :]
        again = (grams[..., :-1] == last[:, :, None]).all(-1)
        blocked = torch.where(again, -torch.inf, 0.0).to(scores)
        scores.scatter_add_(2, grams[..., -1], blocked)


def top(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row (A, M), largest first; equal ones by index. Values and indices (A, count)."""
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


class _Finished:
    """The N best finished hypotheses of each sentence, best first; empty places score minus infinity."""

    def __init__(self, sentences: int, wanted: int, room: int, like: Tensor) -> None:
        self.scores = like.new_full((sentences, wanted), -torch.inf)
        self.sums = self.scores.clone()
        self.lengths = torch.zeros_like(self.scores, dtype=torch.long)
        self.tokens = torch.zeros(sentences, wanted, room, dtype=torch.long, device=like.device)

    def add(self, scores: Tensor, sums: Tensor, prefixes: Tensor, length: int) -> None:
        """Offers candidates: scores and sums (A, C), prefixes (A, C, length); earlier ones win ties."""
        wanted = self.scores.shape[1]
        self.scores, order = top(torch.cat([self.scores, scores], 1), wanted)
        self.sums = torch.cat([self.sums, sums], 1).gather(1, order)
        self.lengths = torch.cat([self.lengths, torch.full_like(scores, length, dtype=torch.long)], 1).gather(1, order)
        padded = torch.nn.functional.pad(prefixes, (0, self.tokens.shape[2] - length))
        every = torch.cat([self.tokens, padded], 1)
        self.tokens = every.gather(1, order[:, :, None].expand(-1, -1, every.shape[2]))

    def keep(self, sentences: Tensor) -> None:
        """Drops the other sentences."""
        self.scores, self.sums = self.scores[sentences], self.sums[sentences]
        self.lengths, self.tokens = self.lengths[sentences], self.tokens[sentences]

    def hypotheses(self, sentence: int) -> list[Hypothesis]:
        """Those found for a sentence, best first."""
        rows = zip(
            self.scores[sentence].tolist(), self.sums[sentence].tolist(), self.lengths[sentence].tolist(),
            self.tokens[sentence].tolist(), strict=True,
        )  # fmt: skip
        return [
            Hypothesis(tuple(tokens[:length]), total, score)
            for score, total, length, tokens in rows
            if score > -torch.inf
        ]


def beam_search(
    steps: Steps,
    limits: Tensor,
    *,
    start: int,
    beam_size: int,
    n_best: int = 1,
    penalty: LengthPenalty = LengthPenalty(),
    rules: Rules,
) -> list[list[Hypothesis]]:
    """Searches all sentences together; for each its n_best best hypotheses, best first (fewer if no more exist).

    limits (B,): most tokens of each sentence's output, `</s>` not counted. A sentence stops as soon as no live
    hypothesis can beat its n-th finished one at any length up to its limit. Ties go to the lower beam, then the
    lower id. What the rules rule out is never produced; log-probabilities are those of the model all the same, so a
    hypothesis' is what forced decoding gives. beam_size 1 is greedy search.
    """
    search = _Search(limits, start, beam_size, n_best, penalty)
    results: list[list[Hypothesis]] = [[] for _ in range(len(limits))]
    while search.numbers:
        logits = steps.step(search.tokens.flatten())
        wide = torch.promote_types(logits.dtype, torch.float32)
        log_probabilities = logits.log_softmax(-1, dtype=wide).view(len(search.numbers), beam_size, -1)
        rules.apply(log_probabilities, search.prefixes, search.numbers, search.limits, search.lowest_limit)
        parents = search.advance(log_probabilities, rules.eos)
        done = search.done()
        for index in done.nonzero()[:, 0].tolist():
            results[search.numbers[index]] = search.finished.hypotheses(index)
        search.leave(steps, done, parents)
    return results


class _Search:
    """The sentences still searched: numbers (A,), sums and newest tokens (A, W), prefixes (A, W, length)."""

    def __init__(self, limits: Tensor, start: int, beam_size: int, n_best: int, penalty: LengthPenalty) -> None:
        self.numbers, self.limits = list(range(len(limits))), limits
        self.lowest_limit = min(limits.tolist(), default=0)
        self.beam_size, self.n_best, self.penalty, self.length = beam_size, n_best, penalty, 0
        self.tokens = torch.full((len(limits), beam_size), start, device=limits.device)
        self.prefixes = self.tokens[:, :, None][:, :, :0]
        self.sums: Tensor | None = None
        self.finished: _Finished

    def advance(self, log_probabilities: Tensor, eos: int) -> Tensor:
        """One token further; the beams (A, W) that the new live hypotheses continue."""
        if self.sums is None:  # all beams begin alike: only the first one counts
            self.sums = log_probabilities.new_full(self.tokens.shape, -torch.inf)
            self.sums[:, 0] = 0
            room = int(self.limits.max())
            self.finished = _Finished(len(self.limits), self.n_best, room, self.sums)
        vocabulary = log_probabilities.shape[-1]
        totals = (self.sums[:, :, None] + log_probabilities).flatten(1)
        candidates = 1 if self.beam_size == 1 else 2 * self.beam_size
        totals, indices = top(totals, candidates)
        parents, tokens = indices // vocabulary, indices % vocabulary
        ends = tokens == eos
        if bool(ends.any()):
            self._finish(totals, parents, ends)
        return self._go_on(totals, parents, tokens, ends)

    def _finish(self, totals: Tensor, parents: Tensor, ends: Tensor) -> None:
        length = torch.tensor(self.length + 1, dtype=totals.dtype, device=totals.device)
        scores = torch.where(ends, totals / self.penalty(length), -torch.inf)
        prefixes = self.prefixes.gather(1, parents[:, :, None].expand(-1, -1, self.length))
        self.finished.add(scores, totals, prefixes, self.length)

    def _go_on(self, totals: Tensor, parents: Tensor, tokens: Tensor, ends: Tensor) -> Tensor:
        """Makes the best candidates that do not end the new live hypotheses."""
        order = ends.to(torch.uint8).sort(dim=1, stable=True).indices[:, : self.beam_size]
        dead = ends.gather(1, order)
        self.sums = totals.gather(1, order).masked_fill(dead, -torch.inf)
        self.tokens, parents = tokens.gather(1, order), parents.gather(1, order)
        past = self.prefixes.gather(1, parents[:, :, None].expand(-1, -1, self.length))
        self.prefixes = torch.cat([past, self.tokens[:, :, None]], 2)
        self.length += 1
        return parents

    def done(self) -> Tensor:
        """(A,): no live hypothesis can still beat the n-th finished one, however long it grows."""
        assert self.sums is not None
        best = self.sums.max(1).values
        shortest = torch.full_like(best, self.length + 1)
        longest = (self.limits + 1).to(best.dtype)
        bound = torch.maximum(best / self.penalty(shortest), best / self.penalty(longest))
        over = (best == -torch.inf) | (self.length > self.limits)
        return over | (self.finished.scores[:, -1] >= bound)

    def leave(self, steps: Steps, done: Tensor, parents: Tensor) -> None:
        """Lets the sentences that are done leave, and the state of the steps follow the beams."""
        stays = (~done).nonzero()[:, 0]
        rows = (torch.arange(len(parents), device=parents.device)[:, None] * self.beam_size + parents)[stays].flatten()
        all_stay = len(stays) == len(done)
        still = all_stay and bool((rows == torch.arange(len(rows), device=rows.device)).all())
        if not all_stay:
            self.numbers = [self.numbers[index] for index in stays.tolist()]
            self.limits, self.tokens, self.prefixes = self.limits[stays], self.tokens[stays], self.prefixes[stays]
            assert self.sums is not None
            self.sums = self.sums[stays]
            self.finished.keep(stays)
        if self.numbers:
            steps.select(None if still else rows, None if all_stay else stays)
