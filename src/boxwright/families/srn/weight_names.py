"""SRN's released weights, mapped from their names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from boxwright.families.shared.source_weights import Names, SourceWeights, map_names, unchanged, vertical_first
from boxwright.families.srn.network import SRN
from boxwright.nn.backbones.timm_backbone import TimmBackbone

_BRANCHES, _LAYERS = 4, 3


def foreign_weights(network: SRN, state: Mapping[str, Tensor], path: Path) -> SourceWeights | None:
    """Return a network's weights from the release's names; None for other names, or a backbone of other layers."""
    released = "cls_subnet_pred.weight" in state and "c7_conv.weight" in state
    if not released or not isinstance(network.backbone, TimmBackbone):
        return None
    return map_names(network, _released_names(network.backbone), state, path)


def _released_names(backbone: TimmBackbone) -> Names:
    """Yield our names, the release's, and conversions of tensors; the backbone is timm's resnet50."""
    for name in backbone.body.state_dict():
        yield f"backbone.body.{name}", name, unchanged
    places = {
        **{f"coarser.extra.{number}": f"layer{number + 5}" for number in range(2)},
        **{f"first_maps.project.{number}": f"c{number + 2}_conv" for number in range(6)},
        **{f"pyramid.laterals.{number}": f"c{number + 2}_lateral" for number in range(4)},
        **{f"pyramid.smooth.{number}": f"p{number + 2}_conv" for number in range(4)},
        **{f"pyramid.extra.{number}": f"p{number + 6}_conv" for number in range(2)},
        "head.classes.0": "cls_subnet_pred",
        **_tower("class_tower", "cls_subnet"),
        **_tower("box_tower", "box_subnet"),
    }
    for ours, theirs in places.items():
        yield from ((f"{ours}.{kind}", f"{theirs}.{kind}", unchanged) for kind in ("weight", "bias"))
    for kind in ("weight", "bias"):
        yield f"head.boxes.0.{kind}", f"box_subnet_pred.{kind}", vertical_first


def _tower(ours: str, theirs: str) -> dict[str, str]:
    """Name a tower's convolutions: lists of convolution, activation, enhancement, convolution, activation."""
    inner = {
        f"head.{ours}.1.branches.{branch}.{layer}.0": f"{theirs}.2.branch{branch}.{2 * layer}"
        for branch in range(_BRANCHES)
        for layer in range(_LAYERS)
    }
    outer = {"0.0": "0", "1.merge.0": "2.cated_conv.0", "2.0": "3"}
    return inner | {f"head.{ours}.{mine}": f"{theirs}.{other}" for mine, other in outer.items()}
