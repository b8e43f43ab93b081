"""SIGTERM and Ctrl-C ask a run to leave; the loop looks at the flag and saves first. A later one leaves at once."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ECHO_SECONDS = 3.0
"""Ctrl-C reaches us and the launcher, which passes it on: what follows so soon is the same wish once more."""


class StopFlag:
    """The signal that asked us to stop, 0 while none has."""

    def __init__(self) -> None:
        self.signal_number = 0
        self._since = 0.0

    def handle(self, number: int, _: FrameType | None) -> None:
        """The signal handler: only sets the flag."""
        if not self.signal_number:
            self.signal_number, self._since = number, time.monotonic()
        elif time.monotonic() - self._since > ECHO_SECONDS:
            os._exit(128 + number)


@contextmanager
def stop_flag() -> Iterator[StopFlag]:
    """Catches both signals for the time of the context."""
    flag = StopFlag()
    before = {number: signal.signal(number, flag.handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
