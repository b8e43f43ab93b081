"""SIGTERM and Ctrl-C ask a run to leave; the loop looks at the flag and saves first. A second signal leaves at once."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopFlag:
    """The signal that asked us to stop, 0 while none has."""

    def __init__(self) -> None:
        self.signal_number = 0

    def handle(self, number: int, _: FrameType | None) -> None:
        """The signal handler: only sets the flag."""
        if self.signal_number:
            os._exit(128 + number)
        self.signal_number = number


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
