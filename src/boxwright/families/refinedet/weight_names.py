"""Weights of RefineDet's public port, mapped from their names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from boxwright.families.refinedet.network import RefineDet
from boxwright.families.shared.source_weights import Names, SourceWeights, map_names, unchanged, vertical_first
from boxwright.families.shared.vgg_names import both, reduced_vgg
from boxwright.nn.backbones.vgg16 import Vgg16

_LEVELS = 4


def foreign_weights(network: RefineDet, state: Mapping[str, Tensor], path: Path) -> SourceWeights | None:
    """Return a network's weights from the port's names; None for other names, or another backbone than VGG-16."""
    if "arm_loc.0.weight" not in state or not isinstance(network.backbone, Vgg16):
        return None
    return map_names(network, _port_names(), state, path)


def _port_names() -> Names:
    """Name the layers of the public port (luuuyi's RefineDet.PyTorch)."""
    yield from reduced_vgg("vgg.")
    for number, name in enumerate(("conv4_3", "conv5_3")):
        yield f"backbone.norms.{number}.scale", f"{name}_L2Norm.weight", unchanged
    for number in range(2):
        yield from both(f"neck.extra.0.{2 * number}", f"extras.{number}")
    for level in range(_LEVELS):
        for part, head in (("arm", "refinement"), ("odm", "head")):
            yield from both(f"{head}.boxes.{level}.0", f"{part}_loc.{level}", vertical_first)
            yield from both(f"{head}.classes.{level}.0", f"{part}_conf.{level}")
        # Lists of convolution, activation, convolution; of deconvolutions; of activation, convolution, activation.
        yield from both(f"transfer.lateral.{level}.0", f"tcb0.{3 * level}")
        yield from both(f"transfer.linear.{level}.0", f"tcb0.{3 * level + 2}")
        yield from both(f"transfer.smooth.{level}.0", f"tcb2.{3 * level + 1}")
        if level < _LEVELS - 1:
            yield from both(f"transfer.enlarge.{level}.0", f"tcb1.{level}")
