"""Which variable of a TF2 object-detection checkpoint is which of our parameters.

TF2 names a variable by the path of attributes that leads to it. The paths below are those of
`ssd_meta_arch.SSDMetaArch` built from Keras layers; within a list, layers without variables
(activations) count too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import nn

from boxwright.errors import CheckpointError
from boxwright.models.backbones.efficientnet import EfficientNet
from boxwright.models.backbones.mobilenet_v1 import MobileNetV1
from boxwright.models.backbones.mobilenet_v2 import MobileNetV2
from boxwright.models.backbones.resnet_v1 import Bottleneck, ResNetV1
from boxwright.models.heads.convolutional import ConvolutionalHead
from boxwright.models.heads.weight_shared import Tower, WeightSharedHead
from boxwright.models.layers import Conv2d
from boxwright.models.necks.bifpn import BiFpn, BiFpnNode
from boxwright.models.necks.fpn import FeaturePyramid
from boxwright.models.necks.multi_resolution import MultiResolutionFeatureMaps
from boxwright.models.ssd import SSD

__all__ = ["SHARED_LAYERS", "TfVariable", "ssd_variables"]

_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
_NORM = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
_CONV_AXES = (3, 2, 0, 1)  # [h, w, in, out] → [out, in, h, w]
_DEPTHWISE_AXES = (2, 3, 0, 1)  # [h, w, in, 1] → [in, 1, h, w]

# Paths under which TF keeps the same layers once more.
SHARED_LAYERS = {"_feature_extractor/_efficientnet/": "_feature_extractor/classification_backbone/"}

Named = Iterator[tuple[nn.Module, str]]


@dataclass(frozen=True)
class TfVariable:
    """A variable of a TF2 checkpoint.

    Attributes:
        key: Its key.
        axes: The transposition that brings it to our layout; empty for none.
    """

    key: str
    axes: tuple[int, ...] = ()


def ssd_variables(network: SSD) -> dict[str, TfVariable]:
    """List the TF2 variable of every parameter and statistic of an SSD.

    Args:
        network: The network.

    Returns:
        Our name (as in `network.state_dict()`) to the variable.

    Raises:
        CheckpointError: Where a part of the network has no TF2 counterpart.
    """
    names = {id(module): name for name, module in network.named_modules()}
    found: dict[str, TfVariable] = {}
    for module, path in _layers(network):
        prefix = f"{names[id(module)]}."
        if isinstance(module, nn.Conv2d):
            found |= _conv(module, prefix, path)
        elif isinstance(module, BiFpnNode):
            if module.weights is not None:
                found[f"{prefix}weights"] = TfVariable(f"model/{path}{_SUFFIX}")
        else:
            learnt = [name for name in _NORM if "running" in name or getattr(module, name).requires_grad]
            found |= {prefix + name: TfVariable(f"model/{path}/{_NORM[name]}{_SUFFIX}") for name in learnt}
    return found


def _conv(module: nn.Conv2d, prefix: str, path: str) -> dict[str, TfVariable]:
    """Name a convolution's variables; `path` says where a separable one keeps its two kernels."""
    path, _, part = path.partition("#")
    depthwise = module.groups > 1
    kernel = part or ("depthwise_kernel" if depthwise else "kernel")
    axes = _DEPTHWISE_AXES if depthwise else _CONV_AXES
    found = {f"{prefix}weight": TfVariable(f"model/{path}/{kernel}{_SUFFIX}", axes)}
    if module.bias is not None:
        found[f"{prefix}bias"] = TfVariable(f"model/{path}/bias{_SUFFIX}")
    return found


def _layers(network: SSD) -> Named:
    for module in (network.backbone, network.neck, network.head):
        name = next((name for kind, name in _PARTS.items() if isinstance(module, kind)), None)
        if name is None:
            raise CheckpointError(f"no TF2 names are known for a {type(module).__name__}")
        # TF calls the same attribute otherwise in its MobileNetV1.
        renamed = isinstance(network.backbone, MobileNetV1) and isinstance(module, MultiResolutionFeatureMaps)
        for layer, path in name(module):
            yield layer, path.replace("/feature_map_generator/", "/_feature_map_generator/") if renamed else path


def _in_order(backbone: nn.Module, model: str = "classification_backbone") -> Named:
    """Number the layers of a Keras model as they are listed."""
    layers = [module for module in backbone.modules() if isinstance(module, nn.Conv2d | nn.BatchNorm2d)]
    for number, module in enumerate(layers):
        yield module, f"_feature_extractor/{model}/layer_with_weights-{number}"


def _efficientnet(backbone: nn.Module) -> Named:
    yield from _in_order(backbone, "_efficientnet")


def _resnet(backbone: ResNetV1) -> Named:
    """Number the layers of Keras's ResNet, which sorts those of a projecting block by their depth."""
    layers = list(backbone.stem)
    for block in (module for module in backbone.modules() if isinstance(module, Bottleneck)):
        layers += [*block.reduce, *block.convolve]
        if isinstance(block.shortcut, nn.Sequential):
            layers += [block.shortcut[0], block.expand[0], block.shortcut[1], block.expand[1]]
        else:
            layers += [*block.expand]
    yield from _in_order(nn.Sequential(*layers))


def _extra_maps(neck: MultiResolutionFeatureMaps) -> Named:
    first = len(neck.channels) - len(neck.extra)
    for number, layer in enumerate(neck.extra, start=first):
        yield from _sequence(layer, f"_feature_extractor/feature_map_generator/convolutions/{number}")


def _pyramid(neck: FeaturePyramid) -> Named:
    top, *laterals = reversed(list(neck.laterals))
    path = "_feature_extractor/_fpn_features_generator"
    yield top, f"{path}/top_layers/0"
    for number, (lateral, smooth) in enumerate(zip(laterals, reversed(list(neck.smooth)), strict=True)):
        yield lateral, f"{path}/residual_blocks/{number}/0"
        yield from _sequence(smooth, f"{path}/conv_layers/{number}")
    for number, layer in enumerate(neck.extra):
        yield from _sequence(layer, f"_feature_extractor/_coarse_feature_layers/{number}")


def _bifpn(neck: BiFpn) -> Named:
    path = "_feature_extractor/_bifpn_stage"
    for number, extra in enumerate(neck.extra):
        yield from _sequence(extra, f"{path}/node_input_blocks/{number}/0/1")
    nodes = (module for module in neck.nodes if isinstance(module, BiFpnNode))
    for number, node in enumerate(nodes, start=len(neck.extra)):
        for position, layers in enumerate(node.resample):
            yield from _sequence(layers, f"{path}/node_input_blocks/{number}/{position}/1")
        yield node, f"{path}/node_combine_op/{number}/bifpn_combine_weights"
        block = f"{path}/node_post_combine_block/{number}"
        yield from _separable(node.conv, f"{block}/1")
        yield node.norm, f"{block}/2"


def _convolutional(head: ConvolutionalHead) -> Named:
    for level, layers in enumerate(zip(head.shared, head.boxes, head.classes, strict=True)):
        yield from _sequence(layers[0], f"_box_predictor/_shared_nets/{level}")
        yield from _sequence(layers[1], f"{_BOXES}/{level}/_box_encoder_layers")
        yield from _sequence(layers[2], f"{_CLASSES}/{level}/_class_predictor_layers")


def _weight_shared(head: WeightSharedHead) -> Named:
    for level, layers in enumerate(head.projections):
        yield from _sequence(layers, f"_box_predictor/_additional_projection_layers/{level}")
    yield from _sequence(nn.Sequential(head.boxes), "_box_predictor/_box_prediction_head/_box_encoder_layers")
    yield from _sequence(nn.Sequential(head.classes), f"{_CLASSES}/_class_predictor_layers")
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
            yield norm, f"_box_predictor/_base_tower_layers_for_heads/{head}/{level}/{3 * number + 1}"


_BOXES = "_box_predictor/_prediction_heads/box_encodings"
_CLASSES = "_box_predictor/_prediction_heads/class_predictions_with_background"
# Part of a network → what names its layers.
_PARTS: dict[type[nn.Module], Callable[..., Named]] = {
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


def _sequence(module: nn.Module, path: str) -> Named:
    """Number the layers of a sequence as Keras would.

    A separable convolution is one layer; explicit padding is one of its own, before the convolution.
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
