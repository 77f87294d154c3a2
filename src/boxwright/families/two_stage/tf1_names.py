"""TF1's variable names of the layers of a two-stage detector's parts, by the scopes of `faster_rcnn_meta_arch`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from boxwright.families.two_stage.context_attention import ContextAttention, LayeredAttention
from boxwright.families.two_stage.network import FasterRCNN, RegionProposalHead
from boxwright.families.two_stage.position_sensitive_head import PositionSensitiveHead
from boxwright.families.two_stage.second_stage import BoxClassifierHead
from boxwright.families.two_stage.third_stage import MaskHead
from boxwright.nn.backbones.cells import JoinedCells, LaterCells
from boxwright.nn.backbones.inception import Inception
from boxwright.nn.backbones.mobilenet_v1 import MobileNetV1, MobileNetV1Tail
from boxwright.nn.backbones.resnet_v1 import ResNetV1Slim, ResNetV1SlimBlock4
from boxwright.nn.heads.convolutional import ConvolutionalHead
from boxwright.nn.network import LastMap
from boxwright.nn.tensorflow_names.named_layers import Named, UnnamedPartError
from boxwright.nn.tensorflow_names.tf1 import by_cells, by_module, mobilenet_v1_layers, slim_layer, units

_FIRST, _SECOND = "FirstStageFeatureExtractor", "SecondStageFeatureExtractor"
_HEADS = "SecondStageBoxPredictor"


def _first_half(backbone: Inception | ResNetV1Slim, _: FasterRCNN) -> Named:
    yield from by_module(backbone, f"{_FIRST}/{backbone.slim_scope}")


def _joined_cells(backbone: JoinedCells, _: FasterRCNN) -> Named:
    yield from by_cells(backbone.body, _FIRST)


def _later_cells(cells: LaterCells, _: FasterRCNN) -> Named:
    yield from by_cells(cells, _SECOND)


def _mobilenet_v1(backbone: MobileNetV1, _: FasterRCNN) -> Named:
    yield from mobilenet_v1_layers(backbone, _FIRST)


def _mobilenet_v1_tail(tail: MobileNetV1Tail, _: FasterRCNN) -> Named:
    yield from by_module(tail, f"{_SECOND}/MobilenetV1")


def _block4(block: ResNetV1SlimBlock4, _: FasterRCNN) -> Named:
    yield from by_module(block, f"{_SECOND}/{block.slim_scope}")


def _second_half(half: LastMap, network: FasterRCNN) -> Named:
    del network
    if not isinstance(half.body, Inception):
        raise UnnamedPartError(f"a {type(half.body).__name__} behind crops")
    scope = f"{_SECOND}/{half.body.slim_scope}"
    for part, path in by_module(half.body, scope):
        # TF-Slim numbers repeated blocks from the start again in the second half.
        yield part, path.replace(f"{scope}/Repeat_2/", f"{scope}/Repeat/")


def _proposal_head(head: RegionProposalHead, _: FasterRCNN) -> Named:
    if not isinstance(head.predict, ConvolutionalHead) or len(head.predict.boxes) > 1:
        raise UnnamedPartError("a region proposal head of several levels")
    yield from slim_layer(head.convolve, "Conv")
    yield from slim_layer(head.predict.boxes[0], "FirstStageBoxPredictor/BoxEncodingPredictor")
    yield from slim_layer(head.predict.classes[0], "FirstStageBoxPredictor/ClassPredictor")


def _box_classifier(head: BoxClassifierHead, _: FasterRCNN) -> Named:
    yield from slim_layer(head.boxes, f"{_HEADS}/BoxEncodingPredictor")
    yield from slim_layer(head.classes, f"{_HEADS}/ClassPredictor")


def _mask_head(head: MaskHead, _: FasterRCNN) -> Named:
    if any(isinstance(part, nn.ConvTranspose2d) for part in head.modules()):
        raise UnnamedPartError("a mask head with a deconvolution")
    for number, unit in enumerate([*units(head.layers), nn.Sequential(head.predict)]):
        yield from slim_layer(unit, f"{_HEADS}/Conv_{number}" if number else f"{_HEADS}/Conv")


def _position_sensitive(head: PositionSensitiveHead, _: FasterRCNN) -> Named:
    yield from slim_layer(head.reduce, f"{_HEADS}/reduce_depth")
    yield from slim_layer(head.boxes, f"{_HEADS}/refined_locations")
    yield from slim_layer(head.classes, f"{_HEADS}/class_predictions")


def _attention(attention: ContextAttention, _: FasterRCNN) -> Named:
    layered = attention.attend
    if not isinstance(layered, LayeredAttention):
        raise UnnamedPartError("attention of Keras layers")
    blocks: list[tuple[str, Any]] = [] if layered.itself is None else [("SelfAttentionBlock", layered.itself)]
    for number, block in enumerate(layered.blocks):
        layer, head = divmod(number, layered.heads)
        blocks.append((f"AttentionBlock{head}_AttentionLayer{layer}", block))
    for number, (scope, block) in enumerate(blocks):
        for position, projection in enumerate((block.query, block.key, block.value)):
            yield from slim_layer(projection, f"{scope}/{_dense(position)}")
        # TF leaves the block's scope before the output's projection.
        yield from slim_layer(block.output, _dense(number))


def _dense(number: int) -> str:
    return f"fully_connected_{number}" if number else "fully_connected"


# Type of a part → names its layers, given the part and its network.
FASTER_RCNN_PARTS: dict[type[nn.Module], Callable[[Any, Any], Named]] = {
    Inception: _first_half,
    ResNetV1Slim: _first_half,
    ResNetV1SlimBlock4: _block4,
    LastMap: _second_half,
    JoinedCells: _joined_cells,
    LaterCells: _later_cells,
    MobileNetV1: _mobilenet_v1,
    MobileNetV1Tail: _mobilenet_v1_tail,
    RegionProposalHead: _proposal_head,
    BoxClassifierHead: _box_classifier,
    PositionSensitiveHead: _position_sensitive,
    MaskHead: _mask_head,
    ContextAttention: _attention,
}
