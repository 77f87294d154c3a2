"""torchvision's Faster and Mask R-CNN, mapped from their names.

Unlike ours, its heads predict a box and a mask for the background too, its proposals have one logit for an object
without one for background, and x comes before y.

Dimensions: A anchors per location, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from boxwright.families.shared.source_weights import Names, SourceWeights, map_names, unchanged, vertical_first
from boxwright.families.two_stage.network import FasterRCNN
from boxwright.nn.backbones.timm_backbone import TimmBackbone

_CROP_SIDE = 7


def foreign_weights(network: FasterRCNN, state: Mapping[str, Tensor], path: Path) -> SourceWeights | None:
    """Return a network's weights from torchvision's names; None for other names, or a backbone of other layers."""
    backbone = network.backbone
    if "roi_heads.box_predictor.cls_score.weight" not in state or not isinstance(backbone, TimmBackbone):
        return None
    return map_names(network, torchvision_names(network, backbone, state), state, path)


def torchvision_names(network: FasterRCNN, backbone: TimmBackbone, state: Mapping[str, Tensor]) -> Names:
    """Yield our names, torchvision's, and conversions of tensors; layers' names differ between its versions."""
    for name in backbone.body.state_dict():
        yield f"backbone.body.{name}", f"backbone.body.{name}", unchanged
    for part, theirs in (("laterals", "inner_blocks"), ("smooth", "layer_blocks")):
        # C2 to C5 of a ResNet; the pyramid's coarsest map is pooled and has no weights.
        for level in range(4):
            yield from _both(f"neck.{part}.{level}", f"backbone.fpn.{theirs}.{level}", state)
    yield from _both("rpn.head.convolve.0", "rpn.head.conv", state)
    yield from _both("rpn.head.predict.classes.0", "rpn.head.cls_logits", state, _beside_nothing)
    yield from _both("rpn.head.predict.boxes.0", "rpn.head.bbox_pred", state, vertical_first)
    yield from _both("second.features.0", "roi_heads.box_head.fc6", state, _as_window)
    yield from _both("second.features.3", "roi_heads.box_head.fc7", state, _as_kernel)
    yield from _both("second.head.classes.0", "roi_heads.box_predictor.cls_score", state, _as_kernel)
    yield from _both("second.head.boxes.0", "roi_heads.box_predictor.bbox_pred", state, _drop_background)
    if network.masks is None:
        return
    for number in range(4):
        older = f"roi_heads.mask_head.mask_fcn{number + 1}"
        theirs = older if f"{older}.weight" in state else f"roi_heads.mask_head.{number}"
        yield from _both(f"masks.head.layers.{number}.0", theirs, state)
    yield from _both("masks.head.layers.4", "roi_heads.mask_predictor.conv5_mask", state)
    yield from _both("masks.head.predict", "roi_heads.mask_predictor.mask_fcn_logits", state, lambda value: value[1:])


def _both(ours: str, theirs: str, state: Mapping[str, Tensor], change: Callable[[Tensor], Tensor] = unchanged) -> Names:
    """Yield kernel and bias; newer versions wrap some convolutions once or twice."""
    path = next((path for path in (theirs, f"{theirs}.0", f"{theirs}.0.0") if f"{path}.weight" in state), theirs)
    for kind in ("weight", "bias"):
        yield f"{ours}.{kind}", f"{path}.{kind}", change


def _as_kernel(value: Tensor) -> Tensor:
    return value[:, :, None, None] if value.ndim == 2 else value


def _as_window(value: Tensor) -> Tensor:
    """Convert a dense layer over flattened crops, channel by channel, to a kernel."""
    return value.view(len(value), -1, _CROP_SIDE, _CROP_SIDE) if value.ndim == 2 else value


def _drop_background(value: Tensor) -> Tensor:
    return _as_kernel(vertical_first(value[4:]))


def _beside_nothing(value: Tensor) -> Tensor:
    """Prepend a logit of 0 for each anchor: softmax of both equals the sigmoid of the one."""
    return torch.stack([torch.zeros_like(value), value], dim=1).flatten(0, 1)
