"""SIGTERM and Ctrl-C ask a run to leave; the loop looks at the flag and saves first. A second one leaves at once.

With several ranks a signal to one of them is a signal to all: a thread on each passes it on.
"""

import _thread
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from transformer_mt.distributed import Process

ECHO_SECONDS = 3.0
"""Ctrl-C reaches us and the launcher, which passes it on: what follows so soon is the same wish once more."""
WATCH_SECONDS = 0.2
"""How often a rank looks whether another one was asked to leave."""


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
    flag, ended = StopFlag(echoes=2 if process.ranks > 1 else 0), threading.Event()
    before = {number: signal.signal(number, flag.handle) for number in (signal.SIGTERM, signal.SIGINT)}
    watcher = threading.Thread(target=_pass_on, args=(flag, process, ended), daemon=True)
    if process.notice:
        watcher.start()
    try:
        yield flag
    finally:
        ended.set()
        if process.notice:
            watcher.join(1)  # or it might speak up when nobody listens any more
        for number, handler in before.items():
            signal.signal(number, handler)


def _pass_on(flag: StopFlag, process: Process, ended: threading.Event) -> None:
    """Tells the other ranks of a signal to this one, or brings this one a signal that another rank tells of.

    A launcher that was killed can signal nothing any more: that is taken for SIGTERM.
    """
    assert process.notice
    while not ended.wait(WATCH_SECONDS):
        try:
            if flag.signal_number:
                return process.notice.post(flag.signal_number)
            number = process.notice.read()
        except RuntimeError:  # the store went with the launcher
            number = 0
        if process.notice.launcher_is_gone():
            number = signal.SIGTERM
        if number:
            return _thread.interrupt_main(signal.Signals(number))
