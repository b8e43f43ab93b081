"""What a search drives: one model, or several of one vocabulary that speak with one voice."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from transformer_mt.model.recorded import RecordedStepDecoder
from transformer_mt.model.stepwise import StepDecoder
from transformer_mt.model.transformer import Transformer


class ModelSteps:
    """The steps of a search over given sources; several models give the mean of their probabilities.

    sources: ids of each sentence, `</s>` included; recorded: by CUDA graphs.
    """

    def __init__(
        self, models: Sequence[Transformer], sources: Sequence[Sequence[int]], width: int, *, recorded: bool = False
    ) -> None:
        self.decoders = [(RecordedStepDecoder if recorded else StepDecoder)(model, width) for model in models]
        self.sources, self.pad = sources, models[0].pad
        self.device = self.decoders[0].device

    def resize(self, kept: Sequence[int], slots: int) -> None:
        """Keeps some sentences and makes room for others."""
        for decoder in self.decoders:
            decoder.resize(kept, slots)

    def admit(self, slots: Sequence[int], numbers: Sequence[int]) -> None:
        """Encodes sentences, by their numbers, into slots."""
        source = padded([self.sources[number] for number in numbers], self.pad, self.device)
        for decoder in self.decoders:
            decoder.admit(slots, source)

    def leave(self, slot: int) -> None:
        """Forgets the sentence of a slot."""
        for decoder in self.decoders:
            decoder.leave(slot)

    def step(self, tokens: Tensor, rows: Tensor | None) -> Tensor:
        """Newest tokens (A, W), living rows (R,) -> logits (R, V), or `mean_of` them."""
        logits = [decoder.step(tokens, rows) for decoder in self.decoders]
        return logits[0] if len(logits) == 1 else mean_of(logits)

    def reorder(self, parents: Tensor) -> None:
        """Beams (A, W) continue others."""
        for decoder in self.decoders:
            decoder.reorder(parents)


def mean_of(logits: Sequence[Tensor]) -> Tensor:
    """Logits (..., V) of several models -> the logarithm of the mean of their probabilities."""
    wide = torch.promote_types(logits[0].dtype, torch.float32)
    shares = [each.log_softmax(-1, dtype=wide) for each in logits]
    return shares[0] if len(shares) == 1 else torch.stack(shares).logsumexp(0) - math.log(len(shares))


def padded(rows: Sequence[Sequence[int]], pad: int, device: torch.device) -> Tensor:
    """Rows of ids as one tensor (N, longest)."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows], device=device)
