"""The standard streams: UTF-8 whatever the locale, and messages that stop no work where nobody can read them."""

import io
import os
import sys
from typing import Any


class _Messages(io.FileIO):
    """Standard error: what cannot be written (the reader left, the terminal is gone, its disk is full) is dropped."""

    def write(self, data: Any, /) -> int:
        """Says that all was written, and writes it if that can be done."""
        size = memoryview(data).nbytes
        try:
            written = super().write(data)
        except OSError:
            return size
        return size if written is None else written  # None: a pipe that does not wait is full


def prepare() -> None:
    """To be called before anything is printed or opened."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # None where it is closed, which is told by who needs it
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    # A file of ours must not get the number of a closed standard stream: libraries would print into it.
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)  # nor one of the processes that we start
    os.close(number)
    if sys.stderr is sys.__stderr__:  # whoever has put something else there hears all
        raw = io.BufferedWriter(_Messages(2, "w", closefd=False))
        sys.stderr = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)
