"""An exported detector: pictures in, objects out.

Dimensions: B batch, H W image, D detections (padded).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from boxwright.base.errors import ExportError
from boxwright.data.image_io import decode_image, to_rgb
from boxwright.runtime.devices import CPU
from boxwright.runtime.metadata import Metadata
from boxwright.runtime.sessions import Session, open_session
from boxwright.types.categories import Categories
from boxwright.types.detection_outputs import DETECTION_OUTPUTS, from_tf_outputs
from boxwright.types.detections import SECOND_STAGE, Array, Detections
from boxwright.types.pixels import ValueRange, check_scale, group_images, to_hwc, to_levels

Images = Sequence[NDArray[Any] | Image.Image]
_RAW = "raw_detection_boxes"
_NEEDED = ("num_detections", "detection_boxes", "detection_scores", "detection_classes")


class ExportedDetector:
    """Detects like the detector that it was exported from."""

    def __init__(self, session: Session) -> None:
        """Wrap an opened file."""
        self.session = session
        self.categories: Categories | None = session.metadata.classes()

    @property
    def metadata(self) -> Metadata:
        """The file's metadata."""
        return self.session.metadata

    @property
    def num_classes(self) -> int:
        """How many classes it detects."""
        return self.metadata.num_classes

    def detect(self, images: Images) -> list[Detections[Array]]:
        """Detect objects in images of any sizes; images of one size share a batch.

        Args:
            images: Arrays [H, W, 3] in RGB, or with one channel, or PIL images, whose EXIF orientation is applied; of a
                detector of more channels arrays with exactly so many. What is not uint8 has the scale of the data that
                the detector was trained with, or else 0..255.

        Returns:
            One result per image, in pixels of that image.

        Raises:
            DataError: If one is not an image.
        """
        channels, white = self.metadata.image_channels, self.metadata.white_level
        pictures = [_picture(image, f"image {number}", channels, white) for number, image in enumerate(images)]
        detections: dict[int, Detections[Array]] = {}
        for indices in group_images(range(len(pictures)), lambda index: pictures[index].shape):
            batch = np.stack([pictures[index] for index in indices])
            detections |= zip(indices, self._detect_batch(batch), strict=True)
        return [detections[index] for index in range(len(pictures))]

    def detect_encoded(self, files: Sequence[bytes]) -> list[Detections[Array]]:
        """Detect objects in the bytes of image files (JPEG, PNG, BMP, GIF, WebP, TIFF); otherwise as `detect`."""
        white = self.metadata.white_level
        return self.detect(
            [decode_image(data, f"image {number}", white_level=white) for number, data in enumerate(files)]
        )

    def _detect_batch(self, images: NDArray[np.uint8]) -> list[Detections[Array]]:
        outputs = checked_outputs(self.session.run(images), len(images))
        size = (images.shape[1], images.shape[2])
        return [to_detections(outputs, number, size, self.categories) for number in range(len(images))]


def checked_outputs(outputs: dict[str, NDArray[np.float32]], batch: int) -> dict[str, NDArray[np.float32]]:
    """Return a session's outputs; ExportError unless their shapes and counts are those of a detector."""
    missing = [name for name in _NEEDED if name not in outputs]
    if missing and _RAW in outputs:
        raise ExportError("the export ends before suppression (--nms none): it has raw boxes and scores, no detections")
    if missing:
        raise ExportError(f"the export has no output {missing[0]!r}: it is not a detector")
    capacities = {outputs[name].shape[1:2] for name in _NEEDED if name != "num_detections"}
    batched = all(value.ndim > 0 and len(value) == batch for value in outputs.values())
    counts = outputs["num_detections"]
    if not batched or len(capacities) != 1 or () in capacities or counts.shape != (batch,):
        shapes = {name: value.shape for name, value in outputs.items()}
        raise ExportError(f"the export's outputs do not have a detector's shapes: {str(shapes)[:200]}")
    ((capacity,),) = capacities
    if outputs["detection_boxes"].shape != (batch, capacity, 4) or not bool(
        ((counts >= 0) & (counts <= capacity)).all()
    ):
        raise ExportError("the export reports a number of objects that does not match its boxes")
    return outputs


def to_detections(
    outputs: dict[str, NDArray[np.float32]], number: int, size: tuple[int, int], categories: Categories | None
) -> Detections[Array]:
    """Return the objects of one image, in its pixels, from a session's outputs."""
    count = int(outputs["num_detections"][number])
    height, width = size
    scale = np.array([height, width, height, width], np.float32)
    # From TensorFlow's ymin, xmin, ymax, xmax.
    boxes = (outputs["detection_boxes"][number, :count] * scale)[:, [1, 0, 3, 2]]
    rows = {
        entry.output: outputs[entry.output][number, :count] for entry in DETECTION_OUTPUTS if entry.output in outputs
    }
    known = {name: values for name, values in from_tf_outputs(rows, scale[:2]).items() if name not in SECOND_STAGE}
    return Detections(
        boxes=boxes,
        scores=outputs["detection_scores"][number, :count],
        labels=outputs["detection_classes"][number, :count].astype(np.int64) - 1,
        image_size=size,
        categories=categories,
        **known,
    )


def open_exported(
    path: str | Path, threads: int = 0, device: str = CPU, *, allow_edited: bool = False
) -> ExportedDetector:
    """Open an exported file.

    Args:
        path: The file: .onnx, OpenVINO's .xml, or .tflite.
        threads: How many its runtime may use; 0 for its default.
        device: "cpu", or another that its runtime has.
        allow_edited: Whether to open a file that was modified.

    Raises:
        ExportError: As `open_session`.
    """
    return ExportedDetector(open_session(path, threads, device, allow_edited=allow_edited))


def _picture(image: Any, where: str, channels: int, white: float) -> NDArray[np.uint8]:
    if isinstance(image, Image.Image):
        return np.ascontiguousarray(to_rgb(image, white, where, upright=True))
    array = to_hwc(image, where, channels)
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    check_scale([ValueRange.measure(array)], white)
    return np.ascontiguousarray(to_levels(array, white, where))
