"""Every recording of every folder is looked at by a test; what is not is reported by name."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import GOLDEN
from tests.parity import test_center_net, test_refinedet
from tests.parity.recordings import FOLDER, FOLDERS, model_names, tf1_paths, two_stage_paths, unsupported

# Read whole by one test module each, of the first folder: component cases, and what is no whole detector of TF's.
_SINGLE = (
    "components",
    "networks",
    "pipeline_schema",
    "rotations",
    "tensorflow_ops",
    *(f"{folder}/components" for folder in ("aligndet", "centernet", "kerod", "srn", "two_stage")),
    "augment/draws",
    *(f"checkpoint/{name}" for name in ("expected", "model")),
    *(f"metrics/{name}" for name in ("coco_mask", "expected", "inputs")),
    *(f"kerod/{name}" for name in ("backbone_resnet50_caffe", "faster_rcnn_resnet50_pytorch")),
    "export/signatures",
    "records/shapes_decoded",
    "srn/srn_resnet50",
)
# What tests are parametrized by: each of these is a whole detector.
_WHOLE = [
    *two_stage_paths(),
    *tf1_paths(),
    *test_center_net.MODELS,
    *(path.with_suffix("") for path in test_refinedet.PATHS),
    *(FOLDER / "models" / name for name in model_names()),
]
# Not of TF: configurations, weights, outputs and losses, read by one module from each folder.
_OF_DETRS = [
    path
    for folder in FOLDERS
    for family in ("d_fine", "rf_detr")
    for path in (folder / family).glob("*")
    if path.suffix in (".json", ".npz")
]
_OF_DETECTORS = ("models", "centernet", "two_stage", "tf1", "refinedet")


def recordings() -> set[Path]:
    """Return every recording of every folder, without suffixes."""
    files = [path for folder in FOLDERS for kind in ("json", "npz") for path in folder.rglob(f"*.{kind}")]
    return {path.with_suffix("") for path in files}


def unread() -> list[str]:
    """Name the recordings that no test reads, by their folders."""
    steps = {folder / "augment" / "exact" for folder in FOLDERS}
    read = {*_WHOLE, *steps, *(FOLDER / name for name in _SINGLE), *(path.with_suffix("") for path in _OF_DETRS)}
    return sorted({"/".join((*path.parts[-3:-1], path.name.partition(".")[0])) for path in recordings() - read})


def test_the_shipped_folder_is_read_whole() -> None:
    if FOLDER == GOLDEN:
        assert unread() == []


def test_each_detector_is_a_parameter_of_one_test() -> None:
    """As many as there are files, and none twice."""
    assert [path for path, count in Counter(_WHOLE).items() if count > 1] == []
    there = {path for path in recordings() if path.parent.name in _OF_DETECTORS and path.name != "components"}
    assert there == set(_WHOLE)
    assert len(_WHOLE) == len(there)


@pytest.mark.parametrize("name", unread() if FOLDER != GOLDEN else [])
def test_what_no_test_reads(name: str) -> None:
    unsupported(name, "no test here reads it")
