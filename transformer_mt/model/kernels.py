"""Two operations that PyTorch is slow at on a CPU, computed another way there: the same, as their tests say.

Letters in shapes: B batch, S source and T target length, H heads, K key size.
"""

from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 1 << 16
"""A number is kept or not by 16 random bits, so that a probability is met to 1 in 131,072."""


class Dropout(nn.Dropout):
    """In training, sets numbers to zero with probability p, each by itself, and the others to 1 / (1 - p) of them.

    Section 5.4. PyTorch's own takes 11 ms on two cores for 4,096 x 256 numbers, this one 2 ms.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        own = self.training and self.p < 1 and x.device.type == "cpu" and not torch.compiler.is_compiling()
        if own and (dropped := min(round(self.p * LEVELS), LEVELS - 1)):
            return _Dropout.apply(x, dropped)  # type: ignore[no-any-return, no-untyped-call]
        return F.dropout(x, self.p, self.training)


class _Dropout(torch.autograd.Function):
    """Keeps a byte a number for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int) -> Tensor:
        words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(1 << 63), None)
        bits = words.view(torch.int16)[: x.numel()]
        kept = (bits >= dropped - LEVELS // 2).view(torch.uint8).view(x.shape)
        ctx.scale = LEVELS / (LEVELS - dropped)
        ctx.save_for_backward(kept)
        return torch.mul(x, kept).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        return torch.mul(grad, kept).mul_(ctx.scale), None


def attention_products(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, dropout: float, *, causal: bool
) -> Tensor:
    """softmax(q k^T / sqrt(K)) v: (B, H, T, K), (B, H, S, K) and (B, H, S, K of values) -> (B, H, T, K of values).

    In bfloat16 a CPU trains with it in float32: the backward pass of PyTorch's kernel takes there 4 to 6 times as long.
    """
    kind = queries.dtype
    wide = kind == torch.bfloat16 and queries.device.type == "cpu" and torch.is_grad_enabled()
    if wide:
        queries, keys, values = queries.float(), keys.float(), values.float()
    with torch.autocast("cpu", enabled=False) if wide else nullcontext():
        return F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, dropout_p=dropout, is_causal=causal
        ).to(kind)
