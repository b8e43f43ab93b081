"""Updates: passes over the rows of a batch, one gradient of the mean loss per target token, one step of Adam."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from itertools import count

import numpy as np
import torch
from torch import Tensor, nn

from transformer_mt.config import Training
from transformer_mt.data.batching import Batch, Integers, deal, epoch_batches, mix, passes_needed
from transformer_mt.data.sampling import SampledStore
from transformer_mt.data.store import Store
from transformer_mt.data.tokenizer import EOS, PAD
from transformer_mt.distributed import (
    Process,
    fail_together,
    is_out_of_memory,
    largest,
    replicate,
    sum_over_ranks,
    unsynchronised,
)
from transformer_mt.errors import OutOfMemory, RunError
from transformer_mt.model.transformer import Transformer
from transformer_mt.train.checkpoint import Progress
from transformer_mt.train.loss import smoothed_loss
from transformer_mt.train.optimizer import Adam
from transformer_mt.train.schedule import learning_rate
from transformer_mt.train.signals import StopFlag

NO_SUMS = {"loss": 0.0, "nll": 0.0, "tokens": 0, "padded": 0, "norm": 0.0, "updates": 0, "seconds": 0.0, "skipped": 0}


class LossOf(nn.Module):
    """A model with its loss: what gradients are taken of, in one forward call."""

    def __init__(self, model: Transformer, smoothing: float, *, compiled: bool = False) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing
        self.multiple = 8 if compiled else 1
        """What rows and lengths are rounded up to, so that few shapes are met."""
        self.shapes: set[tuple[int, ...]] = set()
        """Shapes met while training a compiled model."""
        self._train = model.forward
        if compiled:
            # The table of positions is cached by its size, and the same whenever it is made again.
            warnings.filterwarnings("ignore", message="Dynamo detected a call to a `functools.lru_cache`")
            # A signal may break compiling off.
            warnings.filterwarnings("ignore", message="(?s)Error detected in .* Traceback of forward call")
            # The function, not the module, is compiled: the names of its weights stay as they are.
            self._train = torch.compile(model.forward, dynamic=True)

    def compiled(self) -> str:
        """What compiling came to."""
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        return f"compiled: {len(self.shapes)} shapes of passes, {graphs} graphs"

    def forward(self, source: Tensor, target_input: Tensor, labels: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Sums of loss and nll over the labels (N,).

        source (B, S), target input (B, T); places (N,) says at which of the B x T outputs each label is expected.
        """
        run = self._train if self.training else self.model.forward
        if self.training and self.multiple > 1:
            self.shapes.add((*source.shape, target_input.shape[1]))
        hidden = run(source, target_input).flatten(0, 1).index_select(0, places)
        return smoothed_loss(hidden, self.model.output.weight, self.model.output_bias, labels, self.smoothing)


def tensors_of(store: Store, pairs: Integers, start: int, device: torch.device, multiple: int = 1) -> list[Tensor]:
    """What `LossOf` takes, of some pairs, on the device; padding is left out here, where it costs no waiting.

    Rows and lengths are filled up to a multiple of `multiple`: lengths with padding, rows with the last one again, of
    which nothing is expected.
    """
    extra = -len(pairs) % multiple
    source, target_input, labels = (
        np.pad(table, ((0, 0), (0, -table.shape[1] % multiple)), constant_values=PAD) if multiple > 1 else table
        for table in store.padded(np.pad(pairs, (0, extra), mode="edge"), PAD, EOS, start)
    )
    labels[len(pairs) :] = PAD
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

    def __init__(
        self,
        model: Transformer,
        store: Store,
        settings: Training,
        start: int,
        process: Process,
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`start` begins the decoder's input; `warn` is told of updates that were skipped or cut smaller."""
        self.model, self.store, self.settings, self.start, self.process = model, store, settings, start, process
        self.warn = warn
        self.loss = LossOf(model, settings.label_smoothing, compiled=settings.compile)
        self.replicas = replicate(self.loss, process)
        self.precision = precision_of(settings.precision, process.device)
        self.optimizer = Adam(model, settings.optimizer, process.device)
        # Gradients exchanged so far. In the forward pass after the first time DDP groups them anew, all ranks together.
        self._exchanges = 0
        self.scaler = torch.amp.GradScaler(process.device.type, enabled=self.precision == torch.float16)

    def autocast(self) -> torch.autocast:
        """Lets forward passes inside it compute in this training's precision."""
        return torch.autocast(self.process.device.type, self.precision, self.precision != torch.float32)

    def rate(self, step: int) -> float:
        """The learning rate of update `step`, counted from 1."""
        settings = self.settings.learning_rate
        return learning_rate(
            step,
            model_size=self.model.model_size,
            warmup_steps=settings.warmup_steps,
            factor=settings.factor,
            peak=settings.peak,
            schedule=settings.schedule,
            decay_steps=settings.decay_steps,
            minimum=settings.minimum,
        )

    def update(self, batch: Batch, progress: Progress, stop: StopFlag) -> bool:
        """Makes one update of a batch, or skips it if its gradient is not finite; notes it in `progress`.

        The gradient is that of the batch's summed loss divided by all its target tokens, which are known before
        the first pass: the same for any number of ranks and passes. Returns whether a signal asked to stop, on any
        rank; between passes, and before the only one of a single process, the unfinished update is then dropped.
        Where a pass needs more memory than there is, a single process begins the update again with smaller passes;
        of several ranks this one raises OutOfMemory, since the others cannot know.
        """
        passes = passes_needed(batch, progress.device_tokens, self.process.ranks)
        while True:
            failure = ""
            try:
                sums = self._accumulate(batch, passes, progress, stop)
                break
            except (RuntimeError, MemoryError) as error:
                self.optimizer.zero_grad()
                if not is_out_of_memory(error):
                    raise
                failure = str(error)
            passes = self._smaller(batch, passes, failure)  # out here the error holds no tensors any more
        if sums is None:
            self.optimizer.zero_grad()
            return True
        return self._step(sum_over_ranks(sums), batch, progress)

    def _accumulate(self, batch: Batch, passes: int, progress: Progress, stop: StopFlag) -> Tensor | None:
        """The gradient of a batch; sums of loss, nll and this rank's wish to stop, or None if all drop the update."""
        ranks, rank = self.process.ranks, self.process.rank
        sums = torch.zeros(3, device=self.process.device)
        self.replicas.train()
        for number, pairs in enumerate(deal(batch, passes, ranks, rank)):
            last = number == passes - 1
            # All meet before the last pass, in which gradients are exchanged; until then each may leave off by itself,
            # but for the passes after the first exchange.
            if largest(stop.signal_number) if last and passes > 1 else stop.signal_number and ranks == 1:
                return None
            if stop.signal_number and not last and self._exchanges != 1:
                continue
            torch.manual_seed(int(mix(self.settings.seed, progress.step + 1, number, rank)) >> 1)
            with nullcontext() if last else unsynchronised(self.replicas):
                sums[:2] += self._pass(pairs, batch)
        self._exchanges += 1
        sums[2] = float(stop.signal_number > 0)
        return sums

    def _smaller(self, batch: Batch, passes: int, failure: str) -> int:
        """More passes than before for an update that found no memory; OutOfMemory where that cannot help."""
        if self.process.device.type == "cuda":
            torch.cuda.empty_cache()
        if self.process.ranks > 1 or passes >= len(batch.pairs):
            raise OutOfMemory(f"out of memory in an update of {len(batch.pairs)} pairs: {failure}")
        self.warn(f"out of memory: the update is made again in {2 * passes} passes instead of {passes}")
        return 2 * passes

    def rehearse(self, batch: Batch, passes: int, stop: StopFlag, free: float = 0.0) -> bool:
        """Forward and backward over the largest pass of a batch, leaving no trace; whether there was memory for it.

        `free`: the share of a GPU's memory that has to stay free besides. A signal breaks it off, which counts as
        having fitted.
        """
        device = self.process.device
        cuda = device.type == "cuda"
        if cuda:
            torch.cuda.reset_peak_memory_stats(device)
        self.replicas.train()
        try:
            with unsynchronised(self.replicas):
                rows = deal(batch, passes, self.process.ranks, 0)[0]
                for _ in range(min(2, passes)):  # a second pass has the gradients of the first beside it
                    stop.breakable(lambda: self._pass(rows, batch))
            room = (1 - free) * torch.cuda.get_device_properties(device).total_memory if cuda else math.inf
            return not cuda or torch.cuda.max_memory_allocated(device) <= room
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return False
        finally:
            self.optimizer.zero_grad()
            if cuda:
                torch.cuda.empty_cache()

    def _pass(self, pairs: Integers, batch: Batch) -> Tensor:
        """Forward and backward over some rows; their sums of loss and nll. Without rows, one row of weight zero."""
        weight = 1.0 if len(pairs) else 0.0
        rows = pairs if len(pairs) else batch.pairs[:1]
        tensors = tensors_of(self.store, rows, self.start, self.process.device, self.loss.multiple)
        with self.autocast():
            loss, nll = self.replicas(*tensors)
        # Gradients are averaged over the ranks, hence the factor.
        self.scaler.scale(loss * (weight * self.process.ranks / batch.target_tokens)).backward()
        return torch.stack([loss.detach(), nll]).to(torch.float32) * weight

    def _step(self, sums: Tensor, batch: Batch, progress: Progress) -> bool:
        """Takes the step if the gradient is finite; one host synchronisation."""
        self.scaler.unscale_(self.optimizer.adam)
        parameters, clip = list(self.model.parameters()), self.settings.optimizer.clip_norm
        total = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if clip is not None:
            nn.utils.clip_grads_with_norm_(parameters, clip, total)
        loss, nll, stop, norm = torch.cat([sums, total[None].to(sums)]).tolist()
        finite = math.isfinite(loss) and math.isfinite(norm)
        rate = self.rate(progress.step + 1)
        if finite:
            self.optimizer.step(rate, progress.step + 1, self.scaler)
        self.scaler.update()
        self.optimizer.zero_grad()
        self._note(progress, batch, finite, {"loss": loss, "nll": nll, "norm": norm})
        if not finite:
            self._tell_skip(progress, batch, rate, norm)
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

    def _tell_skip(self, progress: Progress, batch: Batch, rate: float, norm: float) -> None:
        """Says what is known of a skipped update; gives up when too many follow each other."""
        if not progress.skipped_in_row:
            return
        pairs = ", ".join(map(str, batch.pairs[:10].tolist())) + (", ..." if len(batch.pairs) > 10 else "")
        place = (
            f"at step {progress.step}, learning rate {rate:.3g}, gradient norm {norm}, "
            f"epoch {progress.epoch + 1}, pairs {pairs}"
        )
        if progress.skipped_in_row <= self.settings.max_skipped:
            self.warn(f"an update was skipped, its loss or gradient is not finite: {place}")
            return
        fail_together(
            RunError(
                f"{progress.skipped_in_row} updates in a row had a non-finite loss or gradient {place}; the last "
                "checkpoint is kept (lower training.learning_rate, or set training.optimizer.clip_norm)"
            )
        )


def batches_from(store: Store, settings: Training, progress: Progress) -> Iterator[Batch]:
    """The batches from `progress` on, epoch after epoch; whoever uses one up moves `progress.batch` on."""
    lengths, segment = store.lengths(), store.segment if isinstance(store, SampledStore) else None
    for epoch in count(progress.epoch):
        if settings.max_epochs is not None and epoch >= settings.max_epochs:
            return
        progress.epoch = epoch
        batches = epoch_batches(lengths, settings.batch_tokens, settings.seed, epoch, segment, store.mixture)
        for number, batch in enumerate(batches):
            if number >= progress.batch:
                yield batch
        progress.epoch, progress.batch = epoch + 1, 0
