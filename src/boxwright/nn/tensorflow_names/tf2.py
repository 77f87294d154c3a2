"""TF2's variable paths of the layers of an SSD's parts.

TF2 names a variable by its path of attributes. The paths are those of `ssd_meta_arch.SSDMetaArch` built from Keras
layers; within a list, layers without variables (activations) count too. "#" precedes the name of a kernel of a
separable layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from boxwright.nn.backbones.efficientnet import EfficientNet
from boxwright.nn.backbones.mobilenet_v1 import MobileNetV1
from boxwright.nn.backbones.mobilenet_v2 import MobileNetV2
from boxwright.nn.backbones.resnet_v1 import Bottleneck, ResNetV1
from boxwright.nn.heads.convolutional import ConvolutionalHead, Tower, WeightSharedHead
from boxwright.nn.layers import Conv2d, Dense
from boxwright.nn.necks.bifpn import BiFpn, BiFpnNode
from boxwright.nn.necks.fpn import FeaturePyramid, smoothed
from boxwright.nn.necks.multi_resolution import MultiResolutionFeatureMaps
from boxwright.nn.ssd import SSD
from boxwright.nn.tensorflow_names.checkpoint_keys import ATTRIBUTE
from boxwright.nn.tensorflow_names.named_layers import (
    CONV_AXES,
    DEPTHWISE_AXES,
    NORM,
    Named,
    TfVariable,
    UnnamedPartError,
    check_head,
    learned_names,
)

# Additional paths of the same layers in TF.
SHARED_LAYERS = {"_feature_extractor/_efficientnet/": "_feature_extractor/classification_backbone/"}
# Exceptions to the name of the attribute with SSD's extra maps.
_MAP_GENERATORS: dict[type[nn.Module], str] = {MobileNetV1: "_feature_map_generator"}


def layer_variables(layer: nn.Module, path: str) -> dict[str, TfVariable]:
    """Return the variables of a layer, by the names of its tensors.

    Args:
        layer: A convolution, also a transposed one, a normalization, or the weights of a BiFPN's node.
        path: Its path of attributes; after "#", the name of a separable layer's kernel.
    """
    path, _, part = path.partition("#")
    if isinstance(layer, Dense):
        variables = {"weight": replace(_variable(path, "kernel", CONV_AXES), side=layer.kernel_size[0])}
        return variables if layer.bias is None else variables | {"bias": _variable(path, "bias")}
    if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
        # A transposed kernel is [h, w, out, in] in TF and [in, out, h, w] here: the axes are reordered alike.
        depthwise = layer.groups > 1
        kernel = part or ("depthwise_kernel" if depthwise else "kernel")
        variables = {"weight": _variable(path, kernel, DEPTHWISE_AXES if depthwise else CONV_AXES)}
        return variables if layer.bias is None else variables | {"bias": _variable(path, "bias")}
    if isinstance(layer, BiFpnNode):
        return {} if layer.weights is None else {"weights": TfVariable(f"model/{path}{ATTRIBUTE}")}
    return {name: _variable(path, NORM[name]) for name in learned_names(layer)}


def _variable(path: str, name: str, axes: tuple[int, ...] = ()) -> TfVariable:
    return TfVariable(f"model/{path}/{name}{ATTRIBUTE}", axes)


def _in_order(backbone: nn.Module, _: SSD) -> Named:
    yield from _numbered(backbone, "classification_backbone")


def _numbered(backbone: nn.Module, model: str) -> Named:
    yield from numbered(backbone.modules(), f"_feature_extractor/{model}")


def numbered(layers: Iterable[nn.Module], path: str) -> Named:
    """Number the layers of a Keras model in order."""
    with_weights = (layer for layer in layers if isinstance(layer, nn.Conv2d | nn.BatchNorm2d))
    for number, layer in enumerate(with_weights):
        yield layer, f"{path}/layer_with_weights-{number}"


def _efficientnet(backbone: nn.Module, _: SSD) -> Named:
    yield from _numbered(backbone, "_efficientnet")


def _resnet(backbone: ResNetV1, _: SSD) -> Named:
    yield from _numbered(nn.Sequential(*resnet_layers(backbone)), "classification_backbone")


def resnet_layers(part: nn.Module) -> list[nn.Module]:
    """Return the layers of a part of Keras's ResNet, which sorts those of a projecting block by depth."""
    layers = list(part.stem) if isinstance(part, ResNetV1) else []
    for block in (module for module in part.modules() if isinstance(module, Bottleneck)):
        layers += [*block.reduce, *block.convolve]
        if isinstance(block.shortcut, nn.Sequential):
            layers += [block.shortcut[0], block.expand[0], block.shortcut[1], block.expand[1]]
        else:
            layers += [*block.expand]
    return layers


def _extra_maps(neck: MultiResolutionFeatureMaps, network: SSD) -> Named:
    generator = _MAP_GENERATORS.get(type(network.backbone), "feature_map_generator")
    first = len(neck.channels) - len(neck.extra)
    for number, layer in enumerate(neck.extra, start=first):
        yield from sequence(layer, f"_feature_extractor/{generator}/convolutions/{number}")


def _pyramid(neck: FeaturePyramid, _: SSD) -> Named:
    if neck.hand_down is not smoothed:
        raise UnnamedPartError("a pyramid that passes down sums")
    top, *laterals = reversed(list(neck.laterals))
    path = "_feature_extractor/_fpn_features_generator"
    yield top, f"{path}/top_layers/0"
    for number, (lateral, smooth) in enumerate(zip(laterals, reversed(list(neck.smooth)), strict=True)):
        yield lateral, f"{path}/residual_blocks/{number}/0"
        yield from sequence(smooth, f"{path}/conv_layers/{number}")
    for number, layer in enumerate(neck.extra):
        yield from sequence(layer, f"_feature_extractor/_coarse_feature_layers/{number}")


def _bifpn(neck: BiFpn, _: SSD) -> Named:
    path = "_feature_extractor/_bifpn_stage"
    for number, extra in enumerate(neck.extra):
        yield from sequence(extra, f"{path}/node_input_blocks/{number}/0/1")
    nodes = (module for module in neck.nodes if isinstance(module, BiFpnNode))
    for number, node in enumerate(nodes, start=len(neck.extra)):
        for position, layers in enumerate(node.resample):
            yield from sequence(layers, f"{path}/node_input_blocks/{number}/{position}/1")
        yield node, f"{path}/node_combine_op/{number}/bifpn_combine_weights"
        block = f"{path}/node_post_combine_block/{number}"
        yield from _separable(node.conv, f"{block}/1")
        yield node.norm, f"{block}/2"


def _convolutional(head: ConvolutionalHead, _: SSD) -> Named:
    check_head(head)
    for level, layers in enumerate(zip(head.shared, head.boxes, head.classes, strict=True)):
        yield from sequence(layers[0], f"_box_predictor/_shared_nets/{level}")
        yield from sequence(layers[1], f"{_BOXES}/{level}/_box_encoder_layers")
        yield from sequence(layers[2], f"{_CLASSES}/{level}/_class_predictor_layers")


def _weight_shared(head: WeightSharedHead, _: SSD) -> Named:
    for level, layers in enumerate(head.projections):
        yield from sequence(layers, f"_box_predictor/_additional_projection_layers/{level}")
    yield from sequence(nn.Sequential(head.boxes), "_box_predictor/_box_prediction_head/_box_encoder_layers")
    yield from sequence(nn.Sequential(head.classes), f"{_CLASSES}/_class_predictor_layers")
    if head.class_tower is None:
        yield from _tower(head.box_tower, "PredictionTower", "box_encodings")
    else:
        yield from _tower(head.box_tower, "BoxPredictionTower", "box_encodings")
        yield from _tower(head.class_tower, "ClassPredictionTower", "class_predictions_with_background")


def _tower(tower: Tower, scope: str, head: str) -> Named:
    for number, conv in enumerate(tower.convs):
        yield from _separable(conv, f"_box_predictor/_head_scope_conv_layers/{scope}/{number}")
    for position, norm in enumerate(tower.norms):
        level, number = divmod(position, len(tower.convs))
        if isinstance(norm, nn.BatchNorm2d):
            # A round of a tower is three layers: convolution, normalization, activation.
            yield norm, f"_box_predictor/_base_tower_layers_for_heads/{head}/{level}/{3 * number + 1}"


_BOXES = "_box_predictor/_prediction_heads/box_encodings"
_CLASSES = "_box_predictor/_prediction_heads/class_predictions_with_background"
# Type of a part → names its layers, given the part and its network.
SSD_PARTS: dict[type[nn.Module], Callable[[Any, Any], Named]] = {
    MobileNetV1: _in_order,
    MobileNetV2: _in_order,
    ResNetV1: _resnet,
    EfficientNet: _efficientnet,
    MultiResolutionFeatureMaps: _extra_maps,
    FeaturePyramid: _pyramid,
    BiFpn: _bifpn,
    ConvolutionalHead: _convolutional,
    WeightSharedHead: _weight_shared,
}


def sequence(module: nn.Module, path: str) -> Named:
    """Number the layers of a sequence as Keras would.

    A separable convolution is one layer; explicit padding is a separate layer before the convolution.
    """
    number = 0
    for layer in _flat(module):
        first = layer[0] if isinstance(layer, nn.Sequential) else layer
        number += isinstance(first, Conv2d) and first.pads_explicitly
        yield from _separable(layer, f"{path}/{number}")
        number += 1


def _flat(module: nn.Module) -> Iterator[nn.Module]:
    if not isinstance(module, nn.Sequential) or _is_one_conv(module):
        yield module
        return
    for child in module:
        yield from _flat(child)


def _is_one_conv(module: nn.Sequential) -> bool:
    return 1 <= len(module) <= 2 and all(isinstance(layer, nn.Conv2d) for layer in module)


def _separable(module: nn.Module, path: str) -> Named:
    if isinstance(module, nn.Sequential) and len(module) == 2:
        yield module[0], f"{path}#depthwise_kernel"
        yield module[1], f"{path}#pointwise_kernel"
    elif isinstance(module, nn.Sequential):
        yield module[0], path
    elif isinstance(module, nn.Conv2d | nn.BatchNorm2d):
        yield module, path
