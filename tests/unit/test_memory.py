"""What does not fit into memory: tried before the first update, made smaller later, remembered for the next session."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests import tiny
from transformer_mt.config.training import Training
from transformer_mt.data.batching import deal, epoch_batches, passes_needed
from transformer_mt.distributed import Process
from transformer_mt.errors import OutOfMemory, RunError
from transformer_mt.train import memory
from transformer_mt.train.loop import Trainer, is_out_of_memory
from transformer_mt.train.signals import StopFlag

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


class Small(torch.nn.Module):
    """A loss on a device that holds so many target tokens, padding included."""

    def __init__(self, loss: torch.nn.Module, room: int, error: Exception | None = None) -> None:
        super().__init__()
        self.loss, self.room = loss, room
        self.error = error or torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        self.sizes: list[int] = []

    def forward(self, source: Tensor, target_input: Tensor, labels: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        self.sizes.append(target_input.numel())
        if target_input.numel() > self.room:
            raise self.error
        return self.loss(source, target_input, labels, places)


def trainer_with(folder: Path, room: int, ranks: int = 1, **keys: object) -> tuple[Trainer, list[str]]:
    said: list[str] = []
    data = tiny.store(folder, tiny.uneven(24))
    trainer = tiny.trainer(tiny.model(dtype=torch.float64), data, **keys)
    trainer.process = Process(0, ranks, CPU)
    trainer.warn = said.append
    trainer.replicas = Small(trainer.loss, room)
    return trainer, said


def gradients_of_an_update(trainer: Trainer, tokens: int = 1 << 20) -> dict[str, Tensor]:
    kept: dict[str, Tensor] = {}
    trainer.optimizer.step = lambda *a, **k: kept.update(tiny.gradients(trainer.model))  # type: ignore[method-assign]
    trainer.update(tiny.whole(trainer.store), tiny.progress(tokens), StopFlag())
    return kept


@pytest.mark.parametrize(
    "error",
    [
        None,
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=["gpu", "python", "cpu"],
)
def test_an_update_that_finds_no_memory_is_made_again_in_smaller_passes(
    tmp_path: Path, error: Exception | None
) -> None:
    expected = gradients_of_an_update(trainer_with(tmp_path, 1 << 20)[0])
    trainer, said = trainer_with(tmp_path, 80)
    if error:
        trainer.replicas.error = error
    found = gradients_of_an_update(trainer)
    assert tiny.difference(expected, found) < 1e-12
    tried = [size for size in trainer.replicas.sizes if size > 80]
    assert len(said) == len(tried) == 2
    assert said[-1] == "out of memory: the update is made again in 4 passes instead of 2"
    assert trainer.replicas.sizes[-1] <= 80


def test_other_errors_are_not_taken_for_it(tmp_path: Path) -> None:
    trainer, said = trainer_with(tmp_path, 80)
    trainer.replicas.error = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    with pytest.raises(RuntimeError, match="shapes"):
        gradients_of_an_update(trainer)
    assert said == [] and not is_out_of_memory(ValueError())


@pytest.mark.parametrize(("room", "ranks"), [(1, 1), (80, 2)], ids=["not even one row", "several ranks"])
def test_where_smaller_passes_cannot_help(tmp_path: Path, room: int, ranks: int) -> None:
    trainer, _ = trainer_with(tmp_path, room, ranks)
    with pytest.raises(OutOfMemory, match="out of memory in an update of 24 pairs"):
        gradients_of_an_update(trainer)
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_a_failure_halves_the_tokens_of_the_next_session(tmp_path: Path) -> None:
    here = {"device": "cuda H200", "ranks": 2, "threads": 1}

    def after(*tokens: int, given: bool = False, machine: dict = here) -> list[int]:
        settings = [Training(max_steps=1, device_tokens=number if given else "auto") for number in tokens]
        return [memory.after_failure(tmp_path, *pair, machine) for pair in zip(tokens, settings, strict=True)]

    assert after(100) == [100]
    memory.note_failure(tmp_path, 100, 1, here)
    assert after(200, 100, 99, 50) == [50, 50, 99, 50]
    assert after(400, 100, 99, given=True) == [400, 50, 99]  # another number is somebody's own choice
    assert after(100, machine={**here, "device": "cuda B200"}) == after(100, machine={**here, "ranks": 4}) == [100]
    memory.note_failure(tmp_path, 50, 0, here)
    assert after(100) == [25]
    assert [path.name for path in tmp_path.iterdir()] == [memory.RECORD]
    (tmp_path / memory.RECORD).write_text("{")
    assert after(100) == [100]


@pytest.mark.parametrize(
    ("settings", "process", "stored", "tokens"),
    [
        ({"device_tokens": 300}, Process(0, 2, CPU), 5, 300),
        ({}, Process(0, 1, CPU), 0, memory.CPU_TOKENS),
        ({}, Process(0, 1, CPU), 77, 77),
        ({}, Process(0, 4, CUDA), 0, 6250),
        ({}, Process(0, 400, CUDA), 0, 256),
        ({}, Process(0, 4, CUDA), 3125, 3125),
    ],
)
def test_what_is_tried_first(settings: dict, process: Process, stored: int, tokens: int) -> None:
    training = Training(max_steps=1, **settings)
    assert memory.first_choice(training, process, stored) == tokens


@pytest.mark.parametrize(("tokens", "ranks"), [(1 << 20, 1), (60, 1), (60, 3), (13, 2)])
def test_the_largest_pass_is_the_largest(tmp_path: Path, tokens: int, ranks: int) -> None:
    data = tiny.store(tmp_path, tiny.uneven(200))
    batches = list(epoch_batches(data.lengths(), 120, 1, 0))

    def sizes(batch) -> list[int]:
        passes = passes_needed(batch, tokens, ranks)
        shares = [part for rank in range(ranks) for part in deal(batch, passes, ranks, rank)]
        return [len(part) * (batch.source_length + batch.target_length) for part in shares]

    batch, passes = memory.largest_pass(batches, tokens, ranks)
    assert passes == passes_needed(batch, tokens, ranks)
    assert len(deal(batch, passes, ranks, 0)[0]) * (batch.source_length + batch.target_length) == max(
        size for each in batches for size in sizes(each)
    )


def test_auto_is_halved_until_the_largest_pass_fits(tmp_path: Path) -> None:
    trainer, said = trainer_with(tmp_path, 70)
    assert memory.fitting_tokens(trainer, 256, StopFlag()) == 64
    assert said == [f"out of memory in a trial: training.device_tokens is {tokens} now" for tokens in (128, 64)]
    assert max(size for size in trainer.replicas.sizes[-1:]) <= 70


@pytest.mark.parametrize(
    ("room", "keys", "told"),
    [
        (70, {"device_tokens": 256}, "training.device_tokens 256 does not fit on cpu"),
        (1, {}, "one pair of the data does not fit on cpu"),
    ],
)
def test_what_cannot_fit_is_told_before_the_first_update(tmp_path: Path, room: int, keys: dict, told: str) -> None:
    trainer, _ = trainer_with(tmp_path, room, **keys)
    with pytest.raises(RunError, match=told):
        memory.fitting_tokens(trainer, 256, StopFlag())


def test_a_trial_leaves_no_trace(tmp_path: Path) -> None:
    weights = []
    for tried in (False, True):
        data = tiny.store(tmp_path, tiny.uneven(24))
        trainer = tiny.trainer(tiny.model(dtype=torch.float32, dropout=0.3), data, precision="float16")
        if tried:
            assert memory.fitting_tokens(trainer, 64, StopFlag()) == 64
            assert all(parameter.grad is None for parameter in trainer.model.parameters())
        progress = tiny.progress(64)
        for _ in range(2):
            trainer.update(tiny.whole(data), progress, StopFlag())
        weights.append([parameter.detach().clone() for parameter in trainer.model.parameters()])
        assert math.isfinite(progress.sums["loss"])
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))


def test_a_signal_breaks_a_trial_off(tmp_path: Path) -> None:
    trainer, _ = trainer_with(tmp_path, 1 << 20)
    stop = StopFlag()

    def signalled(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        stop.handle(15, None)
        raise AssertionError("not broken off")

    trainer.replicas.forward = signalled  # type: ignore[method-assign]
    assert trainer.rehearse(tiny.whole(trainer.store), 1, stop) and stop.signal_number == 15
