"""`performance_summary.json`: how fast a run was."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from boxwright.base.files import write_whole
from boxwright.pipeline.training import TrainingPlan


def write_performance_summary(
    folder: Path, speeds: Sequence[float], last_loss: float, plan: TrainingPlan, processes: int
) -> None:
    """Write what TF's `performance_summary_exporter` is given.

    Args:
        speeds: Steps a second, as they were logged; at least one.
        last_loss: The total loss of the last batch.
    """
    summary = {
        "metrics": {
            "steps_per_sec": statistics.fmean(speeds),
            "steps_per_sec_p50": statistics.median(speeds),
            "steps_per_sec_max": max(speeds),
            "last_batch_loss": last_loss,
        },
        "mixed_precision": {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}[plan.precision],
        "images_per_sec": statistics.fmean(speeds) * plan.stream.batch_size,
        "processes": processes,
    }
    write_whole(folder / "performance_summary.json", json.dumps(summary, indent=2) + "\n")
