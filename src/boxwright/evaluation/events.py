"""Evaluations in TensorBoard, where TF2 writes them and under its tags."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch.utils.tensorboard import SummaryWriter

__all__ = ["evaluation_folder", "write_evaluation_events"]


def evaluation_folder(model_dir: Path, name: str) -> Path:
    """Name the folder of an evaluation's events, as TF2 does.

    Args:
        model_dir: The run's folder.
        name: The evaluation reader's name; may be empty.

    Returns:
        The folder.
    """
    return model_dir / "eval" / name if name else model_dir / "eval"


def write_evaluation_events(
    writer: SummaryWriter, step: int, metrics: dict[str, float], pictures: dict[str, NDArray[np.uint8]]
) -> None:
    """Write an evaluation to TensorBoard under TF2's tags.

    Args:
        writer: The folder's writer.
        step: Steps that the detector was trained.
        metrics: Metric name to value.
        pictures: Image id to detections beside truth.
    """
    for tag, value in metrics.items():
        writer.add_scalar(tag, value, step)
    for number, picture in enumerate(pictures.values()):
        writer.add_image(f"eval_side_by_side_{number}_0", picture, step, dataformats="HWC")
    writer.flush()
