"""SIGTERM as an exception, so that files begun are finished or taken away, as for Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

# Seconds until a signal that was lost is sent again.
_AGAIN_S = 0.02


class Terminated(BaseException):
    """SIGTERM has come."""


def raise_on_sigterm() -> None:
    """Let SIGTERM raise `Terminated` where this process is; a second one ends it at once. For the main thread."""
    signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = _unraisable


def _terminate(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_DFL)
    raise Terminated


def _unraisable(lost: Any) -> None:
    """Send a signal again that came in a destructor, where Python drops exceptions: exporting spends much time there."""
    if not issubclass(lost.exc_type, Terminated | KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    number = signal.SIGINT
    if issubclass(lost.exc_type, Terminated):
        number = signal.SIGTERM
        signal.signal(number, _terminate)
    # Later, and by another thread: at once it would be lost like the first.
    again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()
