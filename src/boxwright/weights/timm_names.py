"""Image classifiers by timm's names, as backbones: timm's own, of any family, and those of ours that compute the same.

A backbone of timm's is a classifier without its head, whose modules timm may rename: those of a first sequence become
modules of the whole (`stages.0` is `stages_0`), or all are within `model` or `body`. Files that timm itself renames on
reading, as authors' names, go through timm's own function. The inverted residual blocks of our EfficientNet and
MobileNetV2 are mapped from timm's names one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from boxwright.base.errors import CheckpointError, pass_shortage
from boxwright.base.quiet import quiet
from boxwright.families.shared.source_weights import Names, SourceWeights, conv_norm_names, unchanged
from boxwright.nn.backbones.efficientnet import EfficientNet, MBConv
from boxwright.nn.backbones.hgnetv2 import HgNetV2
from boxwright.nn.backbones.mobilenet_v2 import BLOCKS_OF_STAGES, InvertedResidual, MobileNetV2
from boxwright.nn.backbones.timm_backbone import TimmBackbone

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
    yield from conv_norm_names("backbone.stem", f"{prefix}conv_stem", f"{prefix}bn1")
    for number, ((stage, position), block) in enumerate(zip(backbone.places, backbone.blocks, strict=True)):
        yield from _block(block, f"backbone.blocks.{number}", f"{prefix}blocks.{stage}.{position}")


def mobilenet_v2_names(backbone: MobileNetV2) -> Names:
    """Yield our names of a network's tensors, timm's, and conversions, of which there are none."""
    yield from conv_norm_names("backbone.stem", "conv_stem", "bn1")
    places = [(stage, position) for stage, count in enumerate(BLOCKS_OF_STAGES) for position in range(count)]
    for number, ((stage, position), block) in enumerate(zip(places, backbone.blocks, strict=False)):
        yield from _block(block, f"backbone.blocks.{number}", f"blocks.{stage}.{position}")
    if backbone.head is not None:
        yield from conv_norm_names("backbone.head", "conv_head", "bn2")


def is_efficientnet_pytorch(names: Mapping[str, Tensor]) -> bool:
    """Return whether names are those of the efficientnet_pytorch package and of what is derived from it."""
    return "_conv_stem.weight" in names and "_blocks.0._depthwise_conv.weight" in names


def to_timm(state: Mapping[str, Tensor], places: Sequence[str]) -> dict[str, str]:
    """Return timm's names of tensors, each with its name in efficientnet_pytorch's file.

    Args:
        state: The file's tensors.
        places: timm's names of the network's blocks, in order.
    """
    renamed: dict[str, str] = {}
    for name in state:
        block = _BLOCK.fullmatch(name)
        if block is None:
            part, _, kind = name.rpartition(".")
            renamed[f"{_ENDS.get(part, part)}.{kind}"] = name
        elif int(block[1]) < len(places):
            expands = f"_blocks.{block[1]}._expand_conv.weight" in state
            parts = _PARTS if expands else {**_PARTS, **_WITHOUT_EXPANSION}
            renamed[f"{places[int(block[1])]}.{parts.get(block[2], block[2])}.{block[3]}"] = name
        else:
            renamed[name] = name
    return renamed


def _block(block: nn.Module, ours: str, theirs: str) -> Names:
    """Yield a block's tensors; timm counts the convolutions and normalizations that a block has."""
    expands = isinstance(block, MBConv | InvertedResidual) and not isinstance(block.expand, nn.Identity)
    convs = ("conv_pw", "conv_dw", "conv_pwl") if expands else ("conv_dw", "conv_pw")
    parts = ("expand", "depthwise", "project") if expands else ("depthwise", "project")
    for number, (part, conv) in enumerate(zip(parts, convs, strict=True), start=1):
        yield from conv_norm_names(f"{ours}.{part}", f"{theirs}.{conv}", f"{theirs}.bn{number}")
    if isinstance(block, MBConv):
        for part, conv in (("squeeze", "conv_reduce"), ("excite", "conv_expand")):
            yield from (
                (f"{ours}.{part}.{kind}", f"{theirs}.se.{conv}.{kind}", unchanged) for kind in ("weight", "bias")
            )


IMAGENET_MEAN, IMAGENET_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_EPSILON, _OUR_EPSILON = 1e-5, 1e-3
# The first kernel of networks whose pixels are not normalized as timm's, the mean after it, and their pixels' scale.
_FIRST: dict[type, tuple[str, str, float, float]] = {
    MobileNetV2: ("backbone.stem.0.weight", "backbone.stem.1.running_mean", 2.0, -1.0),
    HgNetV2: ("backbone.stem.stem1.conv.weight", "backbone.stem.stem1.bn.running_mean", 1.0, 0.0),
}
_DIGITS = re.compile(r"\d+")
_COUNT = "num_batches_tracked"
# With less of a backbone's tensors by name, a file is of another family.
_LEAST = 0.5


def timm_classifier(network: nn.Module, state: Mapping[str, Tensor], path: Path) -> SourceWeights | None:
    """Return a file's tensors for a network's backbone; None if the names are not those of its family in timm.

    Raises:
        CheckpointError: If it is of another size of the family.
    """
    state = {name: value for name, value in state.items() if not name.endswith(_COUNT)}
    named_backbone = next(
        ((name, part) for name, part in network.named_modules() if isinstance(part, TimmBackbone)), None
    )
    if named_backbone is None:
        return _map_own_backbone(network, state, path)
    prefix, backbone = named_backbone
    sources = {name: name for name in state}
    if is_efficientnet_pytorch(state):
        layers = (name for name, _ in backbone.body.named_modules())
        blocks = [name for name in layers if name.startswith("blocks.") and name.count(".") == 2]
        sources = to_timm(state, blocks)
        state = {name: state[theirs] for name, theirs in sources.items()}
    wanted = _wanted(backbone.body)
    table = _matched(wanted, state)
    if len(table) < len(wanted):
        # Names that timm changes on reading may match in part.
        converted = _converted(backbone.name, state)
        if len(converted.keys() & wanted) > len(table):
            values = {f"{prefix}.body.{name}": value for name, value in converted.items() if name in wanted}
            names = {name: f"{name.removeprefix(f'{prefix}.body.')} (renamed by timm)" for name in values}
            return SourceWeights(values, names, {}, is_classifier=True)
    if len(table) < _LEAST * len(wanted):
        return None
    _refuse_larger(backbone, table, state, path)
    values = {f"{prefix}.body.{ours}": state[theirs] for ours, theirs in table.items()}
    names = {f"{prefix}.body.{ours}": sources[theirs] for ours, theirs in table.items()}
    used = set(table.values())
    unused = _left_out(sources[name] for name in state if name not in used)
    return SourceWeights(values, names, unused, is_classifier=True)


def _wanted(body: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in body.state_dict().items() if not name.endswith(_COUNT)}


def _matched(wanted: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, str]:
    """Return names of tensors in timm's features alone, each with the name that the whole network has for it."""
    table: dict[str, str] = {}
    for theirs in state:
        within = (theirs, theirs.replace(".", "_", 1), f"model.{theirs}", f"body.{theirs}")
        ours = next((name for name in within if name in wanted), None)
        if ours is not None:
            table.setdefault(ours, theirs)
    return table


def _left_out(names: Iterator[str]) -> dict[str, str]:
    return dict.fromkeys(names, "after the backbone's last map, as the classifier's head is")


def _refuse_larger(backbone: TimmBackbone, table: Mapping[str, str], state: Mapping[str, Tensor], path: Path) -> None:
    """Raise if a part that the backbone has goes on in the file: the first blocks of another size fit by name."""
    within_one = all(ours.startswith(("model.", "body.")) for ours in table)
    parts = {ours.split(".")[int(within_one)] for ours in table}
    used = set(table.values())
    kinds = {_DIGITS.sub("0", name) for name in used}
    for name in state:
        first, second = (*name.split("."), "")[:2]
        if name not in used and _DIGITS.sub("0", name) in kinds and {first, f"{first}_{second}"} & parts:
            raise CheckpointError(
                f"{path}: its {name} has no place in timm/{backbone.name}: it is of another size of the family; name "
                "that one as the backbone"
            )


def _converted(name: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of timm's features alone, by timm's own reading of a file; none if it cannot read it.

    timm does not say which tensors it found. What is read from a file of NaN is NaN, which shows it.
    """
    import timm

    def read(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        given: dict[str, Any] = {"state_dict": dict(tensors)}
        with quiet():  # timm warns of the classifier's tensors, which features do not have
            network = timm.create_model(name, pretrained=True, features_only=True, pretrained_cfg_overlay=given)
        return dict(network.state_dict())

    floats = {key: value for key, value in state.items() if value.is_floating_point()}
    try:
        marked = read({**state, **{key: torch.full_like(value, torch.nan) for key, value in floats.items()}})
        values = read({key: value.clone() for key, value in state.items()})
    except Exception as error:  # noqa: BLE001  # of some hundred functions, each with its own for files of another network
        pass_shortage(error, "reading the file")
        return {}
    return {
        key: value for key, value in values.items() if marked[key].is_floating_point() and marked[key].isnan().all()
    }


def _map_own_backbone(network: nn.Module, state: Mapping[str, Tensor], path: Path) -> SourceWeights | None:
    """Return a file's tensors for a backbone of ours that computes what timm's of the same family does."""
    backbone = getattr(network, "backbone", None)
    sources = {name: name for name in state}
    if isinstance(backbone, EfficientNet) and is_efficientnet_pytorch(state):
        sources = to_timm(state, [f"blocks.{stage}.{place}" for stage, place in backbone.places])
        state = {name: state[theirs] for name, theirs in sources.items()}
    if isinstance(backbone, EfficientNet):
        names = efficientnet_names(backbone)
    elif isinstance(backbone, MobileNetV2):
        names = mobilenet_v2_names(backbone)
    elif isinstance(backbone, HgNetV2):
        names = ((f"backbone.{name}", name, unchanged) for name in _wanted(backbone))
    else:
        return None
    table = {ours: theirs for ours, theirs, _ in names}
    matched = {ours: theirs for ours, theirs in table.items() if theirs in state}
    if len(matched) < _LEAST * len(table):
        return None
    used = set(matched.values())
    unused = _left_out(sources[name] for name in state if name not in used)
    values = {ours: state[theirs] for ours, theirs in matched.items()}
    first = _FIRST.get(type(backbone))
    if first is not None:
        values = _for_pixels(values, *first)
    if isinstance(backbone, MobileNetV2):
        values = _with_epsilon(values)
    return SourceWeights(values, {o: sources[t] for o, t in matched.items()}, unused, is_classifier=True)


def _for_pixels(values: dict[str, Tensor], kernel: str, mean: str, scale: float, offset: float) -> dict[str, Tensor]:
    """Convert a first kernel for ImageNet's normalized pixels to one for pixels of another scale.

    Args:
        mean: The statistics after it, which absorb the difference of a constant; at borders, padding is another.
        scale: What a value of 0..1 is multiplied by.
        offset: What is then added.
    """
    if kernel not in values or mean not in values or values[kernel].shape[1:2] != (3,):
        return values
    weight, average, deviation = values[kernel], torch.tensor(IMAGENET_MEAN), torch.tensor(IMAGENET_DEVIATION)
    shift = (-offset / scale - average) / deviation
    return {
        **values,
        kernel: weight / (scale * deviation)[:, None, None],
        mean: values[mean] - (weight.sum((2, 3)) * shift).sum(1),
    }


def _with_epsilon(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Scale gains so that normalization with TF's epsilon gives what it does with PyTorch's."""
    changed = dict(values)
    for name, variance in values.items():
        gain = f"{name.removesuffix('running_var')}weight"
        if name.endswith(".running_var") and gain in values:
            changed[gain] = values[gain] * ((variance + _OUR_EPSILON) / (variance + _EPSILON)).sqrt()
    return changed
