"""What a command sets for its process: how GPUs round and choose algorithms, what becomes of freed memory, signals.

Signals are raised as an exception, so that unfinished files are completed or removed, as on Ctrl-C. `main` says how
threads wait before anything else. The library sets none of this: in Python, the process is the caller's
(docs/python.md).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from boxwright.base.signals import end_signals, leave_terminal, second_handler
from boxwright.runtime.allocator import keep_freed_memory

if TYPE_CHECKING:
    from boxwright.pipeline.messages import TrainEvalPipelineConfig
    from boxwright.training.settings import RunSettings


# Seconds until a lost signal is sent again.
_AGAIN_S = 0.02


class Terminated(BaseException):
    """Raised on a signal that ends the program."""

    def __init__(self, number: int) -> None:
        """Take the signal's number."""
        super().__init__(number)
        self.number = number


def raise_on_end_signals() -> None:
    """Make the signals of `end_signals` raise `Terminated` in the main thread; a second one ends the process."""
    for number in end_signals():
        signal.signal(number, _terminate)
    sys.unraisablehook = _unraisable


def _terminate(number: int, _: object) -> None:
    leave_terminal(number)
    for ending in end_signals():
        signal.signal(ending, second_handler(ending, signal.SIG_DFL))
    raise Terminated(number)


def _unraisable(lost: Any) -> None:
    """Resend a signal that arrived in a destructor, where Python drops exceptions: exporting spends much time there."""
    if not issubclass(lost.exc_type, Terminated | KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    number = signal.SIGINT
    if isinstance(lost.exc_value, Terminated):
        number = signal.Signals(lost.exc_value.number)
        signal.signal(number, _terminate)
    # Later, from another thread: sent at once it would be lost like the first.
    again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()


def prepare_inference(*, tf32: bool = False) -> None:
    """Set up this process for detecting with PyTorch, which is imported."""
    from boxwright.base.device import set_tf32

    set_tf32(products=tf32)
    keep_freed_memory()


def prepare_training(config: TrainEvalPipelineConfig, settings: RunSettings) -> None:
    """Set up this process for a training with PyTorch, which is imported."""
    import torch

    from boxwright.base.device import set_tf32
    from boxwright.pipeline.training import has_one_input_size

    set_tf32(products=settings.tf32)
    # With inputs of one size, cuDNN's trials of its algorithms are over after a step; each new size would repeat them.
    torch.backends.cudnn.benchmark = has_one_input_size(config)
    if settings.device == "cpu" or not torch.cuda.is_available():
        keep_freed_memory()
