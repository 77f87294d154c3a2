"""A whole detector as one graph: pictures in, TensorFlow's named outputs out (its `exporter_lib_v2`).

Between preprocessing and outputs, no tensor's shape depends on data.

Dimensions: B batch, H W image, D detections (padded), A anchors or proposals, C columns of the class head, P keypoints,
h w mask.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from boxwright.exporters.resizing import ResizedBatch, resizing
from boxwright.nn.detector import Detector
from boxwright.types import PaddedDetections, RawDetections
from boxwright.types.detection_outputs import outputs_of
from boxwright.types.detections import normalized

INPUT = "input_tensor"
PREPROCESSED = "preprocessed_inputs"


class DetectionGraph(nn.Module):
    """Detects in a batch of pictures of one size."""

    def __init__(self, detector: Detector) -> None:
        """Take a detector in evaluation mode with laid anchors; ExportError if its resizer cannot be in a graph."""
        super().__init__()
        self.resize = resizing(detector.preprocessor.resizer)
        self.preprocessor, self.network, self.postprocessor = (
            detector.preprocessor,
            detector.network,
            detector.postprocessor,
        )

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Return TensorFlow's outputs, all float32, and `PREPROCESSED`, the network's input.

        Args:
            images: uint8 or float32 [B, H, W, 3] in 0..255; of more channels if the detector takes them.

        Returns:
            `detection_boxes` [B, D, 4] as ymin, xmin, ymax, xmax in 0..1 of the picture; `detection_scores`,
            `detection_classes` (from 1; 1 where padded, as in TF) and `detection_anchor_indices` [B, D];
            `num_detections` [B]; `raw_detection_boxes` [B, A, 4] in 0..1 of the network's input, not clipped (those of
            regions: of the picture, clipped), and `raw_detection_scores` [B, A, C]; those of `DETECTION_OUTPUTS` that
            the detector predicts; and `detections_complete` [B], 0 if candidates that suppression ignored could have
            changed the result.
        """
        resized: ResizedBatch = self.resize(images)
        inputs = self.preprocessor.normalize(resized.pixels.permute(0, 3, 1, 2), resized.true_sizes)
        # Contiguous: a program keeps its example's strides, and those of a batch of one differ.
        return self.outputs(inputs.contiguous(), resized.true_sizes)

    def outputs(self, inputs: Tensor, true_sizes: Tensor) -> dict[str, Tensor]:
        """Return the same as `forward`, for preprocessed pictures.

        Args:
            inputs: float32 [B, C, H', W'].
            true_sizes: int64 [B, 2]; each (height, width) without padding.
        """
        predictions = self.network(inputs, true_sizes)
        raw = self.postprocessor.decode(predictions)
        detections = self.postprocessor.select(predictions, raw, true_sizes)
        return named_outputs(inputs, raw, detections, true_sizes)


def named_outputs(
    inputs: Tensor, raw: RawDetections, detections: PaddedDetections, true_sizes: Tensor
) -> dict[str, Tensor]:
    """Return TensorFlow's outputs by name, float32; as `DetectionGraph.forward` describes them.

    Args:
        true_sizes: int64 [B, 2]; each input's (height, width) without padding.
    """
    outputs = {PREPROCESSED: inputs, **_detections(detections, true_sizes), **raw.to_tf(true_sizes)}
    return {name: value.to(torch.float32) for name, value in outputs.items()}


def _detections(detections: PaddedDetections, true_sizes: Tensor) -> dict[str, Tensor]:
    valid = detections.valid
    outputs = {
        "detection_boxes": normalized(detections.boxes, true_sizes),
        "detection_scores": detections.scores,
        "detection_classes": detections.labels + 1,
        "num_detections": valid.sum(1),
        "detection_anchor_indices": detections.anchors,
    }
    # Rows of padding are 0 in these outputs, as in TF's.
    more = outputs_of(detections, true_sizes[:, None, None].to(detections.boxes))
    outputs |= {name: values * valid.view(*valid.shape, *[1] * (values.ndim - 2)) for name, values in more.items()}
    if detections.complete is not None:
        outputs["detections_complete"] = detections.complete
    return outputs
