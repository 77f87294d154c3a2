"""Describing a detector in an export's metadata."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version

from boxwright.exporters.graph import INPUT
from boxwright.nn.detector import Detector
from boxwright.nn.postprocessing.nms import Nms, operator_arguments
from boxwright.runtime.metadata import Metadata
from boxwright.runtime.optional import installed_versions
from boxwright.types.detection_outputs import DETECTION_OUTPUTS
from boxwright.weights.weights_folder import weights_sha256

_COLORS = 3
_OUTPUTS = {
    "detection_boxes": "float32 [batch, D, 4]: ymin, xmin, ymax, xmax in 0..1 of the picture",
    "detection_scores": "float32 [batch, D], best first",
    "detection_classes": "float32 [batch, D]: ids, the label plus 1",
    "num_detections": "float32 [batch]: how many of D are detections; the rest is padding",
    **{one.output: one.meaning for one in DETECTION_OUTPUTS},
    "detections_complete": "float32 [batch]: 0 if candidates that suppression ignored could have mattered",
    "raw_detection_boxes": "float32 [batch, A, 4]: every anchor's, in 0..1 of the network's input (regions: picture)",
    "raw_detection_scores": "float32 [batch, A, columns]: every anchor's",
}


def describe(
    detector: Detector,
    *,
    format: str,
    config: str,
    step: int,
    suppression: str,
    libraries: tuple[str, ...],
    metric: Mapping[str, float] | None = None,
    input_type: str = "image_tensor",
) -> Metadata:
    """Return an export's metadata, without the comparison's result. `SOURCE_DATE_EPOCH` overrides the time.

    Args:
        suppression: How it is done: "operator", "tensors" or "none".
        metric: A metric's name and value, if known.
    """
    preprocessor, nms, channels = detector.preprocessor, suppression_of(detector), detector.image_channels
    dtype = "float32" if input_type == "float_image_tensor" else "uint8"
    # The variable of reproducible-builds.org: equal weights then give equal files.
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    created = datetime.fromtimestamp(int(epoch), UTC) if epoch.isdigit() else datetime.now(UTC)
    return Metadata(
        format=format,
        boxwright=version("boxwright"),
        config=config,
        num_classes=detector.num_classes,
        categories=detector.categories.to_list() if detector.categories else [],
        step=step,
        metric=dict(metric or {}),
        created=created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        weights_sha256=weights_sha256(detector),
        input={
            "name": INPUT,
            "type": input_type,
            "dtype": f"{dtype} [batch, height, width, {channels}]",
            "channels": channels,
            "colour": "RGB" if channels == _COLORS else f"RGB and {channels - _COLORS} more",
            "range": [0, 255],
            "resizer": f"{type(preprocessor.resizer).__name__} to {preprocessor.resizer.output_size}, within the graph",
            "scaling": {"scale": preprocessor.scaling.scale, "offset": preprocessor.scaling.offset},
        },
        outputs=_OUTPUTS,
        suppression={"in the graph": suppression, **({} if nms is None else operator_arguments(nms))},
        versions=installed_versions("torch", *libraries),
    )


def suppression_of(detector: Detector) -> Nms | None:
    """Return a detector's suppression; None for one that only proposes."""
    suppression: Nms | None = getattr(detector.postprocessor, "suppression", None)
    return suppression
