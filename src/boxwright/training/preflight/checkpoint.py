"""The check of the weights that a run starts from."""

from __future__ import annotations

from collections.abc import Iterable

from boxwright.base.errors import BoxwrightError, first_line
from boxwright.nn.detector import Detector
from boxwright.training.preflight.finding import Finding
from boxwright.types.scopes import ChannelOrder, Scope
from boxwright.weights.find_weights import find_weights
from boxwright.weights.load_weights import LoadReport, load_weights

_LITTLE = 0.5


def check_checkpoint(
    detector: Detector, source: str, scope: Scope, *, channels: ChannelOrder = "RGB", folder: str = ""
) -> Iterable[Finding]:
    """Yield whether weights can be restored, and which tensors keep their initial values.

    Args:
        channels: The color order of the source's first convolution.
    """
    try:
        path, _ = find_weights(source, folder)
        # Into the examined detector, which no run uses, by the run's own function: its refusals are found here.
        loaded = load_weights(detector, path, scope, channels=channels)
    except BoxwrightError as error:
        head = ' (for another number of classes, use fine_tune_checkpoint_type: "detection")'
        yield Finding(
            "checkpoint",
            "fatal",
            f"{source}: {first_line(error)}" + (head if "shape" in str(error) else ""),
            "boxwright train would fail; set another checkpoint or fine_tune_checkpoint_type",
        )
        return
    yield _judged(source, scope, loaded)


def _judged(source: str, scope: Scope, loaded: LoadReport) -> Finding:
    total = len(loaded.restored) + len(loaded.kept)
    share = len(loaded.restored) / max(total, 1)
    text = f"{source}: {len(loaded.restored)} of {total} tensors are restored ({scope})"
    reasons = sorted(set(loaded.kept.values()))
    if loaded.kept:
        text += f"; {len(loaded.kept)} keep their initial values: {'; '.join(reasons[:3])}"
    if share < _LITTLE:
        return Finding("checkpoint", "warning", text, "is it a checkpoint of this network?")
    return Finding("checkpoint", "fine", text)
