"""Sentences come in, grow by a token a step, and leave: what beam search and sampling have in common.

It knows no model and no text, only steps, scores and ids.
Letters in shapes: A slots (one sentence in each), W beams, R rows (the beams that still live, of A x W), V vocabulary.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Steps(Protocol):
    """What a search drives: a model, or several, with what they keep of each sentence."""

    def resize(self, kept: Sequence[int], slots: int) -> None:
        """Gives room for so many sentences; those of the slots `kept` move to the first ones, the others are gone."""
        ...

    def admit(self, slots: Sequence[int], numbers: Sequence[int]) -> None:
        """Puts sentences, by their numbers, into slots, in place of what was there."""
        ...

    def leave(self, slot: int) -> None:
        """Forgets the sentence of a slot."""
        ...

    def step(self, tokens: Tensor, rows: Tensor | None) -> Tensor:
        """Takes in the newest tokens (A, W), gives the logits of the next ones (R, V).

        rows (R,): which of the A x W beams live; None: all of them.
        """
        ...

    def reorder(self, parents: Tensor) -> None:
        """Makes each beam (A, W) continue the one that `parents` names, of the same sentence."""
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


PAPERS_PENALTY = LengthPenalty()


@dataclass(frozen=True)
class Hypothesis:
    """One finished output: its tokens without `</s>`, log-probability with `</s>`, and that divided by the penalty."""

    tokens: tuple[int, ...]
    log_probability: float
    score: float


class Live:
    """The sentences under way. A slot without a sentence has the number -1 and no living beam."""

    def __init__(self, width: int, device: torch.device) -> None:
        self.width, self.device = width, device
        self.numbers: list[int] = []
        self.lengths: list[int] = []
        """Tokens that a sentence's beams have so far."""
        self.limits: list[int] = []
        """Most tokens of an output, `</s>` not counted."""
        self.tokens = torch.zeros(0, width, dtype=torch.long, device=device)
        """(A, W): the newest of each beam."""
        self.so_far = torch.zeros(0, width, 0, dtype=torch.long, device=device)
        """(A, W, longest): all of each beam, the start symbol not counted."""
        self.sums = torch.zeros(0, width, dtype=_widest(device), device=device)
        """(A, W): log-probabilities of the beams."""
        self.alive = torch.zeros(0, width, dtype=torch.bool, device=device)
        self.rows: Tensor | None = None
        """(R,): the living beams, None if all live."""
        self.slot_of_row: list[int] = []
        self.row_of_beam = self.tokens
        """(A, W): its row; of a beam that does not live any."""

    def resize(self, kept: Sequence[int], slots: int) -> None:
        """Keeps the sentences of some slots, in that order, and makes room for others behind them."""
        empty = slots - len(kept)
        self.numbers = [self.numbers[slot] for slot in kept] + [-1] * empty
        self.lengths = [self.lengths[slot] for slot in kept] + [0] * empty
        self.limits = [self.limits[slot] for slot in kept] + [0] * empty
        self.tokens, self.so_far, self.sums, self.alive = (
            moved(part, kept, slots) for part in (self.tokens, self.so_far, self.sums, self.alive)
        )

    def admit(self, slot: int, number: int, limit: int, start: int, beams: int) -> None:
        """Begins a sentence with so many living beams."""
        self.numbers[slot], self.lengths[slot], self.limits[slot] = number, 0, limit
        self.tokens[slot], self.sums[slot] = start, 0.0
        self.alive[slot] = torch.arange(self.width, device=self.device) < beams

    def leave(self, slot: int) -> None:
        """Ends a sentence; its slot is free for another one."""
        self.numbers[slot], self.lengths[slot] = -1, 0

    def find_rows(self) -> None:
        """Notes which beams live."""
        flat = self.alive.flatten().nonzero()[:, 0]
        self.rows = None if len(flat) == self.alive.numel() else flat
        self.slot_of_row = (flat // self.width).tolist()
        self.row_of_beam = (self.alive.flatten().cumsum(0) - 1).clamp(min=0).view(self.alive.shape)

    def of_rows(self, grid: Tensor) -> Tensor:
        """(A, W, ...) -> (R, ...)."""
        flat = grid.flatten(0, 1)
        return flat if self.rows is None else flat.index_select(0, self.rows)

    def grid(self, rows: Tensor, fill: float) -> Tensor:
        """(R, ...) -> (A, W, ...); beams that do not live are `fill`."""
        shape = (len(self.numbers), self.width, *rows.shape[1:])
        if self.rows is None:
            return rows.view(shape)
        return rows.new_full((shape[0] * shape[1], *shape[2:]), fill).index_copy_(0, self.rows, rows).view(shape)

    def past(self) -> Tensor:
        """(A, W, longest): all tokens so far of each beam; what is beyond a sentence's length means nothing."""
        return self.so_far[:, :, : max(self.lengths, default=0)]

    def go_on(self, tokens: Tensor, parents: Tensor | None) -> None:
        """Adds a token to each beam (A, W), after it has become the one that `parents` names."""
        longest = max(self.lengths) + 1
        if longest > self.so_far.shape[2]:
            self.so_far = torch.nn.functional.pad(self.so_far, (0, max(16, longest)))
        if parents is not None:
            past = self.so_far[:, :, :longest]
            self.so_far[:, :, :longest] = past.gather(1, parents[:, :, None].expand(-1, -1, longest))
        places = torch.tensor(self.lengths, device=self.device)[:, None, None].expand(-1, self.width, 1)
        self.so_far.scatter_(2, places, tokens[:, :, None])
        self.tokens = tokens
        self.lengths = [length + (number >= 0) for length, number in zip(self.lengths, self.numbers, strict=True)]


def _widest(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


def moved(part: Tensor, kept: Sequence[int], slots: int) -> Tensor:
    """The rows `kept`, and zeros behind them: as many as there are slots."""
    new = part.new_zeros(slots, *part.shape[1:])
    new[: len(kept)] = part[list(kept)]
    return new


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
    """What each sentence's output has to begin with, by number; none at all: anything."""

    def apply(self, scores: Tensor, live: Live) -> None:
        """Sets what is ruled out to minus infinity, in place; scores (R, V): log-probabilities of the next token.

        At its limit an output ends, even if a model rules `</s>` out: then its score says so.
        """
        lengths = [live.lengths[slot] for slot in live.slot_of_row]
        limits = [live.limits[slot] for slot in live.slot_of_row]
        ended = {row: self.eos for row, length in enumerate(lengths) if length >= limits[row]}
        only = ended | self._forced(live, lengths)
        rows, tokens = list(only), list(only.values())
        values = scores[rows, tokens].clamp(min=-1e30)  # where nothing is left, no output would end
        scores[:, list(self.forbidden)] = -torch.inf
        if 0 < self.no_repeat_ngram <= max(lengths):
            self._block_repeats(scores, live.of_rows(live.past()), torch.tensor(lengths, device=scores.device))
        if short := [row for row, length in enumerate(lengths) if length < self.min_length]:
            scores[short, self.eos] = -torch.inf
        if rows:
            scores[rows] = -torch.inf
            scores[rows, tokens] = values

    def _forced(self, live: Live, lengths: Sequence[int]) -> dict[int, int]:
        """The next token of each row that is still in its prefix."""
        prefixes = [self.prefixes[live.numbers[slot]] for slot in live.slot_of_row] if self.prefixes else []
        return {row: prefix[lengths[row]] for row, prefix in enumerate(prefixes) if lengths[row] < len(prefix)}

    def _block_repeats(self, scores: Tensor, past: Tensor, lengths: Tensor) -> None:
        """Rules out tokens that would end an n-gram that is there already; past (R, longest), lengths (R,)."""
        count = self.no_repeat_ngram
        grams = past.unfold(1, count, 1)  # (R, places, n)
        places = torch.arange(grams.shape[1], device=scores.device)
        last = (lengths[:, None] - count + 1 + torch.arange(count - 1, device=scores.device)).clamp(min=0)
        again = (grams[:, :, :-1] == past.gather(1, last)[:, None]).all(-1)
        again &= places + count <= lengths[:, None]
        scores.scatter_add_(1, grams[:, :, -1], torch.where(again, -torch.inf, 0.0).to(scores))


class Strategy(Protocol):
    """How tokens are chosen, and what becomes of the outputs that end."""

    beams_at_first: int
    """Beams that live when a sentence begins."""

    def resize(self, kept: Sequence[int], slots: int) -> None:
        """As `Live.resize`, for what it keeps of each sentence."""
        ...

    def admit(self, slot: int, number: int) -> None:
        """Begins a sentence."""
        ...

    def advance(self, live: Live, scores: Tensor, eos: int) -> Tensor | None:
        """Chooses tokens, and gives them to `live`; the beams (A, W) that the new ones continue, None: each itself.

        scores (R, V): log-probabilities of the next tokens, those that are ruled out minus infinity.
        """
        ...

    def results(self, slot: int) -> list[Hypothesis]:
        """The outputs of a sentence that has no living beam any more, best first."""
        ...


def search(
    steps: Steps,
    strategy: Strategy,
    live: Live,
    limits: Sequence[int],
    *,
    start: int,
    rules: Rules,
    room: Callable[[int], int] = lambda number: 1 << 30,
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Searches for the outputs of all sentences, and gives those of each, by its number, as soon as they are certain.

    limits: most tokens of each sentence's output, `</s>` not counted; `room(number)`: how many sentences may be under
    way together with that one. They begin in order; one that is done makes room for the next.
    """
    waiting = deque(range(len(limits)))
    while True:
        _let_in(live, waiting, steps, strategy, limits, start, room)
        live.find_rows()
        if not live.slot_of_row:
            return
        logits = steps.step(live.tokens, live.rows)
        scores = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        broken = scores[:, rules.eos].isnan()  # one logit that is no number spoils its whole row
        rules.apply(scores, live)
        if bool(broken.any()):
            scores[broken] = -torch.inf
        parents = strategy.advance(live, scores, rules.eos)
        if parents is not None:
            steps.reorder(parents)
        for slot, lives in enumerate(live.alive.any(1).tolist()):
            if not lives and live.numbers[slot] >= 0:
                yield live.numbers[slot], strategy.results(slot)
                live.leave(slot)
                steps.leave(slot)


def _let_in(
    live: Live, waiting: "deque[int]", steps: Steps, strategy: Strategy, limits: Sequence[int], start: int,
    room: Callable[[int], int],
) -> None:  # fmt: skip
    """Fills empty slots with sentences that wait, a quarter of them at a time; changes their number where that pays."""
    taken = [slot for slot, number in enumerate(live.numbers) if number >= 0]
    wanted = len(taken) + len(waiting)
    if waiting:  # those that came first are the longest
        wanted = min(wanted, max(1, room(min([waiting[0], *(live.numbers[slot] for slot in taken)]))))
    if not taken or len(taken) <= wanted <= len(live.numbers) // 2 or wanted >= 2 * len(live.numbers):
        wanted = max(wanted, len(taken))
        for part in (live, steps, strategy):
            part.resize(taken, wanted)
    free = [slot for slot, number in enumerate(live.numbers) if number < 0]
    if not waiting or 4 * len(free) < len(live.numbers):
        return
    slots = free[: len(waiting)]
    numbers = [waiting.popleft() for _ in slots]
    steps.admit(slots, numbers)
    for slot, number in zip(slots, numbers, strict=True):
        live.admit(slot, number, limits[number], start, strategy.beams_at_first)
        strategy.admit(slot, number)
