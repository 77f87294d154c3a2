"""One small detector, exported once for all processes of a run of the tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import gettempdir

from filelock import FileLock

import boxwright as bw
from boxwright.exporters.export import About, export
from tests.exporters.small_detectors import MOBILENET_V1, build, pictures

_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(os.getpid())


@dataclass(frozen=True)
class Exported:
    """A detector and its ONNX file."""

    detector: bw.Detector
    file: Path


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that the first process of this run to ask for it fills; the others wait."""
    folder = Path(gettempdir()) / f"boxwright-tests-{_RUN}" / name
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if not (whole := folder / "whole").exists():
            make(folder)
            whole.touch()
    return folder


@cache
def exported_detector() -> Exported:
    detector = build(MOBILENET_V1)
    about = About(config="model { }", step=7, metric={"AP": 0.5}, source="shapes")
    folder = made_once(
        "exported", lambda folder: export(detector, folder / "detector.onnx", images=pictures(), about=about)
    )
    return Exported(detector, folder / "detector.onnx")
