"""Memory stays flat over a long run."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import boxwright as bw
from tests.conftest import Silent


def resident_megabytes() -> float:
    pages = int(Path(f"/proc/{os.getpid()}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="reads Linux's account of memory")
def test_memory_stays_flat(small_config: Path, tmp_path: Path) -> None:
    """A sample kept by mistake would show: 48 kB an image, 4 images a step, 500 steps are 96 MB."""
    sizes: list[float] = []

    class Weigher(Silent):
        def step(self, step: int) -> None:
            sizes.append(resident_megabytes())

    config = bw.load_config(small_config, ["train_config.num_steps=800"])
    settings = bw.RunSettings(workers=0, log_every_n=10, checkpoint_every_n=100, max_to_keep=1, summarize_every_n=50)
    bw.train(config, tmp_path / "m", settings, {"test": Weigher()})
    later = np.array(sizes[30:])
    growth = np.polyfit(np.arange(len(later)), later, 1)[0] * len(later)
    assert growth < 12, f"{growth:.1f} MB more in 500 steps: {later[0]:.0f} to {later[-1]:.0f}"
