"""Weights of public PyTorch ports and of ImageNet, mapped from their names.

The names identify the layout of a `.pth` file: a RefineDet port's whole detector, VGG-16 with its classifier converted
to convolutions (`vgg16_reducedfc.pth`), torchvision's VGG-16, its Faster or Mask R-CNN on a ResNet-50 with a pyramid,
SRN's release, D-FINE's or DEIM's, an EfficientDet of rwightman's efficientdet-pytorch (`effdet`), or a ResNet with
torchvision's names: torchvision's own for timm's ResNets, converted Caffe models, whose blocks stride earlier, for
ours. Files are read with PyTorch's restricted unpickler, which runs no code.

effdet's boxes are coded without scales, its anchors are counted scale by scale, and those that are wide or tall have
sides of 1.4 and 0.7 where TF's have √2 and 1/√2. All three are linear in the box predictor's outputs, so that boxes
come out the same without anchors of its own.

Dimensions: A anchors per location, C channels, S scales, R aspect ratios.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from boxwright.base.errors import CheckpointError
from boxwright.base.files import shown
from boxwright.families.shared.source_weights import (
    FileFacts,
    Names,
    SourceWeights,
    both,
    conv_norm_names,
    map_names,
    norm_names,
    reduced_vgg,
    stages,
    unchanged,
)
from boxwright.families.table import family_of_network
from boxwright.nn.anchor_grids import MultiscaleAnchorGenerator
from boxwright.nn.backbones.efficientnet import EfficientNet
from boxwright.nn.backbones.resnet_v1 import Bottleneck, ResNetV1
from boxwright.nn.backbones.timm_backbone import TimmBackbone
from boxwright.nn.backbones.vgg16 import Vgg16
from boxwright.nn.heads.convolutional import Tower, WeightSharedHead
from boxwright.nn.necks.bifpn import BiFpn, BiFpnNode
from boxwright.nn.ops.boxes import BoxCoder, FasterRcnnBoxCoder
from boxwright.nn.ssd import SSD
from boxwright.types.categories import coco_classes_by_id
from boxwright.weights.store import load_archive
from boxwright.weights.timm_names import efficientnet_names, timm_classifier

# The longer side of an anchor of ratio 2 or 1/2, in sides of the square one; TF's is the root of 2.
_LONGER = 1.4
_COCO_OUTPUTS = 9 * 90  # anchors and ids
# A bias before normalization, which only its models of TF's padding have.
_BIAS = "fpn.cell.0.fnode.0.after_combine.conv.conv_pw.bias"


@dataclass(frozen=True)
class _Parts:
    """A network of the shape that its files are of."""

    backbone: EfficientNet | TimmBackbone
    neck: BiFpn
    head: WeightSharedHead
    class_tower: Tower
    anchors: MultiscaleAnchorGenerator
    coder: FasterRcnnBoxCoder


def is_effdet(names: Mapping[str, Tensor]) -> bool:
    """Return whether tensors have effdet's names."""
    return "class_net.predict.conv_pw.weight" in names


def effdet(network: nn.Module, coder: BoxCoder | None, state: Mapping[str, Tensor], path: Path) -> Names:
    """Yield our names, effdet's, and conversions of tensors.

    Args:
        state: As in the file.

    Raises:
        CheckpointError: If the network is not such an EfficientDet, or its maps are of other blocks.
    """
    parts = _parts(network, coder)
    if parts is None:
        raise CheckpointError(
            f"{path}: effdet's EfficientDet fits an SSD with bifpn, multiscale anchors of ratios 1, 2 and 0.5 and a "
            "weight shared predictor, such as preset:efficientdet_d0"
        )
    if isinstance(parts.backbone, EfficientNet) and not parts.backbone.taps_ends:
        raise CheckpointError(
            f"{path}: effdet takes its maps from the last block of a stage, and TF's EfficientDet-D1 and larger from "
            'one before; use its backbone, as in feature_extractor { type: "timm/tf_efficientnet_b1" bifpn { … } }'
        )
    if (_BIAS in state) != (parts.neck.padding == "same"):
        raise CheckpointError(
            f"{path}: is of effdet's efficientdet_*, which pads as PyTorch does; take tf_efficientdet_*, or "
            'feature_extractor { type: "timm/efficientnet_b0" bifpn { … } use_explicit_padding: true }'
            if _BIAS not in state
            else f"{path}: is of effdet's tf_efficientdet_*, which pads as TF does; remove use_explicit_padding"
        )
    names = [*_backbone(parts.backbone), *_pyramid(parts.neck), *_head(parts, state)]
    used = {theirs for _, theirs, _ in names}
    # Another kind of pyramid begins alike: all that is learned must have a place.
    more = next((name for name in state if name.endswith(".weight") and name not in used), None)
    if more is not None:
        raise CheckpointError(f"{path}: its {more} has no place in the network: another size, or another pyramid")
    yield from names


def with_biases(network: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors with biases of 0 where a file leaves out those before normalization, as effdet's own models do."""
    tensors = dict(state)
    if not isinstance(network, SSD):
        return tensors
    for ours, theirs, _ in (*_pyramid(network.neck), *_towers(network.head, state)):
        if theirs not in state and theirs.endswith((".conv.bias", ".conv_pw.bias")) and ours.endswith(".bias"):
            tensors[theirs] = torch.zeros_like(network.get_parameter(ours))
    return tensors


def _parts(network: nn.Module, coder: BoxCoder | None) -> _Parts | None:
    if not isinstance(network, SSD) or not isinstance(coder, FasterRcnnBoxCoder):
        return None
    backbone, neck, head, anchors = network.backbone, network.neck, network.head, network.anchors.generator
    if not isinstance(backbone, EfficientNet | TimmBackbone) or not isinstance(neck, BiFpn):
        return None
    if not isinstance(head, WeightSharedHead) or head.class_tower is None:
        return None
    if not isinstance(anchors, MultiscaleAnchorGenerator) or anchors.aspect_ratios != (1.0, 2.0, 0.5):
        return None
    return _Parts(backbone, neck, head, head.class_tower, anchors, coder)


def _backbone(backbone: EfficientNet | TimmBackbone) -> Names:
    if isinstance(backbone, EfficientNet):
        yield from efficientnet_names(backbone, "backbone.")
        return
    for name in backbone.body.state_dict():
        yield f"backbone.body.{name}", f"backbone.{name}", unchanged


def _pyramid(neck: nn.Module) -> Names:
    if not isinstance(neck, BiFpn):
        return
    levels = len(neck.channels)
    given, nodes = levels - len(neck.extra), 2 * (levels - 1)  # of a pass: down, then up
    for number, layers in enumerate(neck.extra):
        if isinstance(layers, nn.Sequential) and len(layers) > 1:
            yield from _resampled(f"neck.extra.{number}", f"fpn.resample.{given + number}")
    for number, node in enumerate(neck.nodes):
        ours, theirs = f"neck.nodes.{number}", f"fpn.cell.{number // nodes}.fnode.{number % nodes}"
        if not isinstance(node, BiFpnNode):
            continue
        if node.weights is not None:
            yield f"{ours}.weights", f"{theirs}.combine.edge_weights", lambda value: value[:, None]
        for place, (source, layers) in enumerate(zip(node.inputs, node.resample, strict=True)):
            if isinstance(layers, nn.Sequential) and any(isinstance(layer, nn.Conv2d) for layer in layers):
                yield from _resampled(f"{ours}.resample.{place}", f"{theirs}.combine.resample.{source}")
        yield from _separable(f"{ours}.conv", f"{theirs}.after_combine.conv")
        yield from norm_names(f"{ours}.norm", f"{theirs}.after_combine.conv.bn")


def _head(parts: _Parts, state: Mapping[str, Tensor]) -> Names:
    yield from _towers(parts.head, state)
    for part, theirs in (("boxes", "box_net"), ("classes", "class_net")):
        yield f"head.{part}.0.weight", f"{theirs}.predict.conv_dw.weight", unchanged
    scales = parts.anchors.scales_per_octave
    for kind in ("weight", "bias"):
        yield f"head.classes.1.{kind}", f"class_net.predict.conv_pw.{kind}", lambda value: _by_ratio(value, scales)
    weight, bias = "box_net.predict.conv_pw.weight", "box_net.predict.conv_pw.bias"
    yield "head.boxes.1.weight", weight, lambda value: _rescaled(_by_ratio(value, scales), parts)
    yield "head.boxes.1.bias", bias, lambda value: _shifted(_rescaled(_by_ratio(value, scales), parts), parts)


def _towers(head: nn.Module, state: Mapping[str, Tensor]) -> Names:
    if not isinstance(head, WeightSharedHead):
        return
    # Files of its later models list normalization level by level, without a name for the layer.
    by_layer = "class_net.bn_rep.0.0.bn.weight" in state
    for part, theirs in (("box_tower", "box_net"), ("class_tower", "class_net")):
        tower = getattr(head, part)
        if not isinstance(tower, Tower):
            continue
        layers = len(tower.convs)
        for layer in range(layers):
            yield from _separable(f"head.{part}.convs.{layer}", f"{theirs}.conv_rep.{layer}")
        for level, layer in product(range(len(tower.norms) // max(layers, 1)), range(layers)):
            place = f"{layer}.{level}.bn" if by_layer else f"{level}.{layer}"
            yield from norm_names(f"head.{part}.norms.{level * layers + layer}", f"{theirs}.bn_rep.{place}")


def _separable(ours: str, theirs: str) -> Names:
    yield f"{ours}.0.weight", f"{theirs}.conv_dw.weight", unchanged
    yield from both(f"{ours}.1", f"{theirs}.conv_pw")


def _resampled(ours: str, theirs: str) -> Names:
    yield from both(f"{ours}.0", f"{theirs}.conv.conv")
    yield from norm_names(f"{ours}.1", f"{theirs}.conv.bn")


def _by_ratio(value: Tensor, scales: int) -> Tensor:
    """Reorder a predictor's outputs from scale by scale, each in all ratios, to ratio by ratio: 0 3 6 1 4 7 2 5 8."""
    ratios = 3
    numbers = value.shape[0] // (scales * ratios)
    return value.reshape(scales, ratios, numbers, *value.shape[1:]).transpose(0, 1).reshape(value.shape)


def _growth(parts: _Parts) -> Tensor:
    """Return how much longer the sides of our anchors are than effdet's, [R, 1, 1] for S scales and codes."""
    longer = [1.0 if ratio == 1 else math.sqrt(2) / _LONGER for ratio in parts.anchors.aspect_ratios]
    return torch.tensor(longer)[:, None, None]


def _rescaled(value: Tensor, parts: _Parts) -> Tensor:
    """Convert offsets in sides of effdet's anchors to ours, and all codes to the coder's scales."""
    coder, growth = parts.coder, _growth(parts)
    codes = torch.tensor([coder.y_scale, coder.x_scale, coder.height_scale, coder.width_scale])
    factors = codes / torch.cat([growth, growth, torch.ones_like(growth), torch.ones_like(growth)], dim=-1)
    factors = factors.expand(-1, parts.anchors.scales_per_octave, -1).reshape(-1, *[1] * (value.ndim - 1))
    return value * factors


def _shifted(bias: Tensor, parts: _Parts) -> Tensor:
    """Convert the logarithms of sides in effdet's anchors to those in ours."""
    coder, growth = parts.coder, _growth(parts).log()
    still = torch.zeros_like(growth)
    shifts = torch.cat([still, still, growth * coder.height_scale, growth * coder.width_scale], dim=-1)
    return bias - shifts.expand(-1, parts.anchors.scales_per_octave, -1).reshape(-1)


_DEVIATION = (0.229, 0.224, 0.225)  # of torchvision's preprocessing, red, green and blue


def read_training_state(path: Path) -> tuple[dict[str, Tensor], FileFacts]:
    """Return the tensors in a file by name, without prefixes of wrappers, and what the file says beside them.

    Args:
        path: A file that `torch.save` wrote: a state dictionary, or a training state with one below `model`,
            `state_dict` or `ema`.

    Raises:
        CheckpointError: If the file is missing, broken, or holds anything else.
    """
    try:
        content = load_archive(path)
    except FileNotFoundError:
        raise CheckpointError(f"{shown(path)}: not readable as tensors by names: no such file") from None
    except CheckpointError as error:
        raise CheckpointError(
            str(error).replace("not a readable checkpoint", "not readable as tensors by names")
        ) from None
    facts = FileFacts()
    if isinstance(content, dict) and _holds_weights(content):
        facts = FileFacts(class_names=_class_names(content))
    for key in ("ema", "module"):  # of a training state of D-FINE's, in which the average is what was evaluated
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    for key in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    ):
        raise CheckpointError(f"{path}: expected tensors by names, as torch.save(network.state_dict()) writes them")
    prefix = _WRAPPERS.match(next(iter(content), ""))
    if prefix is None or not all(name.startswith(prefix[0]) for name in content):
        return content, facts
    return {name.removeprefix(prefix[0]): value for name, value in content.items()}, facts


# What DataParallel, and Lightning with or without torch.compile, put before the names of a network.
_WRAPPERS = re.compile(r"module\.|model\.(_orig_mod\.)?")


def _class_names(content: Mapping[Any, Any]) -> tuple[str, ...]:
    """Return the names of classes among the arguments of a training, which RF-DETR stores; empty without any."""
    arguments = content.get("args")
    names = arguments.get("class_names") if isinstance(arguments, dict) else getattr(arguments, "class_names", None)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return ()
    return tuple(names)


def _holds_weights(content: Mapping[Any, Any]) -> bool:
    return any(isinstance(content.get(key), dict) for key in ("ema", "state_dict", "model"))


def from_pytorch(
    network: nn.Module,
    state: Mapping[str, Tensor],
    path: Path,
    coder: BoxCoder | None = None,
    facts: FileFacts = FileFacts(),  # noqa: B008  # frozen
) -> SourceWeights:
    """Map a state dictionary to our names and layout.

    Args:
        coder: Of the detector's boxes, for layouts whose boxes are coded otherwise.
        facts: What is known of the file beside its tensors.

    Raises:
        CheckpointError: If the names match no known layout, or belong to another network.
    """
    family = family_of_network(network)
    if family is not None and (weights := family.foreign_weights(network, state, path, facts)) is not None:
        return weights
    layout = _layout(network, state, path, coder)
    if layout is None:
        weights = timm_classifier(network, state, path)
        if weights is None:
            raise _unknown(network, state, path)
        return weights
    if is_effdet(state):
        # effdet's published files have COCO's 90 ids; of another number of classes nothing is known.
        outputs = len(state["class_net.predict.conv_pw.weight"])
        classes = coco_classes_by_id() if outputs == _COCO_OUTPUTS else None
        return map_names(network, layout, with_biases(network, state), path, classes)
    return map_names(network, layout, state, path)


def _layout(network: nn.Module, state: Mapping[str, Tensor], path: Path, coder: BoxCoder | None) -> Names | None:
    backbone = getattr(network, "backbone", None)
    if is_effdet(state):
        return effdet(network, coder, state, path)
    if isinstance(backbone, Vgg16) and (names := _vgg_layout(state)) is not None:
        return names
    if isinstance(backbone, ResNetV1) and "layer1.0.conv1.weight" in state:
        if not _saw_levels(state):
            raise CheckpointError(
                f"{path}: its statistics are of pixels near 1, as torchvision's are, whose blocks also stride "
                "elsewhere; refinedet_resnet101 takes conversions of Caffe's, trained on 0..255; use timm/resnet101"
            )
        return _resnet(backbone)
    if isinstance(backbone, TimmBackbone) and _saw_levels(state):
        raise CheckpointError(
            f"{path}: its statistics are of pixels in 0..255, as Caffe's are; timm/NAME takes torchvision's; "
            "use refinedet_resnet101"
        )
    return None


def _unknown(network: nn.Module, state: Mapping[str, Tensor], path: Path) -> CheckpointError:
    """Return the error for names of no known layout."""
    example = ", ".join(list(state)[:3]) or "none"
    backbone = getattr(network, "backbone", None)
    kind = f"timm/{backbone.name}" if isinstance(backbone, TimmBackbone) else type(backbone).__name__
    return CheckpointError(
        f"{path}: its names ({example}, …) are not of a layout known for a {type(network).__name__} on a {kind}; "
        "known: refinedet.pytorch, vgg16_reducedfc and torchvision's VGG-16 for VGG-16, converted Caffe ResNets for "
        "refinedet_resnet101, timm's names for timm/NAME and for EfficientNet, MobileNetV2 and HGNetV2, torchvision's "
        "Faster and Mask R-CNN for preset:torchvision_*, effdet's EfficientDet for preset:efficientdet_d0, and SRN's "
        "release for preset:srn_resnet50_wider_face"
    )


def _vgg_layout(state: Mapping[str, Tensor]) -> Names | None:
    for prefix in ("", "vgg."):
        if f"{prefix}31.weight" in state:
            return reduced_vgg(prefix)
    return _torchvision_vgg() if "features.0.weight" in state else None


def _for_levels(kernel: Tensor) -> Tensor:
    """Convert a kernel for pixels in 0..1, divided by their deviation, to one for 0..255."""
    return kernel / (255 * torch.tensor(_DEVIATION))[:, None, None]


def _saw_levels(state: Mapping[str, Tensor]) -> bool:
    """Return whether a ResNet was trained on pixels in 0..255 rather than normalized ones.

    The output variance of the first kernels, scaled to norm 1, is near that of the pixels: 1, or 58² = 3364. The
    threshold is their geometric mean.
    """
    kernel, variance = state.get("conv1.weight"), state.get("bn1.running_var")
    if kernel is None or variance is None or kernel.ndim != 4 or len(kernel) != len(variance):
        return False
    gain = variance / kernel.flatten(1).square().sum(1).clamp(min=1e-12)
    return bool(gain.median() > 58)


def _torchvision_vgg() -> Names:
    """Subsample the classifier as SSD does: every fourth unit, and every third pixel of fc6's 7×7 window.

    The first kernel absorbs torchvision's preprocessing, since ours keeps pixels in 0..255.
    """
    for ours, theirs, change in stages("features."):
        yield ours, theirs, _for_levels if theirs == "features.0.weight" else change

    def fc6(value: Tensor) -> Tensor:
        return value[::4] if value.ndim == 1 else value.view(4096, 512, 7, 7)[::4, :, ::3, ::3]

    def fc7(value: Tensor) -> Tensor:
        return value[::4] if value.ndim == 1 else value[::4, ::4, None, None]

    yield from both("backbone.converted.0", "classifier.0", fc6)
    yield from both("backbone.converted.2", "classifier.3", fc7)


def _resnet(backbone: ResNetV1) -> Names:
    yield from conv_norm_names("backbone.stem", "conv1", "bn1")
    for stage, blocks in enumerate(backbone.stages):
        for number, block in enumerate(blocks.children()):
            ours, theirs = f"backbone.stages.{stage}.{number}", f"layer{stage + 1}.{number}"
            for place, part in enumerate(("reduce", "convolve", "expand"), start=1):
                yield from conv_norm_names(f"{ours}.{part}", f"{theirs}.conv{place}", f"{theirs}.bn{place}")
            if isinstance(block, Bottleneck) and isinstance(block.shortcut, nn.Sequential):
                yield from conv_norm_names(f"{ours}.shortcut", f"{theirs}.downsample.0", f"{theirs}.downsample.1")
