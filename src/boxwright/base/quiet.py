"""Silencing libraries that warn and log while they work."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings and all log messages below ERROR."""
    previous, handlers = logging.root.manager.disable, list(logging.root.handlers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(previous)
            # `logging.warning` gives the root logger a handler where it has none, which would print our log twice.
            for handler in [added for added in logging.root.handlers if added not in handlers]:
                logging.root.removeHandler(handler)
