"""Weights of public PyTorch ports and of ImageNet, mapped from their names.

The names identify the layout of a `.pth` file: a RefineDet port's whole detector, VGG-16 with its classifier converted
to convolutions (`vgg16_reducedfc.pth`), torchvision's VGG-16, its Faster or Mask R-CNN on a ResNet-50 with a pyramid,
SRN's release, D-FINE's or DEIM's, or a ResNet with torchvision's names: torchvision's own for timm's ResNets, converted
Caffe models, whose blocks stride earlier, for ours. Files are read with PyTorch's restricted unpickler, which runs no
code.

Dimensions: A anchors per location, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from boxwright.base.errors import CheckpointError
from boxwright.base.files import shown
from boxwright.families.d_fine.network import DFine
from boxwright.families.d_fine.weight_names import authors_name, is_authors
from boxwright.families.refinedet.network import RefineDet
from boxwright.families.srn.network import SRN
from boxwright.families.srn.weight_names import is_released_srn, released_srn
from boxwright.families.two_stage.network import FasterRCNN
from boxwright.nn.backbones.resnet_v1 import Bottleneck, ResNetV1
from boxwright.nn.backbones.timm_backbone import TimmBackbone
from boxwright.nn.backbones.vgg16 import Vgg16
from boxwright.nn.network import Network
from boxwright.nn.ops.box_coder import BoxCoder
from boxwright.nn.row_order import unchanged, vertical_first
from boxwright.weights.archive import load_archive
from boxwright.weights.effdet_names import effdet, is_effdet, with_biases
from boxwright.weights.mapped_tensors import MappedTensors
from boxwright.weights.timm_names import timm_classifier
from boxwright.weights.torchvision_names import is_torchvision_two_stage, torchvision_two_stage

Names = Iterator[tuple[str, str, Callable[[Tensor], Tensor]]]
# Indices of the convolutions in torchvision's VGG-16, and in the ports' lists of layers.
_VGG_LAYERS = ((0, 2), (5, 7), (10, 12, 14), (17, 19, 21), (24, 26, 28))
_REDUCED = (31, 33)
_LEVELS = 4
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
) -> MappedTensors:
    """Map a state dictionary to our names and layout.

    Args:
        coder: Of the detector's boxes, for layouts whose boxes are coded otherwise.

    Raises:
        CheckpointError: If the names match no known layout, or belong to another network.
    """
    layout = _layout(network, state, path, coder)
    if layout is None:
        found = timm_classifier(network, state, path)
        if found is None:
            raise _unknown(network, state, path)
        return found
    table = {ours: (theirs, change) for ours, theirs, change in layout}
    if is_effdet(state):
        state = with_biases(network, state)
    there = {ours: entry for ours, entry in table.items() if entry[0] in state}
    values = {ours: _changed(change, state[theirs], theirs, path) for ours, (theirs, change) in there.items()}
    names = {ours: theirs for ours, (theirs, _) in there.items()}
    used = set(names.values())
    unused = {name: "no part of the network has it" for name in state if name not in used}
    in_classifier = isinstance(network, Network) and all(network.parts.in_classifier(name) for name in table)
    return MappedTensors(values, names, unused, is_classifier=in_classifier)


def _layout(network: nn.Module, state: Mapping[str, Tensor], path: Path, coder: BoxCoder | None) -> Names | None:
    backbone = getattr(network, "backbone", None)
    if is_effdet(state):
        return effdet(network, coder, state, path)
    if "arm_loc.0.weight" in state and isinstance(network, RefineDet) and isinstance(backbone, Vgg16):
        return _refinedet_port()
    if isinstance(backbone, Vgg16) and (names := _vgg_layout(state)) is not None:
        return names
    if isinstance(backbone, ResNetV1) and "layer1.0.conv1.weight" in state:
        if not _saw_levels(state):
            raise CheckpointError(
                f"{path}: its statistics are of pixels near 1, as torchvision's are, whose blocks also stride "
                "elsewhere; refinedet_resnet101 takes conversions of Caffe's, trained on 0..255; use timm/resnet101"
            )
        return _resnet(backbone)
    if isinstance(network, DFine) and is_authors(state):
        return ((name, authors_name(name), unchanged) for name in network.state_dict())
    if is_released_srn(state) and isinstance(network, SRN) and isinstance(backbone, TimmBackbone):
        return released_srn(backbone)
    if is_torchvision_two_stage(state) and isinstance(network, FasterRCNN) and isinstance(backbone, TimmBackbone):
        return torchvision_two_stage(network, backbone, state)
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
            return _vgg(prefix, _REDUCED, unchanged, unchanged)
    return _torchvision_vgg() if "features.0.weight" in state else None


def _changed(change: Callable[[Tensor], Tensor], value: Tensor, name: str, path: Path) -> Tensor:
    try:
        return change(value)
    except (IndexError, RuntimeError) as error:
        raise CheckpointError(f"{path}: {name} has shape {list(value.shape)}: {error}") from None


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


def _both(ours: str, theirs: str, change: Callable[[Tensor], Tensor] = unchanged) -> Names:
    for kind in ("weight", "bias"):
        yield f"{ours}.{kind}", f"{theirs}.{kind}", change


def _stages(prefix: str) -> Names:
    for stage, layers in enumerate(_VGG_LAYERS):
        for number, layer in enumerate(layers):
            yield from _both(f"backbone.stages.{stage}.{2 * number}", f"{prefix}{layer}")


def _vgg(
    prefix: str,
    converted: tuple[int, int],
    fc6: Callable[[Tensor], Tensor],
    fc7: Callable[[Tensor], Tensor],
) -> Names:
    yield from _stages(prefix)
    for place, (layer, change) in enumerate(zip(converted, (fc6, fc7), strict=True)):
        yield from _both(f"backbone.converted.{2 * place}", f"{prefix}{layer}", change)


def _torchvision_vgg() -> Names:
    """Subsample the classifier as SSD does: every fourth unit, and every third pixel of fc6's 7×7 window.

    The first kernel absorbs torchvision's preprocessing, since ours keeps pixels in 0..255.
    """
    for ours, theirs, change in _stages("features."):
        yield ours, theirs, _for_levels if theirs == "features.0.weight" else change

    def fc6(value: Tensor) -> Tensor:
        return value[::4] if value.ndim == 1 else value.view(4096, 512, 7, 7)[::4, :, ::3, ::3]

    def fc7(value: Tensor) -> Tensor:
        return value[::4] if value.ndim == 1 else value[::4, ::4, None, None]

    yield from _both("backbone.converted.0", "classifier.0", fc6)
    yield from _both("backbone.converted.2", "classifier.3", fc7)


def _refinedet_port() -> Names:
    """Name the layers of the public port (luuuyi's RefineDet.PyTorch)."""
    yield from _vgg("vgg.", _REDUCED, unchanged, unchanged)
    for number, name in enumerate(("conv4_3", "conv5_3")):
        yield f"backbone.norms.{number}.scale", f"{name}_L2Norm.weight", unchanged
    for number in range(2):
        yield from _both(f"neck.extra.0.{2 * number}", f"extras.{number}")
    for level in range(_LEVELS):
        for part, head in (("arm", "refinement"), ("odm", "head")):
            yield from _both(f"{head}.boxes.{level}.0", f"{part}_loc.{level}", vertical_first)
            yield from _both(f"{head}.classes.{level}.0", f"{part}_conf.{level}")
        # Lists of convolution, activation, convolution; of deconvolutions; of activation, convolution, activation.
        yield from _both(f"transfer.lateral.{level}.0", f"tcb0.{3 * level}")
        yield from _both(f"transfer.linear.{level}.0", f"tcb0.{3 * level + 2}")
        yield from _both(f"transfer.smooth.{level}.0", f"tcb2.{3 * level + 1}")
        if level < _LEVELS - 1:
            yield from _both(f"transfer.enlarge.{level}.0", f"tcb1.{level}")


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
