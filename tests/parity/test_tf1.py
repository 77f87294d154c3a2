"""Whole detectors of TensorFlow 1 against their recordings: names of variables, feature maps, predictions, detections."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from boxwright.base.errors import ConfigError
from boxwright.config.load import parse_message
from boxwright.nn.detector import Detector
from boxwright.nn.postprocessing.anchor import AnchorPostprocessor
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.types import AnchorPredictions
from boxwright.weights.load_weights import LoadReport, load_weights
from tests.conftest import GOLDEN, yxyx
from tests.golden.weights import weight
from tests.parity.recordings import (
    FOLDER,
    OUTPUTS,
    compare,
    compare_outputs,
    detections_as_tied,
    tf1_paths,
    unsupported,
)

WEIGHTS_ARE_LOADED = True

# Pooling pyramids read the map of stride 16; TF's graph has the backbone's last layers, too, which nothing reads.
_BEHIND_THE_MAP = re.compile(r"/resnet_v1_\d+/block4/|/MobilenetV1/Conv2d_1[23]_")


def test_the_shipped_folder_is_whole() -> None:
    if FOLDER == GOLDEN:
        assert len(tf1_paths()) == 4


@dataclass
class Recorded:
    """A recorded detector, rebuilt with the weights that its variables' names give."""

    detector: Detector
    report: LoadReport
    names: set[str]
    arrays: Any
    inputs: torch.Tensor
    sizes: torch.Tensor
    predictions: AnchorPredictions


# Of test_models.py's ResNet and, in part, of ssd_inception_v2_coco; of layers as those of MobileDet for CPUs, of the
# small MobileNetV3 and of MobileNetV1's pooling pyramid. PNASNet's names are in tests/weights/tensorflow/test_variable_names.py.
pytestmark = pytest.mark.slow_cases(
    "ssd_resnet50_v1_fpn_shared_box_predictor_640x640_coco14_sync",
    "ssd_inception_v3_pets",
    "ssd_pnasnet",
    "ssd_mobilenet_v1_coco",
    "ssd_resnet50_v1_ppn",
    "ssdlite_mobiledet_dsp_320x320_coco_sync_4x4",
    "ssdlite_mobiledet_edgetpu_320x320_coco_sync_4x4",
    "ssdlite_mobiledet_gpu_320x320_coco_sync_4x4",
    "ssdlite_mobilenet_v3_large_320x320_coco",
)


@pytest.fixture(scope="module", params=tf1_paths(), ids=lambda path: path.name)
def recorded(request: pytest.FixtureRequest) -> Recorded:
    path = request.param
    description = json.loads(path.with_name(f"{path.name}.json").read_text())
    try:
        detector = build_detector(parse_message(description["model_text"], m.DetectionModel))
    except ConfigError as error:
        unsupported(path.name, error)
    weights = {key: weight(key, tuple(shape), description["gain"]) for key, shape in description["variables"]}
    report = load_weights(detector, weights)
    arrays = np.load(path.with_name(f"{path.name}.npz"))
    inputs, sizes = detector.preprocess(torch.from_numpy(arrays["image"])[None])
    with torch.no_grad():
        return Recorded(detector, report, set(weights), arrays, inputs, sizes, detector.eval().predict(inputs))


def test_every_variable_has_its_name(recorded: Recorded) -> None:
    assert set(recorded.report.restored.values()) == recorded.names - set(recorded.report.unused)
    assert all(_BEHIND_THE_MAP.search(name) for name in recorded.report.unused)
    assert not recorded.report.kept


def test_preprocess(recorded: Recorded) -> None:
    compare(recorded.arrays, "preprocessed", recorded.inputs.permute(0, 2, 3, 1))
    assert recorded.sizes.tolist() == recorded.arrays["true_image_shapes"][:, :2].tolist()


def test_feature_maps(recorded: Recorded) -> None:
    maps = recorded.predictions.feature_maps
    count = len({name.split("@")[0] for name in recorded.arrays.files if name.startswith("feature_maps/")})
    assert len(maps) == count
    for level, features in enumerate(maps):
        name = f"feature_maps/{level}"
        # Of most detectors their values spread by some 0.06 only.
        whole = name in recorded.arrays.files
        spread = float(recorded.arrays[name].std() if whole else recorded.arrays[f"{name}@stats"][1])
        compare(recorded.arrays, name, features.permute(0, 2, 3, 1), max(1e-4 * spread, 1e-5), 1e-4)


def test_predict(recorded: Recorded) -> None:
    height, width = recorded.inputs.shape[-2:]
    scale = np.array([height, width, height, width], np.float32)
    anchors = yxyx(recorded.predictions.anchors) / scale
    compare(recorded.arrays, "predict/anchors", anchors, 1e-5, 1e-4)
    final = yxyx(recorded.predictions.final_anchors) / scale
    compare(recorded.arrays, "predict/final_anchors", final, 1e-5, 1e-4)
    compare(recorded.arrays, "predict/box_encodings", recorded.predictions.box_codes)
    compare(recorded.arrays, "predict/class_predictions_with_background", recorded.predictions.class_logits)


def test_detections(recorded: Recorded) -> None:
    """TF1's recordings hold no raw outputs."""
    post = recorded.detector.postprocessor
    assert isinstance(post, AnchorPostprocessor)
    found = detections_as_tied(recorded.arrays, "detect/", post, recorded.predictions, recorded.sizes)
    assert compare_outputs(recorded.arrays, "detect/", found) == len(OUTPUTS) - 2


def test_detect(recorded: Recorded) -> None:
    (found,) = recorded.detector.detect([recorded.arrays["image"]])
    exported = found.to_tf()
    assert exported["num_detections"] == recorded.arrays["detect/num_detections"][0]
    compare(recorded.arrays, "detect/detection_scores", exported["detection_scores"][None], 1e-4, 1e-3)
