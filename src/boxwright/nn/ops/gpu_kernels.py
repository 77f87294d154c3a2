"""Whether kernels for GPUs can be used; without them, plain tensors and the CPU compute the same."""

from __future__ import annotations

import functools
import logging
import subprocess

import torch

from boxwright.base.errors import first_line

_LOG = logging.getLogger("boxwright")
_LEAST_ARCHITECTURE = 70  # Volta, the oldest that Triton supports


def has_kernels() -> bool:
    """Return whether Triton compiles kernels for the current GPU that give known answers; if not, a line has said why.

    The first call compiles, and waits for the GPU.
    """
    return _has_kernels()


@functools.cache
def _has_kernels() -> bool:
    reason = _find_problem()
    if reason:
        _LOG.warning(
            "suppression and matching run without Triton's kernels, slower but with the same results: %s", reason
        )
    return not reason


def _find_problem() -> str:
    """Return why kernels cannot be used; empty if they can."""
    try:
        import triton
        from triton.errors import TritonError
    except ImportError as error:
        return first_line(error)
    try:
        target = triton.runtime.driver.active.get_current_target()  # compiles what launches kernels
        if target.backend != "cuda" or target.arch < _LEAST_ARCHITECTURE:
            return f"they are not made for {target.backend} {target.arch}"
        from boxwright.nn.ops.triton_kernels import check_answers

        check_answers(torch.device("cuda"))
    except (TritonError, OSError, RuntimeError, subprocess.CalledProcessError) as error:
        return first_line(error)
    return ""
