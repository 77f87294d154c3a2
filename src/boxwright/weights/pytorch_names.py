"""Weights of public PyTorch ports and of ImageNet, mapped from their names.

The names identify the layout of a `.pth` file: a RefineDet port's whole detector, VGG-16 with its classifier converted
to convolutions (`vgg16_reducedfc.pth`), torchvision's VGG-16, its Faster or Mask R-CNN on a ResNet-50 with a pyramid,
SRN's release, D-FINE's or DEIM's, or a ResNet with torchvision's names: torchvision's own for timm's ResNets, converted
Caffe models, whose blocks stride earlier, for ours. Files are read with PyTorch's restricted unpickler, which runs no
code.

Dimensions: A anchors per location, C channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from boxwright.base.errors import CheckpointError
from boxwright.base.files import shown
from boxwright.families.shared.source_weights import Names, SourceWeights, map_names
from boxwright.families.shared.vgg_names import both, reduced_vgg, stages
from boxwright.families.table import family_of_network
from boxwright.nn.backbones.resnet_v1 import Bottleneck, ResNetV1
from boxwright.nn.backbones.timm_backbone import TimmBackbone
from boxwright.nn.backbones.vgg16 import Vgg16
from boxwright.nn.ops.box_coder import BoxCoder
from boxwright.nn.row_order import unchanged
from boxwright.weights.archive import load_archive
from boxwright.weights.effdet_names import effdet, effdet_classes, is_effdet, with_biases
from boxwright.weights.timm_names import timm_classifier

_DEVIATION = (0.229, 0.224, 0.225)  # of torchvision's preprocessing, red, green and blue


def read_pth(path: Path) -> dict[str, Tensor]:
    """Return the tensors in a file by name, without DataParallel's prefix.

    Args:
        path: A file that `torch.save` wrote: a state dictionary, or one below `model` or `state_dict`.

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
    return {name.removeprefix("module."): value for name, value in content.items()}


def from_pytorch(
    network: nn.Module, state: Mapping[str, Tensor], path: Path, coder: BoxCoder | None = None
) -> SourceWeights:
    """Map a state dictionary to our names and layout.

    Args:
        coder: Of the detector's boxes, for layouts whose boxes are coded otherwise.

    Raises:
        CheckpointError: If the names match no known layout, or belong to another network.
    """
    family = family_of_network(network)
    if family is not None and (weights := family.foreign_weights(network, state, path)) is not None:
        return weights
    layout = _layout(network, state, path, coder)
    if layout is None:
        found = timm_classifier(network, state, path)
        if found is None:
            raise _unknown(network, state, path)
        return found
    if is_effdet(state):
        return map_names(network, layout, with_biases(network, state), path, effdet_classes(state))
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
    yield from _norm_and_conv("backbone.stem", "conv1", "bn1")
    for stage, blocks in enumerate(backbone.stages):
        for number, block in enumerate(blocks.children()):
            ours, theirs = f"backbone.stages.{stage}.{number}", f"layer{stage + 1}.{number}"
            for place, part in enumerate(("reduce", "convolve", "expand"), start=1):
                yield from _norm_and_conv(f"{ours}.{part}", f"{theirs}.conv{place}", f"{theirs}.bn{place}")
            if isinstance(block, Bottleneck) and isinstance(block.shortcut, nn.Sequential):
                yield from _norm_and_conv(f"{ours}.shortcut", f"{theirs}.downsample.0", f"{theirs}.downsample.1")


def _norm_and_conv(ours: str, conv: str, norm: str) -> Names:
    yield f"{ours}.0.weight", f"{conv}.weight", unchanged
    for kind in ("weight", "bias", "running_mean", "running_var"):
        yield f"{ours}.1.{kind}", f"{norm}.{kind}", unchanged
