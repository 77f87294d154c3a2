"""What exact suppression costs when 51,150 anchors × 90 classes all pass the threshold.

    python benchmarks/suppression.py

Scores are uniform, in one run crowded and in one run all alike (as of an untrained head). The
exhaustive computation is timed on three of the classes and taken times thirty; its result on those
is compared with ours.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchvision.ops import nms

from boxwright.nn.postprocessing.nms import ClassAgnostic, Nms, PerClass, SoftPerClass
from boxwright.nn.suppression.greedy import suppress_pairs

HERE = Path(__file__).parent
ANCHORS, CLASSES, TIMED_CLASSES = 51150, 90, 3
RULES = Nms(PerClass(0.6, 100), 1e-8, 100)


def exhaustive(boxes: Tensor, scores: Tensor) -> list[tuple[float, int, int]]:
    """Suppress each class over all of its boxes, then keep the best.

    Args:
        boxes: float [A, 4], inside the window.
        scores: float [A, K].

    Returns:
        (score, class, anchor), best first.
    """
    rows = []
    for label in range(scores.shape[1]):
        kept = nms(boxes, scores[:, label], 0.6)[:100].tolist()
        rows += [(scores[anchor, label].item(), label, anchor) for anchor in kept]
    return sorted(rows, key=lambda row: -row[0])[: RULES.max_total_detections]


def milliseconds(run: Callable[[], Any], repeats: int = 5) -> float:
    """Time something.

    Args:
        run: What.
        repeats: How often.

    Returns:
        The median.
    """
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        run()
        times.append(1000 * (time.perf_counter() - began))
    return sorted(times[1:])[repeats // 2]


def main() -> None:
    """Measure, print, and write the results beside this file."""
    generator = torch.Generator().manual_seed(0)
    centre, side = torch.rand(ANCHORS, 2, generator=generator) * 500 + 70, torch.rand(ANCHORS, 2, generator=generator)
    boxes = torch.cat([centre - side * 50 - 2, centre + side * 50 + 2], dim=1)
    windows = torch.tensor([[640.0, 640.0]])
    uniform = torch.rand(ANCHORS, CLASSES, generator=generator, dtype=torch.float64).float() * 0.99 + 0.005
    results: dict[str, dict[str, float]] = {}
    for name, scores in (("uniform", uniform), ("all alike", torch.full_like(uniform, 0.01))):
        kinds: dict[str, Callable[..., Any]] = {
            "per class": RULES,
            "in tensors": lambda *batch: RULES.in_tensors(*batch, suppress_pairs=suppress_pairs),
            "soft": Nms(SoftPerClass(0.5, 100), 1e-8, 100),
            "class-agnostic": Nms(ClassAgnostic(0.6), 1e-8, 100),
        }
        results[name] = {
            kind: milliseconds(lambda run=run, s=scores: run(boxes[None], s[None], windows))  # type: ignore[misc]
            for kind, run in kinds.items()
        }
    few = uniform[:, :TIMED_CLASSES]
    began = time.perf_counter()
    wanted = exhaustive(boxes, few)
    results["uniform"]["exhaustive, times thirty"] = 1000 * (time.perf_counter() - began) * CLASSES / TIMED_CLASSES
    kept = RULES(boxes[None], few[None], windows).image(0)
    found = list(zip(kept.scores.tolist(), kept.labels.tolist(), kept.anchors.tolist(), strict=True))
    print("equal to the exhaustive computation:", sorted(found) == sorted(wanted))
    for name, row in results.items():
        print(name, "  ".join(f"{kind} {value:.1f} ms" for kind, value in row.items()))
    (HERE / "results").mkdir(exist_ok=True)
    text = json.dumps({"threads": torch.get_num_threads(), "torch": torch.__version__, **results}, indent=2)
    (HERE / "results" / "suppression-cpu.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
