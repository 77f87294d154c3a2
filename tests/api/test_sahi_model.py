"""SAHI's functions with a detector of ours."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

import boxwright as bw
from tests.api.models import small_run

pytest.importorskip("sahi")


@pytest.mark.slow
def test_slices_find_what_whole_pictures_show() -> None:
    from sahi.predict import get_prediction, get_sliced_prediction

    from boxwright.api.sahi_model import SahiModel

    run = small_run()
    model = SahiModel(str(run.onnx), confidence_threshold=0.5, device="cpu")
    picture = np.asarray(Image.open(run.picture).convert("RGB"))
    direct = bw.load(run.onnx)(picture, min_score=0.5)
    assert len(direct) > 0
    found = get_prediction(picture, model).object_prediction_list
    assert [one.category.name for one in found] == direct.names()
    np.testing.assert_allclose([one.bbox.to_xyxy() for one in found], direct.boxes, atol=1e-3)
    np.testing.assert_allclose([one.score.value for one in found], direct.scores, atol=1e-6)
    # The picture twice, side by side: each slice is the picture again, and its boxes move by its place.
    height, width = picture.shape[:2]
    sliced = get_sliced_prediction(
        np.concatenate([picture, picture], 1),
        model,
        slice_height=height,
        slice_width=width,
        overlap_height_ratio=0,
        overlap_width_ratio=0,
        perform_standard_pred=False,
        postprocess_type="NMS",
        postprocess_match_threshold=0.99,
        verbose=0,
    )
    boxes = sorted(tuple(one.bbox.to_xyxy()) for one in sliced.object_prediction_list)
    shifted = direct.boxes + np.array([width, 0, width, 0])
    expected = sorted(tuple(row) for row in np.concatenate([direct.boxes, shifted]).tolist())
    np.testing.assert_allclose(boxes, expected, atol=1e-3)
