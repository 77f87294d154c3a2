"""Small detectors of every family, that find much in pictures of shapes: as trained ones do, and in no time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import boxwright as bw
from boxwright.config.load import parse_message
from boxwright.data.shapes import ShapesDataset
from boxwright.exporters.pictures import varied
from boxwright.pipeline import messages as m
from boxwright.types import Categories, Category
from tests.conftest import SMALL_MODEL
from tests.two_stage_models import FASTER_RCNN, MASK_RCNN, ONE_MAP, OPTIONS, PAPER_RCNN, PROPOSALS_ONLY, RFCN

CATEGORIES = Categories(tuple(Category(n, n + 1, name) for n, name in enumerate(("circle", "square", "star", "ring"))))
BODY = 'feature_extractor { type: "mobilenet_v2" depth_multiplier: 0.1 }'
SQUARE = (
    "image_resizer { keep_aspect_ratio_resizer { min_dimension: 96 max_dimension: 96 pad_to_max_dimension: true } }"
)
FIXED = "image_resizer { fixed_shape_resizer { height: 64 width: 128 } }"
NORMED = "conv_hyperparams { activation: RELU batch_norm { } }"
BIFPN = "bifpn { min_level: 3 max_level: 5 num_iterations: 2 num_filters: 16 }"
SSD = SMALL_MODEL[SMALL_MODEL.index("ssd {") : SMALL_MODEL.rindex("}")]
EFFICIENTDET = (
    SSD.replace("ssd_mobilenet_v2_fpn_keras", "ssd_efficientnet-b0_bifpn_keras")
    .replace("fpn { min_level: 3 max_level: 5 additional_layer_depth: 32 }", BIFPN)
    .replace("override_base_feature_extractor_hyperparams: true\n", "")
    .replace("depth_multiplier: 0.25\n      min_depth: 8\n      use_depthwise: true\n", "")
    .replace("image_resizer { fixed_shape_resizer { height: 64 width: 64 } }", SQUARE)
)
REFINEDET = f"""refinedet {{ num_classes: 4 {FIXED} feature_extractor {{ type: "refinedet_mobilenet_v2" depth_multiplier: 0.1
  {NORMED} }} anchor_refinement {{ }} transfer_connection {{ }} MORE }}"""
SRN = f"srn {{ num_classes: 4 {FIXED} depth: 16 {BODY} two_step_classification {{ }} two_step_regression {{ }} }}"
ALIGN_DET = (
    f"align_det {{ num_classes: 4 {SQUARE} depth: 16 num_layers_before_predictor: 1 {BODY} step {{ depth: 12 }} }}"
)
FEW_LAYERS = (
    SSD.replace("ssd_mobilenet_v2_fpn_keras", "timm/test_resnet.r160_in1k")
    .replace("override_base_feature_extractor_hyperparams: true\n", "")
    .replace("depth_multiplier: 0.25\n      min_depth: 8\n      use_depthwise: true\n", "")
    .replace("activation: RELU_6", "activation: RELU")
)
# With names in TensorFlow; fewer layers than its second version, and an activation that is one operator.
MOBILENET_V1 = SSD.replace("ssd_mobilenet_v2_fpn_keras", "ssd_mobilenet_v1_fpn_keras").replace("RELU_6", "RELU")


def with_few_layers(text: str) -> str:
    """Return a whole configuration of the small detector with the backbone of FEW_LAYERS."""
    parts = [(one.index("feature_extractor {"), one.index("anchor_generator {")) for one in (text, FEW_LAYERS)]
    (start, end), (first, last) = parts
    return text[:start] + FEW_LAYERS[first:last] + text[end:]


FAMILIES: dict[str, str] = {
    "ssd": SSD,
    "ssd, softmax": SSD.replace("score_converter: SIGMOID", "score_converter: SOFTMAX").replace(
        "encode_background_as_zeros: true", "encode_background_as_zeros: false"
    ),
    "ssd, class-agnostic": SSD.replace("iou_threshold: 0.5 max", "iou_threshold: 0.5 use_class_agnostic_nms: true max"),
    "ssd, soft": SSD.replace("iou_threshold: 0.5 max", "iou_threshold: 0.5 soft_nms_sigma: 0.5 max"),
    "ssd, grey": SSD.replace("width: 64 }", "width: 64 convert_to_grayscale: true }", 1),
    "ssd, keypoints": SSD.replace("faster_rcnn_box_coder { }", "keypoint_box_coder { num_keypoints: 2 }").replace(
        "depth: 32\n", "depth: 32 box_code_size: 8\n"
    ),
    "efficientdet": EFFICIENTDET,
    "refinedet": REFINEDET.replace("MORE", ""),
    "refinedet, lowered": REFINEDET.replace("MORE", "inference_preset: CAFFE_COCO"),
    "refinedet, aligned": REFINEDET.replace("MORE", "align_second_step: true"),
    "refinedet, variants": REFINEDET.replace("depth_multiplier", "min_level: 2 depth_multiplier").replace(
        "MORE",
        f"convolutional_body {{ num_layers: 2 depth: 16 }} {NORMED} normalize_predictors: true "
        "regularizer { l2_regularizer { weight: 0.001 } }",
    ),
    "srn": SRN,
    "align_det": ALIGN_DET,
    "faster_rcnn": FASTER_RCNN,
    "faster_rcnn, one map": ONE_MAP,
    "faster_rcnn, options": OPTIONS,
    "mask_rcnn": MASK_RCNN,
    "mask_rcnn, paper": PAPER_RCNN,
    "rfcn": RFCN,
    "proposals": PROPOSALS_ONLY,
}


def some_first(families: Iterable[str]) -> list[Any]:
    """Return families for a test: one of each kind of network, and the others for when there is more time."""
    kinds = ("ssd", "efficientdet", "refinedet", "srn", "align_det", "faster_rcnn", "mask_rcnn, paper")
    return [one if one in kinds else pytest.param(one, marks=pytest.mark.slow) for one in families]


def very_few_first(families: Iterable[str]) -> list[Any]:
    """Return families for a test that costs much in each: of one stage, of two steps, of two stages."""
    kinds = ("ssd", "refinedet", "mask_rcnn, paper")
    return [one if one in kinds else pytest.param(one, marks=pytest.mark.slow) for one in families]


def pictures(count: int = 6) -> list[NDArray[np.uint8]]:
    dataset = ShapesDataset(count, seed=3, size=(96, 128))
    return varied(lambda number: dataset[number].image, count)


def fresh(text: str, categories: Categories = CATEGORIES) -> bw.Detector:
    """Build a detector as its configuration starts it."""
    torch.manual_seed(0)
    return bw.build_detector(parse_message(text, m.DetectionModel), categories)


def build(text: str, categories: Categories = CATEGORIES) -> bw.Detector:
    """Build a detector whose statistics are of pictures and whose scores spread, as a trained one's."""
    return as_trained(fresh(text, categories), pictures())


def as_trained(detector: bw.Detector, images: list[NDArray[np.uint8]]) -> bw.Detector:
    """Give a fresh detector statistics of pictures, of which those of the first one's size are used, and other scores."""
    alike = [one for one in images if one.shape == images[0].shape]
    inputs, sizes = detector.preprocess(torch.from_numpy(np.stack(alike)))
    with torch.no_grad():
        detector.network.eval()
        norms = [one for one in detector.modules() if isinstance(one, torch.nn.BatchNorm2d)]
        momenta = [one.momentum for one in norms]
        for norm in norms:
            norm.train()
            norm.momentum = None  # whose statistics are those of all that was seen
        detector.predict(inputs, sizes)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            assert norm.num_batches_tracked is not None
            norm.num_batches_tracked.zero_()  # as of weights from TensorFlow, which counts none
        detector.eval()
        heads = [name for name in detector.network.parts.class_outputs if "mask" not in name]
        first = ["rpn.head.predict.classes"] if hasattr(detector.network, "rpn") else []
        for name in first + heads:
            _spread(detector, name, lambda: detector.predict(inputs, sizes))
    return detector


def _spread(detector: bw.Detector, name: str, look: Callable[[], object]) -> None:
    """Scale and shift the layers that predict classes until their logits spread about a few of them."""
    part = detector.network.get_submodule(name)
    layers = [one for one in part.modules() if isinstance(one, torch.nn.Conv2d | torch.nn.Linear)]
    last = layers if isinstance(part, torch.nn.ModuleList) else layers[-1:]
    seen: list[torch.Tensor] = []
    hooks = [one.register_forward_hook(lambda _, __, output: seen.append(output)) for one in last]
    look()
    for hook in hooks:
        hook.remove()
    spread = torch.cat([value.flatten() for value in seen]).std() if seen else torch.tensor(0.1)
    for layer in last:
        layer.weight *= 2.5 / float(spread)
        if layer.bias is not None:
            layer.bias.copy_(torch.linspace(-2.5, -1.5, len(layer.bias)))
