"""Names of variables where no recording holds them: against what TensorFlow's sources and publications say."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import boxwright as bw
from boxwright.config.load import parse_message
from boxwright.families.two_stage.inception_resnet_v2 import NASNET, NASNET_SETTINGS
from boxwright.nn.backbones.cells import (
    PNASNET,
    PNASNET_SETTINGS,
    CellLayout,
    CellNetwork,
    CellSettings,
    JoinedCells,
    LaterCells,
)
from boxwright.nn.network import Network
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.weights.export_weights import write_tensorflow_checkpoint
from boxwright.weights.tensorflow.variables import from_tensorflow, parameter_names, tf1_variables, tf2_variables
from tests.center_nets import CENTER_NET
from tests.conftest import SMALL_MODEL
from tests.two_stage_models import ONE_MAP

# An SSDLite of 90 classes, as TF's own configurations have it.
LITE = """
ssd {{
  num_classes: 90
  image_resizer {{ fixed_shape_resizer {{ height: 320 width: 320 }} }}
  feature_extractor {{
    type: "{kind}"
    use_depthwise: true
    override_base_feature_extractor_hyperparams: true
    {extra}
    conv_hyperparams {{ activation: RELU_6 batch_norm {{ scale: true }} }}
  }}
  box_coder {{ faster_rcnn_box_coder {{ }} }}
  matcher {{ argmax_matcher {{ }} }}
  similarity_calculator {{ iou_similarity {{ }} }}
  {predictor}
  {anchors}
  post_processing {{ batch_non_max_suppression {{ }} }}
  loss {{
    classification_loss {{ weighted_sigmoid_focal {{ }} }}
    localization_loss {{ weighted_smooth_l1 {{ }} }}
  }}
}}
"""
CONVOLUTIONAL = """
box_predictor { convolutional_box_predictor { use_depthwise: true kernel_size: 3 conv_hyperparams {
  batch_norm { scale: true } } } }
"""
ANCHORS = "anchor_generator { ssd_anchor_generator { num_layers: 6 aspect_ratios: [1.0, 2.0, 0.5, 3.0, 0.3333] } }"
SHARED = """
box_predictor { weight_shared_convolutional_box_predictor { depth: 64 num_layers_before_predictor: 4 kernel_size: 3
  use_depthwise: true share_prediction_tower: true conv_hyperparams { batch_norm { scale: true } } } }
"""
MULTISCALE = "anchor_generator { multiscale_anchor_generator { min_level: 3 max_level: 6 scales_per_octave: 3 aspect_ratios: [1.0, 2.0, 0.5] } }"
# Type → numbers in all variables, statistics of normalization among them. The MobileDets' (4.21, 7.16, 4.20 and 13.11
# million) and MnasFPN's (2.5) are published with TF's configurations; the others follow from its sources' tables.
SIZES = {
    "ssd_mobiledet_cpu": 4_205_423,
    "ssd_mobiledet_dsp": 7_159_343,
    "ssd_mobiledet_edgetpu": 4_196_095,
    "ssd_mobiledet_gpu": 13_109_151,
    "ssd_mobilenet_v3_large": 3_281_199,
    "ssd_mobilenet_edgetpu": 3_905_055,
    "ssd_mobilenet_v2_mnasfpn": 2_503_047,
}


def network(text: str) -> Network:
    with torch.device("meta"):
        return build_detector(parse_message(text, m.DetectionModel)).network


@pytest.mark.slow_except("ssd_mobiledet_gpu")
@pytest.mark.parametrize("kind", SIZES)
def test_sizes_of_networks(kind: str) -> None:
    pyramid = "mnasfpn" in kind
    extra = "fpn { min_level: 3 max_level: 6 additional_layer_depth: 48 }" if pyramid else ""
    predictor, anchors = (SHARED, MULTISCALE) if pyramid else (CONVOLUTIONAL, ANCHORS)
    built = network(LITE.format(kind=kind, extra=extra, predictor=predictor, anchors=anchors))
    variables = tf1_variables(built)
    assert not variables.unnamed
    keys = [variable.key for variable in variables.named.values()]
    assert len(set(keys)) == len(keys)
    state = built.state_dict()
    assert set(variables.named) == {name for name in state if not name.endswith("num_batches_tracked")}
    assert sum(state[name].numel() for name in variables.named) == SIZES[kind]


# Of what is not normalized a gain, as TF-Slim's classifiers learn none: (numbers, variables), statistics among them.
CLASSIFIERS = {
    "inception_v3": ({}, 21_802_784, 376),
    "inception_resnet_v2": ({"padding": "valid"}, 54_336_736, 896),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers_of_slim(name: str) -> None:
    """The totals of TF-Slim's own tests; 896 variables are also those of TF's Keras Inception-ResNet v2."""
    from boxwright.families.two_stage.inception_resnet_v2 import inception_resnet_v2
    from boxwright.nn.backbones.inception import INCEPTION_V3, Inception
    from boxwright.nn.batch_norm import BatchNormSettings
    from boxwright.nn.layers import ConvSettings

    options, numbers, variables = CLASSIFIERS[name]
    layout = INCEPTION_V3 if name == "inception_v3" else inception_resnet_v2(**options)  # type: ignore[arg-type]
    last = "Mixed_7c" if name == "inception_v3" else "Conv2d_7b_1x1"
    with torch.device("meta"):
        backbone = Inception(layout, ConvSettings(norm=BatchNormSettings(scale=False)), taps=[last])
        (features,) = backbone(torch.zeros(1, 3, 299, 299))
    fixed = {f"{n}.weight" for n, m in backbone.named_modules() if isinstance(m, torch.nn.BatchNorm2d)}
    state = {n: v for n, v in backbone.state_dict().items() if n not in fixed and "num_batches" not in n}
    assert (sum(value.numel() for value in state.values()), len(state)) == (numbers, variables)
    assert features.shape == (1, 2048 if name == "inception_v3" else 1536, 8, 8)


@pytest.mark.slow
@pytest.mark.parametrize(("stride", "size"), [(2, 19), (1, 38)])
def test_inception_resnet_for_two_stages(stride: int, size: int) -> None:
    """Aligned with pixels, a map of stride 16 or, dilated, of stride 8; names as TF-Slim's scopes."""
    from boxwright.families.two_stage.inception_resnet_v2 import inception_resnet_v2
    from boxwright.nn.backbones.inception import Inception
    from boxwright.nn.layers import ConvSettings
    from boxwright.nn.tensorflow_names.tf1 import by_module

    with torch.device("meta"):
        layout = inception_resnet_v2(middle_stride=stride)
        backbone = Inception(layout, ConvSettings(), taps=["Repeat_1/block17_20"])
        (features,) = backbone(torch.zeros(1, 3, 299, 299))
    assert features.shape == (1, 1088, size, size)
    scopes = {path for _, path in by_module(backbone, "InceptionResnetV2")}
    assert scopes >= {
        "InceptionResnetV2/Mixed_5b/Branch_0/Conv2d_1x1",
        "InceptionResnetV2/Repeat/block35_10/Conv2d_1x1",
        "InceptionResnetV2/Repeat_1/block17_20/Branch_1/Conv2d_0c_7x1/BatchNorm",
    }


def test_pnasnet() -> None:
    """Its backbone learns 81,736,668 numbers: with the classifier of 4320 × 1001 those of the paper, 86.1 million."""
    text = LITE.format(kind="ssd_pnasnet", extra="", predictor=CONVOLUTIONAL, anchors=ANCHORS)
    own = text.replace("override_base_feature_extractor_hyperparams: true", "")
    built, overridden = network(own), network(text.replace("scale: true", "scale: true epsilon: 0.5", 1))
    for one, epsilon in ((built, 0.001), (overridden, 0.5)):
        norms = [module for module in one.modules() if isinstance(module, torch.nn.BatchNorm2d)]
        assert epsilon in {norm.eps for norm in norms}
    learnt = {name: p.numel() for name, p in built.named_parameters() if p.requires_grad}
    assert sum(count for name, count in learnt.items() if name.startswith("backbone.")) == 81_736_668
    variables = tf1_variables(built)
    assert not variables.unnamed
    assert set(variables.named) == {name for name in built.state_dict() if not name.endswith("num_batches_tracked")}
    keys = {variable.key for variable in variables.named.values()}
    assert keys >= {
        "FeatureExtractor/conv0/weights",
        "FeatureExtractor/conv0_bn/gamma",
        "FeatureExtractor/cell_stem_0/comb_iter_0/right/1x1/weights",
        "FeatureExtractor/cell_stem_1/path1_conv/weights",
        "FeatureExtractor/cell_stem_1/final_path_bn/beta",
        "FeatureExtractor/cell_4/prev_1x1/weights",
        "FeatureExtractor/cell_4/comb_iter_4/right/bn_1/moving_mean",
        "FeatureExtractor/cell_11/comb_iter_1/left/separable_7x7_2/pointwise_weights",
        "FeatureExtractor/cell_11/comb_iter_1/left/bn_sep_7x7_1/gamma",
        "FeatureExtractor/SSD_feature_maps/Cell_11_1_Conv2d_2_1x1_256/weights",
    }
    # Of a classifier's variables the averages are taken, as TF does of NASNet and PNASNet alone.
    averaged = "conv0/weights/ExponentialMovingAverage"
    classifier = dict.fromkeys(("conv0/weights", averaged), np.zeros((3, 3, 3, 96), np.float32))
    assert list(from_tensorflow(built, classifier).keys.values()) == [averaged]


def learnt_of(layout: CellLayout, settings: CellSettings, last: tuple[str, str]) -> int:
    with torch.device("meta"):
        first = JoinedCells(CellNetwork(layout, settings, taps=last))
        second = LaterCells(layout, settings, first)
    return sum(parameter.numel() for half in (first, second) for parameter in half.parameters())


@pytest.mark.slow
def test_halves_of_nasnet_and_pnasnet() -> None:
    """With a classifier of 1000 classes both halves learn the numbers of the papers: 88.9 and 86.1 million."""
    found = learnt_of(NASNET, NASNET_SETTINGS, ("cell_10", "cell_11"))
    assert found + 4032 * 1000 + 1000 == 88_753_150
    assert learnt_of(PNASNET, PNASNET_SETTINGS, ("cell_6", "cell_7")) == 81_736_668


def test_names_of_both_halves_of_nasnet() -> None:
    with torch.device("meta"):
        built = build_detector(parse_message(ONE_MAP.replace("resnet50_keras", "nas"), m.DetectionModel)).network
    keys = {variable.key for variable in tf1_variables(built).named.values()}
    assert {f"{half}/{cell}/1x1/weights" for half, cell in (
        ("FirstStageFeatureExtractor", "cell_stem_0"),
        ("FirstStageFeatureExtractor", "cell_11"),
        ("SecondStageFeatureExtractor", "cell_12"),
        ("SecondStageFeatureExtractor", "cell_17"),
    )} <= keys  # fmt: skip
    assert "FirstStageFeatureExtractor/cell_12/1x1/weights" not in keys


def test_tail_of_inception_resnet_v2() -> None:
    """TF1 numbers the blocks of the second half from the start again, unlike its classifier."""
    model = parse_message(ONE_MAP.replace("resnet50_keras", "inception_resnet_v2"), m.DetectionModel)
    with torch.device("meta"):
        built = build_detector(model).network
    keys = {variable.key for variable in tf1_variables(built).named.values()}
    tail = "SecondStageFeatureExtractor/InceptionResnetV2"
    assert keys >= {
        f"{tail}/Mixed_7a/Branch_2/Conv2d_1a_3x3/weights",
        f"{tail}/Repeat/block8_9/Branch_1/Conv2d_0b_1x3/BatchNorm/beta",
        f"{tail}/Block8/Conv2d_1x1/biases",
        f"{tail}/Conv2d_7b_1x1/weights",
        "FirstStageFeatureExtractor/InceptionResnetV2/Repeat_1/block17_20/Conv2d_1x1/weights",
    }
    name = f"{tail}/Repeat/block8_9/Conv2d_1x1/weights"
    classifier = {"InceptionResnetV2/Repeat_2/block8_9/Conv2d_1x1/weights": np.zeros((1, 1, 448, 2080), np.float32)}
    (restored,) = from_tensorflow(built, classifier).keys
    assert tf1_variables(built).named[restored].key == name


@pytest.mark.parametrize(
    ("kind", "some"),
    [
        (
            "ssd_mobilenet_v1_fpn",
            (
                "FeatureExtractor/MobilenetV1/fpn/projection_3/biases",
                "FeatureExtractor/MobilenetV1/fpn/smoothing_2/BatchNorm/gamma",
                "FeatureExtractor/MobilenetV1/fpn/smoothing_1/pointwise_weights",
                "WeightSharedConvolutionalBoxPredictor/PredictionTower/conv2d_0/BatchNorm/feature_2/moving_mean",
                "WeightSharedConvolutionalBoxPredictor/ClassPredictor/depthwise_weights",
            ),
        ),
        (
            "ssd_resnet50_v1_fpn",
            (
                "FeatureExtractor/resnet_v1_50/conv1/weights",
                "FeatureExtractor/resnet_v1_50/block2/unit_1/bottleneck_v1/shortcut/BatchNorm/beta",
                "FeatureExtractor/resnet_v1_50/block4/unit_3/bottleneck_v1/conv3/weights",
                "FeatureExtractor/resnet_v1_50/fpn/smoothing_1/weights",
            ),
        ),
        ("ssd_mobilenet_v2_fpn", ("FeatureExtractor/MobilenetV2/fpn/projection_1/weights",)),
        ("ssd_resnet50_v1_ppn", ("FeatureExtractor/resnet_v1_50/Base_Conv2d_1x1_1024/BatchNorm/gamma",)),
    ],
)
def test_some_names(kind: str, some: tuple[str, ...]) -> None:
    built = network(
        SMALL_MODEL.replace("ssd_mobilenet_v2_fpn_keras", kind)
        .removeprefix("\nmodel {")[:-2]
        .replace(
            "fpn { min_level: 3 max_level: 5 additional_layer_depth: 32 }",
            "num_layers: 3" if "ppn" in kind else "fpn { min_level: 3 max_level: 5 additional_layer_depth: 32 }",
        )
    )
    variables = tf1_variables(built)
    assert not variables.unnamed
    assert set(some) <= {variable.key for variable in variables.named.values()}
    assert set(variables.named) == {name for name in built.state_dict() if not name.endswith("num_batches_tracked")}


@pytest.mark.parametrize(
    ("text", "within"),
    [
        (
            SMALL_MODEL.replace("ssd_mobilenet_v2_fpn_keras", "ssd_resnet50_v1_fpn_keras")
            .replace("      depth_multiplier: 0.25\n      min_depth: 8\n      use_depthwise: true\n", "")
            .removeprefix("\nmodel {")[:-2],
            "classification_backbone",
        ),
        (CENTER_NET.replace('"mobilenet_v2_fpn" depth_multiplier: 0.1', '"resnet_v1_50_fpn"'), "_base_model"),
    ],
    ids=["ssd", "center_net"],
)
def test_a_resnets_layers_are_numbered(text: str, within: str) -> None:
    """ResNet-50 has 53 convolutions with its projections, each of which is normalized: 106 layers with weights."""
    variables = tf2_variables(network(text))
    assert not variables.unnamed
    root = f"model/_feature_extractor/{within}/layer_with_weights-"
    layers = [variable.key.removeprefix(root) for variable in variables.named.values() if variable.key.startswith(root)]
    assert {int(layer.partition("/")[0]) for layer in layers} == set(range(106))
    assert len(layers) == 53 * (2 if within == "_base_model" else 1) + 53 * 4
    assert "0/kernel/.ATTRIBUTES/VARIABLE_VALUE" in layers


def test_extra_levels_of_a_pyramid() -> None:
    text = SMALL_MODEL.replace("max_level: 5", "max_level: 7").removeprefix("\nmodel {")[:-2]
    wanted = {
        "ssd_mobilenet_v1_fpn": "MobilenetV1/fpn/bottom_up_Conv2d_15/",
        "ssd_mobilenet_v2_fpn": "MobilenetV2/fpn/bottom_up_Conv2d_21/",
        "ssd_resnet101_v1_fpn": "resnet_v1_101/fpn/bottom_up_block6/",
    }
    for kind, name in wanted.items():
        named = tf1_variables(network(text.replace("ssd_mobilenet_v2_fpn_keras", kind))).named
        assert sum(f"FeatureExtractor/{name}" in variable.key for variable in named.values()) == (
            5 if "resnet" in kind else 6
        ), kind


def test_pyramids_of_the_two_are_not_taken_for_each_other() -> None:
    """What they hand down differs, so that weights of one would be wrong in the other; the rest has names."""
    text = SMALL_MODEL.removeprefix("\nmodel {")[:-2]
    keras, slim = network(text), network(text.replace("_fpn_keras", "_fpn"))
    assert not tf2_variables(keras).unnamed
    assert not tf1_variables(slim).unnamed
    assert set(tf1_variables(keras).unnamed) == set(tf2_variables(slim).unnamed) == {"neck"}


@pytest.mark.slow
def test_a_slim_classifier_starts_a_detector_of_either() -> None:
    text = SMALL_MODEL.replace("use_depthwise: true\n", "use_depthwise: false\n", 1)
    slim = bw.build_detector(parse_message(text.replace("_fpn_keras", "_fpn"), bw.Pipeline))
    backbone = {
        variable.key.removeprefix("FeatureExtractor/"): variable.to_theirs(slim.network.state_dict()[name].numpy())
        for name, variable in tf1_variables(slim.network).named.items()
        if name.startswith("backbone.")
    }
    backbone["MobilenetV2/Logits/Conv2d_1c_1x1/weights"] = np.zeros((1, 1, 1280, 1001), np.float32)
    keras = bw.build_detector(parse_message(text, bw.Pipeline))
    report = bw.load_weights(keras, backbone, "classification")
    assert set(report.restored.values()) == set(backbone) - {"MobilenetV2/Logits/Conv2d_1c_1x1/weights"}
    assert list(report.unused.values()) == ["of the image classifier, beyond what the detector computes"]
    with pytest.raises(bw.CheckpointError, match="no TF1 names are known for a pyramid that passes down smoothed maps"):
        bw.load_weights(keras, {f"FeatureExtractor/{name}": array for name, array in backbone.items()}, "detection")


def test_patterns_know_tf1s_names() -> None:
    names = parameter_names(network(SMALL_MODEL.replace("_fpn_keras", "_fpn").removeprefix("\nmodel {")[:-2]))
    assert "FeatureExtractor/MobilenetV2/Conv/weights" in names["backbone.stem.0.weight"]
    assert "WeightSharedConvolutionalBoxPredictor/BoxPredictor/biases" in names["head.boxes.1.bias"]


def test_a_network_of_neither() -> None:
    from tests.nn.test_detectors import config

    detector = bw.build_detector(config("timm/test_resnet.r160_in1k"))
    assert tf1_variables(detector.network).unnamed["backbone"] == "no TF1 names are known for a TimmBackbone"
    with pytest.raises(bw.CheckpointError, match="no TF2 names are known for a TimmBackbone"):
        write_tensorflow_checkpoint(detector, "nowhere/ckpt-1")
