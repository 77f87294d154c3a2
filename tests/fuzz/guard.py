"""Running something that may hang, take all memory or crash: in a process of its own, with limits."""

from __future__ import annotations

import faulthandler
import os
import pickle
import resource
import signal
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from boxwright.base.errors import BoxwrightError

# Far beyond what any input needs: a machine that is loaded four times over passes.
SECONDS, MEMORY = 120, 6 * 2**30


@dataclass(frozen=True)
class Outcome:
    """What became of a call.

    Attributes:
        kind: "returned", "refused" (by an error of ours), or "broke".
        text: The value's, the error's, or what broke.
    """

    kind: str
    text: str


def guarded(call: Callable[[], Any], seconds: int = SECONDS, memory: int = MEMORY) -> Outcome:
    """Call something in a forked process that ends when it takes too long, or more memory than it may."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        outcome = Outcome("broke", "nothing said")
        try:
            signal.alarm(seconds)
            used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()  # noqa: SIM115
            resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
            faulthandler.disable()  # who waits says what ended this process
            torch.set_num_threads(1)  # threads do not survive a fork
            outcome = _called(call)
        finally:
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(outcome, pipe)
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        what = f"took more than {seconds} s" if number == signal.SIGALRM else f"died of signal {number}"
        return Outcome("broke", what)
    found: Outcome = pickle.loads(data)
    return found


def _called(call: Callable[[], Any]) -> Outcome:
    warnings.simplefilter("ignore")
    try:
        return Outcome("returned", repr(call())[:200])
    except BoxwrightError as error:
        return Outcome("refused", str(error))
    except BaseException:  # noqa: BLE001  # that is what is looked for
        return Outcome("broke", traceback.format_exc()[-3000:])
