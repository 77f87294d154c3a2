"""Data with what can be mended safely put right, written to a new place; what was there stays.

Mended are boxes (clipped to their image; those without area, turned inside out or outside are left out), images that
cannot be read or are there twice to the byte (left out), and evaluation images that are nearly the same as one of
training (left out of evaluation). Of copies with other annotations the first stays, and they are counted apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from boxwright.base.errors import DataError, OutputError
from boxwright.base.files import is_folder, unfinished, write_whole
from boxwright.data.coco import ROBOFLOW_ANNOTATIONS
from boxwright.data.convert import write_coco
from boxwright.data.dataset import Dataset
from boxwright.data.label_map import label_map_text
from boxwright.data.listed import ListedDataset
from boxwright.preflight.images import Fingerprints, near_pairs, read_fingerprints
from boxwright.preflight.records import Progress, can_be_read, silent
from boxwright.types import Sample

_SHOWN = 5


@dataclass
class Mended:
    """What was done.

    Attributes:
        folder: Where the mended data are: `train` and `valid`, COCO's JSON with its images in each, and a label map.
        counts: What was put right, in words, to how often.
        examples: Some of the images, by the same words.
    """

    folder: Path
    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, what: str, name: str, times: int = 1) -> None:
        """Count something that was put right in an image."""
        self.counts[what] += times
        if times and len(self.examples.setdefault(what, [])) < _SHOWN:
            self.examples[what].append(name)


def _with_whole_boxes(told: Mended, sample: Sample) -> Sample:
    """Return a sample with the boxes that have an area in its image, clipped to it; what was put right is counted."""
    height, width = sample.image.shape[:2]
    limits = np.array([width, height] * 2, np.float32)
    boxes = np.clip(sample.boxes, 0, limits)
    whole = np.asarray((boxes[:, 2:] > boxes[:, :2]).all(1))
    name = sample.id or sample.filename
    told.add("boxes without area or outside their image, left out", name, int((~whole).sum()))
    moved = whole & (boxes != sample.boxes).any(1)
    told.add("boxes across the border, clipped", name, int(moved.sum()))
    # Areas of clipped boxes are measured anew; those of masks stay.
    areas = np.where(moved, (boxes[:, 2:] - boxes[:, :2]).prod(1), sample.areas)
    return replace(sample, boxes=boxes, areas=areas.astype(np.float32)).keep(whole)


def mend(train: Dataset, held_out: Dataset | None, out: str | Path, progress: Progress | None = None) -> Mended:
    """Write data with what can be mended put right, in a form that `boxwright init` recognizes.

    Args:
        held_out: The evaluation data; None where there are none yet (`boxwright init` splits).
        out: A folder that does not exist, or is empty.

    Raises:
        OutputError: Where the folder has something in it, the disk is full, or it cannot be written.
    """
    folder = Path(out)
    require_new(folder)
    shown = progress or silent
    told = Mended(folder)
    prints = read_fingerprints(train, shown("training images", range(len(train))))
    parts = {"train": _mended(train, prints, set(), told, "training")}
    if held_out is not None:
        others = read_fingerprints(held_out, shown("evaluation images", range(len(held_out))))
        leaked = {others.indices[row] for _, row in near_pairs(prints, others)}
        for number in sorted(leaked):
            told.add("evaluation: images of which training has nearly the same, left out", _name(held_out, number))
        parts["valid"] = _mended(held_out, others, leaked, told, "evaluation")
    with unfinished(folder, "data that are being fixed"):
        for name, part in parts.items():
            write_coco(part, folder / name / ROBOFLOW_ANNOTATIONS, progress=_titled(shown, f"write {name}"))
        write_whole(folder / "label_map.pbtxt", label_map_text(train.categories))
    told.counts = +told.counts  # without what never came
    return told


def require_new(folder: Path) -> None:
    """Raise an OutputError where a folder has something in it: mended data are written to a new one."""
    if folder.exists() and (not is_folder(folder) or any(folder.iterdir())):
        raise OutputError(f"{folder} is there already; fixed data are written to a new folder")


def _mended(dataset: Dataset, prints: Fingerprints, without: set[int], told: Mended, what: str) -> Dataset:
    """Return the samples whose images and annotations can be read, each image once, with whole boxes."""
    kept, seen = list[int](), dict[bytes, int]()
    readable = dict(zip(prints.indices, prints.exact, strict=True))
    for number in range(len(dataset)):
        if number in without:
            continue
        if number not in readable or not can_be_read(dataset, number):
            told.add(f"{what}: samples that cannot be read, left out", _name(dataset, number))
        elif readable[number] not in seen:
            seen[readable[number]] = number
            kept.append(number)
        elif _same_objects(dataset[number], dataset[seen[readable[number]]]):
            told.add(f"{what}: copies of other images, left out", _name(dataset, number))
        else:
            told.add(
                f"{what}: copies of other images with other annotations, left out; compare them with the first",
                _name(dataset, number),
            )
    if not kept:
        raise DataError(f"nothing is left of the data for {what}")
    rows = [(number, "") for number in kept]
    return ListedDataset(dataset, rows, told.folder, partial(_with_whole_boxes, told))


def _same_objects(one: Sample, other: Sample) -> bool:
    rows = [sorted(zip(item.labels.tolist(), item.boxes.tolist(), strict=True)) for item in (one, other)]
    return rows[0] == rows[1]


def _name(dataset: Dataset, number: int) -> str:
    try:
        return dataset.encoded(number)[1] or str(number)
    except DataError:
        return str(number)


def _titled(progress: Progress, title: str) -> Callable[[Iterable[int]], Iterable[int]]:
    return lambda items: progress(title, items)
