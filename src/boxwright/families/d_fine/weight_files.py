"""Files of D-FINE's weights without a configuration of ours: which size they are of, and what else they say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from boxwright.base.errors import CheckpointError
from boxwright.base.files import shown
from boxwright.config.load import parse_message
from boxwright.families.d_fine.layouts import SIZES
from boxwright.families.d_fine.message import DFine
from boxwright.families.d_fine.network import DFine as Network
from boxwright.families.d_fine.weight_classes import d_fine_classes, input_size, transformers_config
from boxwright.families.d_fine.weight_names import (
    authors_name,
    from_transformers,
    is_authors,
    is_transformers,
    transformers_names,
)
from boxwright.families.shared.source_weights import SourceWeights, map_names
from boxwright.nn.backbones.hgnetv2 import HGNETS
from boxwright.nn.row_order import unchanged
from boxwright.types import Categories

# Of the weights, by our names: what tells one size from another, and how many classes there are.
_STEM, _LEVEL = "backbone.stem.stem1.conv.weight", "encoder.input_proj.{}.conv.weight"
_LAYER, _CLASSES = "decoder.dec_score_head.{}.weight", "queries.enc_score_head.weight"


def describe_weights(tensors: Mapping[str, Tensor], path: Path) -> tuple[DFine, Categories | None] | None:
    """Return the message of a file of D-FINE's weights, and its classes where they are known; None for other weights.

    The size follows from the weights' shapes; if it is none that was published, every part is read from `config.json`.
    The decoder's activation, ReLU or SiLU, is read from `config.json`, or inferred from "deim" in the file's name: the
    weights do not show it.

    Args:
        tensors: Of the authors' layout in a `.pth`, or of transformers' in a `.safetensors`.
        path: The file.

    Raises:
        CheckpointError: If they are of no published size and without a `config.json`.
    """
    if not (is_authors(tensors) or is_transformers(tensors)):
        return None
    said = transformers_config(path)
    classes = _of(tensors, _CLASSES, path).shape[0]
    silu = str(said.get("decoder_activation_function", "silu" if "deim" in path.name else "relu")) == "silu"
    size = _size(tensors, path)
    if size is None and not said:
        raise CheckpointError(f"{shown(path)}: of none of D-FINE's sizes {', '.join(SIZES)}; pass the configuration")
    try:
        head = f"activation: {'SILU' if silu else 'RELU'} num_queries: {int(said.get('num_queries', 300))}"
        shape = f"size: {size} decoder {{ {head} }}" if size is not None else _shape(said, head)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise CheckpointError(f"{shown(path)}: config.json beside it does not describe a D-FINE: {error!r}") from None
    height, width = input_size(path)
    text = f"""
      num_classes: {classes}
      image_resizer {{ fixed_shape_resizer {{ height: {height} width: {width} resize_method: BILINEAR_ANTIALIASED }} }}
      {shape}"""
    return parse_message(text, DFine, file=str(path)), d_fine_classes(tensors, path)


def foreign_weights(network: Network, tensors: Mapping[str, Tensor], path: Path) -> SourceWeights | None:
    """Return a network's weights from the authors' names or transformers'; None for other names.

    Raises:
        CheckpointError: If the file is incomplete.
    """
    classes = d_fine_classes(tensors, path)
    if is_authors(tensors):
        names = ((name, authors_name(name), unchanged) for name in network.state_dict())
        return map_names(network, names, tensors, path, classes)
    if not is_transformers(tensors):
        return None
    # Nothing reads PyTorch's counts of batches.
    wanted = {name: value for name, value in network.state_dict().items() if "num_batches_tracked" not in name}
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


def _of(tensors: Mapping[str, Tensor], name: str, path: Path) -> Tensor:
    found = _find(tensors, name)
    if found is None:
        raise CheckpointError(f"{shown(path)}: looks like D-FINE's weights, but {authors_name(name)} is missing")
    return found


def _find(tensors: Mapping[str, Tensor], name: str) -> Tensor | None:
    return next((tensors[one] for one in (authors_name(name), *transformers_names(name)) if one in tensors), None)


def _count(tensors: Mapping[str, Tensor], name: str) -> int:
    """Return how many of numbered tensors there are."""
    count = 0
    while _find(tensors, name.format(count)) is not None:
        count += 1
    return count


def _size(tensors: Mapping[str, Tensor], path: Path) -> str | None:
    """Return the published size that weights are of; None for another."""
    found = (
        _of(tensors, _STEM, path).shape[0],
        _count(tensors, _LEVEL),
        _of(tensors, _LEVEL.format(0), path).shape[0],
        _count(tensors, _LAYER),
    )
    for name, size in SIZES.items():
        stem = HGNETS[size.backbone].stem[0]
        if found == (stem, len(size.strides), size.encoder[0], size.decoder[2]):
            return name
    return None
