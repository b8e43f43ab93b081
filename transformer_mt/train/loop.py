"""Updates: passes over the rows of a batch, one gradient of the mean loss per target token, one step of Adam."""

import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from itertools import count

import numpy as np
import torch
from torch import Tensor, nn

from transformer_mt.config import Training
from transformer_mt.data.batching import Batch, Integers, deal, epoch_batches, mix, passes_needed
from transformer_mt.data.store import Store
from transformer_mt.data.tokenizer import EOS, PAD
from transformer_mt.distributed import Process, replicate, sum_over_ranks, unsynchronised
from transformer_mt.errors import RunError
from transformer_mt.model.transformer import Transformer
from transformer_mt.train.checkpoint import Progress
from transformer_mt.train.loss import smoothed_loss
from transformer_mt.train.schedule import learning_rate
from transformer_mt.train.signals import StopFlag

# What `device_tokens: auto` means: on a CPU larger passes are no faster; on a GPU they keep it busy.
DEVICE_TOKENS = {"cpu": 4096, "cuda": 16384, "mps": 4096}
NO_SUMS = {"loss": 0.0, "nll": 0.0, "tokens": 0, "padded": 0, "norm": 0.0, "updates": 0, "seconds": 0.0, "skipped": 0}


class LossOf(nn.Module):
    """A model with its loss: what gradients are taken of, in one forward call."""

    def __init__(self, model: Transformer, smoothing: float) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing

    def forward(self, source: Tensor, target_input: Tensor, labels: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Sums of loss and nll over the labels (N,).

        source (B, S), target input (B, T); places (N,) says at which of the B x T outputs each label is expected.
        """
        hidden = self.model(source, target_input).flatten(0, 1).index_select(0, places)
        return smoothed_loss(hidden, self.model.output.weight, self.model.output_bias, labels, self.smoothing)


def tensors_of(store: Store, pairs: Integers, start: int, device: torch.device) -> list[Tensor]:
    """What `LossOf` takes, of some pairs, on the device; padding is left out here, where it costs no waiting."""
    source, target_input, labels = store.padded(pairs, PAD, EOS, start)
    places = np.flatnonzero(labels != PAD)
    tensors = (source, target_input, labels.ravel()[places], places)
    return [torch.from_numpy(rows).to(device, non_blocking=True) for rows in tensors]


def precision_of(wanted: str, device: torch.device) -> torch.dtype:
    """The type that `training.precision` means on a device."""
    if wanted != "auto":
        return getattr(torch, wanted)  # type: ignore[no-any-return]
    half = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if half else torch.float32


class Trainer:
    """A model, its optimiser, and how one batch becomes one update on any number of devices."""

    def __init__(self, model: Transformer, store: Store, settings: Training, start: int, process: Process) -> None:
        self.model, self.store, self.settings, self.start, self.process = model, store, settings, start, process
        self.loss = LossOf(model, settings.label_smoothing)
        self.replicas = replicate(self.loss, process)
        self.precision = precision_of(settings.precision, process.device)
        adam = settings.optimizer
        self.fused = process.device.type != "mps"
        self.optimizer = torch.optim.Adam(
            model.parameters(), lr=0.0, betas=(adam.beta1, adam.beta2), eps=adam.epsilon, fused=self.fused
        )
        self.scaler = torch.amp.GradScaler(process.device.type, enabled=self.precision == torch.float16)

    def rate(self, step: int) -> float:
        """The learning rate of update `step`, counted from 1."""
        settings = self.settings.learning_rate
        return learning_rate(
            step,
            model_size=self.model.model_size,
            warmup_steps=settings.warmup_steps,
            factor=settings.factor,
            peak=settings.peak,
        )

    def update(self, batch: Batch, progress: Progress, stop: StopFlag) -> bool:
        """Makes one update of a batch, or skips it if its gradient is not finite; notes it in `progress`.

        The gradient is that of the batch's summed loss divided by all its target tokens, which are known before
        the first pass: the same for any number of ranks and passes. Returns whether a signal asked to stop, on any
        rank; a single process then drops the update that it is in.
        """
        ranks, rank = self.process.ranks, self.process.rank
        passes = passes_needed(batch, progress.device_tokens, ranks)
        sums = torch.zeros(3, device=self.process.device)
        self.replicas.train()
        for number, pairs in enumerate(deal(batch, passes, ranks, rank)):
            if stop.signal_number and ranks == 1:
                self.optimizer.zero_grad()
                return True
            torch.manual_seed(int(mix(self.settings.seed, progress.step + 1, number, rank)) >> 1)
            with nullcontext() if number == passes - 1 else unsynchronised(self.replicas):
                sums[:2] += self._pass(pairs, batch)
        sums[2] = float(stop.signal_number > 0)
        return self._step(sum_over_ranks(sums), batch, progress)

    def _pass(self, pairs: Integers, batch: Batch) -> Tensor:
        """Forward and backward over some rows; their sums of loss and nll. Without rows, one row of weight zero."""
        weight = 1.0 if len(pairs) else 0.0
        tensors = tensors_of(self.store, pairs if len(pairs) else batch.pairs[:1], self.start, self.process.device)
        with torch.autocast(self.process.device.type, self.precision, self.precision != torch.float32):
            loss, nll = self.replicas(*tensors)
        # Gradients are averaged over the ranks, hence the factor.
        self.scaler.scale(loss * (weight * self.process.ranks / batch.target_tokens)).backward()
        return torch.stack([loss.detach(), nll]).to(torch.float32) * weight

    def _step(self, sums: Tensor, batch: Batch, progress: Progress) -> bool:
        """Takes the step if the gradient is finite; one host synchronisation."""
        self.scaler.unscale_(self.optimizer)
        parameters, clip = list(self.model.parameters()), self.settings.optimizer.clip_norm
        total = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if clip is not None:
            nn.utils.clip_grads_with_norm_(parameters, clip, total)
        loss, nll, stop, norm = torch.cat([sums, total[None].to(sums)]).tolist()
        finite = math.isfinite(loss) and math.isfinite(norm)
        rate = self.rate(progress.step + 1)
        if finite:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self._note(progress, batch, finite, {"loss": loss, "nll": nll, "norm": norm})
        if not finite:
            self._check_skips(progress, batch, rate, norm)
        return bool(stop)

    def _note(self, progress: Progress, batch: Batch, finite: bool, values: Mapping[str, float]) -> None:
        sums = progress.sums
        progress.batch += 1
        if finite:
            progress.step += 1
            progress.tokens += batch.target_tokens
            progress.skipped_in_row = 0
            for name, value in values.items():
                sums[name] += value
            sums["tokens"] += batch.target_tokens
            sums["padded"] += len(batch.pairs) * batch.target_length
            sums["updates"] += 1
        else:
            progress.skipped += 1
            sums["skipped"] += 1
            # While float16 looks for its loss scale, overflows are no failure.
            progress.skipped_in_row += int(not self.scaler.is_enabled() or self.scaler.get_scale() < 1)

    def _check_skips(self, progress: Progress, batch: Batch, rate: float, norm: float) -> None:
        if progress.skipped_in_row > self.settings.max_skipped:
            pairs = ", ".join(map(str, batch.pairs[:10].tolist()))
            raise RunError(
                f"{progress.skipped_in_row} updates in a row had a non-finite loss or gradient "
                f"at step {progress.step}, learning rate {rate:.3g}, gradient norm {norm}, "
                f"epoch {progress.epoch + 1}, pairs {pairs}, ...; "
                "the last checkpoint is kept (lower training.learning_rate, or set training.optimizer.clip_norm)"
            )

    def moments(self) -> dict[str, Tensor]:
        """Adam's state by parameter name, and its count of steps."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.model.named_parameters():
            state = self.optimizer.state[parameter]
            if state:
                tensors |= {f"{name}.exp_avg": state["exp_avg"], f"{name}.exp_avg_sq": state["exp_avg_sq"]}
                tensors["step"] = state["step"].reshape(1)
        return tensors

    def load_moments(self, tensors: Mapping[str, Tensor]) -> None:
        """Puts back what `moments` gave."""
        for name, parameter in self.model.named_parameters():
            if f"{name}.exp_avg" in tensors:
                device = parameter.device if self.fused else torch.device("cpu")
                self.optimizer.state[parameter] = {
                    "step": tensors["step"][0].to(device, torch.float32, copy=True),
                    "exp_avg": tensors[f"{name}.exp_avg"].to(parameter.device, copy=True),
                    "exp_avg_sq": tensors[f"{name}.exp_avg_sq"].to(parameter.device, copy=True),
                }


def batches_from(store: Store, settings: Training, progress: Progress) -> Iterator[Batch]:
    """The batches from `progress` on, epoch after epoch; whoever uses one up moves `progress.batch` on."""
    lengths = store.lengths()
    for epoch in count(progress.epoch):
        if settings.max_epochs is not None and epoch >= settings.max_epochs:
            return
        progress.epoch = epoch
        for number, batch in enumerate(epoch_batches(lengths, settings.batch_tokens, settings.seed, epoch)):
            if number >= progress.batch:
                yield batch
        progress.epoch, progress.batch = epoch + 1, 0
