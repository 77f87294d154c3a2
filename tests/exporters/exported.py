"""One small detector and its ONNX file, for tests of exports and of servers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import boxwright as bw
from boxwright.weights.open_model import open_model
from tests.api.models import small_run


@dataclass(frozen=True)
class Exported:
    """A detector and its ONNX file."""

    detector: bw.Detector
    file: Path


@cache
def exported_detector() -> Exported:
    """Return those of the small run: an export takes longer than its training."""
    run = small_run()
    return Exported(open_model(run.folder, device="cpu").detector, run.onnx)
