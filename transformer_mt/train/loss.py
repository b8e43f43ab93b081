"""The label-smoothed cross-entropy of the paper's section 5.4, without ever holding the logits of a whole batch."""

from typing import Any

import torch
from torch import Tensor

# Logits in memory at one time: on a CPU about what its caches hold, on a GPU enough to keep it busy.
CHUNK_LOGITS = {"cpu": 1 << 21, "cuda": 1 << 26}


def smoothed_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Sums over all rows of the smoothed loss and of the plain negative log-likelihood, in nats.

    hidden (N, D), weight (V, D), bias (V,) or None, labels (N,). With z the logits of a row and y its label:
    loss = lse(z) - (1 - smoothing) z_y - smoothing mean(z), PyTorch's definition; nll = lse(z) - z_y.
    Only the loss has a gradient.
    """
    return _SmoothedLoss.apply(hidden, weight, bias, labels, smoothing)  # type: ignore[no-any-return, no-untyped-call]


class _SmoothedLoss(torch.autograd.Function):
    """Goes over the rows in chunks and makes the gradients on the way, so that no logits are kept or made twice."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        # Half precision cannot hold unscaled probabilities, which is what the products below are made with.
        dtype = torch.promote_types(hidden.dtype, torch.float32) if hidden.dtype == torch.float16 else hidden.dtype
        wide = torch.promote_types(dtype, torch.float32)
        rows, matrix = hidden.detach().to(dtype), weight.detach().to(dtype)
        mean_row = weight.detach().mean(0).to(wide)
        mean_bias = 0.0 if bias is None else bias.detach().mean().to(wide)
        need = any(ctx.needs_input_grad[:3])
        hidden_grad = torch.empty_like(rows) if need else None
        weight_grad = torch.zeros_like(weight, dtype=wide) if need else None
        bias_grad = torch.zeros_like(bias, dtype=wide) if need and bias is not None else None
        loss, nll = hidden.new_zeros((), dtype=wide), hidden.new_zeros((), dtype=wide)
        step = max(32, CHUNK_LOGITS.get(hidden.device.type, 1 << 24) // weight.shape[0])
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, rows.shape[0], step):
                chunk, chunk_labels = rows[start : start + step], labels[start : start + step, None]
                z = (chunk @ matrix.T).to(wide)
                z = z if bias is None else z.add_(bias.detach())
                lse = z.logsumexp(-1, keepdim=True)
                gold = z.gather(1, chunk_labels)
                mean = (chunk.to(wide) @ mean_row + mean_bias).sum()
                nll += (lse - gold).sum()
                loss += lse.sum() - (1 - smoothing) * gold.sum() - smoothing * mean
                if hidden_grad is None or weight_grad is None:
                    continue
                # d loss / d z = softmax(z) - (1 - smoothing) one-hot - smoothing / V; the last term has rank one.
                z = z.sub_(lse).exp_()
                z.scatter_add_(1, chunk_labels, torch.full_like(gold, smoothing - 1))
                p = z.to(dtype)
                hidden_grad[start : start + step] = p @ matrix - (smoothing * mean_row).to(dtype)
                weight_grad += (p.T @ chunk).to(wide)
                weight_grad -= chunk.to(wide).sum(0) * (smoothing / weight.shape[0])
                if bias_grad is not None:
                    bias_grad += z.sum(0) - smoothing * chunk.shape[0] / weight.shape[0]
        ctx.save_for_backward(hidden_grad, weight_grad, bias_grad)
        ctx.dtypes = hidden.dtype, weight.dtype
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, loss_grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        hidden_grad, weight_grad, bias_grad = ctx.saved_tensors
        hidden_dtype, weight_dtype = ctx.dtypes
        return (
            (hidden_grad * loss_grad.to(hidden_grad.dtype)).to(hidden_dtype),
            (weight_grad * loss_grad).to(weight_dtype),
            None if bias_grad is None else bias_grad * loss_grad,
            None,
            None,
        )
