"""Files of D-FINE's weights without a configuration of ours: their size, their classes, and the names of their tensors.

They are the authors' files or those of the transformers library. Our names are the authors', but for the modules that
select queries, which they count among the decoder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from boxwright.base.errors import CheckpointError
from boxwright.base.files import read_bytes, shown
from boxwright.config.load import parse_message
from boxwright.families.d_fine.layouts import SIZES
from boxwright.families.d_fine.message import DFine, DFineDecoder
from boxwright.families.d_fine.network import DFine as Network
from boxwright.families.shared.source_weights import FileFacts, SourceWeights, map_names, unchanged
from boxwright.nn.backbones.hgnetv2 import HGNETS
from boxwright.nn.network import is_within
from boxwright.types import Categories, Category
from boxwright.types.categories import are_coco_classes, coco_classes
from boxwright.types.class_names import objects365_classes

# What the authors' decoder has and ours leaves to the selection of queries.
_SELECTION = r"(input_proj|enc_output|enc_score_head|enc_bbox_head|denoising_class_embed)\."
# Constants of an input size or a layout, copies, and a count that nothing reads.
_PROJECTOR = "encoder.feature_projector."
_IGNORED = re.compile(
    r"^encoder\.feature_projector\.|decoder\.(anchors|valid_mask|decoder\.(up|reg_scale|project))$|num_points_scale$|num_batches_tracked$"
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
    return (theirs,) if stacked is None else tuple(f"{stacked[1]}.{part}_proj.{stacked[2]}" for part in "qkv")


def from_transformers(wanted: Mapping[str, Tensor], tensors: Mapping[str, Tensor], path: object) -> dict[str, Tensor]:
    """Return tensors by our names, of those by transformers'.

    Args:
        wanted: A network's tensors, by our names.
        tensors: The file's.
        path: The file, for errors.

    Raises:
        CheckpointError: Where only some of three tensors that are stacked are there.
    """
    renamed: dict[str, Tensor] = {}
    for name in wanted:
        theirs = transformers_names(name)
        parts = [tensors[their_name] for their_name in theirs if their_name in tensors]
        if parts and len(parts) < len(theirs):
            raise CheckpointError(f"{path}: has only some of {', '.join(theirs)}")
        if parts:
            renamed[name] = parts[0] if len(parts) == 1 else torch.cat(parts)
    return renamed


def to_transformers(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors by transformers' names, of those by ours."""
    renamed: dict[str, Tensor] = {}
    for name, value in tensors.items():
        theirs = transformers_names(name)
        parts = value.chunk(len(theirs)) if len(theirs) > 1 else (value,)
        renamed.update(zip(theirs, (part.clone() for part in parts), strict=True))
    return renamed


# The published size of inputs, and what their sides are multiples of.
_PUBLISHED, _STRIDE = (640, 640), 32
_SCORES = "queries.enc_score_head.weight"


def d_fine_classes(tensors: Mapping[str, Tensor], path: Path) -> Categories | None:
    """Return the classes that a file's weights know; None where nothing says them.

    They are in transformers' `config.json` beside the file. The authors' files say none: 80 are COCO's, and 366 are
    Objects365's, which have an unused one before them.

    Args:
        tensors: Of the authors' layout, or of transformers'.
        path: The file.

    Raises:
        CheckpointError: If `config.json` cannot be read.
    """
    names = (authors_name(_SCORES), *transformers_names(_SCORES))
    scores = next((tensors[name] for name in names if name in tensors), None)
    if scores is None:
        return None
    count, coco = len(scores), coco_classes()
    if is_authors(tensors):
        return {known.num_slots: known for known in (coco, objects365_classes())}.get(count)
    said = transformers_config(path).get("id2label")
    if not isinstance(said, dict) or sorted(said) != sorted(str(number) for number in range(count)):
        return None
    labels = [str(said[str(number)]) for number in range(count)]
    if are_coco_classes(labels):
        return coco
    return Categories(tuple(Category(number, number + 1, name) for number, name in enumerate(labels)))


def transformers_config(path: Path) -> dict[str, Any]:
    """Return what transformers' configuration beside a file of weights says; empty without one.

    Raises:
        CheckpointError: If it is not a JSON object.
    """
    return _beside(path, "config.json")


def input_size(path: Path) -> tuple[int, int]:
    """Return the (height, width) of inputs by transformers' `preprocessor_config.json`; 640 × 640 without one.

    Raises:
        CheckpointError: If it is not a JSON object.
    """
    size = _beside(path, "preprocessor_config.json").get("size")
    sides = [size.get(side) for side in ("height", "width")] if isinstance(size, dict) else []
    whole = [side for side in sides if isinstance(side, int) and side > 0 and side % _STRIDE == 0]
    return (whole[0], whole[1]) if len(whole) == 2 else _PUBLISHED


def _beside(path: Path, name: str) -> dict[str, Any]:
    beside = path.with_name(name)
    if path.suffix != ".safetensors" or not beside.is_file():
        return {}
    try:
        content = json.loads(read_bytes(beside))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{shown(beside)}: not readable as JSON: {str(error)[:200]}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{shown(beside)}: expected an object")
    return content


# Our names of the weights that tell one size from another, and how many classes there are.
_STEM, _LEVEL = "backbone.stem.stem1.conv.weight", "encoder.input_proj.{}.conv.weight"
_LAYER, _CLASSES = "decoder.dec_score_head.{}.weight", "queries.enc_score_head.weight"


def describe_weights(
    tensors: Mapping[str, Tensor], path: Path, facts: FileFacts
) -> tuple[DFine, Categories | None] | None:
    """Return the message of a file of D-FINE's weights, and its classes where they are known; None for other weights.

    The size follows from the weights' shapes; if it is none that was published, every part is read from `config.json`.
    The decoder's activation, ReLU or SiLU, is not in the weights: it is in `config.json`, or known of a published file.

    Args:
        tensors: Of the authors' layout in a `.pth`, or of transformers' in a `.safetensors`.
        path: The file.
        facts: What is known of the file beside its tensors.

    Raises:
        CheckpointError: If nothing tells the activation, or they are of no published size and without a `config.json`.
    """
    if not (is_authors(tensors) or is_transformers(tensors)):
        return None
    said = transformers_config(path)
    classes = _require_tensor(tensors, _CLASSES, path).shape[0]
    size = _size(tensors, path)
    if size is None and not said:
        raise CheckpointError(f"{shown(path)}: of none of D-FINE's sizes {', '.join(SIZES)}; pass the configuration")
    activation = _activation(tensors, said, facts)
    if activation is None:
        preset = f"d_fine_{size}_coco".lower()
        raise CheckpointError(
            f"{shown(path)}: nothing in it tells the activation of D-FINE's decoder; pass the configuration it was "
            f"trained with: --config preset:{preset} (RELU, as D-FINE's code has it) or --config preset:deim_{preset} "
            f'(SILU, as DEIM\'s has it), with --set num_classes={classes}; in Python config=bw.load_config("preset:…", '
            f'["num_classes={classes}"])'
        )
    try:
        head = f"activation: {activation} num_queries: {int(said.get('num_queries', 300))}"
        shape = f"size: {size} decoder {{ {head} }}" if size is not None else _shape(said, head)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise CheckpointError(f"{shown(path)}: config.json beside it does not describe a D-FINE: {error!r}") from None
    height, width = input_size(path)
    text = f"""
      num_classes: {classes}
      image_resizer {{ fixed_shape_resizer {{ height: {height} width: {width} resize_method: BILINEAR_ANTIALIASED }} }}
      {shape}"""
    return parse_message(text, DFine, file=str(path)), d_fine_classes(tensors, path)


def _activation(tensors: Mapping[str, Tensor], said: Mapping[str, Any], facts: FileFacts) -> str | None:
    """Return RELU or SILU, the decoder's activation; None where nothing tells it.

    A training state does not: D-FINE, DEIM and RT-DETRv4 save the same parts, and none saves its settings.
    """
    if said:  # which leaves out what is transformers' default
        return "SILU" if str(said.get("decoder_activation_function", "relu")) == "silu" else "RELU"
    if any(name.startswith(_PROJECTOR) for name in tensors):  # RT-DETRv4's, towards its teacher
        return "SILU"
    if isinstance(facts.published, DFine):
        return (facts.published.decoder or DFineDecoder()).activation.name
    return None


def foreign_weights(
    network: Network, tensors: Mapping[str, Tensor], path: Path, facts: FileFacts
) -> SourceWeights | None:
    """Return a network's weights from the authors' names or transformers'; None for other names.

    Raises:
        CheckpointError: If the file is incomplete.
    """
    del facts
    classes = d_fine_classes(tensors, path)
    if is_authors(tensors):
        # The authors' projection is of the teacher that they had, which need not be this network's.
        own = (name for name in network.state_dict() if not is_within(name, network.parts.training_only))
        names = ((name, authors_name(name), unchanged) for name in own)
        return map_names(network, names, tensors, path, classes)
    if not is_transformers(tensors):
        return None
    # Nothing reads PyTorch's counts of batches.
    ignored = network.parts.training_only
    wanted = {
        name: value
        for name, value in network.state_dict().items()
        if "num_batches_tracked" not in name and not is_within(name, ignored)
    }
    values = from_transformers(wanted, tensors, path)
    sources = {name: transformers_names(name)[0] for name in values}
    used = {source for name in values for source in transformers_names(name)}
    unused = {name: "no part of the network has it" for name in tensors if name not in used}
    return SourceWeights(values, sources, unused, classes)


def _shape(said: dict[str, Any], head: str) -> str:
    """Return the fields of the network that transformers' configuration describes; `head` has more of its decoder."""
    body = said["backbone_config"]
    stages = {"middle": "stage_mid_channels", "out": "stage_out_channels", "blocks": "stage_num_blocks"}
    lists = {"stem": body["stem_channels"][1:]} | {ours: body[theirs] for ours, theirs in stages.items()}
    return f"""
      feature_extractor {{
        strides: {_numbers(said["feat_strides"])}
        layout {{
          {" ".join(f"{name}: {_numbers(values)}" for name, values in lists.items())}
          layers: {int(body["stage_numb_of_layers"][0])} affine: {str(bool(body["use_learnable_affine_block"])).lower()}
        }}
      }}
      encoder {{
        depth: {int(said["encoder_hidden_dim"])} expansion: {float(said["hidden_expansion"])}
        block_repeat: {round(3 * float(said["depth_mult"]))} feedforward: {int(said["encoder_ffn_dim"])}
        num_heads: {int(said["encoder_attention_heads"])}
      }}
      decoder {{
        depth: {int(said["d_model"])} num_layers: {int(said["decoder_layers"])}
        taps: {_numbers(said["decoder_n_points"])} feedforward: {int(said["decoder_ffn_dim"])}
        num_heads: {int(said["decoder_attention_heads"])} {head}
      }}
      box {{ bins: {int(said["max_num_bins"])} reg_scale: {float(said["reg_scale"])} up: {float(said["up"])} }}"""


def _numbers(values: Any) -> str:
    return str([int(value) for value in values])


def _require_tensor(tensors: Mapping[str, Tensor], name: str, path: Path) -> Tensor:
    tensor = _find(tensors, name)
    if tensor is None:
        raise CheckpointError(f"{shown(path)}: looks like D-FINE's weights, but {authors_name(name)} is missing")
    return tensor


def _find(tensors: Mapping[str, Tensor], name: str) -> Tensor | None:
    candidates = (authors_name(name), *transformers_names(name))
    return next((tensors[candidate] for candidate in candidates if candidate in tensors), None)


def _count(tensors: Mapping[str, Tensor], name: str) -> int:
    """Return how many of numbered tensors there are."""
    count = 0
    while _find(tensors, name.format(count)) is not None:
        count += 1
    return count


def _size(tensors: Mapping[str, Tensor], path: Path) -> str | None:
    """Return the published size that weights are of; None for another."""
    widths = (
        _require_tensor(tensors, _STEM, path).shape[0],
        _count(tensors, _LEVEL),
        _require_tensor(tensors, _LEVEL.format(0), path).shape[0],
        _count(tensors, _LAYER),
    )
    for name, size in SIZES.items():
        stem = HGNETS[size.backbone].stem[0]
        if widths == (stem, len(size.strides), size.encoder[0], size.decoder[2]):
            return name
    return None
