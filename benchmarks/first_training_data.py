"""The data of first_training.py: blood cells, fifty of them, raccoons, and 3,000 made-up pictures of three kinds.

Made-up pictures are those of `boxwright demo --shapes`, textured and with objects that hide each other. In one kind all
objects are tiny; in another two of the four classes are rare. `boxwright train` holds a fifth of them out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from boxwright.data.convert import write_tfrecords
from boxwright.data.dataset import Dataset
from boxwright.data.shapes import SHAPES, ShapesDataset
from boxwright.types import Sample

MADE_UP = 3000
_FEW = 50
_SIZE = (240, 320)
# The share of pictures with an object of a class; the others are in most pictures.
_RARE = {"triangle": 0.1, "star": 0.02}


@dataclass(frozen=True)
class TrainingData:
    """Data to train on.

    Attributes:
        title: What the documents call them.
        prepare: Returns the folder that `boxwright train` is given, from the folder of the real data and an empty one.
    """

    title: str
    prepare: Callable[[Path, Path], Path]


class PicturesWithRareClasses:
    """Those of many made-up pictures that leave two classes rare."""

    def __init__(self, count: int) -> None:
        """Choose the pictures."""
        drawn = ShapesDataset(100 * count, size=_SIZE, max_objects=4)
        rng = np.random.default_rng(0)
        self._drawn, self._indices = drawn, list[int]()
        candidates = iter(range(len(drawn)))
        while len(self._indices) < count:
            wanted = {name for name, share in _RARE.items() if rng.random() < share}
            for index in candidates:
                names = {SHAPES[label] for label in drawn[index].labels}
                if names & {*_RARE} == wanted:
                    self._indices.append(index)
                    break
        self.name, self.categories = drawn.name, drawn.categories

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> Sample:
        return self._drawn[self._indices[index]]

    def encoded(self, index: int) -> tuple[bytes, str]:
        """Return a JPEG file's bytes and its name."""
        return self._drawn.encoded(self._indices[index])


def fifty_of(root: Path, folder: Path) -> Path:
    """Return a VOC folder of fifty of the blood cells' pictures to learn from, and all those to judge by."""
    source, target = root / "bccd", folder / "bccd-50"
    lists = target / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    for name in ("Annotations", "JPEGImages"):
        (target / name).symlink_to((source / name).resolve(), target_is_directory=True)
    names = (source / "ImageSets" / "Main" / "trainval.txt").read_text().split()
    chosen = np.random.default_rng(0).permutation(len(names))[:_FEW]
    (lists / "trainval.txt").write_text("".join(f"{names[index]}\n" for index in sorted(chosen)))
    (lists / "test.txt").write_bytes((source / "ImageSets" / "Main" / "test.txt").read_bytes())
    return target


def made_up(folder: Path, kind: str) -> Path:
    """Return a folder with a TFRecord of 3,000 made-up pictures: ordinary, tiny or rare."""
    pictures: Dataset
    match kind:
        case "tiny":
            # Objects of 7 to 24 pixels in pictures of 320×240.
            pictures = ShapesDataset(MADE_UP, size=_SIZE, max_objects=12, radii=(0.015, 0.05))
        case "rare":
            pictures = PicturesWithRareClasses(MADE_UP)
        case _:
            pictures = ShapesDataset(MADE_UP, size=_SIZE, max_objects=10)
    write_tfrecords(pictures, folder / kind / "pictures.record")
    return folder / kind


DATA = {
    "bccd": TrainingData("blood cells", lambda root, folder: root / "bccd"),
    "bccd-50": TrainingData("50 blood cells", fifty_of),
    "raccoon": TrainingData("raccoons", lambda root, folder: root / "raccoon"),
    "shapes": TrainingData("3,000 made-up pictures", lambda root, folder: made_up(folder, "ordinary")),
    "shapes-tiny": TrainingData("3,000, objects tiny", lambda root, folder: made_up(folder, "tiny")),
    "shapes-rare": TrainingData("3,000, two of four classes rare", lambda root, folder: made_up(folder, "rare")),
}
