"""TF2's variable paths of the layers of CenterNet's parts.

The paths are those of `center_net_meta_arch.CenterNetMetaArch`. Hourglasses are named by attributes; other extractors
are Keras models, whose layers with weights are numbered, and of which one contains the backbone as its first layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import nn

from boxwright.families.center_net.backbones import (
    Hourglass,
    KerasResNetV1,
    PreactivationBlock,
    PreactivationResNet,
    ResidualBlock,
    StackedHourglass,
)
from boxwright.families.center_net.deep_masks import (
    DeepMaskPredictor,
    DenseMask,
    HourglassMask,
    LayeredMask,
    ResNetMask,
)
from boxwright.families.center_net.network import (
    CenterNet,
    Deconvolutions,
    IdentityClassifier,
    KeypointHeads,
    MapHead,
    StageHeads,
    TopDownMap,
)
from boxwright.nn.backbones.mobilenet_v2 import MobileNetV2
from boxwright.nn.layers import ConvNormAct
from boxwright.nn.tensorflow_names.checkpoint_keys import escaped
from boxwright.nn.tensorflow_names.named_layers import Named
from boxwright.nn.tensorflow_names.tf2 import resnet_layers

_EXTRACTOR = "_feature_extractor"
_HEADS = "_prediction_head_dict"


def _numbered(layers: Iterable[nn.Module], path: str, first: int = 0) -> Named:
    """Number layers as Keras; a separable convolution is one layer."""
    # Keras counts only layers with weights, so that activations and resizes leave no gap.
    for number, layer in enumerate(layers, start=first):
        place = f"{path}/layer_with_weights-{number}"
        if isinstance(layer, nn.Sequential) and len(layer) == 2:
            yield layer[0], f"{place}#depthwise_kernel"
            yield layer[1], f"{place}#pointwise_kernel"
        else:
            yield layer[0] if isinstance(layer, nn.Sequential) else layer, place


def _weighted(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers with weights in a module, in order."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d | nn.BatchNorm2d):
            yield layer


def _mobilenet(backbone: MobileNetV2, network: CenterNet) -> Named:
    within = "_network/layer_with_weights-0" if isinstance(network.neck, Deconvolutions) else "_base_model"
    yield from _numbered(_weighted(backbone), f"{_EXTRACTOR}/{within}")


def _resnet_v1(backbone: KerasResNetV1, _: CenterNet) -> Named:
    layers = nn.Sequential(*backbone.stem, *resnet_layers(backbone.stages))
    yield from _numbered(_weighted(layers), f"{_EXTRACTOR}/_base_model")


def _preactivation(backbone: PreactivationResNet, _: CenterNet) -> Named:
    yield from _numbered([backbone.stem, *_preactivated(backbone)], f"{_EXTRACTOR}/_base_model")


def _preactivated(blocks: nn.Module) -> list[nn.Module]:
    """Return the layers with weights of pre-activation blocks, in Keras's order."""
    layers: list[nn.Module] = []
    for block in (module for module in blocks.modules() if isinstance(module, PreactivationBlock)):
        *first, last = block.body
        # Keras sorts layers by their distance from the sum: a projection stands beside a bottleneck's last layer.
        ends_in_norm = isinstance(last, ConvNormAct)
        layers += [block.norm, *(layer for part in first for layer in _weighted(part))]
        layers += [*_weighted(last)] if ends_in_norm else []
        layers += [] if block.project is None else [block.project]
        layers += [] if ends_in_norm else [last]
    return layers


def _deconvolutions(neck: Deconvolutions, network: CenterNet) -> Named:
    model = "_network" if isinstance(network.backbone, MobileNetV2) else "_feature_extractor_model"
    yield from _numbered(_weighted(neck), f"{_EXTRACTOR}/{model}", first=1)


def _top_down(neck: TopDownMap, _: CenterNet) -> Named:
    *finer, top = neck.laterals
    layers: list[nn.Module] = [top]
    for lateral, smooth in zip(reversed(finer), reversed(list(neck.smooth)), strict=True):
        convolution, norm, _activation = smooth.children()
        layers += [lateral, convolution, norm]
    yield from _numbered(layers, f"{_EXTRACTOR}/_feature_extractor_model", first=1)


def _hourglass(backbone: StackedHourglass, _: CenterNet) -> Named:
    path = f"{_EXTRACTOR}/_network"
    first, residual = backbone.stem
    yield from _block(first, f"{path}/downsample_input/conv_block")
    yield from _residual(residual, f"{path}/downsample_input/residual_block")
    for number, (hourglass, output) in enumerate(zip(backbone.hourglasses, backbone.outputs, strict=True)):
        yield from _sizes(hourglass, f"{path}/hourglass_network/{number}")
        yield from _block(output, f"{path}/output_conv/{number}")
    for number, handover in enumerate(backbone.handovers):
        yield from _block(handover.get_submodule("of_input"), f"{path}/intermediate_conv1/{number}")
        yield from _block(handover.get_submodule("of_output"), f"{path}/intermediate_conv2/{number}")
        yield from _residual(handover.get_submodule("residual"), f"{path}/intermediate_residual/{number}")


def _sizes(hourglass: nn.Module, path: str) -> Named:
    if isinstance(beside := hourglass.beside, nn.Module):
        yield from _residuals(beside, f"{path}/encoder_block1")
    yield from _residuals(hourglass.get_submodule("down"), f"{path}/encoder_block2")
    if isinstance(inner := hourglass.get_submodule("inner"), Hourglass):
        yield from _sizes(inner, f"{path}/inner_block/0")
    else:
        yield from _residuals(inner, f"{path}/inner_block")
    yield from _residuals(hourglass.get_submodule("up"), f"{path}/decoder_block")


def _residuals(blocks: nn.Module, path: str) -> Named:
    for number, block in enumerate(_flat(blocks)):
        yield from _residual(block, f"{path}/{number}")


def _flat(blocks: nn.Module) -> Iterator[nn.Module]:
    yield from (block for block in blocks.modules() if isinstance(block, ResidualBlock))


def _residual(block: nn.Module, path: str) -> Named:
    yield from _block(block.get_submodule("first"), f"{path}/conv_block")
    yield from _block(block.get_submodule("second"), path)
    if isinstance(skip := block.get_submodule("skip"), ConvNormAct):
        yield from _block(skip, f"{path}/skip")


def _block(layers: nn.Module, path: str) -> Named:
    convolution, norm, *_ = layers.children()
    yield convolution, f"{path}/conv"
    yield norm, f"{path}/norm"


def _stage(stage: StageHeads, network: CenterNet) -> Named:
    number = list(network.stages).index(stage)
    for head, name in _named_heads(stage):
        layers = (layer for layer in head if not isinstance(layer, nn.ReLU))
        yield from _numbered(layers, f"{_HEADS}/{name}/{number}")


def _named_heads(stage: StageHeads) -> Iterator[tuple[MapHead, str]]:
    """Yield the heads of a stage with TF's names; "/" within one is escaped as in a checkpoint."""
    named = {
        "object_center": stage.centers,
        "box.Sscale": stage.sizes,
        "box.Soffset": stage.offsets,
        "segmentation.Sheatmap": stage.masks,
        "track.Soffset": stage.temporal_offsets,
        "track.Sreid": stage.identities,
    }
    if stage.surface is not None:
        named |= {"densepose.Sheatmap": stage.surface.parts, "densepose.Sregression": stage.surface.coordinates}
    if stage.embeddings is not None:
        named |= {"INSTANCE_EMBEDDING": stage.embeddings.instances, "PIXEL_EMBEDDING": stage.embeddings.pixels}
    for heads in stage.keypoints:
        if isinstance(heads, KeypointHeads):
            task = escaped(heads.name)
            named[f"{task}.Skeypoint.Sheatmap"] = heads.heatmap
            named[f"{task}.Skeypoint.Sregression"] = heads.regression
            named[f"{task}.Skeypoint.Soffset"] = heads.offsets
            named[f"{task}.Skeypoint.Sdepth"] = heads.depths
    yield from ((head, name) for name, head in named.items() if head is not None)


_MASK_NET = "_mask_net"


def _deep_masks(part: DeepMaskPredictor, _: CenterNet) -> Named:
    network = part.masks.network
    if not isinstance(network, LayeredMask):  # the others have no layers
        return
    layers, path = network.layers, f"{_MASK_NET}/_net"
    if isinstance(layers, HourglassMask):
        first, residual = layers.stem
        yield from _block(first, f"{path}/conv_input/conv_block")
        yield from _residual(residual, f"{path}/conv_input/residual_block")
        yield from _sizes(layers.hourglass, f"{path}/hourglass_network/0")
        yield from _block(layers.output, f"{path}/output_conv/0")
    if isinstance(layers, ResNetMask):
        yield layers.stem, f"{path}/input_layer"
        yield from _numbered(_preactivated(layers.blocks), f"{path}/model")
    if isinstance(layers, DenseMask):
        yield layers.stem, f"{path}/input_layer"
        yield layers.hidden, f"{path}/fc1"
        yield layers.predict, f"{path}/fc2"
        return
    yield layers.get_submodule("predict"), f"{_MASK_NET}/project_out"


def _identities(classifier: IdentityClassifier, _: CenterNet) -> Named:
    yield from _numbered(_weighted(classifier), "track_reid_classification_net")


# Type of a part → names its layers, given the part and its network.
CENTER_NET_PARTS: dict[type[nn.Module], Callable[[Any, Any], Named]] = {
    StackedHourglass: _hourglass,
    PreactivationResNet: _preactivation,
    KerasResNetV1: _resnet_v1,
    MobileNetV2: _mobilenet,
    Deconvolutions: _deconvolutions,
    TopDownMap: _top_down,
    nn.Identity: lambda _part, _network: iter(()),
    StageHeads: _stage,
    DeepMaskPredictor: _deep_masks,
    IdentityClassifier: _identities,
}
