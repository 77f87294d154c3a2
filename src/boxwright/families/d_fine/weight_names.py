"""Names of D-FINE's weights: the authors' files, and those of the transformers library.

Ours are the authors', but for the modules that select queries, which they count among the decoder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from boxwright.base.errors import CheckpointError

# What the authors' decoder has and ours leaves to the selection of queries.
_SELECTION = r"(input_proj|enc_output|enc_score_head|enc_bbox_head|denoising_class_embed)\."
# Constants of an input size or a layout, copies, and a count that nothing reads.
_IGNORED = re.compile(
    r"decoder\.(anchors|valid_mask|decoder\.(up|reg_scale|project))$|num_points_scale$|num_batches_tracked$"
)

# Authors' names → transformers', each pattern from the beginning of a name.
_TRANSFORMERS: tuple[tuple[str, str], ...] = (
    (r"backbone\.stem\.", "model.backbone.model.embedder."),
    (r"backbone\.stages\.", "model.backbone.model.encoder.stages."),
    (r"encoder\.input_proj\.(\d+)\.conv\.", r"model.encoder_input_proj.\1.0."),
    (r"encoder\.input_proj\.(\d+)\.norm\.", r"model.encoder_input_proj.\1.1."),
    (r"decoder\.input_proj\.(\d+)\.conv\.", r"model.decoder_input_proj.\1.0."),
    (r"decoder\.input_proj\.(\d+)\.norm\.", r"model.decoder_input_proj.\1.1."),
    (r"encoder\.", "model.encoder."),
    (r"decoder\.enc_output\.proj\.", "model.enc_output.0."),
    (r"decoder\.enc_output\.norm\.", "model.enc_output.1."),
    (r"decoder\.(enc_score_head|enc_bbox_head|denoising_class_embed)\.", r"model.\1."),
    (r"decoder\.dec_score_head\.", "model.decoder.class_embed."),
    (r"decoder\.dec_bbox_head\.", "model.decoder.bbox_embed."),
    (r"decoder\.decoder\.", "model.decoder."),
    (r"decoder\.", "model.decoder."),
)
# What follows, within a name.
_WITHIN: tuple[tuple[str, str], ...] = (
    (r"^(model\.backbone\..*)\.conv\.", r"\1.convolution."),
    (r"^(model\.backbone\..*)\.bn\.", r"\1.normalization."),
    (r"(_blocks\.\d+)\.cv1\.", r"\1.conv1."),
    (r"(_blocks\.\d+)\.cv2\.0\.", r"\1.csp_rep1."),
    (r"(_blocks\.\d+)\.cv2\.1\.", r"\1.conv2."),
    (r"(_blocks\.\d+)\.cv3\.0\.", r"\1.csp_rep2."),
    (r"(_blocks\.\d+)\.cv3\.1\.", r"\1.conv3."),
    (r"(_blocks\.\d+)\.cv4\.", r"\1.conv4."),
    (r"(downsample_convs\.\d+)\.0\.cv([12])\.", r"\1.conv\2."),
    (r"(layers\.\d+)\.linear([12])\.", r"\1.fc\2."),
    (r"(layers\.\d+)\.norm1\.", r"\1.self_attn_layer_norm."),
    (r"(layers\.\d+)\.norm[23]\.", r"\1.final_layer_norm."),
    (r"(layers\.\d+)\.cross_attn\.", r"\1.encoder_attn."),
)
_STACKED = re.compile(r"(.*self_attn)\.in_proj_(weight|bias)$")


def authors_name(name: str) -> str:
    """Return the authors' name of one of our tensors."""
    return re.sub(rf"^queries\.(?={_SELECTION})", "decoder.", name)


def our_name(name: str) -> str:
    """Return our name of one of the authors' tensors."""
    return re.sub(rf"^decoder\.(?={_SELECTION})", "queries.", name)


def is_authors(names: Iterable[str]) -> bool:
    """Return whether names are those of the authors' files."""
    return "decoder.dec_score_head.0.weight" in names


def is_transformers(names: Iterable[str]) -> bool:
    """Return whether names are those of transformers' files."""
    return "model.decoder.class_embed.0.weight" in names


def is_ignored(name: str) -> bool:
    """Return whether a tensor of the authors' or of transformers' files has nothing that weights depend on."""
    return _IGNORED.search(name) is not None


def transformers_names(name: str) -> tuple[str, ...]:
    """Return the names in transformers' files of one of our tensors; three that are stacked, for some."""
    theirs = authors_name(name)
    for pattern, replacement in _TRANSFORMERS:
        theirs, count = re.subn(f"^{pattern}", replacement, theirs)
        if count:
            break
    for pattern, replacement in _WITHIN:
        theirs = re.sub(pattern, replacement, theirs)
    stacked = _STACKED.match(theirs)
    return (theirs,) if stacked is None else tuple(f"{stacked[1]}.{one}_proj.{stacked[2]}" for one in "qkv")


def from_transformers(wanted: Mapping[str, Tensor], tensors: Mapping[str, Tensor], path: object) -> dict[str, Tensor]:
    """Return tensors by our names, of those by transformers'.

    Args:
        wanted: A network's tensors, by our names.
        tensors: The file's.
        path: The file, for errors.

    Raises:
        CheckpointError: Where only some of three tensors that are stacked are there.
    """
    found: dict[str, Tensor] = {}
    for name in wanted:
        theirs = transformers_names(name)
        there = [tensors[one] for one in theirs if one in tensors]
        if there and len(there) < len(theirs):
            raise CheckpointError(f"{path}: has only some of {', '.join(theirs)}")
        if there:
            found[name] = there[0] if len(there) == 1 else torch.cat(there)
    return found


def to_transformers(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors by transformers' names, of those by ours."""
    found: dict[str, Tensor] = {}
    for name, value in tensors.items():
        theirs = transformers_names(name)
        parts = value.chunk(len(theirs)) if len(theirs) > 1 else (value,)
        found.update(zip(theirs, (part.clone() for part in parts), strict=True))
    return found
