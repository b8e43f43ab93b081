"""Outputs drawn from the model's distribution instead of searched for. Like the search it knows no model and no text.

Letters in shapes: A sentences still drawn for, W samples of each, V vocabulary.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from transformer_mt.decode.beam import Hypothesis, LengthPenalty, Rules, Steps


def sample(
    steps: Steps,
    limits: Tensor,
    *,
    start: int,
    samples: int,
    draws: Callable[[Sequence[int], int], Tensor],
    rules: Rules,
    penalty: LengthPenalty,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> list[list[Hypothesis]]:
    """Draws outputs for all sentences together; for each as many as `samples`, best score first.

    limits (B,): most tokens of each sentence's output. draws(numbers, step) gives uniform numbers in [0, 1), (A, W):
    where they depend on nothing else, a sentence's outputs do not depend on its neighbours. Tokens come from the
    model's distribution with its logits divided by `temperature`, cut to the top_k most probable, then to the fewest
    that together have top_p (Holtzman et al. 2020). A log-probability is the model's own, as forced decoding gives it.
    """
    numbers, lowest = list(range(len(limits))), min(limits.tolist(), default=0)
    results: list[list[Hypothesis]] = [[] for _ in numbers]
    tokens = torch.full((len(numbers), samples), start, device=limits.device)
    so_far, sums = tokens[:, :, None][:, :, :0], None
    ended = torch.zeros_like(tokens, dtype=torch.bool)
    while numbers:
        logits = steps.step(tokens.flatten())
        wide = torch.promote_types(logits.dtype, torch.float32)
        scores = logits.log_softmax(-1, dtype=wide).view(len(numbers), samples, -1)
        sums = scores.new_zeros(tokens.shape) if sums is None else sums
        plain = scores.clone()
        rules.apply(scores, so_far, numbers, limits, lowest)
        uniform = draws(numbers, so_far.shape[2]).to(scores)
        drawn = _draw(scores / temperature, uniform, top_k, top_p)
        # An output whose scores are no numbers ends here, and says so by its score.
        drawn = drawn.masked_fill(scores.amax(-1) == -torch.inf, rules.eos)
        tokens = torch.where(ended, rules.eos, drawn)
        sums = sums + plain.gather(2, tokens[:, :, None])[:, :, 0].masked_fill(ended, 0.0)
        so_far = torch.cat([so_far, tokens[:, :, None]], 2)
        ended = ended | (tokens == rules.eos)
        stays = (~ended.all(1)).nonzero()[:, 0].tolist()
        for index in sorted(set(range(len(numbers))) - set(stays)):
            results[numbers[index]] = _hypotheses(so_far[index], sums[index], rules.eos, penalty)
        if len(stays) < len(numbers):
            kept = torch.tensor(stays, dtype=torch.long, device=limits.device)
            numbers = [numbers[index] for index in stays]
            limits, tokens, so_far, sums, ended = (part[kept] for part in (limits, tokens, so_far, sums, ended))
            rows = (kept[:, None] * samples + torch.arange(samples, device=limits.device)).flatten()
            if numbers:
                steps.select(rows, kept)
    return results


def _draw(scores: Tensor, uniform: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """Ids (A, W) from unnormalised log-probabilities (A, W, V), by where the uniform numbers (A, W) fall."""
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


def _hypotheses(so_far: Tensor, sums: Tensor, eos: int, penalty: LengthPenalty) -> list[Hypothesis]:
    """The outputs of one sentence: so_far (W, length) up to the first `</s>`, sums (W,)."""
    found = []
    for row, total in zip(so_far.tolist(), sums.tolist(), strict=True):
        tokens = tuple(row[: row.index(eos)])
        divisor = float(penalty(torch.tensor(len(tokens) + 1.0, dtype=torch.float64)))
        found.append(Hypothesis(tokens, total, total / divisor))
    return sorted(found, key=lambda item: -item.score)
