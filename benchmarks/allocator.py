"""What keeping freed memory brings to a training step on the CPU.

    python benchmarks/allocator.py

Runs the same steps in two processes, with and without, and prints the ratio.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent


def time_steps(*, keep: bool) -> float:
    """Time training steps of the blood-cell configuration on random images.

    Args:
        keep: Whether to keep freed memory.

    Returns:
        Milliseconds a step, the median of ten.
    """
    import torch

    from boxwright.base.distributed import ALONE
    from boxwright.data.batch import Batch
    from boxwright.pipeline.detector import build_detector
    from boxwright.pipeline.load import load_config
    from boxwright.pipeline.training import build_training
    from boxwright.runtime.allocator import keep_freed_memory
    from boxwright.training.state import new_state
    from boxwright.training.step import Learner
    from boxwright.types import Targets

    if keep:
        keep_freed_memory()
    config = load_config(HERE / "bccd.config")
    plan, detector = build_training(config), build_detector(config)
    state = new_state(detector.to(memory_format=torch.channels_last), plan)
    detector.train()
    boxes = torch.rand(16, 16, 4) * 100
    boxes[..., 2:] += boxes[..., :2] + 20
    targets = Targets(boxes, torch.zeros(16, 16, dtype=torch.int64), torch.ones(16, 16), torch.ones(16, 16) > 0)
    images = torch.randint(0, 255, (16, 3, 240, 320), dtype=torch.uint8)
    batch = Batch(images, torch.tensor([[240, 320]] * 16), targets, ("",) * 16)
    learner, times = Learner(state, plan, ALONE), []
    for _ in range(13):
        began = time.perf_counter()
        learner.step(batch)
        times.append(1000 * (time.perf_counter() - began))
    return sorted(times[3:])[5]


def main() -> None:
    """Run both, alternating twice, and print the medians and their ratio."""
    if len(sys.argv) > 1:
        print(time_steps(keep=sys.argv[1] == "keep"))
        return
    found: dict[str, list[float]] = {"plain": [], "keep": []}
    for name in ("plain", "keep", "plain", "keep"):
        result = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True, check=True)
        found[name].append(float(result.stdout))
    plain, kept = min(found["plain"]), min(found["keep"])
    print(f"plain {plain:.0f} ms a step, keeping freed memory {kept:.0f} ms: ratio {kept / plain:.2f}")


if __name__ == "__main__":
    main()
