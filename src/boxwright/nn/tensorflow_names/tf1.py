"""TF1's variable names of the layers of an SSD's parts.

TF1 names a variable by the scopes in which TF-Slim and the predictors create it. "#" precedes the name of a kernel of a
separable layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from boxwright.nn.backbones.cells import CellNetwork
from boxwright.nn.backbones.inception import Inception
from boxwright.nn.backbones.mobiledet import MobileDet
from boxwright.nn.backbones.mobilenet_v1 import MobileNetV1
from boxwright.nn.backbones.mobilenet_v2 import InvertedResidual, MobileNetV2
from boxwright.nn.backbones.mobilenet_v3 import MobileNetV3
from boxwright.nn.backbones.resnet_v1 import ResNetV1Slim
from boxwright.nn.backbones.spaghettinet import FakeQuantized, SpaghettiNet
from boxwright.nn.backbones.vgg16 import ConvertedLayer, Vgg16
from boxwright.nn.heads.convolutional import ConvolutionalHead, Tower, WeightSharedHead
from boxwright.nn.layers import Dense
from boxwright.nn.necks.fpn import FeaturePyramid, unsmoothed
from boxwright.nn.necks.mnasfpn import MnasFpn
from boxwright.nn.necks.multi_resolution import MultiResolutionFeatureMaps, PoolingPyramid
from boxwright.nn.ssd import SSD
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

_EXTRACTOR = "FeatureExtractor"
# Scopes of the feature maps after backbones whose modules do not name them.
_SCOPES: dict[type[nn.Module], str] = {
    MobileNetV1: "MobilenetV1",
    MobileNetV2: "MobilenetV2",
    CellNetwork: "SSD_feature_maps",
}


def layer_variables(layer: nn.Module, path: str) -> dict[str, TfVariable]:
    """Return the variables of a layer, by the names of its tensors.

    Args:
        layer: A convolution or a normalization.
        path: Its scope; after "#", the name of a separable layer's kernel.
    """
    path, _, part = path.partition("#")
    if isinstance(layer, FakeQuantized):
        return {"minimum": TfVariable(f"{path}/min"), "maximum": TfVariable(f"{path}/max")}
    if isinstance(layer, Dense):
        variables = {"weight": TfVariable(f"{path}/weights", CONV_AXES, side=layer.kernel_size[0])}
        return variables if layer.bias is None else variables | {"bias": TfVariable(f"{path}/biases")}
    if isinstance(layer, ConvertedLayer):
        whole, steps = layer.dense_shape, layer.steps
        return {
            "weight": TfVariable(f"{path}/weights", CONV_AXES, dense_shape=whole, steps=steps),
            "bias": TfVariable(f"{path}/biases", dense_shape=whole[-1:], steps=steps[-1:]),
        }
    if isinstance(layer, nn.Conv2d):
        depthwise = layer.groups > 1
        kernel = part or ("depthwise_weights" if depthwise else "weights")
        axes = DEPTHWISE_AXES if depthwise else CONV_AXES
        variables = {
            "weight": TfVariable(f"{path}/{kernel}", axes, layer.out_channels // layer.groups if depthwise else 1)
        }
        return variables if layer.bias is None else variables | {"bias": TfVariable(f"{path}/biases")}
    return {name: TfVariable(f"{path}/{NORM[name]}") for name in learned_names(layer)}


def slim_layer(module: nn.Module, scope: str) -> Named:
    """Name one layer of TF-Slim: a convolution, or the two of a separable one, and its normalization."""
    convs = [part for part in module.modules() if isinstance(part, nn.Conv2d)]
    kernels = ("#depthwise_weights", "#pointwise_weights") if len(convs) > 1 else ("",)
    for conv, kernel in zip(convs, kernels, strict=False):
        yield conv, f"{scope}{kernel}"
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d | nn.GroupNorm):
            yield part, f"{scope}/{'BatchNorm' if isinstance(part, nn.BatchNorm2d) else 'GroupNorm'}"


def mobilenet_v1_layers(backbone: MobileNetV1, extractor: str) -> Named:
    """Name the layers of a MobileNetV1 below an extractor's scope."""
    scope = f"{extractor}/MobilenetV1/Conv2d"
    yield from slim_layer(backbone.stem, f"{scope}_0")
    for number, block in enumerate(backbone.blocks, start=1):
        depthwise, pointwise = block.children()
        yield from slim_layer(depthwise, f"{scope}_{number}_depthwise")
        yield from slim_layer(pointwise, f"{scope}_{number}_pointwise")


def _mobilenet_v1(backbone: MobileNetV1, _: SSD) -> Named:
    yield from mobilenet_v1_layers(backbone, _EXTRACTOR)


def _mobilenet_v2(backbone: MobileNetV2, _: SSD) -> Named:
    scope = f"{_EXTRACTOR}/MobilenetV2"
    yield from slim_layer(backbone.stem, f"{scope}/Conv")
    for number, block in enumerate(part for part in backbone.blocks if isinstance(part, InvertedResidual)):
        name = f"{scope}/expanded_conv_{number}" if number else f"{scope}/expanded_conv"
        for part in ("expand", "depthwise", "project"):
            yield from slim_layer(getattr(block, part), f"{name}/{part}")
    if backbone.head is not None:
        yield from slim_layer(backbone.head, f"{scope}/Conv_1")


def units(module: nn.Module) -> list[nn.Sequential]:
    """Split a part into convolutions, each with its following normalization."""
    units: list[list[nn.Module]] = []
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            units.append([part])
        elif isinstance(part, nn.BatchNorm2d | nn.GroupNorm):
            units[-1].append(part)
    return [nn.Sequential(*unit) for unit in units]


def _conv(unit: nn.Sequential) -> nn.Conv2d:
    (conv,) = (part for part in unit if isinstance(part, nn.Conv2d))
    return conv


def by_module(part: nn.Module, scope: str) -> Named:
    """Name the layers of a part whose modules are named by TF-Slim's scopes, ignoring numeric names."""
    units: dict[str, list[nn.Module]] = {}
    for name, module in part.named_modules():
        if isinstance(module, nn.Conv2d | nn.BatchNorm2d):
            own = "/".join(step for step in name.split(".") if not step.isdigit())
            units.setdefault(own, []).append(module)
    for own, layers in units.items():
        yield from slim_layer(nn.Sequential(*layers), f"{scope}/{own}")


_SlimBackbone = Inception | MobileDet | MobileNetV3 | ResNetV1Slim


def _slim_backbone(backbone: _SlimBackbone, _: SSD) -> Named:
    yield from by_module(backbone, _scope(backbone))


def by_cells(part: nn.Module, scope: str) -> Named:
    """Name the layers of cells by their modules; most normalization there belongs to no convolution."""
    layers = list(by_module(part, scope))
    convs = {path.partition("#")[0] for layer, path in layers if isinstance(layer, nn.Conv2d)}
    for layer, path in layers:
        own = path.removesuffix("/BatchNorm")
        yield layer, path if own in convs else own


def _cell_network(backbone: CellNetwork, _: SSD) -> Named:
    yield from by_cells(backbone, _EXTRACTOR)


def _spaghettinet(backbone: SpaghettiNet, _: SSD) -> Named:
    scope = f"{_EXTRACTOR}/{backbone.slim_scope}"
    yield from by_module(backbone, scope)
    for name, module in backbone.named_modules():
        if isinstance(module, FakeQuantized):
            yield module, f"{scope}/{name.replace('.', '/')}"


def _no_layers(_: nn.Identity, network: SSD) -> Named:
    del network
    yield from ()


def _vgg16(backbone: Vgg16, _: nn.Module) -> Named:
    """Name the layers of TF-Slim's classifier; the first dense layers are convolutions there too."""
    scope = f"{_EXTRACTOR}/vgg_16"
    for stage, layers in enumerate(backbone.stages, start=1):
        for number, unit in enumerate(units(layers), start=1):
            yield from slim_layer(unit, f"{scope}/conv{stage}/conv{stage}_{number}")
    for unit, name in zip(units(backbone.converted), ("fc6", "fc7"), strict=True):
        yield from slim_layer(unit, f"{scope}/{name}")


def _scope(backbone: nn.Module) -> str:
    scope = backbone.slim_scope if isinstance(backbone, _SlimBackbone) else _SCOPES.get(type(backbone))
    if scope is None:
        raise UnnamedPartError(f"what follows a {type(backbone).__name__}")
    return f"{_EXTRACTOR}/{scope}"


def _last_layer(backbone: nn.Module) -> str:
    """Return TF's name of a backbone's last layer."""
    if isinstance(backbone, MobileNetV3):  # layers are counted from the stem's 1
        last = backbone.taps[-1]
        return f"layer_{len(backbone.blocks) + 2 if last == 'last' else int(last) + 2}"
    if isinstance(backbone, Inception):
        return backbone.taps[-1]
    return {MobileNetV1: "Conv2d_13_pointwise", MobileNetV2: "layer_19", MobileDet: "C5", CellNetwork: "Cell_11"}[
        type(backbone)
    ]


def _extra_maps(neck: MultiResolutionFeatureMaps, network: SSD) -> Named:
    path = f"{_scope(network.backbone)}/{_last_layer(network.backbone)}"
    first = len(neck.channels) - len(neck.extra)
    for number, extra in enumerate(neck.extra, start=first):
        squeeze, *depthwise, spread = units(extra)
        yield from slim_layer(squeeze, f"{path}_1_Conv2d_{number}_1x1_{_conv(squeeze).out_channels}")
        side = _conv(depthwise[0] if depthwise else spread).kernel_size[0]
        name = f"{path}_2_Conv2d_{number}_{side}x{side}_s2_{_conv(spread).out_channels}"
        for layer in depthwise:
            yield from slim_layer(layer, f"{name}_depthwise")
        yield from slim_layer(spread, name)


# Name and number of the first layer after the backbone.
_BOTTOM_UP: dict[type[nn.Module], tuple[str, int]] = {
    MobileNetV1: ("Conv2d_", 14),
    MobileNetV2: ("Conv2d_", 20),
    ResNetV1Slim: ("block", 5),
}


def _pyramid(neck: FeaturePyramid, network: SSD) -> Named:
    if neck.hand_down is not unsmoothed:
        raise UnnamedPartError("a pyramid that passes down smoothed maps")
    scope = f"{_scope(network.backbone)}/fpn"
    for number, lateral in enumerate(neck.laterals, start=1):
        yield from slim_layer(lateral, f"{scope}/projection_{number}")
    for number, smooth in enumerate(neck.smooth, start=1):
        yield from slim_layer(smooth, f"{scope}/smoothing_{number}")
    layer, first = _BOTTOM_UP[type(network.backbone)]
    for number, extra in enumerate(neck.extra, start=first):
        yield from slim_layer(extra, f"{scope}/bottom_up_{layer}{number}")


def _pooling_pyramid(neck: PoolingPyramid, network: SSD) -> Named:
    for unit in units(neck.project):
        yield from slim_layer(unit, f"{_scope(network.backbone)}/Base_Conv2d_1x1_{_conv(unit).out_channels}")


def _mnasfpn(neck: MnasFpn, _: SSD) -> Named:
    yield from by_module(neck, f"{_EXTRACTOR}/MnasFPN")


def _convolutional(head: ConvolutionalHead, _: SSD) -> Named:
    check_head(head)
    for level, (shared, boxes, classes) in enumerate(zip(head.shared, head.boxes, head.classes, strict=True)):
        scope = f"BoxPredictor_{level}"
        for number, layer in enumerate(units(shared)):
            yield from slim_layer(layer, f"{scope}/Conv2d_{number}_1x1_{_conv(layer).out_channels}")
        for layers, name in ((boxes, "BoxEncodingPredictor"), (classes, "ClassPredictor")):
            *depthwise, last = units(layers)
            for layer in depthwise:
                yield from slim_layer(layer, f"{scope}/{name}_depthwise")
            yield from slim_layer(last, f"{scope}/{name}")


def _weight_shared(head: WeightSharedHead, _: SSD) -> Named:
    scope = "WeightSharedConvolutionalBoxPredictor"
    for level, projection in enumerate(head.projections):
        yield from slim_layer(projection, f"{scope}/ProjectionLayer/conv2d_{level}")
    yield from slim_layer(head.boxes, f"{scope}/BoxPredictor")
    yield from slim_layer(head.classes, f"{scope}/ClassPredictor")
    if head.class_tower is None:
        yield from _tower(head.box_tower, f"{scope}/PredictionTower")
    else:
        yield from _tower(head.box_tower, f"{scope}/BoxPredictionTower")
        yield from _tower(head.class_tower, f"{scope}/ClassPredictionTower")


def _tower(tower: Tower, scope: str) -> Named:
    for number, conv in enumerate(tower.convs):
        yield from slim_layer(conv, f"{scope}/conv2d_{number}")
    # Levels share the convolutions of a tower, but each has its own normalization.
    for position, norm in enumerate(tower.norms):
        level, number = divmod(position, len(tower.convs))
        if isinstance(norm, nn.BatchNorm2d):
            yield norm, f"{scope}/conv2d_{number}/BatchNorm/feature_{level}"


# Type of a part → names its layers, given the part and its network.
SSD_PARTS: dict[type[nn.Module], Callable[[Any, Any], Named]] = {
    MobileNetV1: _mobilenet_v1,
    MobileNetV2: _mobilenet_v2,
    MobileNetV3: _slim_backbone,
    MobileDet: _slim_backbone,
    Inception: _slim_backbone,
    ResNetV1Slim: _slim_backbone,
    CellNetwork: _cell_network,
    SpaghettiNet: _spaghettinet,
    nn.Identity: _no_layers,
    Vgg16: _vgg16,
    MultiResolutionFeatureMaps: _extra_maps,
    FeaturePyramid: _pyramid,
    PoolingPyramid: _pooling_pyramid,
    MnasFpn: _mnasfpn,
    ConvolutionalHead: _convolutional,
    WeightSharedHead: _weight_shared,
}
# RefineDet is not TF's, but starts from TF-Slim's classifier.
REFINEDET_PARTS: dict[type[nn.Module], Callable[[Any, Any], Named]] = {Vgg16: _vgg16}
