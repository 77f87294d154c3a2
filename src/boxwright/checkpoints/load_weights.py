"""Loading weights from elsewhere, with a report of what was restored, what was not, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from boxwright.checkpoints.store import CheckpointStore, read_checkpoint
from boxwright.errors import CheckpointError
from boxwright.models.detector import Detector
from boxwright.models.ssd import SSD
from boxwright.tensorflow.variable_names import ssd_variables

__all__ = ["LoadReport", "Scope", "Source", "load_weights"]

Scope = Literal["full", "detection", "classification"]
Source = str | Path | Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class LoadReport:
    """What a load did.

    Attributes:
        restored: Names of our tensors that were restored.
        kept: Names that kept their fresh values, each with the reason.
        unused: Names in the source that were not used, each with the reason.
    """

    restored: tuple[str, ...]
    kept: dict[str, str]
    unused: dict[str, str]

    def __str__(self) -> str:
        lines = [
            f"{len(self.restored)} tensors restored, {len(self.kept)} kept fresh, "
            f"{len(self.unused)} of the source unused"
        ]
        for title, items in (("kept fresh", self.kept), ("unused", self.unused)):
            reasons: dict[str, list[str]] = {}
            for name, reason in items.items():
                reasons.setdefault(reason, []).append(name)
            lines += [f"  {title}: {len(names)} ({names[0]}, …): {reason}" for reason, names in reasons.items()]
        return "\n".join(lines)


def load_weights(detector: Detector, source: Source, scope: Scope = "full") -> LoadReport:
    """Load weights into a detector.

    Args:
        detector: The detector, changed in place.
        source: A checkpoint of ours (a file, or a model folder, whose newest is taken), a
            `.safetensors` file with our names, or a mapping from TF2 checkpoint keys to arrays in
            TensorFlow's layout.
        scope: "full" wants every tensor, and of the same shape. "detection" leaves fresh what
            belongs to the class predictor where its shape differs. "classification" restores the
            backbone alone.

    Returns:
        What was restored and what was not.

    Raises:
        CheckpointError: Where the source cannot be read, or lacks what the scope wants.
    """
    state = {name: value for name, value in detector.network.state_dict().items() if "num_batches_tracked" not in name}
    values, origin = _read(detector, source)
    kept: dict[str, str] = {}
    restored: dict[str, Tensor] = {}
    for name, current in state.items():
        reason = _reason_to_keep(name, current, values, scope)
        if reason is None:
            restored[name] = values[name].to(current)
        else:
            kept[name] = reason
    unused = {
        name: "no tensor of that name" if name not in state else kept[name] for name in values if name not in restored
    }
    report = LoadReport(tuple(restored), kept, {origin.get(name, name): reason for name, reason in unused.items()})
    _check(report, scope)
    detector.network.load_state_dict(restored, strict=False)
    return report


def _reason_to_keep(name: str, current: Tensor, values: Mapping[str, Tensor], scope: Scope) -> str | None:
    if scope == "classification" and not name.startswith("backbone."):
        return "not of the backbone, which scope 'classification' is about"
    if name not in values:
        return "not in the source"
    if values[name].shape != current.shape:
        return f"shape {list(values[name].shape)} in the source, {list(current.shape)} here"
    return None


def _check(report: LoadReport, scope: Scope) -> None:
    """Refuse a load that left out what the scope promises."""
    allowed = {"full": (), "detection": ("head.classes",), "classification": ("neck.", "head.")}[scope]
    missing = {name: reason for name, reason in report.kept.items() if not name.startswith(allowed)}
    if missing:
        name, reason = next(iter(missing.items()))
        raise CheckpointError(
            f"scope '{scope}': {len(missing)} of {len(missing) + len(report.restored)} tensors cannot be restored; "
            f"the first is {name}: {reason}"
        )


def _read(detector: Detector, source: Source) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the source's tensors by our names, and what each was called there."""
    if isinstance(source, Mapping):
        return _from_tensorflow(detector, source)
    path = Path(source)
    if path.is_dir():
        found = CheckpointStore(path).latest()
        if found is None:
            raise CheckpointError(f"{path}: no ckpt-*.pt in this folder{_tensorflow_hint(path)}")
        return dict(found[1]["network"]), {}
    if path.suffix == ".safetensors":
        try:
            return load_file(path), {}
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path}: not readable as safetensors: {error}") from None
    if not path.is_file():
        raise CheckpointError(f"{path}: no such checkpoint{_tensorflow_hint(path)}")
    return dict(read_checkpoint(path)["network"]), {}


def _tensorflow_hint(path: Path) -> str:
    if list(path.parent.glob(f"{path.name}*.index")) or (path.is_dir() and list(path.glob("*.index"))):
        return "; there is a TensorFlow checkpoint, which cannot be read from disk yet"
    return ""


def _from_tensorflow(
    detector: Detector, source: Mapping[str, NDArray[np.float32]]
) -> tuple[dict[str, Tensor], dict[str, str]]:
    if not isinstance(detector.network, SSD):
        raise CheckpointError(f"no TF2 names are known for a {type(detector.network).__name__}")
    variables = ssd_variables(detector.network)
    values = {}
    for name, variable in variables.items():
        if variable.key in source:
            array = np.asarray(source[variable.key])
            values[name] = torch.from_numpy(
                np.ascontiguousarray(array.transpose(variable.axes) if variable.axes else array)
            )
    known = {variable.key for variable in variables.values()}
    values |= {key: torch.empty(0) for key in source if key not in known}
    return values, {name: variable.key for name, variable in variables.items()}
