"""The recorded evaluations: the same images, the same numbers, under the same names."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from boxwright.base.errors import ConfigError
from boxwright.config.load import parse_message
from boxwright.evaluation.build import build_evaluation
from boxwright.evaluation.metrics.regions import ImageMasks
from boxwright.nn.ops.pasted_masks import encode_mask
from boxwright.pipeline.message import TrainEvalPipelineConfig as Pipeline
from boxwright.types import Array, Categories, Category, Detections, Sample
from tests.conftest import GOLDEN, found_objects, xyxy
from tests.parity.recordings import FOLDER, unsupported

MASKS_PATH = FOLDER / "metrics" / "coco_mask.json"
PATH = FOLDER / "metrics" / "expected.json"
EXPECTED: dict[str, Any] = json.loads(PATH.read_text()) if PATH.is_file() else {"metrics": {}, "categories": []}
BOUNDS = "recall_lower_bound: 0.2 recall_upper_bound: 0.6"


def test_the_shipped_folder_is_whole() -> None:
    if FOLDER == GOLDEN:
        assert len(EXPECTED["metrics"]) == 6


def images() -> list[tuple[Sample, Detections[Array]]]:
    arrays = np.load(FOLDER / "metrics" / "inputs.npz")
    numbers = sorted({int(name.split("/")[0]) for name in arrays.files})
    assert len(numbers) > 10
    rows = []
    for number in numbers:

        def read(name: str, number: int = number) -> Any:
            return arrays[f"{number}/{name}"]

        sample = Sample(
            np.zeros((1, 1, 3), np.uint8),
            xyxy(read("groundtruth_boxes")).numpy(),
            read("groundtruth_classes") - 1,
            difficult=read("groundtruth_difficult"),
            group_of=read("groundtruth_group_of"),
            is_crowd=read("groundtruth_is_crowd").astype(bool),
            # The recording was made with every class verified in every image.
            verified_labels=np.array([category["id"] - 1 for category in EXPECTED["categories"]]),
        )
        scores, labels = torch.from_numpy(read("detection_scores")), torch.from_numpy(read("detection_classes")) - 1
        rows.append((sample, found_objects(xyxy(read("detection_boxes")), scores, labels, (1, 1))))
    return rows


@pytest.mark.parametrize("name", sorted(EXPECTED["metrics"]))
def test_metrics(name: str) -> None:
    try:
        config = parse_message(f"eval_config {{ metrics_set: '{name}' {BOUNDS} }}", Pipeline)
        (make,) = build_evaluation(config).metrics
    except ConfigError as error:
        unsupported(f"metrics/{name}", error)
    metrics = make(Categories(tuple(Category(c["id"] - 1, c["id"], c["name"]) for c in EXPECTED["categories"])))
    for sample, detections in images():
        metrics.add(sample, detections)
    found, expected = metrics.compute().values, EXPECTED["metrics"][name]
    assert list(found) == list(expected)
    for key, value in expected.items():
        if value is None:
            assert math.isnan(found[key]), key
        else:
            assert found[key] == pytest.approx(value, abs=1e-9), key


def test_masks() -> None:
    """COCO's metrics of masks; TF's numbers of each class raise there."""
    if not MASKS_PATH.is_file():
        pytest.skip("the folder has no recorded metrics of masks")
    recorded = json.loads(MASKS_PATH.read_text())
    arrays = np.load(MASKS_PATH.with_suffix(".npz"))
    numbers = sorted({int(name.split("/")[0]) for name in arrays.files})
    assert len(numbers) == 12
    config = parse_message("eval_config { metrics_set: 'coco_mask_metrics' }", Pipeline)
    (make,) = build_evaluation(config).metrics
    metrics = make(Categories(tuple(Category(c["id"] - 1, c["id"], c["name"]) for c in recorded["categories"])))
    for number in numbers:

        def read(name: str, number: int = number) -> Any:
            return arrays[f"{number}/{name}"]

        sample = Sample(
            np.zeros((1, 1, 3), np.uint8),
            xyxy(read("groundtruth_boxes")).numpy(),
            read("groundtruth_classes") - 1,
            is_crowd=read("groundtruth_is_crowd"),
        )
        masks = read("detection_masks")
        scores, labels = torch.from_numpy(read("detection_scores")), torch.from_numpy(read("detection_classes")) - 1
        codes = [[encode_mask(m.astype(np.uint8)) for m in some] for some in (read("groundtruth_masks"), masks)]
        found = found_objects(torch.zeros(len(masks), 4), scores, labels, masks.shape[1:])
        metrics.add(sample, found, ImageMasks(*codes))
    expected = recorded["metrics"]["coco_mask_metrics"]
    result = metrics.compute().values
    assert list(result) == list(expected)
    for key, value in expected.items():
        assert result[key] == pytest.approx(value, abs=1e-9), key
