"""A CenterNet or a D-FINE as a whole graph for LiteRT, from pixels to detections.

There are no anchors that `TFLite_Detection_PostProcess` could decode; its place is taken by plain operators, as in TF's
`CenterNetModule` of its TFLite exporter. The converter turns D-FINE's samples of maps into gathers.

Dimensions: H W the network's input, D detections, P keypoints, A cells or queries, C classes.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from boxwright.base.errors import ExportError
from boxwright.base.quiet import quiet
from boxwright.exporters.graph import named_outputs
from boxwright.nn.detector import Detector
from boxwright.nn.postprocessing.nms import Nms
from boxwright.nn.postprocessing.postprocessor import Postprocessor
from boxwright.runtime.litert_session import KEPT, KEYPOINT_OUTPUTS, OUTPUTS


class WholePostprocessor(Postprocessor[Any], Protocol):
    """The postprocessor of a detector without anchors."""

    nms: Nms | None

    def lite_outputs(self, predictions: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the outputs of a graph for LiteRT, and those after them that only its comparison with ours reads."""
        ...


def is_whole(detector: Detector) -> bool:
    """Return whether a detector, which has no anchors, becomes a whole graph."""
    return hasattr(detector.postprocessor, "lite_outputs")


class LiteDetector(nn.Module):
    """A detector whose input is pixels of the right size, and whose outputs are TensorFlow's, and `KEPT`."""

    sizes: Tensor

    def __init__(self, detector: Detector, size: tuple[int, int]) -> None:
        """Take a detector in evaluation mode."""
        super().__init__()
        self.preprocessor, self.network = detector.preprocessor, detector.network
        self.post = detector.postprocessor
        self.register_buffer("sizes", torch.tensor([size]), persistent=False)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return float32 outputs of pixels float32 [1, H, W, 3] in 0..255.

        Returns:
            Boxes [1, D, 4] as ymin, xmin, ymax, xmax in 0..1, classes from 0 [1, D], scores [1, D], their number [1];
            if it learns keypoints, these [1, D, P, 2] as y, x in 0..1, and their scores [1, D, P]; then what the gate
            compares: cells of detections [1, D], boxes in cells [1, D, 4] if boxes are learned, and of all cells boxes
            [1, A, 4], xyxy in pixels of the input, and scores [1, A, C].
        """
        inputs = self.preprocessor.normalize(images.permute(0, 3, 1, 2), self.sizes).contiguous()
        predictions = self.network(inputs, self.sizes)
        raw = self.post.decode(predictions)
        outputs = named_outputs(inputs, raw, self.post.select(predictions, raw, self.sizes), self.sizes)
        outputs["detection_classes"] = outputs["detection_classes"] - 1
        outputs |= {"raw_boxes": raw.boxes, "raw_scores": raw.scores}
        return tuple(outputs[name] for name in (*OUTPUTS, *KEYPOINT_OUTPUTS, *KEPT) if name in outputs)


def whole_program(
    detector: Detector, size: tuple[int, int]
) -> tuple[torch.export.ExportedProgram, tuple[str, ...], tuple[str, ...]]:
    """Return a detector as a program, the names of its outputs, and of those after them that only the gate reads.

    Raises:
        ExportError: If it is a CenterNet that learns more than boxes and keypoints, or if it suppresses.
    """
    post = cast(WholePostprocessor, detector.postprocessor)
    if not is_whole(detector):
        raise TypeError(f"expected a detector without anchors, found {type(post).__name__}")
    if post.nms is not None:
        raise ExportError("litert: post_processing: of a detector without anchors only without; use --format onnx")
    network = LiteDetector(detector, size).eval()
    example = torch.zeros(1, *size, detector.image_channels)
    with torch.no_grad(), quiet():
        named, kept = post.lite_outputs(network.network(example.permute(0, 3, 1, 2), network.sizes))
        program = torch.export.export(network, (example,), strict=False).run_decompositions()
    return program, named, kept
