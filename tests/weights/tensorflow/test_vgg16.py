"""TF-Slim's VGG-16 as the start of a detector: names, and the classifier's layers as SSD's authors subsample them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import boxwright as bw
from boxwright.config.load import parse_message
from boxwright.pipeline import messages as m
from boxwright.weights.tensorflow.bundle import write_bundle
from boxwright.weights.tensorflow.variables import parameter_names, tf1_variables, to_tensorflow
from tests.weights.tensorflow.test_first_formats import saved_slices

STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
DETECTORS = {
    "ssd_vgg16": """ssd { num_classes: 2 image_resizer { fixed_shape_resizer { height: 300 width: 300 } }
      feature_extractor { type: "ssd_vgg16" num_layers: 6 }
      anchor_generator { ssd_anchor_generator { num_layers: 6 aspect_ratios: 1.0 } }
      box_predictor { convolutional_box_predictor { kernel_size: 3 conv_hyperparams { } } }
      box_coder { faster_rcnn_box_coder { } } matcher { argmax_matcher { } } similarity_calculator { iou_similarity { } }
      loss { classification_loss { weighted_softmax { } } localization_loss { weighted_smooth_l1 { } } }
      post_processing { batch_non_max_suppression { } score_converter: SOFTMAX } }""",
    "refinedet_vgg16": """refinedet { num_classes: 2 anchor_refinement { } transfer_connection { }
      image_resizer { fixed_shape_resizer { height: 64 width: 64 } } feature_extractor { type: "refinedet_vgg16" } }""",
    "face": """refinedet { num_classes: 1 anchor_refinement { } transfer_connection { }
      image_resizer { fixed_shape_resizer { height: 64 width: 64 } }
      feature_extractor { type: "refinedet_vgg16" min_level: 2 } }""",
}


def detector_of(kind: str) -> bw.Detector:
    return bw.build_detector(parse_message(DETECTORS[kind], m.DetectionModel))


def slim_vgg16() -> dict[str, NDArray[Any]]:
    """Variables by the names, and of the shapes, of TF-Slim's checkpoint of 2016; large kernels are small numbers."""
    random = np.random.default_rng(0)
    arrays: dict[str, NDArray[Any]] = {}
    channels = 3

    def add(name: str, *shape: int) -> None:
        arrays[f"vgg_16/{name}/weights"] = random.standard_normal(shape, np.float32)
        arrays[f"vgg_16/{name}/biases"] = random.standard_normal(shape[-1:], np.float32)

    for stage, widths in enumerate(STAGES, start=1):
        for number, width in enumerate(widths, start=1):
            add(f"conv{stage}/conv{stage}_{number}", 3, 3, channels, width)
            channels = width
    # Half precision: 206 MB rather than 411.
    arrays["vgg_16/fc6/weights"] = random.random((7, 7, 512, 4096), np.float32).astype(np.float16)
    arrays["vgg_16/fc7/weights"] = random.random((1, 1, 4096, 4096), np.float32).astype(np.float16)
    arrays["vgg_16/fc8/weights"] = np.zeros((1, 1, 4096, 1000), np.float16)
    for name, width in (("fc6", 4096), ("fc7", 4096), ("fc8", 1000)):
        arrays[f"vgg_16/{name}/biases"] = random.standard_normal(width, np.float32)
    arrays["vgg_16/mean_rgb"] = np.array([123.68, 116.78, 103.94], np.float32)
    arrays["global_step"] = np.array(0, np.int64)
    return arrays


@pytest.fixture(scope="module")
def slim() -> dict[str, NDArray[Any]]:
    return slim_vgg16()


def check(detector: bw.Detector, report: bw.LoadReport, arrays: dict[str, NDArray[Any]]) -> None:
    """Compare with the checkpoint's values, picked by hand."""
    assert len(report.restored) == 2 * (13 + 2)
    assert {name for name in report.kept if name.startswith("backbone.")} == {
        name for name in detector.network.state_dict() if name.startswith("backbone.norms.")
    }
    assert report.unused == {
        "vgg_16/fc8/weights": "of the image classifier, beyond what the detector computes",
        "vgg_16/fc8/biases": "of the image classifier, beyond what the detector computes",
        "vgg_16/mean_rgb": "the preprocessor has its own",
        "global_step": "a counter",
    }
    state = {name: value.numpy() for name, value in detector.network.state_dict().items()}
    first, third = arrays["vgg_16/conv1/conv1_1/weights"], arrays["vgg_16/conv3/conv3_2/weights"]
    np.testing.assert_array_equal(state["backbone.stages.0.0.weight"], first.transpose(3, 2, 0, 1))
    np.testing.assert_array_equal(state["backbone.stages.2.2.weight"], third.transpose(3, 2, 0, 1))
    np.testing.assert_array_equal(state["backbone.stages.4.4.bias"], arrays["vgg_16/conv5/conv5_3/biases"])
    fc6, fc7 = arrays["vgg_16/fc6/weights"], arrays["vgg_16/fc7/weights"]
    assert state["backbone.converted.0.weight"].shape == (1024, 512, 3, 3)
    # Rows and columns 0, 3 and 6 of seven, and units 0, 4, 8 and so on of 4096; no inputs are left out of fc6.
    for unit, source in ((0, 0), (1, 4), (1023, 4092)):
        for channel in (0, 1, 511):
            wanted = [[fc6[y, x, channel, source] for x in (0, 3, 6)] for y in (0, 3, 6)]
            np.testing.assert_array_equal(state["backbone.converted.0.weight"][unit, channel], wanted)
    assert state["backbone.converted.0.bias"][5] == arrays["vgg_16/fc6/biases"][20]
    # fc7 sees the units of fc6 that are kept.
    assert state["backbone.converted.2.weight"].shape == (1024, 1024, 1, 1)
    assert state["backbone.converted.2.weight"][5, 7, 0, 0] == fc7[0, 0, 28, 20]
    assert state["backbone.converted.2.weight"][1023, 1023, 0, 0] == fc7[0, 0, 4092, 4092]
    assert state["backbone.converted.2.bias"][1023] == arrays["vgg_16/fc7/biases"][4092]


@pytest.mark.slow
@pytest.mark.parametrize("kind", DETECTORS)
def test_the_classifier_starts_a_detector(kind: str, slim: dict[str, NDArray[Any]]) -> None:
    detector = detector_of(kind)
    check(detector, bw.load_weights(detector, slim, scope="classification"), slim)


@pytest.mark.slow  # test_from_a_file_of_the_first_format reads one too
def test_from_a_file(slim: dict[str, NDArray[Any]], tmp_path: Path) -> None:
    path = write_bundle(tmp_path / "vgg_16.ckpt", slim, None)
    detector = detector_of("refinedet_vgg16")
    check(detector, bw.load_weights(detector, path, scope="classification"), slim)


@pytest.mark.slow
def test_from_a_file_of_the_first_format(slim: dict[str, NDArray[Any]], tmp_path: Path) -> None:
    """The format in which TF-Slim's archive has it. Dense layers are left out: their values are written one by one."""
    convolutions = {name: array for name, array in slim.items() if "/conv" in name}
    path = tmp_path / "vgg_16.ckpt"
    path.write_bytes(saved_slices(convolutions))
    detector = detector_of("refinedet_vgg16")
    with pytest.raises(bw.CheckpointError, match="4 of 30 tensors cannot be restored.*converted.0.weight: not in the"):
        bw.load_weights(detector, path, scope="classification")
    report = bw.load_weights(detector, path, scope="classification", min_share=0.8)
    assert set(report.restored.values()) == set(convolutions)


@pytest.mark.slow
def test_other_shapes_are_refused(slim: dict[str, NDArray[Any]]) -> None:
    """A thinner classifier is no VGG-16: nothing is guessed."""
    thin = slim | {"vgg_16/fc6/weights": np.zeros((7, 7, 512, 1000), np.float32)}
    with pytest.raises(bw.CheckpointError, match=r"converted.0.weight: shape \[1000, 512, 7, 7\] in the source"):
        bw.load_weights(detector_of("refinedet_vgg16"), thin, scope="classification")


@pytest.mark.slow
def test_there_and_back() -> None:
    """Names and layout of our own converted layers; no name for the rest of either detector."""
    for kind in ("ssd_vgg16", "refinedet_vgg16"):
        network = detector_of(kind).network
        variables = tf1_variables(network)
        state = network.state_dict()
        assert {name for name in state if name.startswith("backbone.")} - set(variables.named) == {
            name for name in state if ".norms." in name
        }
        arrays = {one.key: one.to_theirs(state[name].numpy()) for name, one in variables.named.items()}
        assert arrays["FeatureExtractor/vgg_16/conv1/conv1_2/weights"].shape == (3, 3, 64, 64)
        assert arrays["FeatureExtractor/vgg_16/fc6/weights"].shape == (3, 3, 512, 1024)
        other = detector_of(kind)
        bw.load_weights(other, arrays, scope="classification")
        again = other.network.state_dict()
        assert all(torch.equal(state[name], again[name]) for name in variables.named if name.startswith("backbone."))
        assert "neck" in variables.unnamed


@pytest.mark.slow
def test_patterns_know_slims_names() -> None:
    names = parameter_names(detector_of("refinedet_vgg16").network)
    assert "FeatureExtractor/vgg_16/conv1/conv1_1/weights" in names["backbone.stages.0.0.weight"]
    assert "FeatureExtractor/vgg_16/fc7/biases" in names["backbone.converted.2.bias"]


def test_what_tensorflow_has_not() -> None:
    """Heads with layers that TF's predictor lacks have no names there, of either version."""
    plain = """refinedet { num_classes: 1 image_resizer { fixed_shape_resizer { height: 64 width: 64 } }
      feature_extractor { type: "refinedet_mobilenet_v2" } MORE }"""
    normed = "conv_hyperparams { batch_norm { } } normalize_predictors: true"
    for more in (normed, "convolutional_body { depth: 8 }"):
        network = bw.build_detector(parse_message(plain.replace("MORE", more), m.DetectionModel)).network
        assert "a predictor with normalization" in tf1_variables(network).unnamed["head"]
        with pytest.raises(bw.CheckpointError, match="no TF2 names are known for a predictor with normalization"):
            to_tensorflow(network)
