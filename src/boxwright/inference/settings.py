"""What detecting in files needs beside a detector."""

from __future__ import annotations

from dataclasses import dataclass

from boxwright.settings import setting

__all__ = ["PredictionSettings"]


@dataclass(frozen=True, kw_only=True)
class PredictionSettings:
    """What is kept and drawn of detections, and where they are computed; `boxwright predict` has an option for each."""

    min_score: float = setting(0.5, "Leave out what scores less.", least=0, most=1)
    max_boxes: int = setting(100, "The most boxes that are drawn in a picture.", least=0)
    multi_scale: str = setting("", "Look at many sizes and mirror images, and vote: as refinedet320-voc.")
    device: str = setting("auto", "cpu, cuda, or auto for a GPU where there is one.")
