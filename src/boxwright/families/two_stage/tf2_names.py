"""TF2's variable paths of the layers of a two-stage detector's parts.

The paths are those of `faster_rcnn_meta_arch.FasterRCNNMetaArch` built from Keras layers. The layers of each half of a
backbone are numbered from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from boxwright.families.two_stage.context_attention import AttentionBlock, ContextAttention
from boxwright.families.two_stage.network import FasterRCNN, RegionProposalHead
from boxwright.families.two_stage.second_stage import BoxClassifierHead
from boxwright.families.two_stage.third_stage import MaskHead, ResizeTo
from boxwright.nn.backbones.inception import Concatenated, Inception, ScaledResidual
from boxwright.nn.backbones.resnet_v1 import ResNetV1, ResNetV1Stage5
from boxwright.nn.heads.convolutional import ConvolutionalHead
from boxwright.nn.layers import Conv2d, Dense
from boxwright.nn.necks.fpn import FeaturePyramid, smoothed
from boxwright.nn.network import LastMap
from boxwright.nn.tensorflow_names.named_layers import Named, UnnamedPartError
from boxwright.nn.tensorflow_names.tf2 import numbered, resnet_layers, sequence

_FIRST = "_feature_extractor_for_proposal_features"
_SECOND = "_feature_extractor_for_box_classifier_features"
_RPN = "_first_stage_box_predictor"
_HEADS = "_mask_rcnn_box_predictor"


def _resnet(backbone: ResNetV1, network: FasterRCNN) -> Named:
    pyramid = isinstance(network.neck, FeaturePyramid)
    yield from numbered(resnet_layers(backbone), f"{_FIRST}/classification_backbone" if pyramid else _FIRST)


def _resnet_stage(stage: ResNetV1Stage5, _: FasterRCNN) -> Named:
    yield from numbered(resnet_layers(stage), _SECOND)


def _inception(backbone: Inception, _: FasterRCNN) -> Named:
    yield from numbered(inception_layers(backbone), _FIRST)


def _inception_half(half: LastMap, _: FasterRCNN) -> Named:
    yield from numbered(inception_layers(half.body), _SECOND)


def inception_layers(part: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of a part of Keras's Inception, which sorts those of parallel branches by depth.

    Layers farthest from the end of their block come first; those of equal distance in the order of branches.
    """
    for module in part.children():
        if isinstance(module, ScaledResidual):
            yield from _by_depth([module.get_submodule(name) for name in module.branches])
            yield module.Conv2d_1x1
        elif isinstance(module, Concatenated):
            yield from _by_depth(list(module.children()))
        else:
            yield from module.modules()


def _by_depth(branches: list[nn.Module]) -> list[nn.Module]:
    distances: list[tuple[int, int, nn.Module]] = []
    for number, branch in enumerate(branches):
        layers = [layer for layer in branch.modules() if not list(layer.children())]
        # A convolution, its normalization and its activation are one layer each, as is a pool.
        distances += [(position - len(layers), number, layer) for position, layer in enumerate(layers)]
    # Without the layers themselves, which cannot be compared.
    return [layer for _, _, layer in sorted(distances, key=lambda item: item[:2])]


def _pyramid(neck: FeaturePyramid, _: FasterRCNN) -> Named:
    if neck.hand_down is not smoothed:
        raise UnnamedPartError("a pyramid that passes down sums")
    top, *laterals = reversed(list(neck.laterals))
    path = f"{_FIRST}/fpn_features_generator"
    yield top, f"{path}/top_layers/0"
    for number, (lateral, smooth) in enumerate(zip(laterals, reversed(list(neck.smooth)), strict=True)):
        yield lateral, f"{path}/residual_blocks/{number}/0"
        yield from sequence(smooth, f"{path}/conv_layers/{number}")
    for number, layer in enumerate(neck.extra):
        yield from sequence(layer, f"{_FIRST}/coarse_feature_layers/{number}")


def _dense_layers(layers: nn.Sequential, _: FasterRCNN) -> Named:
    yield from numbered(layers, _SECOND)


def _proposal_head(head: RegionProposalHead, _: FasterRCNN) -> Named:
    if not isinstance(head.predict, ConvolutionalHead):
        raise UnnamedPartError("a region proposal head whose levels share their last convolutions")
    convolve = [layer for layer in head.convolve.modules() if isinstance(layer, Conv2d | nn.BatchNorm2d)]
    yield from numbered(convolve, f"{_RPN}_first_conv")
    for level, (boxes, classes) in enumerate(zip(head.predict.boxes, head.predict.classes, strict=True)):
        heads = f"{_RPN}/_prediction_heads"
        yield from sequence(boxes, f"{heads}/box_encodings/{level}/_box_encoder_layers")
        yield from sequence(classes, f"{heads}/class_predictions_with_background/{level}/_class_predictor_layers")


def _box_classifier(head: BoxClassifierHead, _: FasterRCNN) -> Named:
    for layers, path in (
        (head.boxes, "_box_prediction_head/_box_encoder_layers"),
        (head.classes, "_class_prediction_head/_class_predictor_layers"),
    ):
        for number, layer in enumerate(layers, start=1):  # 0 flattens
            if isinstance(layer, Dense | nn.BatchNorm2d):
                yield layer, f"{_HEADS}/{path}/{number}"


def _mask_head(head: MaskHead, _: FasterRCNN) -> Named:
    if any(isinstance(layer, nn.ConvTranspose2d) for layer in head.layers.modules()):
        raise UnnamedPartError("a mask head with a deconvolution")
    path = f"{_HEADS}/_third_stage_heads/mask_predictions/_mask_predictor_layers"
    # A resize does not count as a layer, but pixel repetition does.
    number = 0
    for layer in (*head.layers, head.predict):
        if isinstance(layer, nn.Sequential):
            for part in layer:
                if isinstance(part, Conv2d | nn.BatchNorm2d):
                    yield part, f"{path}/{number}"
                number += 1
        elif isinstance(layer, Conv2d):
            yield layer, f"{path}/{number}"
        elif not isinstance(layer, ResizeTo):
            number += 1


def _attention(attention: ContextAttention, _: FasterRCNN) -> Named:
    block = attention.attend
    if not isinstance(block, AttentionBlock):
        raise UnnamedPartError("attention of several blocks")
    for name, projection in (
        ("query", block.query),
        ("key", block.key),
        ("val", block.value),
        ("feature", block.output),
    ):
        for layer in projection.modules():
            if isinstance(layer, Dense | nn.BatchNorm2d):
                own = "projection" if isinstance(layer, Dense) else "batch_norm"
                yield layer, f"_context_feature_extract_fn/_{name}_proj/{own}"


# Type of a part → names its layers, given the part and its network.
FASTER_RCNN_PARTS: dict[type[nn.Module], Callable[[Any, Any], Named]] = {
    ResNetV1: _resnet,
    ResNetV1Stage5: _resnet_stage,
    Inception: _inception,
    LastMap: _inception_half,
    FeaturePyramid: _pyramid,
    RegionProposalHead: _proposal_head,
    BoxClassifierHead: _box_classifier,
    MaskHead: _mask_head,
    ContextAttention: _attention,
    nn.Sequential: _dense_layers,
}
