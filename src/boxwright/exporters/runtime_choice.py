"""Which runtime detects: PyTorch, or one that has an exact export of the detector."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from boxwright.base.errors import ConfigError, DataError, ExportError, OutputError
from boxwright.exporters.cache import CachedExport, Sample, default_runtime, find_export, has_exports, make_export
from boxwright.loading.open_model import OpenModel
from boxwright.runtime.devices import CPU
from boxwright.runtime.formats import AUTO, EXPORTED_FOR, TORCH
from boxwright.runtime.sessions import require_device

if TYPE_CHECKING:
    from boxwright.models.detector import Detector

_LOG = logging.getLogger("boxwright")
# Exporting and comparing takes some 15 seconds and 30 detections, and saves about half of each later detection's time.
_EXPORT_SECONDS = 15.0
_EXPORT_DETECTIONS = 30
_SAVED = 0.5
_COLORS = 3


def choose_export(
    model: OpenModel,
    runtime: str,
    *,
    sample: Sample | None = None,
    count: int | None = None,
    unsupported: str = "",
    threads: int = 0,
    device: str = AUTO,
) -> CachedExport | None:
    """Return the export that detects in a detector's place; None if PyTorch does.

    With "auto", that is a cached export, or a new one if enough pictures are left; if there can be none, a log line
    says why.

    Args:
        model: As opened, not yet optimized.
        runtime: "auto", "torch", or a key of `EXPORTED_FOR`.
        sample: The pictures on which a new export is compared; without them none is made.
        count: The number of pictures to detect in; None if it is unknown, as of streams.
        unsupported: Why an export cannot do what is requested; empty if it can.
        threads: The runtime's number of threads; 0 for its default.
        device: That of the runtime: "auto" is the CPU.

    Raises:
        ConfigError: For an unknown runtime.
        ExportError: If a runtime other than "auto" is requested and cannot be used.
    """
    if runtime not in (AUTO, TORCH, *EXPORTED_FOR):
        raise ConfigError(f"runtime {runtime}: expected {AUTO}, {TORCH}, {', '.join(EXPORTED_FOR)}")
    reason = _fixed(model, runtime) or unsupported or _why_torch(model)
    name = default_runtime() if runtime == AUTO else runtime
    if runtime != AUTO and reason and (runtime != TORCH or model.is_exported):
        raise ExportError(f"runtime {runtime}: {reason}")
    if runtime == TORCH or model.is_exported or reason or name is None:
        return None
    if runtime == AUTO and sample is None and not has_exports():
        return None
    place = CPU if runtime == AUTO else device  # with "auto", the device is PyTorch's
    require_device(name, place)
    try:
        found = find_export(model, name, threads, place)
        if found is None and sample is not None and (runtime != AUTO or _is_worthwhile(model.detector, sample, count)):
            _LOG.info("exporting for %s, which is done once for these weights", name)
            found = make_export(model, name, sample, threads, place)
    except (ExportError, OutputError, DataError) as error:
        if runtime != AUTO:
            raise
        _LOG.warning("detecting with PyTorch, as there is no export: %s", error)
        return None
    if found is None and runtime != AUTO:
        raise ExportError(f"runtime {runtime}: there are no pictures to compare an export on; export it first")
    return found


def _fixed(model: OpenModel, runtime: str) -> str:
    """Return why an exported file does not run in the requested runtime; empty if it does, or is none."""
    if not model.is_exported or runtime == AUTO:
        return ""
    own = {".onnx": "onnxruntime", ".xml": "openvino", ".tflite": "litert", ".pt2": "torch"}[model.path.suffix]
    return "" if own == runtime else f"{model.path} is exported, and runs in {own}"


def _why_torch(model: OpenModel) -> str:
    """Return why a detector runs in PyTorch alone; empty if it does not, or is exported."""
    if model.is_exported:
        return ""
    detector = model.detector
    device = next(detector.parameters()).device
    if device.type != "cpu":
        return f"the detector is on {device}; exports run on the CPU"
    if detector.image_channels > _COLORS:
        return f"the detector takes images of {detector.image_channels} channels"
    if model.own_config is None:
        return "the detector's configuration is unknown"
    return ""


def _is_worthwhile(detector: Detector, sample: Sample, count: int | None) -> bool:
    """Return whether an export saves more time than it takes, by timing a detection."""
    if count is None:
        return True
    if count * _SAVED <= _EXPORT_DETECTIONS:
        return False
    pictures, _ = sample()
    seconds = []
    for _ in range(2):  # the first also allocates
        began = time.perf_counter()
        detector.detect(list(pictures[:1]))
        seconds.append(time.perf_counter() - began)
    return saves_time(min(seconds), count)


def saves_time(seconds: float, count: int) -> bool:
    """Return whether an export saves more time than it takes, by the seconds of a detection in PyTorch."""
    return (_SAVED * count - _EXPORT_DETECTIONS) * seconds > _EXPORT_SECONDS
