"""One batch is one update however it is cut: passes, shares, precision, skipping, stopping, going on."""

import math
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests import tiny
from transformer_mt.data.batching import deal
from transformer_mt.data.tokenizer import EOS, PAD
from transformer_mt.distributed import Process
from transformer_mt.errors import RunError
from transformer_mt.train.loop import NO_SUMS, LossOf, Trainer, batches_from
from transformer_mt.train.signals import StopFlag
from transformer_mt.train.validation import validation_loss

SINGLE, DOUBLE = (torch.float32, 1e-5), (torch.float64, 1e-10)
STOP = StopFlag()


def expected_gradients(net, data, smoothing: float = 0.1) -> tuple[dict[str, Tensor], float]:
    """Pair by pair without any padding: the gradient of the mean loss of all target tokens, and the loss's sum."""
    total = torch.zeros((), dtype=torch.float64)
    tokens = 0
    for number in range(len(data)):
        source, target = (torch.from_numpy(side.astype(np.int64)) for side in data.pair(number))
        labels = F.pad(target, (0, 1), value=EOS)
        hidden = net(F.pad(source, (0, 1), value=EOS)[None], F.pad(target, (1, 0), value=2)[None])
        total = total + F.cross_entropy(net.logits(hidden[0]), labels, label_smoothing=smoothing, reduction="sum")
        tokens += len(labels)
    net.zero_grad()
    (total / tokens).backward()
    found = tiny.gradients(net)
    net.zero_grad()
    return found, total.item()


def shared_gradients(trainer: Trainer, data, passes: int, ranks: int) -> dict[str, Tensor]:
    """What `ranks` processes would average, made one after the other."""
    batch = tiny.whole(data)
    trainer.process = Process(0, ranks, torch.device("cpu"))
    for rank in range(ranks):
        for part in deal(batch, passes, ranks, rank):
            trainer._pass(part, batch)
    return {name: gradient / ranks for name, gradient in tiny.gradients(trainer.model).items()}


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("passes", [1, 2, 5])
@pytest.mark.parametrize(("dtype", "tolerance"), [SINGLE, DOUBLE], ids=["float32", "float64"])
@pytest.mark.parametrize("rows", [3, 11])
def test_passes_and_ranks_make_the_gradient_of_the_whole_batch(
    tmp_path: Path, rows: int, dtype: torch.dtype, tolerance: float, passes: int, ranks: int
) -> None:
    """Rows of unequal lengths, and with 3 rows more shares than rows."""
    net = tiny.model(dtype=dtype, output_bias=True)
    data = tiny.store(tmp_path, tiny.uneven(rows))
    trainer = tiny.trainer(net, data)
    expected, _ = expected_gradients(net, data)
    assert tiny.difference(expected, shared_gradients(trainer, data, passes, ranks)) < tolerance


def test_the_loss_of_unequal_passes_is_the_mean_of_tokens_not_of_passes(tmp_path: Path) -> None:
    """90 tokens of mean 2.0 and 10 of mean 4.0 make 2.2, not 3.0."""
    data = tiny.store(tmp_path, [(3, 89), (3, 9)])
    trainer = tiny.trainer(tiny.model(dtype=torch.float32), data)
    batch, progress = tiny.whole(data), tiny.progress(device_tokens=90)
    parameter = next(trainer.model.parameters())

    class Given(torch.nn.Module):
        def forward(self, source, target_input, labels, places):
            mean = 2.0 if len(labels) == 90 else 4.0
            value = len(labels) * mean + 0 * parameter.sum()
            return value, value.detach()

    trainer.replicas = Given()
    trainer.update(batch, progress, STOP)
    assert progress.sums["loss"] / progress.sums["tokens"] == pytest.approx(2.2)


def reported(tmp_path: Path, device_tokens: int, **keys) -> tuple[Trainer, dict[str, float]]:
    data = tiny.store(tmp_path, tiny.uneven(9))
    trainer = tiny.trainer(tiny.model(dtype=torch.float32), data, **keys)
    progress = tiny.progress(device_tokens)
    trainer.update(tiny.whole(data), progress, STOP)
    return trainer, progress.sums


def test_what_is_reported_of_an_update_is_true(tmp_path: Path) -> None:
    net = tiny.model(dtype=torch.float32)
    data = tiny.store(tmp_path, tiny.uneven(9))
    gradients, loss = expected_gradients(net, data)
    norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradients.values()))
    _, nll = expected_gradients(net, data, 0.0)
    for device_tokens in (20, 1000):
        _, sums = reported(tmp_path, device_tokens)
        assert sums["loss"] == pytest.approx(loss, rel=1e-5)
        assert sums["nll"] == pytest.approx(nll, rel=1e-5)
        assert sums["norm"] == pytest.approx(norm, rel=1e-4)
        assert (sums["tokens"], sums["updates"]) == (int(data.lengths()[:, 1].sum()), 1)


def test_clipping_scales_the_true_norm_and_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, free = reported(tmp_path, 20)
    seen: list[float] = []
    original = torch.optim.Adam.step

    def watched(optimizer, *arguments, **keys):
        parameters = [p.grad for group in optimizer.param_groups for p in group["params"]]
        seen.append(float(torch.nn.utils.get_total_norm(parameters)))
        return original(optimizer, *arguments, **keys)

    monkeypatch.setattr(torch.optim.Adam, "step", watched)
    _, clipped = reported(tmp_path, 20, optimizer={"clip_norm": 0.01})
    assert clipped["norm"] == pytest.approx(free["norm"], rel=1e-6) and free["norm"] > 0.05
    assert seen == [pytest.approx(0.01, rel=1e-3)]


class Poisoned(torch.nn.Module):
    """The loss of a trainer, not a number at the calls that `when` names."""

    def __init__(self, loss: torch.nn.Module, when: set[int], value: float = math.nan) -> None:
        super().__init__()
        self.loss, self.when, self.value, self.calls = loss, when, value, 0

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        self.calls += 1
        loss, nll = self.loss(*tensors)
        return (loss * self.value if self.calls in self.when else loss), nll


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_the_rate_follows_the_updates_really_made(tmp_path: Path, value: float, precision: str) -> None:
    data = tiny.store(tmp_path, tiny.uneven(5))
    trainer = tiny.trainer(tiny.model(dtype=torch.float32), data, precision=precision)
    trainer.replicas = Poisoned(trainer.loss, {2, 3, 7}, value)
    progress = tiny.progress()
    rates = []
    for _ in range(10):
        made = progress.step
        before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
        trainer.update(tiny.whole(data), progress, STOP)
        moved = any(not torch.equal(p, before[name]) for name, p in trainer.model.named_parameters())
        assert moved == (progress.step > made)
        if moved:
            rates.append(trainer.optimizer.adam.param_groups[0]["lr"])
    assert (progress.step, progress.skipped, progress.skipped_in_row, progress.batch) == (7, 3, 0, 10)
    assert rates == [trainer.rate(step) for step in range(1, 8)]
    assert trainer.rate(progress.step + 1) == trainer.rate(8)
    assert all(p.isfinite().all() for p in trainer.model.parameters())
    assert progress.sums["skipped"] == 3 and progress.sums["updates"] == 7
    assert math.isfinite(progress.sums["loss"])


def test_too_many_skipped_updates_end_the_run_with_what_is_known(tmp_path: Path) -> None:
    data = tiny.store(tmp_path, tiny.uneven(5))
    trainer = tiny.trainer(tiny.model(dtype=torch.float32), data, max_skipped=2)
    trainer.replicas = Poisoned(trainer.loss, set(range(4, 99)))
    progress = tiny.progress()
    for _ in range(5):
        trainer.update(tiny.whole(data), progress, STOP)
    with pytest.raises(RunError) as error:
        trainer.update(tiny.whole(data), progress, STOP)
    for part in (
        "3 updates in a row",
        "at step 3",
        f"learning rate {trainer.rate(4):.3g}",
        "norm nan",
        "pairs 0, 1, 2",
    ):
        assert part in str(error.value)


def test_float16_looks_for_its_scale_without_giving_up(tmp_path: Path) -> None:
    """The first scale, 65536, may be too large: overflows halve it and are no failures."""
    data = tiny.store(tmp_path, tiny.uneven(5))
    trainer = tiny.trainer(tiny.model(dtype=torch.float32), data, precision="float16", max_skipped=1)
    trainer.replicas = Poisoned(trainer.loss, {1, 2, 3, 4}, math.inf)
    progress = tiny.progress()
    for _ in range(6):
        trainer.update(tiny.whole(data), progress, STOP)
    assert (progress.step, progress.skipped) == (2, 4)
    assert trainer.scaler.get_scale() == 65536 / 16


@pytest.mark.parametrize(("precision", "tolerance"), [("float16", 0.02), ("bfloat16", 0.1)])
def test_half_precision_makes_nearly_the_same_gradients(tmp_path: Path, precision: str, tolerance: float) -> None:
    net = tiny.model(dtype=torch.float32)
    data = tiny.store(tmp_path, tiny.uneven(9))
    expected, _ = expected_gradients(net, data)
    trainer = tiny.trainer(net, data, precision=precision)
    trainer._pass(tiny.whole(data).pairs, tiny.whole(data))
    trainer.scaler.unscale_(trainer.optimizer.adam)
    found = tiny.gradients(net)
    assert all(gradient.dtype == torch.float32 for gradient in found.values())
    assert tiny.difference(expected, found) < tolerance


def trained(tmp_path: Path, updates: int, **keys) -> tuple[Trainer, object]:
    data = tiny.store(tmp_path, tiny.uneven(40))
    trainer = tiny.trainer(tiny.model(dtype=torch.float32, dropout=0.2), data, batch_tokens=256, **keys)
    progress = tiny.progress(device_tokens=40)
    go_on(trainer, progress, updates)
    return trainer, progress


def go_on(trainer: Trainer, progress, updates: int) -> None:
    for batch in batches_from(trainer.store, trainer.settings, progress):
        if updates == 0:
            return
        trainer.update(batch, progress, STOP)
        updates -= 1


def equal(one: Trainer, other: Trainer) -> bool:
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    return all(torch.equal(p, q) for p, q in pairs)


def test_two_runs_are_equal_to_the_bit(tmp_path: Path) -> None:
    (one, first), (other, second) = (trained(tmp_path, 6) for _ in range(2))
    assert equal(one, other) and first.sums == second.sums and first.sums["updates"] == 6
    assert not equal(one, trained(tmp_path, 6, seed=2)[0])


def test_going_on_from_saved_moments_is_equal_to_the_bit(tmp_path: Path) -> None:
    whole, progress = trained(tmp_path, 7)
    half, middle = trained(tmp_path, 3)
    moments = {name: tensor.clone() for name, tensor in half.optimizer.state().items()}
    resumed = tiny.trainer(tiny.model(dtype=torch.float32, dropout=0.2, seed=9), whole.store, batch_tokens=256)
    resumed.model.load_state_dict(half.model.state_dict())
    resumed.optimizer.load(moments)
    torch.randn(3)  # what was drawn before must not matter
    go_on(resumed, middle, 4)
    assert equal(whole, resumed) and progress == middle
    assert all(torch.equal(tensor, moments[name]) for name, tensor in half.optimizer.state().items())
    assert all(torch.equal(tensor, resumed.optimizer.state()[name]) for name, tensor in whole.optimizer.state().items())


def test_dropout_is_a_function_of_seed_step_pass_and_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    original = torch.manual_seed
    monkeypatch.setattr(torch, "manual_seed", lambda seed: seeds.append(seed) or original(seed))
    data = tiny.store(tmp_path, tiny.uneven(12))
    trainer = tiny.trainer(tiny.model(dtype=torch.float32), data)
    monkeypatch.setattr(trainer, "_step", lambda *arguments: False)
    for rank in (0, 1):
        for step in (0, 1):
            for seed in (1, 2):
                trainer.process = Process(rank, 2, torch.device("cpu"))
                trainer.settings = trainer.settings.model_copy(update={"seed": seed})
                progress = tiny.progress(device_tokens=30)
                progress.step = step
                trainer.update(tiny.whole(data), progress, STOP)
    assert len(seeds) >= 2 * 8 and len({seed & 0xFFFFFFFF for seed in seeds}) == len(seeds)


def test_a_signal_drops_the_update_it_falls_into(tmp_path: Path) -> None:
    data = tiny.store(tmp_path, tiny.uneven(12))
    trainer = tiny.trainer(tiny.model(dtype=torch.float32), data)
    stop = StopFlag()

    class Signalled(Poisoned):
        def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
            if self.calls == 1:
                stop.handle(signal.SIGTERM, None)
            return super().forward(*tensors)

    trainer.replicas = Signalled(trainer.loss, set())
    before, progress = trainer.model.state_dict(), tiny.progress(device_tokens=30)
    before = {name: tensor.clone() for name, tensor in before.items()}
    assert trainer.update(tiny.whole(data), progress, stop)
    assert trainer.replicas.calls == 2
    assert progress == tiny.progress(device_tokens=30)
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.model.state_dict().items())
    assert all(p.grad is None for p in trainer.model.parameters()) and not any(
        tensor.any() for tensor in trainer.optimizer.state().values()
    )


def test_epochs_follow_each_other_from_any_place(tmp_path: Path) -> None:
    data = tiny.store(tmp_path, tiny.uneven(30))
    settings = tiny.trainer(tiny.model(), data, max_epochs=3, batch_tokens=256).settings.model_copy(
        update={"batch_tokens": 40}
    )

    def walk(progress) -> list[tuple[int, int, tuple[int, ...]]]:
        seen = []
        for batch in batches_from(data, settings, progress):
            seen.append((progress.epoch, progress.batch, tuple(batch.pairs.tolist())))
            progress.batch += 1
        return seen

    everything = walk(tiny.progress())
    assert [epoch for epoch, number, _ in everything if number == 0] == [0, 1, 2]
    for place in range(len(everything) + 1):
        progress = tiny.progress()
        last = everything[place - 1] if place else None
        progress.epoch, progress.batch = (last[0], last[1] + 1) if last else (0, 0)
        assert walk(progress) == everything[place:]


@pytest.mark.parametrize("training", [True, False])
def test_validation_is_the_same_for_any_size_of_batches_and_any_number_of_ranks(
    tmp_path: Path, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tiny.store(tmp_path, tiny.uneven(30))
    loss_of = LossOf(tiny.model(dropout=0.5), 0.1).train(training)
    one = validation_loss(loss_of, data, 1, 2, tiny.CPU)
    for tokens in (16, 60, 10_000):
        assert validation_loss(loss_of, data, tokens, 2, tiny.CPU) == pytest.approx(one, rel=1e-9)
    assert all(module.training == training for module in loss_of.modules())
    assert one["ppl"] == pytest.approx(math.exp(one["nll"])) and one["loss"] > one["nll"] > 0
    shares: list[Tensor] = []
    monkeypatch.setattr("transformer_mt.train.validation.sum_over_ranks", lambda sums: shares.append(sums) or sums)
    for rank in range(2):
        validation_loss(loss_of, data, 20, 2, Process(rank, 2, torch.device("cpu")))
    loss, nll, tokens = (shares[0] + shares[1]).tolist()
    assert (loss / tokens, nll / tokens) == pytest.approx((one["loss"], one["nll"]), rel=1e-9)


def test_validation_that_is_broken_off_gives_the_model_back_in_training_mode(tmp_path: Path) -> None:
    data = tiny.store(tmp_path, tiny.uneven(3))
    loss_of = LossOf(tiny.model(), 0.1).train()
    loss_of.smoothing = None
    with pytest.raises(TypeError):
        validation_loss(loss_of, data, 16, 2, tiny.CPU)
    assert loss_of.model.training


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_copy_task_is_learnt(tmp_path: Path, norm: str) -> None:
    """32 pairs that copy their source: at least 31 come back exactly, so shifting, masks and start agree everywhere."""
    from tests.tiny import beam_search
    from transformer_mt.data.store import Store, StoreWriter
    from transformer_mt.decode.models import ModelSteps
    from transformer_mt.decode.search import Rules

    rows = [source for source, _ in tiny.pairs([(length % 6 + 2, 1) for length in range(32)], seed=3)]
    with StoreWriter(tmp_path, "train", tiny.VOCABULARY) as writer:
        writer.write([(row, row) for row in rows])
    net = tiny.model(
        dtype=torch.float32, model_size=32, feedforward_size=64, norm=norm, encoder_layers=1, decoder_layers=1
    )
    data = Store(tmp_path, "train")
    trainer = tiny.trainer(net, data, learning_rate={"peak": 5e-3, "warmup_steps": 40}, label_smoothing=0.0)
    progress = tiny.progress()
    for _ in range(250):
        trainer.update(tiny.whole(data), progress, STOP)
    net.eval()
    right = 0
    with torch.no_grad():
        steps = ModelSteps([net], [[*row, EOS] for row in rows], 1)
        for number, found in beam_search(steps, [20] * 32, start=2, rules=Rules(EOS, (PAD, 1, 2)), beam_size=1):
            right += list(found[0].tokens) == rows[number]
    assert right >= 31
    assert NO_SUMS["loss"] == 0.0  # sums of one run are not those of the next
