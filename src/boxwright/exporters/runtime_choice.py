"""Which runtime detects: PyTorch, or one that has an exact export of the detector."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from boxwright.base.errors import ConfigError, DataError, ExportError, OutputError
from boxwright.exporters.cache import (
    CachedExport,
    Sample,
    default_runtime,
    find_export,
    has_exports,
    make_export,
    time_ratio,
)
from boxwright.runtime.devices import CPU
from boxwright.runtime.formats import AUTO, EXPORTED_FOR, TORCH
from boxwright.runtime.sessions import require_device
from boxwright.weights.open_model import OpenModel

if TYPE_CHECKING:
    from boxwright.nn.detector import Detector

_LOG = logging.getLogger("boxwright")
# An export takes some 15 seconds and 40 detections, and saves about half of each later detection's time.
_EXPORT_SECONDS = 15.0
_EXPORT_DETECTIONS = 40
_SAVED = 0.5
_COLORS = 3


@dataclass(frozen=True)
class RuntimeRequest:
    """The runtime that is requested for a detector.

    Attributes:
        runtime: "auto", "torch", or a key of `EXPORTED_FOR`.
        device: That of the runtime: "auto" is the CPU.
        threads: The runtime's number of threads; 0 for its default.
        unsupported: Why an export cannot do what else is requested; empty if it can.
    """

    runtime: str
    device: str = AUTO
    threads: int = 0
    unsupported: str = ""

    def __post_init__(self) -> None:
        if self.runtime not in (AUTO, TORCH, *EXPORTED_FOR):
            raise ConfigError(f"runtime {self.runtime}: expected {AUTO}, {TORCH}, {', '.join(EXPORTED_FOR)}")


@dataclass(frozen=True)
class Pictures:
    """The pictures that a detector is requested for.

    Attributes:
        sample: Returns some of them, on which a new export is compared.
        count: How many there are; None if it is unknown, as of streams.
    """

    sample: Sample
    count: int | None = None


class DetectionSettings(Protocol):
    """The settings that evaluation and prediction share and only PyTorch supports."""

    @property
    def multi_scale(self) -> str:
        """Name of the sizes to detect at; empty for one."""

    @property
    def precision(self) -> str:
        """The network's precision."""

    @property
    def compile(self) -> bool:
        """Whether the network is compiled."""

    @property
    def tf32(self) -> bool:
        """Whether a GPU rounds factors."""


def only_torch(settings: DetectionSettings, others: Mapping[str, object]) -> str:
    """Return which setting only PyTorch supports; empty for none.

    Args:
        others: Further ones by name, and whether they are set.
    """
    asked = {
        "--multi_scale": settings.multi_scale,
        "--precision": settings.precision != "float32",
        "--compile": settings.compile,
        "--tf32": settings.tf32,
        **others,
    }
    return next((f"{name} needs PyTorch" for name, given in asked.items() if given), "")


def choose_export(model: OpenModel, request: RuntimeRequest, pictures: Pictures | None = None) -> CachedExport | None:
    """Return the export that detects in a detector's place; None if PyTorch does.

    With "auto", that is a cached export, or a new one if enough pictures are left, unless it was slower than PyTorch
    when it was made; if there can be none, a log line says why.

    Args:
        model: As opened, not yet optimized.
        pictures: Without them, no export is made.

    Raises:
        ExportError: If a runtime other than "auto" is requested and cannot be used.
    """
    runtime = request.runtime
    reason = _fixed(model, runtime) or request.unsupported or _why_torch(model)
    name = default_runtime() if runtime == AUTO else runtime
    if runtime != AUTO and reason and (runtime != TORCH or model.is_exported):
        raise ExportError(f"runtime {runtime}: {reason}")
    if runtime == TORCH or model.is_exported or reason or name is None:
        return None
    if runtime == AUTO and pictures is None and not has_exports():
        return None
    place = CPU if runtime == AUTO else request.device  # with "auto", the device is PyTorch's
    require_device(name, place)
    try:
        if runtime == AUTO and _is_slower(model, name):
            return None
        found = find_export(model, name, request.threads, place)
        if found is None and pictures is not None and (runtime != AUTO or _is_worthwhile(model.detector, pictures)):
            _LOG.info("exporting for %s, which is done once for these weights", name)
            found = make_export(model, name, pictures.sample, request.threads, place)
            if runtime == AUTO and _is_slower(model, name):
                return None
    except (ExportError, OutputError, DataError) as error:
        if runtime != AUTO:
            raise
        _LOG.warning("detecting with PyTorch, as there is no export: %s", error)
        return None
    if found is None and runtime != AUTO:
        raise ExportError(f"runtime {runtime}: there are no pictures to compare an export on; export it first")
    return found


def _is_slower(model: OpenModel, runtime: str) -> bool:
    """Return whether a detector's export was slower than PyTorch when it was made, and log it."""
    ratio = time_ratio(model, runtime)
    if ratio is None or ratio < 1:
        return False
    _LOG.info("detecting with PyTorch, as %s took %.2f times as long with this detector", runtime, ratio)
    return True


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


def _is_worthwhile(detector: Detector, pictures: Pictures) -> bool:
    """Return whether an export saves more time than it takes, by timing a detection."""
    if pictures.count is None:
        return True
    if pictures.count * _SAVED <= _EXPORT_DETECTIONS:
        return False
    images, _ = pictures.sample()
    seconds = []
    for _ in range(2):  # the first also allocates
        began = time.perf_counter()
        detector.detect(list(images[:1]))
        seconds.append(time.perf_counter() - began)
    return saves_time(min(seconds), pictures.count)


def saves_time(seconds: float, count: int) -> bool:
    """Return whether an export saves more time than it takes, by the seconds of a detection in PyTorch."""
    return (_SAVED * count - _EXPORT_DETECTIONS) * seconds > _EXPORT_SECONDS
