"""The signals that end a program: it saves, keeps complete files, and exits with 128 and the number."""

from __future__ import annotations

import os
import signal
import stat
from contextlib import suppress
from typing import Any

# SIGHUP comes when a terminal is closed, SIGUSR1 from job schedulers shortly before a job's time is up.
_NAMES = ("SIGTERM", "SIGHUP", "SIGUSR1")


def end_signals() -> list[signal.Signals]:
    """Return the signals that end a program, beside Ctrl-C; not those that it was started to ignore, as by nohup."""
    known = [signal.Signals[name] for name in _NAMES if name in signal.Signals.__members__]
    return [number for number in known if signal.getsignal(number) is not signal.SIG_IGN]


def second_handler(number: int, handler: Any) -> Any:
    """Return what takes another signal of a number, after the first was handled: a handler, but nothing for SIGHUP.

    When a terminal is closed, the kernel and the shell each send one.
    """
    return signal.SIG_IGN if signal.Signals(number).name == "SIGHUP" else handler


def leave_terminal(number: int) -> None:
    """After SIGHUP, send what is still printed nowhere: the terminal is gone, and writing to it would fail."""
    if signal.Signals(number).name != "SIGHUP":
        return
    for descriptor in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
