"""Files of D-FINE's weights without a configuration of ours: which size they are of, and what else they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from boxwright.base.errors import CheckpointError
from boxwright.base.files import shown
from boxwright.builders.d_fine import SIZES
from boxwright.checkpoints.d_fine_names import authors_name, is_authors, is_transformers, transformers_names
from boxwright.checkpoints.pytorch_names import read_pth
from boxwright.checkpoints.safetensors_file import read_safetensors
from boxwright.config import messages as m
from boxwright.config.load import parse_message
from boxwright.models.backbones.hgnetv2 import HGNETS
from boxwright.types import Categories, Category

# Of the weights, by our names: what tells one size from another, and how many classes there are.
_STEM, _LEVEL = "backbone.stem.stem1.conv.weight", "encoder.input_proj.{}.conv.weight"
_LAYER, _CLASSES = "decoder.dec_score_head.{}.weight", "queries.enc_score_head.weight"


def inferred(path: Path) -> tuple[m.TrainEvalPipelineConfig, Categories | None]:
    """Return the configuration of a file of D-FINE's weights, and its classes, where `config.json` beside it has names.

    The size follows from the weights' shapes. Whether the decoder has ReLU or SiLU is said by `config.json`, or by
    "deim" in the file's name: nothing in the weights says it.

    Args:
        path: A `.pth` of the authors' layout, or a `.safetensors` of transformers'.

    Raises:
        CheckpointError: If it is of another layout, or of none of the published sizes.
    """
    tensors = read_pth(path) if path.suffix == ".pth" else read_safetensors(path)
    if not (is_authors(tensors) or is_transformers(tensors)):
        raise CheckpointError(
            f"{shown(path)}: weights of a network that their names do not tell; pass the configuration"
        )
    size = _size(tensors, path)
    said = _said(path)
    classes = _of(tensors, _CLASSES, path).shape[0]
    silu = str(said.get("decoder_activation_function", "silu" if "deim" in path.name else "relu")) == "silu"
    text = f"""model {{ d_fine {{
      num_classes: {classes}
      size: {size}
      image_resizer {{ fixed_shape_resizer {{ height: 640 width: 640 resize_method: BILINEAR_ANTIALIASED }} }}
      decoder {{ activation: {"SILU" if silu else "RELU"} num_queries: {int(said.get("num_queries", 300))} }}
    }} }}"""
    return parse_message(text, m.TrainEvalPipelineConfig, file=str(path)), _categories(said, classes)


def _of(tensors: dict[str, Tensor], name: str, path: Path) -> Tensor:
    found = _find(tensors, name)
    if found is None:
        raise CheckpointError(f"{shown(path)}: looks like D-FINE's weights, but {authors_name(name)} is missing")
    return found


def _find(tensors: dict[str, Tensor], name: str) -> Tensor | None:
    return next((tensors[one] for one in (authors_name(name), *transformers_names(name)) if one in tensors), None)


def _count(tensors: dict[str, Tensor], name: str) -> int:
    """Return how many of numbered tensors there are."""
    count = 0
    while _find(tensors, name.format(count)) is not None:
        count += 1
    return count


def _size(tensors: dict[str, Tensor], path: Path) -> str:
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
    raise CheckpointError(
        f"{shown(path)}: a stem of {found[0]} channels, {found[1]} maps of {found[2]} and {found[3]} layers are of "
        f"none of D-FINE's sizes {', '.join(SIZES)}; pass the configuration"
    )


def _said(path: Path) -> dict[str, Any]:
    """Return what transformers' configuration beside a file says; empty without one."""
    beside = path.with_name("config.json")
    if path.suffix != ".safetensors" or not beside.is_file():
        return {}
    try:
        content = json.loads(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{shown(beside)}: not readable as JSON: {str(error)[:200]}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{shown(beside)}: expected an object")
    return content


def _categories(said: dict[str, Any], classes: int) -> Categories | None:
    names = said.get("id2label")
    if not isinstance(names, dict) or sorted(names) != sorted(str(number) for number in range(classes)):
        return None
    return Categories(tuple(Category(number, number + 1, str(names[str(number)])) for number in range(classes)))
