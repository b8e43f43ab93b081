"""What people see of long work: a bar on a terminal, elsewhere a line now and then."""

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

EVERY_SECONDS = 30.0
"""Between the lines that are printed where there is no terminal."""


class Speaker:
    """Prints lines for people on stderr: all of them, or warnings alone; nothing at all where it is not enabled."""

    def __init__(self, *, quiet: bool = False, enabled: bool = True) -> None:
        self._quiet, self._enabled = quiet, enabled
        self.terminal = enabled and not quiet and sys.stderr.isatty()
        """Whether somebody watches, so that a bar can be shown."""

    def __call__(self, text: str) -> None:
        """Prints a line."""
        if self._enabled and (not self._quiet or text.startswith("warning")):
            print(text, file=sys.stderr, flush=True)


class Meter(AbstractContextManager["Meter"]):
    """How far work on pairs has come: pairs a second, and the time left where the whole is known."""

    def __init__(self, say: Callable[[str], None], name: str, pairs: int | None = None, *, unit: str = "pairs") -> None:
        """`say` prints lines; with a true `terminal` it lets a bar be shown. `pairs`: how many there are in all."""
        self._say, self._name, self._all, self._unit = say, name, pairs, unit
        self._begin = self._told = time.monotonic()
        self._pairs = 0
        self._bar: Any = None
        if getattr(say, "terminal", False):
            from tqdm import tqdm

            layout = "{desc}: {percentage:3.0f}%|{bar}| {postfix} [{elapsed}<{remaining}]"
            self._bar = tqdm(total=1.0, desc=name, bar_format=layout, leave=False, file=sys.stderr, dynamic_ncols=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def add(self, pairs: int, share: float | None = None) -> None:
        """So many pairs more are done; `share` of the whole is done in all, where the number of pairs is not known."""
        self._pairs += pairs
        share = self._pairs / self._all if self._all else share
        now = time.monotonic()
        speed = self._pairs / max(1e-9, now - self._begin)
        told = f"{self._pairs:,} {self._unit}, {speed:,.0f} a second"
        if self._bar is not None:
            self._bar.set_postfix_str(told, refresh=False)
            self._bar.update(min(1.0, share or 0.0) - self._bar.n)
        elif now - self._told >= EVERY_SECONDS:
            self._told = now
            left = f", {share:.0%}, {(now - self._begin) * (1 - share) / share:,.0f} s left" if share else ""
            self._say(f"{self._name}: {told}{left}")
