"""The folders of recordings to check against: those that BOXWRIGHT_GOLDEN names, separated by ":", or the one shipped."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxwright.families.two_stage.postprocessor import TwoStagePostprocessor
from boxwright.nn.postprocessing.anchor import AnchorPostprocessor
from boxwright.types import Detections
from tests.conftest import GOLDEN, assert_close

FOLDERS = [Path(name) for name in (os.environ.get("BOXWRIGHT_GOLDEN") or str(GOLDEN)).split(os.pathsep)]
FOLDER = FOLDERS[0]


def unsupported(name: str, why: object) -> NoReturn:
    """Skip a recording of something that Boxwright does not have; the summary names it, as `tests.conftest` collects."""
    if FOLDER == GOLDEN:
        pytest.fail(f"{name} is shipped, so it must be supported: {why}")
    pytest.skip(f"unsupported: {name}: {str(why).splitlines()[0]}")


@dataclass(frozen=True)
class Case:
    """One recorded component.

    Attributes:
        description: Its entry of components.json.
        arrays: All arrays of the folder.
    """

    description: dict[str, Any]
    arrays: Any

    def __getattr__(self, name: str) -> Any:
        return self.description[name]

    def array(self, name: str) -> NDArray[Any]:
        return np.asarray(self.arrays[f"{self.description['id']}/{name}"])

    def has(self, name: str) -> bool:
        return f"{self.description['id']}/{name}" in self.arrays.files


def compare(arrays: Any, name: str, actual: Any, absolute: float = 1e-4, relative: float = 1e-3) -> None:
    """Compare with a recorded array, which is sampled where it is large."""
    actual = np.ascontiguousarray(actual)
    if name in arrays.files:
        assert_close(actual, arrays[name], absolute, relative)
    else:
        assert actual.shape == tuple(arrays[f"{name}@shape"])
        picked = actual.reshape(-1)[arrays[f"{name}@index"]]
        assert_close(picked, arrays[f"{name}@value"], absolute, relative)


# Outputs of TF's `postprocess`, without masks: those are compared from TF's own boxes.
OUTPUTS = (
    "detection_boxes",
    "detection_scores",
    "detection_classes",
    "detection_multiclass_scores",
    "detection_anchor_indices",
    "num_detections",
    "raw_detection_boxes",
    "raw_detection_scores",
)
_TIE = 2e-6


def detections_as_tied(
    arrays: Any, kind: str, post: AnchorPostprocessor | TwoStagePostprocessor, predictions: Any, sizes: Tensor
) -> Detections[Tensor]:
    """Return an image's detections, where scores that tie to 2e-6 are let fall TF's way.

    On random weights many scores tie, and which of two survives decides over others. So the pairs of anchor and class
    that TF kept get a bonus as small as a tie; then all must come out as recorded.
    """
    raw = post.decode(predictions)
    anchors, labels = (torch.from_numpy(kept) for kept in _kept(arrays, kind))
    scores = raw.scores.clone()
    background = post.background if isinstance(post, AnchorPostprocessor) else 1
    scores[0, anchors, labels + background] += _TIE
    (found,) = post.select(predictions, replace(raw, scores=scores), sizes).to_list(sizes)
    return replace(found, raw=raw.image(0))


def _kept(arrays: Any, kind: str) -> list[NDArray[np.int64]]:
    """Return the anchors and classes of TF's detections."""
    count = int(arrays[f"{kind}num_detections"][0])
    names = ("detection_anchor_indices", "detection_classes")
    return [arrays[f"{kind}{name}"][0][:count].astype(np.int64) for name in names]


def compare_outputs(arrays: Any, kind: str, found: Detections[Tensor]) -> int:
    """Compare each recorded output with `Detections.to_tf`, and return how many there were.

    Detections come in TF's order, if it recorded their anchors and classes. TF's raw scores of padding, which are those
    of empty crops, are not compared.
    """
    outputs, recorded = found.to_tf(), {file.split("@")[0] for file in arrays.files}
    outputs["detection_classes"] = outputs["detection_classes"] - 1  # TF's exporter adds 1
    rows = list(range(len(found)))
    if f"{kind}detection_classes" in recorded:
        pairs = list(zip(outputs["detection_anchor_indices"], outputs["detection_classes"], strict=True))
        wanted = list(zip(*_kept(arrays, kind), strict=True))
        assert sorted(pairs) == sorted(wanted)
        rows = [pairs.index(pair) for pair in wanted]
    names = [name for name in OUTPUTS if f"{kind}{name}" in recorded]
    for name in names:
        values = outputs[name]
        if name.startswith("detection_"):
            padding = arrays[f"{kind}detection_scores"].shape[1] - len(rows)
            values = np.pad(values[rows], [(0, padding), *[(0, 0)] * (values.ndim - 1)])
        elif name == "raw_detection_scores" and found.raw is not None and found.raw.valid is not None:
            values = np.where(found.raw.valid[:, None], values, arrays[f"{kind}{name}"][0])
        compare(arrays, f"{kind}{name}", values[None] if values.ndim else values.reshape(1))
    return len(names)


def components(folder: str = ".") -> list[Case]:
    path = FOLDER / folder / "components.json"
    if not path.is_file():
        return []
    arrays = np.load(path.with_suffix(".npz"))
    return [Case(description, arrays) for description in json.loads(path.read_text())]


def model_names() -> list[str]:
    """Name the recorded one-stage detectors, and those that are not known."""
    return [
        path.name for path in _detectors("models") if not is_two_stage(path) and not path.name.startswith("centernet_")
    ]


def two_stage_paths() -> list[Path]:
    """List the recorded two-stage detectors of all folders, without suffixes."""
    found = [*_detectors("models"), *_everywhere("two_stage"), *_everywhere("tf1")]
    return [path for path in found if path.name != "components" and is_two_stage(path)]


def _detectors(folder: str) -> list[Path]:
    return sorted(path.with_suffix("") for path in (FOLDER / folder).glob("*.json"))


def _everywhere(folder: str) -> list[Path]:
    return [path.with_suffix("") for root in FOLDERS for path in sorted((root / folder).glob("*.json"))]


def is_two_stage(path: Path) -> bool:
    return json.loads(path.with_name(f"{path.name}.json").read_text())["model_text"].startswith("faster_rcnn")


def tf1_paths() -> list[Path]:
    """List the recorded one-stage detectors of TF1 of all folders, without suffixes."""
    return [path for path in _everywhere("tf1") if not is_two_stage(path)]


_BACKBONE = "model/_feature_extractor/classification_backbone/layer_with_weights-"


def is_beyond_last_tap(key: str, keys: Iterable[str]) -> bool:
    """Tell whether a variable lies in an EfficientNet beyond what the detector taps: TF saves it by another path."""
    return key.startswith(_BACKBONE) and any("/_efficientnet/" in other for other in keys)


def penalty_beyond_last_tap(variables: Mapping[str, NDArray[Any]]) -> float:
    """Return TF's penalty: its EfficientNet's own 5e-6 on kernels and biases, depthwise kernels excepted."""
    penalized = [array for key, array in variables.items() if key.rsplit("/", 3)[1] in ("kernel", "bias")]
    return sum(5e-6 * float(np.square(array.astype(np.float64)).sum()) for array in penalized)


def layers_beyond_last_tap(first: int, channels: int, repeats: int, top: int) -> dict[str, tuple[int, ...]]:
    """List an EfficientNet's penalized variables beyond the first block of its last stage (Tan and Le, 2019, table 1).

    Args:
        first: Number of the first layer with weights beyond.
        channels: Of the last stage.
        repeats: Blocks of the last stage.
        top: Channels of the last convolution.
    """
    wide, squeezed = 6 * channels, channels // 4
    # Of a block: expansion, its norm, depthwise, its norm, squeeze, excite, projection, its norm.
    block = {0: (channels, wide), 4: (wide, squeezed), 5: (squeezed, wide), 6: (wide, channels)}
    found: dict[str, tuple[int, ...]] = {}
    for number in range(repeats - 1):
        for place, (into, out) in block.items():
            path = f"{_BACKBONE}{first + 8 * number + place}"
            found[f"{path}/kernel/.ATTRIBUTES/VARIABLE_VALUE"] = (1, 1, into, out)
            if place in (4, 5):
                found[f"{path}/bias/.ATTRIBUTES/VARIABLE_VALUE"] = (out,)
    last = first + 8 * (repeats - 1)
    return found | {
        f"{_BACKBONE}{last}/kernel/.ATTRIBUTES/VARIABLE_VALUE": (1, 1, channels, top),
        f"{_BACKBONE}{last + 2}/kernel/.ATTRIBUTES/VARIABLE_VALUE": (top, 1000),
        f"{_BACKBONE}{last + 2}/bias/.ATTRIBUTES/VARIABLE_VALUE": (1000,),
    }
