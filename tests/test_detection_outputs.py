"""The table of what detectors predict of each object: every field has an output, and both ways agree."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import torch
from torch import Tensor

from boxwright.types import Detections, PaddedDetections
from boxwright.types.detection_outputs import DETECTION_OUTPUTS, from_tf_outputs, to_tf_outputs

# What each detection has, what the whole image has, and what is known of videos alone.
NOT_IN_TABLE = {"boxes", "scores", "labels", "image_size", "categories", "raw", "tracks"}
OF_A_BATCH = {"anchors", "valid", "complete"}


def names(kind: type) -> set[str]:
    return {one.name for one in fields(kind)}


def test_every_field_has_an_output() -> None:
    table = {one.field for one in DETECTION_OUTPUTS}
    assert names(Detections) - NOT_IN_TABLE == table
    assert names(PaddedDetections) - NOT_IN_TABLE - OF_A_BATCH == table - {"anchor_indices"}
    assert len({one.output for one in DETECTION_OUTPUTS}) == len(table)


def detections() -> Detections[Tensor]:
    """Two people of an image of 40×20 pixels, the second without parts."""
    parts = torch.zeros(2, 2, 2, dtype=torch.uint8)
    parts[0, 0] = torch.tensor([3, 24])
    return Detections(
        boxes=torch.tensor([[0.0, 0, 10, 20], [5, 5, 9, 9]]),
        scores=torch.tensor([0.9, 0.8]),
        labels=torch.tensor([0, 0]),
        image_size=(40, 20),
        keypoints=torch.tensor([[[5.0, 10]], [[20, 40]]]),
        masks=torch.tensor([[[1.0, 1], [0, 0]], [[0.25, 0.5], [0.75, 1]]]),
        mask_boxes=torch.tensor([[0.0, 0, 20, 40], [-5, 10, 5, 20]]),
        surface_parts=parts,
        surface_coordinates=torch.rand(2, 2, 2, 2),
        cell_boxes=torch.tensor([[1.0, 2, 3, 4], [5, 6, 7, 8]]),
        embeddings=torch.rand(2, 3),
        features=torch.arange(24.0).view(2, 3, 2, 2),
    )


def test_outputs_have_tensorflows_order() -> None:
    outputs = detections().to_tf()
    assert outputs["detection_keypoints"].tolist() == [[[0.25, 0.25]], [[1, 1]]]
    assert outputs["detection_boxes_strided"].tolist() == [[2, 1, 4, 3], [6, 5, 8, 7]]
    assert outputs["detection_mask_boxes"].tolist() == [[0, 0, 1, 1], [0.25, -0.25, 0.5, 0.25]]
    assert outputs["detection_masks"].tolist() == [[[3, 24], [0, 0]], [[0.25, 0.5], [0.75, 1]]]
    assert outputs["detection_features"].shape == (2, 2, 2, 3)
    assert outputs["detection_features"][1, 0, 1].tolist() == [13, 17, 21]
    assert {values.dtype for values in outputs.values()} == {np.dtype(np.float32)}
    assert "detection_keypoint_scores" not in outputs


def test_fields_are_read_as_they_were() -> None:
    found = detections()
    sizes = torch.tensor(found.image_size)
    read = from_tf_outputs(
        {name: values.numpy() for name, values in to_tf_outputs(found, sizes).items()}, sizes.numpy()
    )
    assert read.keys() == {one.field for one in DETECTION_OUTPUTS if getattr(found, one.field) is not None}
    for name, values in read.items():
        own = getattr(found, name).numpy()
        assert values.dtype == own.dtype, name
        np.testing.assert_allclose(values, own, rtol=1e-6, err_msg=name)
