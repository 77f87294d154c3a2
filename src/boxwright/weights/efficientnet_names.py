"""Inverted residual blocks by timm's names: of EfficientNet and of MobileNetV2."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import Tensor, nn

from boxwright.nn.backbones.efficientnet import EfficientNet, MBConv
from boxwright.nn.backbones.mobilenet_v2 import BLOCKS_OF_STAGES, InvertedResidual, MobileNetV2
from boxwright.nn.row_order import unchanged

Names = Iterator[tuple[str, str, Callable[[Tensor], Tensor]]]
_STATISTICS = ("weight", "bias", "running_mean", "running_var")
# efficientnet_pytorch's names within a block that expands → timm's; of a block that does not, the numbers are one less.
_PARTS = {
    "_expand_conv": "conv_pw",
    "_depthwise_conv": "conv_dw",
    "_project_conv": "conv_pwl",
    "_se_reduce": "se.conv_reduce",
    "_se_expand": "se.conv_expand",
    "_bn0": "bn1",
    "_bn1": "bn2",
    "_bn2": "bn3",
}
_WITHOUT_EXPANSION = {"_project_conv": "conv_pw", "_bn1": "bn1", "_bn2": "bn2"}
_ENDS = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
_BLOCK = re.compile(r"_blocks\.(\d+)\.(\w+)\.(\w+)")


def efficientnet_names(backbone: EfficientNet, prefix: str = "") -> Names:
    """Yield our names of a network's tensors, timm's behind a prefix, and conversions, of which there are none."""
    yield from _norm_and_conv("backbone.stem", f"{prefix}conv_stem", f"{prefix}bn1")
    for number, ((stage, position), block) in enumerate(zip(backbone.places, backbone.blocks, strict=True)):
        yield from _block(block, f"backbone.blocks.{number}", f"{prefix}blocks.{stage}.{position}")


def mobilenet_v2_names(backbone: MobileNetV2) -> Names:
    """Yield our names of a network's tensors, timm's, and conversions, of which there are none."""
    yield from _norm_and_conv("backbone.stem", "conv_stem", "bn1")
    places = [(stage, position) for stage, count in enumerate(BLOCKS_OF_STAGES) for position in range(count)]
    for number, ((stage, position), block) in enumerate(zip(places, backbone.blocks, strict=False)):
        yield from _block(block, f"backbone.blocks.{number}", f"blocks.{stage}.{position}")
    if backbone.head is not None:
        yield from _norm_and_conv("backbone.head", "conv_head", "bn2")


def is_efficientnet_pytorch(names: Mapping[str, Tensor]) -> bool:
    """Return whether names are those of the efficientnet_pytorch package and of what is derived from it."""
    return "_conv_stem.weight" in names and "_blocks.0._depthwise_conv.weight" in names


def to_timm(state: Mapping[str, Tensor], places: Sequence[str]) -> dict[str, tuple[str, Tensor]]:
    """Return tensors by timm's names, each with its name in efficientnet_pytorch's file.

    Args:
        state: The file's tensors.
        places: timm's names of the network's blocks, in order.
    """
    found: dict[str, tuple[str, Tensor]] = {}
    for name, value in state.items():
        block = _BLOCK.fullmatch(name)
        if block is None:
            part, _, kind = name.rpartition(".")
            found[f"{_ENDS.get(part, part)}.{kind}"] = name, value
        elif int(block[1]) < len(places):
            expands = f"_blocks.{block[1]}._expand_conv.weight" in state
            parts = _PARTS if expands else {**_PARTS, **_WITHOUT_EXPANSION}
            found[f"{places[int(block[1])]}.{parts.get(block[2], block[2])}.{block[3]}"] = name, value
        else:
            found[name] = name, value
    return found


def _block(block: nn.Module, ours: str, theirs: str) -> Names:
    """Yield a block's tensors; timm counts the convolutions and normalizations that a block has."""
    expands = isinstance(block, MBConv | InvertedResidual) and not isinstance(block.expand, nn.Identity)
    convs = ("conv_pw", "conv_dw", "conv_pwl") if expands else ("conv_dw", "conv_pw")
    parts = ("expand", "depthwise", "project") if expands else ("depthwise", "project")
    for number, (part, conv) in enumerate(zip(parts, convs, strict=True), start=1):
        yield from _norm_and_conv(f"{ours}.{part}", f"{theirs}.{conv}", f"{theirs}.bn{number}")
    if isinstance(block, MBConv):
        for part, conv in (("squeeze", "conv_reduce"), ("excite", "conv_expand")):
            yield from (
                (f"{ours}.{part}.{kind}", f"{theirs}.se.{conv}.{kind}", unchanged) for kind in ("weight", "bias")
            )


def _norm_and_conv(ours: str, conv: str, norm: str) -> Names:
    yield f"{ours}.0.weight", f"{conv}.weight", unchanged
    yield from ((f"{ours}.1.{kind}", f"{norm}.{kind}", unchanged) for kind in _STATISTICS)
