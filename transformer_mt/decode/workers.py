"""Work shared out among processes of this machine: copies of this one, which find all they need in its memory."""

import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TypeVar, cast

import torch

from transformer_mt.allocator import keep_large_buffers
from transformer_mt.errors import RunError, how_it_ended

Share = TypeVar("Share")
Result = TypeVar("Result")


def can_fork() -> bool:
    """Whether a process may be copied here: on Linux (macOS has libraries that do not survive it), and in no worker."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


def side_by_side(work: Callable[[Share], Iterable[Result]], shares: Sequence[Share]) -> Iterator[Result]:
    """Does the work of each share in a process of its own, and gives what comes of it as it comes.

    Python threads would wait for each other: torch takes and gives back the interpreter at every operation. Each
    process has one thread: those that this one has used are not copied, and more would wait for them. What is raised
    there is raised here; leaving early ends all of them.
    """
    context = multiprocessing.get_context("fork")
    running: dict[Connection, BaseProcess] = {}
    try:
        for share in shares:
            receiver, sender = context.Pipe(duplex=False)
            process: BaseProcess = context.Process(
                target=_work, args=(work, share, sender, [receiver, *running]), daemon=True
            )
            process.start()
            sender.close()
            running[receiver] = process
        while running:
            for ready in wait(list(running)):
                yield from _received(cast(Connection, ready), running)
    finally:
        for process in running.values():
            process.kill()
        for process in running.values():
            process.join()


def _received(receiver: Connection, running: dict[Connection, BaseProcess]) -> Iterator[Result]:
    """What a process has sent: one result, an error, or, as None, its end."""
    try:
        kind, value = receiver.recv()
    except (EOFError, OSError):
        process = running[receiver]
        process.join()
        reason = how_it_ended(process.exitcode)
        raise RunError(f"a process that translates is gone: {reason} (too little memory? try --batch-size)") from None
    if kind == "result":
        yield value
    elif kind == "error":
        raise value
    else:
        running.pop(receiver).join()


def _work(
    work: Callable[[Share], Iterable[Result]], share: Share, sender: Connection, others: Sequence[Connection]
) -> None:
    """The life of a process: signals that end this program are for its parent, which ends it.

    others: what the parent listens to; while this process has it open too, nobody would notice that the parent is gone.
    """
    for receiver in others:
        receiver.close()
    for number in (signal.SIGINT, signal.SIGTERM):  # which may be sent to all processes of a job
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    keep_large_buffers()
    with suppress(OSError):  # where nobody listens any more
        try:
            for result in work(share):
                sender.send(("result", result))
            sender.send(("end", None))
        except Exception as error:
            sender.send(("error", error))
