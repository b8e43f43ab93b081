"""Libraries of others: those we can do without are loaded when they are asked for; those that talk are kept quiet."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from transformer_mt.errors import UserError


def optional(name: str, extra: str) -> Any:
    """A module that is no dependency of ours, so that it may be missing; `extra` is what to install for it."""
    try:
        return import_module(name)
    except ImportError as error:
        install = f"pip install 'transformer-mt[{extra}]'"
        raise UserError(f"{name} cannot be loaded ({error}): {install}") from None


@contextmanager
def quiet(*names: str, level: int = logging.CRITICAL) -> Iterator[None]:
    """No warnings inside, and of the loggers of these names only what is of that level."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(level)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, before in zip(loggers, levels, strict=True):
            logger.setLevel(before)
