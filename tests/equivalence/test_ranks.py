"""Real processes under gloo make the updates of one: gradients, logged sums, skips, validation, and few all-reduces."""

import math
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as multiprocessing
from torch import Tensor

from tests import tiny
from transformer_mt.data.store import Store
from transformer_mt.distributed import Process, process_group
from transformer_mt.errors import OtherRankFailed, RunError
from transformer_mt.train.loop import Trainer
from transformer_mt.train.signals import StopFlag
from transformer_mt.train.validation import validation_loss

ROWS, SMALL_PASSES = 11, 30


def measure(folder: Path, poison_rank: int | None = None) -> dict[str, Any]:
    """In each process: one update in several passes, one with fewer rows than shares, skips, validation."""
    with process_group("cpu") as process:
        found: dict[str, Any] = {}
        data, few = Store(folder, "train"), Store(folder, "few")
        trainer = tiny.trainer(tiny.model(dtype=torch.float64), data, process, max_skipped=1)
        for name, store in (("many", data), ("few", few)):
            trainer.store = store
            progress = tiny.progress(SMALL_PASSES)
            found[name] = one_update(trainer, progress, store)
            found[f"{name} sums"] = dict(progress.sums)
        found["validation"] = validation_loss(trainer.loss, data, 20, 2, process)
        found["skips"] = skips(trainer, data, last=process.rank == process.ranks - 1)
        found["stop"] = stopped(trainer, data, last=process.rank == process.ranks - 1)
        found["early stops"] = [early_stop(data, process, made) for made in range(4)]
        return found


def one_update(trainer: Trainer, progress: Any, store: Store) -> dict[str, Any]:
    """Gradients of an update, and the sizes of what the processes added up in it. Weights stay as they are."""
    kept: dict[str, Tensor] = {}
    trainer.optimizer.step = lambda *a, **k: kept.update(tiny.gradients(trainer.model))  # type: ignore[method-assign]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        trainer.update(tiny.whole(store), progress, StopFlag())
    shapes = [event.input_shapes for event in profile.events() if event.name == "gloo:all_reduce"]
    return {"gradients": dict(kept), "sizes": sorted(math.prod(shape[0]) for shape in shapes)}


def skips(trainer: Trainer, store: Store, *, last: bool) -> tuple[int, int, bool]:
    """Only the last rank meets a loss that is no number: all of them skip, and give up together."""
    original = trainer.loss.forward

    def poisoned(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        loss, nll = original(*tensors)
        return loss * (math.nan if last else 1.0), nll

    trainer.loss.forward = poisoned  # type: ignore[method-assign]
    trainer.store, progress = store, tiny.progress(SMALL_PASSES)
    gave_up = False
    try:
        for _ in range(3):
            trainer.update(tiny.whole(store), progress, StopFlag())
    except (RunError, OtherRankFailed) as failure:
        gave_up = isinstance(failure, RunError) == trainer.process.first
    trainer.loss.forward = original  # type: ignore[method-assign]
    return progress.step, progress.skipped, gave_up


def stopped(trainer: Trainer, store: Store, *, last: bool) -> bool:
    """The last rank alone got a signal: all of them hear of it."""
    flag = StopFlag()
    flag.signal_number = 15 if last else 0
    return trainer.update(tiny.whole(store), tiny.progress(SMALL_PASSES), flag)


def early_stop(store: Store, process: Process, made: int) -> bool:
    """The same after so many updates: in the second one the ranks do something together in the first pass."""
    trainer = tiny.trainer(tiny.model(dtype=torch.float64), store, process)
    progress, flag = tiny.progress(SMALL_PASSES), StopFlag()
    for _ in range(made):
        trainer.update(tiny.whole(store), progress, flag)
    flag.signal_number = 15 if process.rank == process.ranks - 1 else 0
    return trainer.update(tiny.whole(store), progress, flag) and progress.step == made


def child(rank: int, ranks: int, port: int, folder: Path) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    torch.save(measure(folder), folder / f"rank{rank}.pt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ranks")
    tiny.store(path, tiny.uneven(ROWS))
    tiny.store(path, tiny.uneven(2), "few")
    return path


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, Any]:
    return measure(folder)


@pytest.fixture(scope="module", params=[2, 3])
def together(request: pytest.FixtureRequest, folder: Path) -> list[dict[str, Any]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(child, (request.param, port, folder), nprocs=request.param)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(request.param)]


@pytest.mark.parametrize("rows", ["many", "few"])
def test_gradients_and_sums_are_those_of_one_process(alone: dict[str, Any], together: list, rows: str) -> None:
    """`few`: two rows for two or three ranks, so that one of them may have none."""
    for found in together:
        assert tiny.difference(alone[rows]["gradients"], found[rows]["gradients"]) < 1e-10
        for name in ("loss", "nll", "norm"):
            assert found[f"{rows} sums"][name] == pytest.approx(alone[f"{rows} sums"][name], rel=1e-6)
        for name in ("tokens", "padded", "updates"):
            assert found[f"{rows} sums"][name] == alone[f"{rows} sums"][name]
        assert all(
            torch.equal(gradient, together[0][rows]["gradients"][name])
            for name, gradient in found[rows]["gradients"].items()
        )


@pytest.mark.parametrize("rows", ["many", "few"])
def test_an_update_exchanges_each_gradient_once_and_little_besides(together: list, rows: str) -> None:
    """However many passes it has: three sums, and one number before the last pass where there are several."""
    count = sum(parameter.numel() for parameter in tiny.model().parameters())
    for found in together:
        small, gradients = found[rows]["sizes"][:-1], found[rows]["sizes"][-1:]
        assert small in ([1, 3], [3]) and sum(gradients) == count
    assert {tuple(found["many"]["sizes"][:-1]) for found in together} == {(1, 3)}


def test_validation_is_shared_and_the_same(alone: dict[str, Any], together: list) -> None:
    for found in together:
        assert found["validation"] == pytest.approx(alone["validation"], rel=1e-12)


def test_all_ranks_skip_and_give_up_together(alone: dict[str, Any], together: list) -> None:
    assert [found["skips"] for found in [alone, *together]] == [(0, 2, True)] * (1 + len(together))


def test_all_ranks_hear_of_a_signal_to_one(alone: dict[str, Any], together: list) -> None:
    assert [found["stop"] for found in together] == [True] * len(together)
    assert [found["early stops"] for found in together] == [[True] * 4] * len(together)
