"""What detectors may predict of each object besides its box, score and class, and TensorFlow's outputs for it.

A field has the same name in `PaddedDetections` and `Detections`. Values are NumPy's arrays or PyTorch's tensors.

Dimensions: D detections, P keypoints, C channels or columns of the class head, h w mask, H W features, E embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any


class Frame(Enum):
    """How an output differs from its field."""

    SAME = auto()
    POINTS = auto()
    """x and y in pixels; y and x in 0..1 of the image."""
    BOXES = auto()
    """x_min, y_min, x_max, y_max in pixels; ymin, xmin, ymax, xmax in 0..1 of the image."""
    CORNERS = auto()
    """x_min, y_min, x_max, y_max; ymin, xmin, ymax, xmax."""
    CHANNELS = auto()
    """[C, H, W]; [H, W, C]."""


@dataclass(frozen=True)
class DetectionOutput:
    """A field and its output.

    Attributes:
        field: Its name in our types.
        output: Its name in TF's exported detectors, or ours in their style.
        meaning: The output of a batch, in words.
        dtype: The field's; outputs are float32.
    """

    field: str
    output: str
    meaning: str
    frame: Frame = Frame.SAME
    dtype: str = "float32"

    def of(self, values: Any, sizes: Any) -> Any:
        """Return a field's values as the output has them; `sizes` are (height, width), of a shape that broadcasts."""
        match self.frame:
            case Frame.POINTS:
                return values[..., [1, 0]] / sizes
            case Frame.BOXES:
                corners = values.reshape(*values.shape[:-1], 2, 2)
                return (corners[..., [1, 0]] / sizes).reshape(values.shape)
            case Frame.CORNERS:
                return values[..., [1, 0, 3, 2]]
            case Frame.CHANNELS:
                return values.swapaxes(-3, -2).swapaxes(-2, -1)
        return values

    def read(self, values: Any, sizes: Any) -> Any:
        """Return an output's values as the field has them; the opposite of `of`."""
        match self.frame:
            case Frame.POINTS:
                return (values * sizes)[..., [1, 0]]
            case Frame.BOXES:
                corners = values.reshape(*values.shape[:-1], 2, 2)
                return (corners * sizes)[..., [1, 0]].reshape(values.shape)
            case Frame.CORNERS:
                return values[..., [1, 0, 3, 2]]
            case Frame.CHANNELS:
                return values.swapaxes(-2, -1).swapaxes(-3, -2)
        return values


DETECTION_OUTPUTS = (
    DetectionOutput(
        "anchor_indices", "detection_anchor_indices", "float32 [batch, D]: the anchor of each", dtype="int64"
    ),
    DetectionOutput(
        "multiclass_scores",
        "detection_multiclass_scores",
        "float32 [batch, D, columns]: all scores of that anchor",
    ),
    DetectionOutput(
        "keypoints",
        "detection_keypoints",
        "float32 [batch, D, points, 2]: y, x in 0..1 of the picture",
        Frame.POINTS,
    ),
    DetectionOutput(
        "keypoint_scores",
        "detection_keypoint_scores",
        "float32 [batch, D, points] in 0..1; 0 where the object's class has no such point",
    ),
    DetectionOutput(
        "keypoint_depths",
        "detection_keypoint_depths",
        "float32 [batch, D, points]: in the unit of the groundtruth's",
    ),
    DetectionOutput(
        "masks",
        "detection_masks",
        "float32 [batch, D, h, w] in 0..1, within each box, or its mask box; with DensePose the number of a part",
    ),
    DetectionOutput(
        "mask_boxes",
        "detection_mask_boxes",
        "float32 [batch, D, 4]: ymin, xmin, ymax, xmax in 0..1 of the picture; what each mask covers, edge to edge",
        Frame.BOXES,
    ),
    DetectionOutput(
        "surface_parts",
        "detection_surface_parts",
        "float32 [batch, D, h, w]: that part's number alone; 0 for none",
        dtype="uint8",
    ),
    DetectionOutput(
        "surface_coordinates",
        "detection_surface_coords",
        "float32 [batch, D, h, w, 2]: v, u on that part",
    ),
    DetectionOutput(
        "temporal_offsets",
        "detection_temporal_offsets",
        "float32 [batch, D, 2]: y, x from the previous frame, in the groundtruth's unit",
    ),
    DetectionOutput(
        "cell_boxes",
        "detection_boxes_strided",
        "float32 [batch, D, 4]: ymin, xmin, ymax, xmax in cells of the network's last maps",
        Frame.CORNERS,
    ),
    DetectionOutput(
        "embeddings",
        "detection_embeddings",
        "float32 [batch, D, E] of length 1: nearer for the same individual than for others",
    ),
    DetectionOutput(
        "features",
        "detection_features",
        "float32 [batch, D, H, W, channels]: the second stage's features of the box",
        Frame.CHANNELS,
    ),
    DetectionOutput(
        "rpn_features",
        "cropped_rpn_box_features",
        "float32 [batch, D, H, W, channels]: the first stage's features, cropped to the box",
        Frame.CHANNELS,
    ),
)


def to_tf_outputs(detections: Any, sizes: Any) -> dict[str, Any]:
    """Return the outputs that detections have, by name, in TensorFlow's frame.

    Args:
        detections: `Detections` or `PaddedDetections`, of arrays or tensors.
        sizes: (height, width) of the images that points are in, of a shape that broadcasts with keypoints.

    Returns:
        An array or tensor for each field that is not None.
    """
    outputs = {
        entry.output: entry.of(values, sizes)
        for entry in DETECTION_OUTPUTS
        if (values := getattr(detections, entry.field, None)) is not None
    }
    parts = outputs.get("detection_surface_parts")
    if parts is not None and "detection_masks" in outputs:
        # TensorFlow writes a part's number where the mask of the class that has parts would be 1.
        outputs["detection_masks"] = outputs["detection_masks"] * (parts == 0) + parts * (parts > 0)
    return outputs


def from_tf_outputs(outputs: dict[str, Any], sizes: Any) -> dict[str, Any]:
    """Return the fields that outputs have, by name: the opposite of `to_tf_outputs`, on NumPy's arrays."""
    fields = {
        entry.field: entry.read(outputs[entry.output], sizes).astype(entry.dtype, copy=False)
        for entry in DETECTION_OUTPUTS
        if entry.output in outputs
    }
    parts = fields.get("surface_parts")
    if parts is not None and "masks" in fields:
        fields["masks"] = fields["masks"] * (parts == 0) + (parts > 0)
    return fields


# Outputs of a graph for LiteRT, in the order that readers of such files expect.
LITERT_OUTPUTS = ("detection_boxes", "detection_classes", "detection_scores", "num_detections")
# A CenterNet that learns keypoints has these as well, after the others.
LITERT_KEYPOINT_OUTPUTS = ("detection_keypoints", "detection_keypoint_scores")
# Tensors within such a graph that only its comparison with ours reads; the first are outputs in other formats.
LITERT_RAW = ("raw_boxes", "raw_scores")
LITERT_KEPT = ("detection_anchor_indices", "detection_boxes_strided", *LITERT_RAW)
LITERT_KEPT_WITHOUT_STRIDED = tuple(name for name in LITERT_KEPT if name != "detection_boxes_strided")
