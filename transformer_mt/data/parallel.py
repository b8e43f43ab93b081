"""Work on chunks of text, shared out among processes; results come in the order of the chunks."""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, islice
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from transformer_mt.errors import Failure, RunError, how_it_ended

Chunk = TypeVar("Chunk")
Result = TypeVar("Result")
Worker = tuple[BaseProcess, Connection]
ENDING = (signal.SIGINT, signal.SIGTERM)
Make = Callable[[], Callable[[Chunk], Result]]


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def in_order(make: Make[Chunk, Result], chunks: Iterable[Chunk], workers: int) -> Iterator[Iterator[Result]]:
    """What the function that `make` gives makes of each chunk, one after the other.

    With more than one worker, and more than one chunk, each worker is a process that calls `make` itself, so that
    must be something that can be pickled, as chunks and results must. A process has one chunk at a time, while this
    one reads the next. What is raised there is raised here. The end of the context, and even this process' sudden
    death, ends them.
    """
    chunks = iter(chunks)
    first = list(islice(chunks, 2))
    if workers < 2 or len(first) < 2:
        yield map(make(), chain(first, chunks))
        return
    crew: list[Worker] = []
    try:
        yield _dealt(crew, make, chain(first, chunks), workers)
    finally:
        for process, here in crew:
            here.close()
            process.kill()
        for process, _ in crew:
            process.join()


def _hired(make: Make[Any, Any]) -> Worker:
    """A new process. It is a fresh one: libraries have threads by now, which a copied process lacks.

    What it works with is sent when it is there, as chunks are: `start` waits for ever where a process that is killed
    at once was to be given more than a pipe holds.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process: BaseProcess = context.Process(target=_work, args=(there,), daemon=True)
    resource_tracker.ensure_running()  # which would lift the mask
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # until it has learned to leave them to us
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    there.close()
    worker = process, here
    _sent(worker, make)
    return worker


def _dealt(crew: list[Worker], make: Make[Any, Any], chunks: Iterator[Any], workers: int) -> Iterator[Any]:
    """Gives each worker a chunk in turn, after it has handed over what it made of the one before."""
    busy: deque[Worker] = deque()
    for chunk in chunks:
        if len(crew) < workers:
            crew.append(_hired(make))
            _sent(crew[-1], chunk)
            busy.append(crew[-1])
        else:
            result = _received(busy[0])
            _sent(busy[0], chunk)
            busy.rotate(-1)
            yield result
    while busy:
        yield _received(busy.popleft())


def _sent(worker: Worker, chunk: object) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # why it is gone is told where its result is asked for
        worker[1].send(chunk)


def _received(worker: Worker) -> Any:
    process, connection = worker
    try:
        kind, value = connection.recv()
    except (EOFError, OSError):  # also in the midst of a message
        process.join()
        reason = how_it_ended(process.exitcode)
        raise RunError(f"a process that prepares text is gone: {reason}") from None
    if kind == "error":
        raise value
    return value


def _work(connection: Connection) -> None:
    """The life of a process: signals that end this program are for its parent, whose end it notices."""
    for number in ENDING:  # which may be sent to all processes of a job
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    make = work = None
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):  # nobody is there any more
            return
        if make is None:
            make = message
            continue
        try:
            work = work or make()
            answer = "result", work(message)
        except Failure as error:
            answer = "error", error
        except Exception as error:  # of whatever kind: it may not survive the way to the other process
            answer = "error", RunError(f"{type(error).__name__}: {error}")
        with suppress(OSError):
            connection.send(answer)
