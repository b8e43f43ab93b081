"""The two kinds of failure a person meets, and the one place that prints them."""

import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

Read = TypeVar("Read")


def in_one_line(text: str) -> str:
    """Line breaks and other control characters, of a file's name or of data, as they would be written in Python."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class Failure(Exception):
    """A failure told in sentences for people: one message for each thing that is wrong."""

    exit_code: int = 1

    def __init__(self, *messages: str) -> None:
        messages = tuple(map(in_one_line, messages))
        super().__init__("\n".join(messages))
        self.messages = messages

    def __reduce__(self) -> tuple[Any, ...]:
        """Lets one that another process sends be what it was, whatever its constructor asks for."""
        return type(self).__new__, (type(self), *self.args), self.__dict__


class UserError(Failure):
    """The person's input is at fault (config, files, options): exit code 2, nothing half-written left behind."""

    exit_code = 2


class RunError(Failure):
    """The machine or the run failed: exit code 1."""


class OutOfMemory(RunError):
    """A forward or backward pass did not fit into the device's memory."""


class Stopped(Failure):
    """A signal asked us to leave and all work was saved: exit code 128 + the signal's number."""

    def __init__(self, signal_number: int, message: str) -> None:
        super().__init__(message)
        self.signal_number = signal_number


def how_it_ended(exit_code: int | None) -> str:
    """What the exit code of a process that is gone tells, as multiprocessing has it: below 0 a signal."""
    code = exit_code or 0
    return f"signal {-code} ended it" if code < 0 else f"it left with exit code {code}"


def noted(problems: list[str], read: Callable[[], Read]) -> Read | None:
    """What `read` gives; None, and its reasons among the problems, where it refuses: so that all are told at once."""
    try:
        return read()
    except UserError as error:
        problems += error.messages
        return None


class OtherRankFailed(Failure):
    """Another rank failed and has said why; this process leaves with the same exit code and says `note` at most."""

    def __init__(self, exit_code: int, note: str = "") -> None:
        super().__init__(*([note] if note else []))
        self.exit_code = exit_code


class Terminated(KeyboardInterrupt):
    """SIGTERM, raised where the program is, as Ctrl-C is: what is half-made is cleaned up on the way out."""


@contextmanager
def _sigterm_raised() -> Iterator[None]:
    """Makes SIGTERM raise Terminated inside; Python allows it in the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def reported(*, debug: bool, rank: int | None = None, local_rank: int = 0) -> Iterator[None]:
    """Prints what goes wrong inside as plain lines on stderr and leaves with the right exit code.

    With `debug` the traceback is printed too. `rank` names the process when several run. All of them meet the same
    signal, so rank 0 alone speaks of it; all on one machine meet the same input, so the first one there (`local_rank`
    0) speaks of that; of other failures each one speaks for itself. Errors of the program itself (anything that is no
    Failure) are one line as well: their kind, what they say, how to see more.
    """
    prefix = "" if rank is None else f"rank {rank}: "
    speaks = not rank
    try:
        with _sigterm_raised():
            yield
        if sys.stdout:
            sys.stdout.flush()  # a reader who left is noticed here, not when the interpreter ends
    except BrokenPipeError:  # the reader of our output left, as in `| head -1`: not an error of ours
        if sys.stdout:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nor when it flushes what is left
        raise SystemExit(0) from None
    except KeyboardInterrupt as interrupt:
        text, code = ("terminated", 143) if isinstance(interrupt, Terminated) else ("interrupted", 130)
        raise SystemExit(_print(text if speaks else "", code, debug)) from None
    except Stopped as stop:
        raise SystemExit(_print(str(stop) if speaks else "", 128 + stop.signal_number, debug)) from None
    except UserError as failure:
        head = f"{prefix}error: " if rank else "error: "
        text = "\n".join(head + message for message in failure.messages)
        raise SystemExit(_print("" if local_rank else text, failure.exit_code, debug)) from None
    except OtherRankFailed as failure:
        raise SystemExit(_print(prefix + str(failure) if failure.messages else "", failure.exit_code, debug)) from None
    except Failure as failure:
        text = "\n".join(f"{prefix}error: {message}" for message in failure.messages)
        raise SystemExit(_print(text, failure.exit_code, debug)) from None
    except OSError as failure:
        raise SystemExit(_print(f"{prefix}error: {failure}", 1, debug)) from None
    except Exception as failure:  # the last line of defence: a person gets a sentence, not a stack
        text = f"{prefix}error: {type(failure).__name__}: {failure} (--debug shows where)"
        raise SystemExit(_print(text, 1, debug)) from None


def _print(text: str, exit_code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    if text:
        print(text, file=sys.stderr, flush=True)
    return exit_code
