"""Adam, and beside it a running mean of the weights: what an update does to them, what a checkpoint keeps of it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from transformer_mt.config.training import Optimizer
from transformer_mt.model.transformer import Transformer


class Adam:
    """Adam (section 5.3), with decoupled weight decay and a running mean of the weights where they are asked for."""

    def __init__(self, model: Transformer, settings: Optimizer, device: torch.device) -> None:
        self.settings = settings
        self.parameters = dict(model.named_parameters())
        self.fused = device.type != "mps"
        options = {"betas": (settings.beta1, settings.beta2), "eps": settings.epsilon, "fused": self.fused}
        if settings.weight_decay:
            matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
            others = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
            groups = [
                {"params": matrices, "weight_decay": settings.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ]
            self.adam: torch.optim.Optimizer = torch.optim.AdamW(groups, lr=0.0, **options)  # type: ignore[arg-type]
        else:
            self.adam = torch.optim.Adam(model.parameters(), lr=0.0, **options)  # type: ignore[arg-type]
        self.mean: list[Tensor] = []
        """Running mean of each parameter; empty without ema_decay."""
        if settings.ema_decay:
            self.mean = [parameter.detach().clone() for parameter in model.parameters()]
        # All memory is taken now: what does not fit is found before the first update, not in it.
        for parameter in self.parameters.values():
            self._fill(parameter, torch.zeros(()), torch.zeros_like(parameter), torch.zeros_like(parameter))

    def step(self, rate: float, number: int, scaler: torch.amp.GradScaler) -> None:
        """Update `number`, counted from 1, from the gradients, which `scaler` has unscaled already."""
        for group in self.adam.param_groups:
            group["lr"] = rate
        scaler.step(self.adam)
        if self.mean:
            decay = min(self.settings.ema_decay, (1 + number) / (10 + number))
            get_ema_multi_avg_fn(decay)(self.mean, list(self.parameters.values()), None)  # type: ignore[no-untyped-call]

    def zero_grad(self) -> None:
        """Drops the gradients."""
        self.adam.zero_grad()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Lets the model hold the running mean of its weights, if there is one, for the time of the context."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for parameter, mean in zip(self.parameters.values(), self.mean or [], strict=False):
            parameter.data, mean.data = mean.data, parameter.data

    def state(self) -> dict[str, Tensor]:
        """What the next update depends on besides the model's weights, by parameter name.

        Both moments, the count of updates, and with a running mean, which is then what a checkpoint has as its
        weights, those that are trained.
        """
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.parameters.items():
            state = self.adam.state[parameter]
            tensors |= {f"{name}.exp_avg": state["exp_avg"], f"{name}.exp_avg_sq": state["exp_avg_sq"]}
            tensors["step"] = state["step"].reshape(1)
            if self.mean:
                tensors[f"{name}.trained"] = parameter.detach()
        return tensors

    def load(self, tensors: Mapping[str, Tensor], *, moments: bool = True) -> None:
        """Puts back what `state` gave; without `moments` Adam begins anew."""
        for name, parameter in self.parameters.items():
            if f"{name}.trained" in tensors:
                parameter.data.copy_(tensors[f"{name}.trained"])
            if moments and f"{name}.exp_avg" in tensors:
                self._fill(parameter, tensors["step"][0], tensors[f"{name}.exp_avg"], tensors[f"{name}.exp_avg_sq"])

    def _fill(self, parameter: Tensor, step: Tensor, mean: Tensor, square: Tensor) -> None:
        device = parameter.device if self.fused else torch.device("cpu")
        self.adam.state[parameter] = {
            "step": step.to(device, torch.float32, copy=True),
            "exp_avg": mean.to(parameter.device, copy=True),
            "exp_avg_sq": square.to(parameter.device, copy=True),
        }
