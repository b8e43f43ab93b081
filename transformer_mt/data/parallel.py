"""Work on chunks of text, shared out among processes; results come in the order of the chunks."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain, cycle, islice
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from transformer_mt.errors import RunError, how_it_ended

Chunk = TypeVar("Chunk")
Result = TypeVar("Result")
Make = Callable[[], Callable[[Chunk], Result]]


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(make: Make[Chunk, Result], chunks: Iterable[Chunk], workers: int) -> Iterator[Result]:
    """What the function that `make` gives makes of each chunk, one after the other.

    With more than one worker, and more than one chunk, each worker is a process that calls `make` itself, so that
    must be something that can be pickled, as chunks and results must. A process has one chunk at a time, while this
    one reads the next. What is raised there is raised here; leaving early, and even this process' sudden death, ends
    them.
    """
    chunks = iter(chunks)
    first = list(islice(chunks, 2))
    if workers < 2 or len(first) < 2:
        yield from map(make(), chain(first, chunks))
        return
    context = multiprocessing.get_context("spawn")  # libraries have threads by now, which a copied process lacks
    crew: list[tuple[BaseProcess, Connection]] = []
    try:
        for _ in range(workers):
            here, there = context.Pipe()
            process: BaseProcess = context.Process(target=_work, args=(there, make), daemon=True)
            process.start()
            there.close()
            crew.append((process, here))
        yield from _dealt(crew, chain(first, chunks))
    finally:
        for process, here in crew:
            here.close()
            process.kill()
        for process, _ in crew:
            process.join()


def _dealt(crew: list[tuple[BaseProcess, Connection]], chunks: Iterator[Chunk]) -> Iterator[Any]:
    """Gives each worker a chunk in turn, after it has handed over what it made of the one before."""
    busy: list[tuple[BaseProcess, Connection]] = []
    workers = cycle(crew)
    for chunk in chunks:
        worker = next(workers)
        if worker in busy:
            busy.remove(worker)
            result = _received(worker)
            _sent(worker, chunk)
            busy.append(worker)
            yield result
        else:
            _sent(worker, chunk)
            busy.append(worker)
    for worker in busy:
        yield _received(worker)


def _sent(worker: tuple[BaseProcess, Connection], chunk: object) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # why it is gone is told where its result is asked for
        worker[1].send(chunk)


def _received(worker: tuple[BaseProcess, Connection]) -> Any:
    process, connection = worker
    try:
        kind, value = connection.recv()
    except (EOFError, ConnectionResetError):
        process.join()
        reason = how_it_ended(process.exitcode)
        raise RunError(f"a process that prepares text is gone: {reason}") from None
    if kind == "error":
        raise value
    return value


def _work(connection: Connection, make: Callable[[], Callable[[Any], Any]]) -> None:
    """The life of a process: signals that end this program are for its parent, whose end it notices."""
    for number in (signal.SIGINT, signal.SIGTERM):  # which may be sent to all processes of a job
        signal.signal(number, signal.SIG_IGN)
    with suppress(EOFError, OSError):  # where nobody is there any more
        try:
            work = make()
            while True:
                chunk = connection.recv()
                connection.send(("result", work(chunk)))
        except (EOFError, OSError):
            raise
        except Exception as error:
            connection.send(("error", error))
