"""One small detector, exported once for all tests of a process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import boxwright as bw
from boxwright.exporters.export import About, export
from tests.exporters.small_detectors import FAMILIES, build, pictures

__all__ = ["Exported", "exported_detector"]


@dataclass(frozen=True)
class Exported:
    """A detector and its ONNX file."""

    detector: bw.Detector
    file: Path


@cache
def exported_detector() -> Exported:
    detector = build(FAMILIES["ssd"])
    path = Path(mkdtemp(prefix="exported-")) / "detector.onnx"
    about = About(config="model { }", step=7, metric={"AP": 0.5}, source="shapes")
    export(detector, path, images=pictures(), about=about)
    return Exported(detector, path)
