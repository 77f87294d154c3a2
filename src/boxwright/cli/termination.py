"""SIGTERM as an exception, so that unfinished files are completed or removed, as on Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

# Seconds until a lost signal is sent again.
_AGAIN_S = 0.02


class Terminated(BaseException):
    """Raised on SIGTERM."""


def raise_on_sigterm() -> None:
    """Make SIGTERM raise `Terminated` in the main thread; a second one ends the process at once."""
    signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = _unraisable


def _terminate(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_DFL)
    raise Terminated


def _unraisable(lost: Any) -> None:
    """Resend a signal that arrived in a destructor, where Python drops exceptions: exporting spends much time there."""
    if not issubclass(lost.exc_type, Terminated | KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    number = signal.SIGINT
    if issubclass(lost.exc_type, Terminated):
        number = signal.SIGTERM
        signal.signal(number, _terminate)
    # Later, from another thread: sent at once it would be lost like the first.
    again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()
