"""Detectors for SAHI, which slices images, detects in the slices and joins what it finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sahi.models.base import DetectionModel
from sahi.prediction import ObjectPrediction
from sahi.utils.cv import get_coco_segmentation_from_bool_mask

from boxwright.api.model import Model, load
from boxwright.api.result import Result


class SahiModel(DetectionModel):
    """A detection model for SAHI's functions: `SahiModel("model")`, with whatever `boxwright.load` opens as its path.

    SAHI's own arguments follow by name: confidence_threshold, device, category_remapping; `model` takes a
    `boxwright.Model` that is already open. Categories have the detector's labels, from 0, as ids.
    """

    def load_model(self) -> None:
        """Open the model at `model_path`."""
        self.set_model(load(self.model_path or "", device=str(self.device)))

    def set_model(self, model: Model, **kwargs: Any) -> None:
        """Take a model that is open."""
        self.model = model
        self.category_mapping = {str(label): name for label, name in enumerate(model.names)}

    def perform_inference(self, image: NDArray[np.uint8]) -> None:
        """Detect in a slice, [H, W, 3] in RGB, and keep the result for the next call."""
        self._original_predictions = [self.model(image, min_score=self.confidence_threshold)]

    def _create_object_prediction_list_from_original_predictions(
        self,
        shift_amount_list: Any = None,
        full_shape_list: Any = None,
    ) -> None:
        shifts = _per_image(shift_amount_list) or [[0, 0]]
        shapes = _per_image(full_shape_list) or [None]
        results = zip(self._original_predictions, shifts, shapes, strict=True)
        self._object_prediction_list_per_image = [_predictions(*image) for image in results]


def _per_image(values: Any) -> Any:
    """Return values for each image; SAHI gives those of a single one without a list around them."""
    return [values] if values and not isinstance(values[0], Sequence) else values


def _predictions(result: Result, shift: Sequence[int], shape: Sequence[int] | None) -> list[ObjectPrediction]:
    """Return a slice's objects with its place in the whole image, whose (height, width) is `shape`."""
    masks = result.masks
    predictions = []
    for number, (box, score, name) in enumerate(result):
        mask = None if masks is None else get_coco_segmentation_from_bool_mask(masks[number].astype(bool))
        if mask == []:  # smaller than a pixel: SAHI refuses an empty outline
            continue
        predictions.append(
            ObjectPrediction(
                bbox=None if mask else box.tolist(),
                segmentation=mask,
                category_id=int(result.labels[number]),
                category_name=name,
                score=float(score),
                shift_amount=list(shift),
                full_shape=None if shape is None else list(shape),
            )
        )
    return predictions
