"""The classes of files of D-FINE's weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from boxwright.base.errors import CheckpointError
from boxwright.base.files import shown
from boxwright.families.d_fine.weight_names import authors_name, is_authors, transformers_names
from boxwright.types import Categories, Category
from boxwright.types.coco_classes import are_coco_classes, coco_classes

# Of inputs: the published one, and what sides are multiples of.
_PUBLISHED, _STRIDE = (640, 640), 32
_SCORES = "queries.enc_score_head.weight"


def d_fine_classes(tensors: Mapping[str, Tensor], path: Path) -> Categories | None:
    """Return the classes that a file's weights know; None where nothing says them.

    They are in transformers' `config.json` beside the file. The authors' files say none: 80 are COCO's.

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
        return coco if count == len(coco) else None
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
        content = json.loads(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{shown(beside)}: not readable as JSON: {str(error)[:200]}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{shown(beside)}: expected an object")
    return content
