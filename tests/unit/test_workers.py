"""Work shared out among copies of this process: what comes of it, what goes wrong in it, and how it ends."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

import pytest
import torch

from transformer_mt.decode.workers import can_fork, side_by_side
from transformer_mt.errors import RunError

pytestmark = pytest.mark.skipif(not can_fork(), reason="no copies of processes here")


@pytest.fixture(autouse=True)
def none_is_left() -> Iterator[None]:
    """And none waits for ever: that ends the test, and the processes with it."""

    def hangs(number: int, frame: FrameType | None) -> NoReturn:
        raise TimeoutError("a process hangs")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(90)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    assert multiprocessing.active_children() == []


def test_results_come_from_other_processes_as_they_are_made() -> None:
    def work(share: list[int]) -> Iterator[tuple[int, int, int]]:
        for number in share:
            yield number * number, os.getpid(), torch.get_num_threads()
        if share[0] == 1:  # what there is comes before the end of the work
            time.sleep(600)

    found = side_by_side(work, [[1, 2], [3]])
    rows = [next(found) for _ in range(3)]
    found.close()  # type: ignore[attr-defined]
    assert {value for value, _, _ in rows} == {1, 4, 9}
    processes = {process for _, process, _ in rows}
    assert len(processes) == 2 and os.getpid() not in processes
    assert {threads for _, _, threads in rows} == {1}


def test_a_process_that_has_used_its_threads_can_be_copied() -> None:
    """Those of the copy would wait for ever for threads that it has not."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        torch.randn(2000, 2000).softmax(-1)
        found = list(side_by_side(lambda share: iter([float(torch.ones(2000, 2000).softmax(-1).sum())]), [1, 2]))
    finally:
        torch.set_num_threads(before)
    assert found == [pytest.approx(2000)] * 2


def test_an_error_is_raised_here_and_ends_the_others() -> None:
    def work(share: int) -> Iterator[int]:
        if share:
            raise KeyError("told")
        time.sleep(600)
        yield share

    with pytest.raises(KeyError, match="told"):
        list(side_by_side(work, [0, 1, 0]))


def test_a_process_that_is_killed_is_told_of() -> None:
    """As the kernel does when memory runs out."""

    def work(share: int) -> Iterator[int]:
        yield share
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)

    with pytest.raises(RunError, match=r"signal 9 .*--batch-size"):
        list(side_by_side(work, [1, 2]))


def test_signals_to_all_processes_are_left_to_the_parent() -> None:
    def work(share: int) -> Iterator[int]:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        yield share

    assert list(side_by_side(work, [7])) == [7]


def test_leaving_early_ends_them_all() -> None:
    def work(share: int) -> Iterator[int]:
        yield share
        time.sleep(600)

    found = side_by_side(work, [1, 2])
    next(found)
    assert len(multiprocessing.active_children()) == 2
    found.close()  # type: ignore[attr-defined]


def test_an_error_that_cannot_be_sent_ends_it_all_the_same() -> None:
    class Unsendable(Exception):
        def __reduce__(self) -> NoReturn:
            raise TypeError

    def work(share: int) -> Iterator[int]:
        raise Unsendable
        yield share

    with pytest.raises(RunError, match="exit code 1"):
        list(side_by_side(work, [1]))


def test_a_worker_has_no_workers() -> None:
    assert list(side_by_side(lambda share: iter([can_fork()]), [1])) == [False]


def test_a_worker_ends_when_its_parent_is_gone() -> None:
    def parent(share: int) -> Iterator[int]:
        reader, writer = multiprocessing.Pipe(duplex=False)
        child = os.fork()
        if not child:  # stands for the program: it starts a worker, tells its number, and is killed

            def work(share: int) -> Iterator[int]:
                while True:
                    yield os.getpid()
                    time.sleep(0.01)

            multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
            results = side_by_side(work, [1])  # which stays open: closing it would end the worker
            writer.send(next(results))
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        yield reader.recv()

    (worker,) = side_by_side(parent, [1])
    deadline = time.monotonic() + 30
    while (runs := _runs(worker)) and time.monotonic() < deadline:
        time.sleep(0.02)
    if runs:
        os.kill(worker, signal.SIGKILL)
    assert not runs


def _runs(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
