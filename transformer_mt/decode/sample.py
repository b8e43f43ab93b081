"""Outputs drawn from the model's distribution instead of searched for.

Letters in shapes: A slots (one sentence in each), W samples of each, R rows (those not ended, of A x W), V vocabulary.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from transformer_mt.decode.beam import Finished
from transformer_mt.decode.search import PAPERS_PENALTY, Hypothesis, LengthPenalty, Live


class Sampling:
    """Draws W outputs of each sentence, best score first.

    draws(numbers, lengths) gives uniform numbers in [0, 1), (A, W): where they depend on nothing else, a sentence's
    outputs do not depend on its neighbours. Tokens come from the model's distribution with its logits divided by
    `temperature`, cut to the top_k most probable, then to the fewest that together have top_p (Holtzman et al. 2020).
    A log-probability is the model's own, whatever is ruled out and cut: what forced decoding gives.
    """

    def __init__(
        self,
        live: Live,
        draws: Callable[[Sequence[int], Sequence[int]], Tensor],
        penalty: LengthPenalty = PAPERS_PENALTY,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
    ) -> None:
        self.width = self.beams_at_first = live.width
        self.draws, self.penalty = draws, penalty
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p
        self.finished = Finished(live.width, live)

    def resize(self, kept: Sequence[int], slots: int) -> None:
        """As `Live.resize`."""
        self.finished.resize(kept, slots)

    def admit(self, slot: int, number: int) -> None:
        """Begins a sentence."""
        self.finished.begin(slot)

    def advance(self, live: Live, scores: Tensor, eos: int) -> None:
        """Draws a token for each output that has not ended; keeps those that end."""
        uniform = live.of_rows(self.draws(live.numbers, live.lengths).to(live.sums))
        drawn = _draw(scores / self.temperature, uniform, self.top_k, self.top_p)
        # An output whose scores are no numbers ends here, and says so by its score.
        drawn = drawn.masked_fill(scores.amax(-1) == -torch.inf, eos)
        gained = scores.gather(1, drawn[:, None])[:, 0]
        tokens = live.grid(drawn, eos)
        live.sums = torch.where(live.alive, live.sums + live.grid(gained, 0.0), live.sums)
        ends = live.alive & (tokens == eos)
        lengths = live.sums.new_tensor(live.lengths)
        if bool(ends.any()):
            normalised = torch.where(ends, live.sums / self.penalty(lengths[:, None] + 1), -torch.inf)
            self.finished.add(normalised, live.sums, live.past(), lengths)
        live.go_on(tokens, None)
        live.alive = live.alive & ~ends

    def results(self, slot: int) -> list[Hypothesis]:
        """The outputs of a sentence, best first."""
        return self.finished.hypotheses(slot)


def _draw(scores: Tensor, uniform: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """Ids (R,) from unnormalised log-probabilities (R, V), by where the uniform numbers (R,) fall."""
    vocabulary = scores.shape[-1]
    # Most probable first, equal ones by id, so that the same number means the same token everywhere.
    scores, ids = scores.sort(dim=-1, descending=True, stable=True)
    scores, ids = scores[..., : top_k or vocabulary], ids[..., : top_k or vocabulary]
    shares = scores.softmax(-1, dtype=torch.float64)
    upto = shares.cumsum(-1)
    if top_p is not None:
        shares = shares.masked_fill(upto - shares >= top_p, 0.0)  # those before it have enough already
        upto = shares.cumsum(-1)
    place = (upto <= uniform[..., None].to(upto) * upto[..., -1:]).sum(-1)
    last = (shares > 0).sum(-1) - 1  # rounding must not lead beyond the last one that may come
    return ids.gather(-1, torch.minimum(place, last.clamp(min=0))[..., None])[..., 0]
