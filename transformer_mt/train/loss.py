"""The label-smoothed cross-entropy of the paper's section 5.4, without ever holding the logits of a whole batch."""

from typing import Any

import torch
from torch import Tensor

# Logits in memory at one time: fewer make the products slow, more only take memory (measured at 37,000 pieces).
CHUNK_LOGITS = {"cpu": 1 << 22, "cuda": 1 << 26}


def smoothed_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Sums over all rows of the smoothed loss and of the plain negative log-likelihood, in nats.

    hidden (N, D), weight (V, D), bias (V,) or None, labels (N,). With z the logits of a row and y its label:
    loss = lse(z) - (1 - smoothing) z_y - smoothing mean(z), PyTorch's definition; nll = lse(z) - z_y.
    Only the loss has a gradient. Under autocast to bfloat16 the large products are made in bfloat16.
    """
    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
    # float16 cannot hold unscaled probabilities, which is what the products below are made with.
    dtype = torch.float32 if dtype == torch.float16 else dtype
    need = torch.is_grad_enabled()
    return _SmoothedLoss.apply(hidden, weight, bias, labels, smoothing, dtype, need)  # type: ignore[no-any-return, no-untyped-call]


def _chunks(rows: int, vocabulary: int, kind: str) -> list[slice]:
    """The rows that are gone over together."""
    step = max(32, CHUNK_LOGITS.get(kind, 1 << 24) // vocabulary)
    return [slice(start, start + step) for start in range(0, rows, step)]


class _SmoothedLoss(torch.autograd.Function):
    """Goes over the rows in chunks and makes the gradients on the way, so that no logits are kept or made twice."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float,
        dtype: torch.dtype, need: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        wide = torch.promote_types(dtype, torch.float32)
        vocabulary = weight.shape[0]
        rows, matrix = hidden.to(dtype), weight.to(dtype)
        mean_row = weight.mean(0, dtype=wide)
        mean_bias = 0.0 if bias is None else bias.mean(dtype=wide)
        loss, nll = hidden.new_zeros((), dtype=wide), hidden.new_zeros((), dtype=wide)
        grads = _Gradients(rows, matrix, bias, smoothing) if need else None
        with torch.autocast(hidden.device.type, enabled=False):
            for part in _chunks(len(rows), vocabulary, hidden.device.type):
                chunk, gold = rows[part], labels[part, None]
                z = (chunk @ matrix.T).to(wide)
                z = z if bias is None else z.add_(bias)
                log_p, z_gold = z.log_softmax(-1), z.gather(1, gold)
                own = -log_p.gather(1, gold).sum()
                mean = (chunk.to(wide) @ mean_row + mean_bias).sum()
                nll += own
                loss += own + smoothing * (z_gold.sum() - mean)
                if grads is not None:
                    grads.add(part, log_p.exp_(), gold)
            if grads is not None:
                ctx.save_for_backward(*grads.finish(mean_row))
        ctx.dtypes = [None if tensor is None else tensor.dtype for tensor in (hidden, weight, bias)]
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, loss_grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grads = (
            None if grad is None else (grad * loss_grad).to(dtype)
            for grad, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        )
        return (*grads, None, None, None, None)


class _Gradients:
    """Of hidden, weight and bias, from d loss / d z = softmax(z) - (1 - smoothing) one-hot(y) - smoothing / V.

    The last term is the same for all logits, so it is added once, at the end.
    """

    def __init__(self, rows: Tensor, matrix: Tensor, bias: Tensor | None, smoothing: float) -> None:
        self.rows, self.matrix, self.smoothing = rows, matrix, smoothing
        self.wide = torch.promote_types(rows.dtype, torch.float32)
        self.hidden = torch.empty_like(rows, dtype=self.wide)
        self.weight = torch.zeros_like(matrix, dtype=self.wide)
        self.bias = None if bias is None else torch.zeros_like(bias, dtype=self.wide)

    def add(self, part: slice, probabilities: Tensor, gold: Tensor) -> None:
        """Takes in the rows of a chunk; spoils the probabilities."""
        p = probabilities.scatter_add_(1, gold, probabilities.new_full(gold.shape, self.smoothing - 1))
        if self.bias is not None:
            self.bias += p.sum(0)
        p = p.to(self.rows.dtype)
        self.hidden[part] = p @ self.matrix
        if self.rows.dtype == self.wide:
            self.weight.addmm_(p.T, self.rows[part])
        else:
            self.weight += p.T @ self.rows[part]

    def finish(self, mean_row: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """The sums, with the last term."""
        share = self.smoothing / len(self.matrix)
        self.hidden -= self.smoothing * mean_row
        self.weight -= share * self.rows.sum(0, dtype=self.wide)
        if self.bias is not None:
            self.bias -= share * len(self.rows)
        return self.hidden, self.weight, self.bias
