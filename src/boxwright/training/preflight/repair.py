"""Safe repairs of data, written to a new folder; the original is not changed.

Exchanged corners are swapped and boxes clipped to their image. An image with a box that cannot be repaired, as it has
no area or lies outside, is removed with all its boxes: without that box, its object would be learned as background.
Unreadable images and exact copies are removed, and so are evaluation images that nearly duplicate a training image. Of
copies with different annotations the first is kept, and the others are counted separately.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError, OutputError
from boxwright.base.files import is_folder, unfinished, write_whole
from boxwright.data.coco import ROBOFLOW_ANNOTATIONS
from boxwright.data.convert import write_coco
from boxwright.data.dataset import Dataset
from boxwright.data.label_map import label_map_text
from boxwright.data.listed import ListedDataset
from boxwright.training.preflight.images import Fingerprints, near_pairs, read_fingerprints
from boxwright.training.preflight.records import Progress, can_be_read, silent
from boxwright.types import Sample

_SHOWN = 5


@dataclass
class RepairedData:
    """Repaired data, and counts of the repairs.

    Attributes:
        folder: The folder with `train` and `valid`, each COCO's JSON with its images, and a label map.
        has_masks: Whether outlines are written, too.
    """

    folder: Path
    has_masks: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, what: str, name: str, times: int = 1) -> None:
        """Count a repair in an image."""
        self.counts[what] += times
        if times and len(self.examples.setdefault(what, [])) < _SHOWN:
            self.examples[what].append(name)


def _with_valid_boxes(done: RepairedData, sample: Sample) -> Sample:
    """Return a sample whose boxes have ordered corners and are clipped to its image, and count the repairs."""
    boxes = _repaired_boxes(sample)
    ordered = _with_ordered_corners(sample.boxes)
    swapped, clipped = (ordered != sample.boxes).any(1), (boxes != ordered).any(1)
    name = sample.id or sample.filename
    done.add("boxes with exchanged corners, swapped", name, int(swapped.sum()))
    done.add("boxes across the border, clipped", name, int(clipped.sum()))
    # Areas of changed boxes are recomputed; those of masks stay.
    areas = np.where(swapped | clipped, (boxes[:, 2:] - boxes[:, :2]).prod(1), sample.areas)
    return replace(sample, boxes=boxes, areas=areas.astype(np.float32))


def _with_ordered_corners(boxes: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.concatenate([np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])], 1)


def _repaired_boxes(sample: Sample) -> NDArray[np.float32]:
    height, width = sample.image.shape[:2]
    return np.clip(_with_ordered_corners(sample.boxes), 0, np.array([width, height] * 2, np.float32))


def _can_be_repaired(sample: Sample) -> bool:
    """Whether all boxes have an area in the image once they are repaired, and all objects a class."""
    boxes = _repaired_boxes(sample)
    return bool((boxes[:, 2:] > boxes[:, :2]).all()) and not sample.left_out


def repair(train: Dataset, held_out: Dataset | None, out: str | Path, progress: Progress | None = None) -> RepairedData:
    """Write repaired data in a format that `boxwright init` recognizes, to a new or empty folder.

    Args:
        held_out: The evaluation data; None without a split.

    Raises:
        OutputError: If the folder is not empty or cannot be written, or the disk is full.
    """
    folder = Path(out)
    require_new(folder)
    shown = progress or silent
    done = RepairedData(folder)
    prints = read_fingerprints(train, shown("training images", range(len(train))))
    parts = {"train": _repaired(train, prints, set(), done, "training")}
    if held_out is not None:
        others = read_fingerprints(held_out, shown("evaluation images", range(len(held_out))))
        leaked = {others.indices[row] for _, row in near_pairs(prints, others)}
        for number in sorted(leaked):
            done.add("evaluation: near-duplicates of training images, removed", _name(held_out, number))
        parts["valid"] = _repaired(held_out, others, leaked, done, "evaluation")
    with unfinished(folder, "data that are being fixed"):
        for name, part in parts.items():
            write_coco(part, folder / name / ROBOFLOW_ANNOTATIONS, progress=partial(shown, f"write {name}"))
        write_whole(folder / "label_map.pbtxt", label_map_text(train.categories))
    done.counts = +done.counts  # without zeros
    kept = parts["train"]
    done.has_masks = kept.whole[kept.indices[0]].masks is not None
    return done


def require_new(folder: Path) -> None:
    """Raise an OutputError if a folder is not empty."""
    if folder.exists() and (not is_folder(folder) or any(folder.iterdir())):
        raise OutputError(f"{folder} already exists; fixed data are written to a new folder")


def _repaired(
    dataset: Dataset, prints: Fingerprints, without: set[int], done: RepairedData, what: str
) -> ListedDataset:
    """Return the samples whose images and annotations can be read, each image once, with valid boxes."""
    kept, seen = list[int](), dict[bytes, int]()
    readable = dict(zip(prints.indices, prints.exact, strict=True))
    for number in range(len(dataset)):
        if number in without:
            continue
        if number not in readable or not can_be_read(dataset, number):
            done.add(f"{what}: unreadable samples, removed", _name(dataset, number))
        elif not _can_be_repaired(sample := dataset[number]):
            done.add(f"{what}: images with a box that cannot be repaired, removed", sample.id or sample.filename)
        elif readable[number] not in seen:
            seen[readable[number]] = number
            kept.append(number)
        # Equal files differ in annotations alone, and which of two is right cannot be known here.
        elif _same_objects(sample, dataset[seen[readable[number]]]):
            done.add(f"{what}: copies of other images, removed", _name(dataset, number))
        else:
            description = f"{what}: copies of other images with different annotations, removed; compare with the first"
            done.add(description, _name(dataset, number))
    if not kept:
        raise DataError(f"no data remain for {what}")
    rows = [(number, "") for number in kept]
    return ListedDataset(dataset, rows, done.folder, partial(_with_valid_boxes, done))


def _same_objects(sample: Sample, other: Sample) -> bool:
    rows = [sorted(zip(item.labels.tolist(), item.boxes.tolist(), strict=True)) for item in (sample, other)]
    return rows[0] == rows[1]


def _name(dataset: Dataset, number: int) -> str:
    try:
        return dataset.encoded(number)[1] or str(number)
    except DataError:
        return str(number)
