"""What is measured during training: loss on the validation ids, BLEU and chrF of the translated validation text."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from transformer_mt.config import Config
from transformer_mt.data.batching import epoch_batches
from transformer_mt.data.store import Store
from transformer_mt.distributed import Process, on_first_rank, sum_over_ranks
from transformer_mt.evaluate.scores import Score, score
from transformer_mt.train.log import perplexity
from transformer_mt.train.loop import LossOf, tensors_of


def validation_loss(
    loss_of: LossOf,
    store: Store,
    batch_tokens: int,
    start: int,
    process: Process,
    interrupted: Callable[[], bool] = lambda: False,
) -> dict[str, float]:
    """Per-token means over the whole set, whatever the size of batches and the number of ranks, which share them.

    Once `interrupted()` is true a rank leaves out the rest of its batches: the caller then drops the result.
    """
    device = process.device
    sums = torch.zeros(3, dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)
    batches = list(epoch_batches(store.lengths(), batch_tokens, 0, 0))
    training = loss_of.training
    loss_of.eval()
    try:
        with torch.no_grad():
            for batch in batches[process.rank :: process.ranks]:
                if interrupted():
                    break
                loss, nll = loss_of(*tensors_of(store, batch.pairs, start, device))
                sums[:2] += torch.stack([loss, nll]).to(sums)
                sums[2] += batch.target_tokens
    finally:
        loss_of.train(training)
    total_loss, total_nll, tokens = sum_over_ranks(sums).tolist()
    tokens = max(1.0, tokens)
    return {"loss": total_loss / tokens, "nll": total_nll / tokens, "ppl": perplexity(total_nll / tokens)}


def validation_scores(translations: Sequence[str], references: Sequence[str], config: Config) -> dict[str, Any]:
    """BLEU and chrF with their signatures, computed on the first rank."""
    languages = config.languages

    def scored() -> list[Score]:
        return score(
            translations,
            [references],
            metrics=("bleu", "chrf"),
            source_language=languages.source,
            target_language=languages.target,
        )

    scores = on_first_rank(scored)
    values: dict[str, Any] = {}
    for metric, result in zip(("bleu", "chrf"), scores, strict=True):
        values |= {metric: result.value, f"{metric}_signature": result.signature}
    return values
