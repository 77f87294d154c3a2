"""More networks than the recorded detectors: their variables' keys and shapes, and their raw outputs.

Each recording has the digest of TF's own list of "key [shape]" lines, so that names are judged by
TF and not by the table that is tested.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import numpy as np
import pytest
import torch

from boxwright.config.load import parse_message
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.weights.load_weights import load_weights
from boxwright.weights.tensorflow.variables import to_tensorflow
from tests.conftest import GOLDEN, assert_close, yxyx
from tests.golden.weights import uniform_stream, weight
from tests.parity.recordings import FOLDER, layers_beyond_last_tap, penalty_beyond_last_tap

WEIGHTS_ARE_LOADED = True

# Those shipped, where the folder that is named has none of its own.
PLACE = FOLDER if (FOLDER / "networks.json").is_file() else GOLDEN
PATH = PLACE / "networks.json"
CASES: list[dict[str, Any]] = json.loads(PATH.read_text()) if PATH.is_file() else []

# Channels and repeats of the last stage, and channels of the last convolution: 320, 1 and 1280, scaled.
_LAST_STAGE = {"b1": (320, 2, 1280), "b2": (352, 2, 1408), "b3": (384, 2, 1536)}


def test_the_shipped_folder_is_whole() -> None:
    if PLACE == GOLDEN:
        assert len(CASES) == 16


# Of the others some are those of whole detectors (tests/parity/test_models.py and test_tf1.py): MobileNetV1 and V2,
# EfficientDet. ResNet's names are in tests/weights/tensorflow/test_variable_names.py.
@pytest.mark.slow_except(
    "efficientdet_d2_attention",
    "mobilenet_v2_padded_colour",
    "mobilenet_v2_pad_to_multiple_explicit_padding",
    "weight_shared_head_of_uneven_levels",
    "convolutional_head_with_layers_before",
)
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
@torch.no_grad()
def test_network(case: dict[str, Any]) -> None:
    detector = build_detector(parse_message(case["model_text"], m.DetectionModel))
    ours, _ = to_tensorflow(detector.network)
    shapes = {key: array.shape for key, array in ours.items()}
    efficientnet = "efficientnet" in case["model_text"]
    if not efficientnet:  # TF's has its classifier's layers besides
        lines = "\n".join(f"{key} {list(shape)}" for key, shape in sorted(shapes.items()))
        assert hashlib.sha256(lines.encode()).hexdigest() == case["digest"]
        assert len(shapes) == case["variables"]
    load_weights(detector, {key: weight(key, shape) for key, shape in shapes.items()})
    image = np.floor(uniform_stream("image", 200 * 300 * 3) * 256).reshape(1, 200, 300, 3).astype(np.float32)
    inputs, _ = detector.preprocess(torch.from_numpy(image))
    predictions = detector.predict(inputs)
    height, width = inputs.shape[-2:]
    anchors = yxyx(predictions.anchors) / np.array([height, width, height, width], np.float32)
    arrays = np.load(PLACE / "networks.npz")
    for name, found in {
        "preprocessed": inputs.permute(0, 2, 3, 1).numpy(),
        "anchors": anchors,
        "box_encodings": predictions.box_codes.numpy(),
        "class_predictions_with_background": predictions.class_logits.numpy(),
    }.items():
        assert list(found.shape) == case["shapes"][name]
        step = max(found.size // 300, 1)
        assert_close(np.ascontiguousarray(found).reshape(-1)[::step], arrays[f"{case['name']}/{name}"], 1e-4, 1e-3)
    beyond = 0.0
    if efficientnet:
        number = re.search("efficientnet-(b[0-9])", case["model_text"])
        assert number is not None
        first = 1 + max(
            int(text) for text in re.findall("/_efficientnet/layer_with_weights-([0-9]+)/", " ".join(shapes))
        )
        others = layers_beyond_last_tap(first, *_LAST_STAGE[number[1]])
        beyond = penalty_beyond_last_tap({key: weight(key, shape) for key, shape in others.items()})
    assert_close(detector.regularization().item() + beyond, np.array(case["regularization"]), 1e-5, 1e-5)
