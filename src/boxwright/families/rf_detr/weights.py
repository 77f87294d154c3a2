"""Files of RF-DETR's weights without a configuration of ours: their size, classes, and the names of their tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from boxwright.base.errors import CheckpointError
from boxwright.base.files import shown
from boxwright.config.load import parse_message
from boxwright.families.rf_detr.backbone import resize_positions
from boxwright.families.rf_detr.message import SIZES, RfDetr
from boxwright.families.rf_detr.network import RfDetr as Network
from boxwright.families.shared.source_weights import FileFacts, SourceWeights, map_names, unchanged
from boxwright.types import Categories, Category
from boxwright.types.categories import are_coco_classes, coco_classes_by_id

_ENCODER = "backbone.0.encoder.encoder."
# Ours → the authors', each pattern from the beginning of a name.
_NAMES: tuple[tuple[str, str], ...] = (
    (r"backbone\.class_token$", f"{_ENCODER}embeddings.cls_token"),
    (r"backbone\.positions$", f"{_ENCODER}embeddings.position_embeddings"),
    (r"backbone\.patches\.", f"{_ENCODER}embeddings.patch_embeddings.projection."),
    (r"backbone\.norm\.", f"{_ENCODER}layernorm."),
    (r"backbone\.blocks\.(\d+)\.attention\.output\.", rf"{_ENCODER}encoder.layer.\1.attention.output.dense."),
    (r"backbone\.blocks\.(\d+)\.attention\.", rf"{_ENCODER}encoder.layer.\1.attention.attention."),
    (r"backbone\.blocks\.(\d+)\.scale([12])$", rf"{_ENCODER}encoder.layer.\1.layer_scale\2.lambda1"),
    (r"backbone\.blocks\.(\d+)\.fc([12])\.", rf"{_ENCODER}encoder.layer.\1.mlp.fc\2."),
    (r"backbone\.blocks\.(\d+)\.", rf"{_ENCODER}encoder.layer.\1."),
    (r"projector\.", "backbone.0.projector."),
    (r"queries\.(refpoint_embed|query_feat)\.", r"\1."),
    (r"queries\.", "transformer."),
    (r"decoder\.(class_embed|bbox_embed)\.", r"\1."),
    (r"decoder\.", "transformer.decoder."),
    (r"masks\.", "segmentation_head."),
)


def authors_name(name: str) -> str:
    """Return the authors' name of one of our tensors."""
    for pattern, replacement in _NAMES:
        theirs, count = re.subn(f"^{pattern}", replacement, name)
        if count:
            return theirs
    return name


_POSITIONS, _PATCHES = (
    f"{_ENCODER}embeddings.position_embeddings",
    f"{_ENCODER}embeddings.patch_embeddings.projection.weight",
)
_MASKS = "segmentation_head.bias"
_CLASSES, _QUERIES, _LAYER = "class_embed.bias", "refpoint_embed.weight", "transformer.decoder.layers.{}.norm1.weight"
_GROUP = "transformer.enc_out_class_embed.{}.bias"
# COCO's ids of 0 to 90, of which 0 is of no class.
_COCO_ROWS = 91
_CLASS_ROWS = re.compile(r"(queries\.enc_out_class_embed\.\d+|decoder\.class_embed)\.(weight|bias)$")
_AUTHORS_CLASS_ROWS = re.compile(r"(transformer\.enc_out_class_embed\.\d+|class_embed)\.(weight|bias)$")
# Learned for nothing, and a mark of newer versions of the authors' package.
_IGNORED = (f"{_ENCODER}embeddings.mask_token", "_kp_active_mask")


def is_rf_detr(names: Iterable[str]) -> bool:
    """Return whether names are those of the authors' files."""
    return _QUERIES in names and _POSITIONS in names


def has_coco_ids(rows: int, class_names: tuple[str, ...]) -> bool:
    """Return whether a class head's rows are COCO's ids: its classes have COCO's names, or are 91 without names."""
    if class_names:
        return are_coco_classes(class_names) and rows > len(class_names) + 1
    return rows == _COCO_ROWS


def _classes(rows: int, class_names: tuple[str, ...]) -> Categories | None:
    """Return the classes of a head; None where nothing names them."""
    if has_coco_ids(rows, class_names):
        return coco_classes_by_id()
    if len(class_names) != rows - 1:
        return None
    return Categories(tuple(Category(number, number + 1, name) for number, name in enumerate(class_names)))


def foreign_weights(
    network: Network, tensors: Mapping[str, Tensor], path: Path, facts: FileFacts
) -> SourceWeights | None:
    """Return a network's weights from the authors' names; None for other names.

    Positions are resized to the network's grid. Where the network has fewer groups or queries, they are the first ones.
    The last row of class heads, which is of no class, becomes the first; in COCO's the first is that of id 0. By
    position, a head of another number of rows is changed to the network's before that.

    Raises:
        CheckpointError: If a tensor cannot be changed so.
    """
    if not is_rf_detr(tensors):
        return None
    given = {name: value for name, value in tensors.items() if name not in _IGNORED}
    rows = len(given.get(_CLASSES, ()))
    columns, classes = network.decoder.layout.columns, _classes(rows, facts.class_names)
    last_first = not has_coco_ids(rows, facts.class_names)
    if network.keeps_rows_by_position:
        # Without names of classes nothing is matched by them.
        last_first, classes = last_first or rows != columns, None
        heads = [name for name in given if _AUTHORS_CLASS_ROWS.match(name)]
        given |= {name: repeat_rows(given[name], columns) for name in heads}
    theirs = {name: authors_name(name) for name in network.state_dict()}
    names = (
        (ours, name, _last_row_first if last_first and _CLASS_ROWS.match(ours) else unchanged)
        for ours, name in theirs.items()
    )
    _fit(network, given, path)
    return map_names(network, names, given, path, classes)


def repeat_rows(value: Tensor, count: int) -> Tensor:
    """Return a tensor of `count` rows: the first ones, which begin again where there are fewer."""
    return value[torch.arange(count, device=value.device) % len(value)]


def _last_row_first(value: Tensor) -> Tensor:
    return value.roll(1, 0)


def _fit(network: Network, tensors: dict[str, Tensor], path: Path) -> None:
    """Change positions and queries of a file to the numbers that a network has of them."""
    side, own = network.backbone.layout.grid, tensors[_POSITIONS]
    stored = round((own.shape[1] - 1) ** 0.5)
    if stored**2 + 1 != own.shape[1]:
        raise CheckpointError(f"{shown(path)}: {_POSITIONS} has shape {list(own.shape)}, which is of no square")
    if stored != side:
        resized = resize_positions(own[:, 1:].unflatten(1, (stored, stored)), (side, side)).flatten(1, 2)
        tensors[_POSITIONS] = torch.cat([own[:, :1], resized], 1)
    layout, groups = network.decoder.layout, _count(tensors, _GROUP)
    for name in (_QUERIES, "query_feat.weight"):
        table = tensors.get(name)
        if table is None or not groups or len(table) % groups:
            continue
        if groups >= layout.groups and len(table) // groups >= layout.queries:
            tensors[name] = first_queries(table, groups, layout.groups, layout.queries)
    if groups > layout.groups:
        # What further groups learned has no place, and nothing of it detects.
        for name in [name for name in tensors if _group_of(name) >= layout.groups]:
            del tensors[name]


def first_queries(table: Tensor, groups: int, kept_groups: int, kept_queries: int) -> Tensor:
    """Return the rows of the first queries of the first groups, of a table [G · Q, D] of so many groups."""
    first: Tensor = table.unflatten(0, (groups, -1))[:kept_groups, :kept_queries].flatten(0, 1)
    return first


_OF_GROUP = re.compile(r"transformer\.enc_(?:output|output_norm|out_class_embed|out_bbox_embed)\.(\d+)\.")


def _group_of(name: str) -> int:
    match = _OF_GROUP.match(name)
    return -1 if match is None else int(match[1])


def _count(tensors: Mapping[str, Tensor], name: str) -> int:
    """Return how many of numbered tensors there are."""
    count = 0
    while name.format(count) in tensors:
        count += 1
    return count


_WIDTH = 384
# What tells a size apart in a file: its patch, the side of the stored grid and the layers of the decoder. Those with
# masks have patches of 12.
_NAMES_OF_SIZES = {(size.patch, size.grid, size.layers): name for name, size in SIZES.items()}


def describe_weights(
    tensors: Mapping[str, Tensor], path: Path, facts: FileFacts
) -> tuple[RfDetr, Categories | None] | None:
    """Return the message of a file of RF-DETR's weights, and its classes where they are known; None for other weights.

    Args:
        tensors: Of the authors' layout.
        path: The file.
        facts: What is known of the file beside its tensors.

    Raises:
        CheckpointError: If they are of none of the published sizes.
    """
    if not is_rf_detr(tensors):
        return None
    patch, layers = tensors[_PATCHES].shape[-1], _count(tensors, _LAYER)
    grid = round((tensors[_POSITIONS].shape[1] - 1) ** 0.5)
    size = _NAMES_OF_SIZES.get((patch, grid, layers))
    if size is None or tensors[_PATCHES].shape[0] != _WIDTH:
        raise CheckpointError(
            f"{shown(path)}: of an RF-DETR of patches of {patch}, {grid} × {grid} positions and {layers} layers, which "
            f"is none of the sizes {', '.join(SIZES)}; pass the configuration (XL and 2XL are not supported, as "
            "their platform license is not an open one)"
        )
    side = SIZES[size].side
    rows, groups = len(tensors[_CLASSES]), _count(tensors, _GROUP)
    queries = len(tensors[_QUERIES]) // max(groups, 1)
    text = f"""
      num_classes: {rows - 1}
      size: {size}
      image_resizer {{ fixed_shape_resizer {{ height: {side} width: {side} resize_method: BILINEAR_ANTIALIASED }} }}
      decoder {{ num_queries: {queries} num_groups: {groups} }}
      {f"masks {{}} post_processing {{ max_total_detections: {queries} }}" if _MASKS in tensors else ""}"""
    return parse_message(text, RfDetr, file=str(path)), _classes(rows, facts.class_names)
