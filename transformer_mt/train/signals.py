"""SIGTERM and Ctrl-C ask a run to leave; the loop looks at the flag and saves first. A second one leaves at once.

With several ranks a signal to one of them is a signal to all (`distributed.Notice`).
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from transformer_mt.distributed import Process

ECHO_SECONDS = 3.0
"""Ctrl-C reaches us and the launcher, which passes it on: what follows so soon is the same wish once more."""


class Interrupted(KeyboardInterrupt):
    """Raised by the handler where nothing has to be finished first."""


class StopFlag:
    """The signal that asked us to stop, 0 while none has."""

    def __init__(self, echoes: int = 0) -> None:
        """`echoes`: how often the same wish may come again, from a launcher or another rank."""
        self.signal_number = 0
        self._echoes, self._since, self._at_once = echoes, 0.0, False

    def handle(self, number: int, _: FrameType | None) -> None:
        """The signal handler."""
        if not self.signal_number:
            self.signal_number, self._since = number, time.monotonic()
            if self._at_once:
                raise Interrupted
        elif self._echoes and time.monotonic() - self._since < ECHO_SECONDS:
            self._echoes -= 1
        else:
            os._exit(128 + number)

    def asked(self) -> bool:
        """Whether to leave."""
        return self.signal_number > 0

    def breakable(self, action: Callable[[], object]) -> bool:
        """Runs what a signal may break off, since it leaves nothing to be saved; whether it came to its end."""
        try:
            self._at_once = True
            if not self.signal_number:
                action()
            self._at_once = False
        except Interrupted:
            self._at_once = False
        return not self.signal_number


@contextmanager
def stop_flag(process: Process) -> Iterator[StopFlag]:
    """Catches both signals for the time of the context, on whichever rank they arrive."""
    flag = StopFlag(echoes=2 if process.ranks > 1 else 0)

    def handle(number: int, frame: FrameType | None) -> None:
        if process.notice:
            process.notice.arrived = number
        flag.handle(number, frame)

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
