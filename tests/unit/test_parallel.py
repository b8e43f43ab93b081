"""Chunks shared out among processes: order, failures, and ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

import pytest

from transformer_mt.data.parallel import in_order
from transformer_mt.errors import RunError, UserError


def listed(make: Callable[[], Callable[[Any], Any]], chunks: Iterable[Any], workers: int) -> list[Any]:
    with in_order(make, chunks, workers) as results:
        return list(results)


def make(factor: int) -> Callable[[int], tuple[int, int]]:
    return partial(work, factor)


def work(factor: int, chunk: int) -> tuple[int, int]:
    if chunk == 13:
        raise UserError("line 13")
    if chunk == 15:
        raise PermissionError(13, "no way", "model")
    if chunk == 14:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02 * (chunk % 3))  # so that they end in another order
    return factor * chunk, os.getpid()


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 10])
def test_results_come_in_order(workers: int, count: int) -> None:
    results = listed(partial(make, 3), range(count), workers)
    assert [value for value, _ in results] == [3 * chunk for chunk in range(count)]
    processes = {process for _, process in results}
    assert len(processes - {os.getpid()}) == (min(workers, count) if workers > 1 and count > 1 else 0)


def test_what_is_raised_there_is_raised_here() -> None:
    with pytest.raises(UserError, match=r"^line 13$"):
        listed(partial(make, 1), range(10, 20), 2)
    with pytest.raises(RunError, match="a process that prepares text is gone: signal 9 ended it"):
        listed(partial(make, 1), [1, 14, 2], 2)


def test_other_errors_are_told_too() -> None:
    with pytest.raises(RunError, match=r"PermissionError: .*no way"):
        listed(partial(make, 1), [1, 15, 2], 2)


def test_what_the_chunks_raise_ends_the_processes() -> None:
    def chunks() -> Iterator[int]:
        yield from range(5)
        raise UserError("no more")

    with pytest.raises(UserError, match="no more"):
        listed(partial(make, 1), chunks(), 2)


def test_large_chunks_and_results_do_not_wait_for_each_other() -> None:
    chunks = [bytes([number]) * (1 << 22) for number in range(6)]
    assert listed(same, chunks, 2) == chunks


def same() -> Callable[[bytes], bytes]:
    return bytes


def test_processes_end_with_a_parent_that_is_killed() -> None:
    program = (
        "import os, time\nfrom functools import partial\nfrom tests.unit.test_parallel import make\n"
        "from transformer_mt.data.parallel import in_order\n"
        "if __name__ == '__main__':\n"
        "    with in_order(partial(make, 1), range(100_000), 2) as results:\n"
        "        for _, process in results:\n            print(process, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        workers = {int(parent.stdout.readline()) for _ in range(2)}
        parent.kill()
    assert len(workers) == 2
    limit = time.monotonic() + 30
    while any(os.path.exists(f"/proc/{worker}") for worker in workers):
        assert time.monotonic() < limit
        time.sleep(0.05)


@pytest.mark.parametrize("milliseconds", [20, 120, 350])
def test_a_signal_to_all_while_processes_begin_is_the_parents_alone(milliseconds: int) -> None:
    program = (
        "from functools import partial\nfrom tests.unit.test_parallel import listed, make\n"
        "if __name__ == '__main__':\n"
        "    print('ready', flush=True)\n"
        "    try:\n        listed(partial(make, 1), [0] * 100_000, 4)\n"
        "    except KeyboardInterrupt:\n        raise SystemExit(130)\n"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], text=True, start_new_session=True, **pipes) as parent:
        assert parent.stdout and parent.stdout.readline() == "ready\n"
        time.sleep(milliseconds / 1000)
        os.killpg(parent.pid, signal.SIGINT)
        assert parent.communicate(timeout=30) == ("", "") and parent.returncode == 130


def test_what_goes_wrong_with_a_result_ends_the_processes() -> None:
    """Also where a traceback keeps everything alive to the end of the program."""
    program = (
        "import sys\nfrom functools import partial\nfrom tests.unit.test_parallel import make\n"
        "from transformer_mt.data.parallel import in_order\n"
        "if __name__ == '__main__':\n"
        "    try:\n        with in_order(partial(make, 1), range(1000), 2) as results:\n"
        "            for _ in results:\n                raise OSError(28, 'full')\n"
        "    except OSError as failure:\n        kept = failure\n        print(failure)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("[Errno 28] full\n", "", 0)


def make_of_much(content: bytes) -> Callable[[int], int]:
    return len(content).__mul__


def test_a_process_that_is_killed_before_it_has_read_what_it_works_with(monkeypatch: pytest.MonkeyPatch) -> None:
    start = SpawnProcess.start

    def start_and_kill(self: SpawnProcess) -> None:
        start(self)
        self.kill()

    monkeypatch.setattr(SpawnProcess, "start", start_and_kill)
    with pytest.raises(RunError, match="a process that prepares text is gone: signal 9 ended it"):
        listed(partial(make_of_much, bytes(1 << 24)), range(3), 2)


def tell_mask(connection: Connection) -> None:
    connection.send(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))


def test_a_process_begins_deaf_to_the_signals_that_its_parent_answers() -> None:
    """Also the first one, with which multiprocessing begins a process of its own that lifts the mask."""
    program = (
        "from tests.unit.test_parallel import tell_mask\nfrom transformer_mt.data import parallel\n"
        "if __name__ == '__main__':\n"
        "    parallel._work = tell_mask\n"
        "    process, connection = parallel._hired(None)\n    print(*map(int, connection.recv()))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [str(int(signal.SIGINT)), str(int(signal.SIGTERM))], done.stderr
