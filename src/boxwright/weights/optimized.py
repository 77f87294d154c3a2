"""Optimizing a detector for inference."""

from __future__ import annotations

import copy
import logging

import numpy as np
import torch

from boxwright.base.errors import ConfigError
from boxwright.nn.detector import Detector
from boxwright.runtime.measure import measure

_HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_PRECISIONS = ("float32", *_HALF, "fastest")
_LOG = logging.getLogger("boxwright")
_ROUNDS = 5
# The size of images for a network whose inputs may have any size.
_SIZE = (480, 640)
# Bfloat16 changes scores, which is not worth a small speedup.
_WORTH = 0.9


def optimized(detector: Detector, precision: str, *, compile: bool) -> Detector:
    """Return a detector that is optimized on its device for inference only; the given one is changed.

    Args:
        precision: float32, bfloat16, float16, or fastest: bfloat16 if it is measured to be a tenth faster here, or
            more.
        compile: Whether the network is compiled at its first use.
    """
    if precision not in _PRECISIONS:
        raise ConfigError(f"--precision {precision}: expected {', '.join(_PRECISIONS)}")
    if precision in _HALF:
        return detector.optimize(compile=compile, dtype=_HALF[precision])
    if precision == "float32":
        return detector.optimize(compile=compile)
    # Copied first, as optimizing cannot be undone.
    rounded = copy.deepcopy(detector).optimize(compile=compile, dtype=torch.bfloat16)
    whole = detector.optimize(compile=compile)
    height, width = detector.preprocessor.resizer.output_size or _SIZE
    pictures = [np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)]
    calls = {"float32": lambda: whole.detect(pictures), "bfloat16": lambda: rounded.detect(pictures)}
    ratio = measure(calls, 1, _ROUNDS)[1].ratio
    chosen = "bfloat16" if ratio < _WORTH else "float32"
    _LOG.info("bfloat16 takes %.2f of float32's time here: %s", ratio, chosen)
    return rounded if chosen == "bfloat16" else whole
