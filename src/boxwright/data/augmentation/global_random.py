"""Reproducibility for libraries that draw from global generators."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def seeded(rng: np.random.Generator) -> Iterator[int]:
    """Seed the global generators of Python, NumPy and PyTorch (on the CPU), and restore them at the end.

    Yields:
        The seed, for generators of the library's own.
    """
    seed = int(rng.integers(0, 2**32))
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed)
    # torch.manual_seed would seed CUDA's generators as well, from a data worker.
    torch.default_generator.manual_seed(seed)
    try:
        yield seed
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
