"""The pictures by which labels are judged: upright after EXIF, and telling of each kind of misreading."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image, ImageOps

from boxwright.types import Categories, Category, Sample
from tests.brought.check import boxes_on_their_colors
from tests.brought.pictures import CLASSES, Convention, Picture, pictures

_CATEGORIES = Categories(tuple(Category(label, label + 1, name) for label, name in enumerate(CLASSES)))


@dataclass
class _Samples:
    """What a reader would return of pictures, with boxes changed as a fault would change them."""

    given: list[Picture]
    upright: bool = True
    change: Callable[[np.ndarray], np.ndarray] = lambda boxes: boxes
    first_class: int = 0
    name: str = "pictures"
    categories: Categories = _CATEGORIES

    def __len__(self) -> int:
        return len(self.given)

    def __getitem__(self, index: int) -> Sample:
        image = Image.open(io.BytesIO(self.given[index].data))
        pixels = np.array((ImageOps.exif_transpose(image) if self.upright else image).convert("RGB"))
        objects = self.given[index].objects
        boxes = self.change(np.array([one.box for one in objects], np.float32))
        labels = [(CLASSES.index(one.name) + self.first_class) % 3 for one in objects]
        return Sample(image=pixels, boxes=boxes.astype(np.float32), labels=np.array(labels, np.int64))

    def encoded(self, index: int) -> tuple[bytes, str]:
        return self.given[index].data, self.given[index].name


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp"])
@pytest.mark.parametrize("convention", ["upright", "stored"])
def test_each_orientation(orientation: int, suffix: str, convention: Convention) -> None:
    given = pictures(4, suffix=suffix, orientation=orientation, convention=convention)
    assert boxes_on_their_colors(_Samples(given, convention == "upright")) == 8
    if orientation > 1:
        with pytest.raises(AssertionError, match="center|edge|within"):
            boxes_on_their_colors(_Samples(given, convention == "stored"))


@pytest.mark.parametrize(
    "change",
    [
        lambda boxes: boxes + np.array([4, 0, 4, 0]),
        lambda boxes: boxes + np.array([0, -4, 0, -4]),
        lambda boxes: boxes + np.array([-4, 0, 0, 0]),
        lambda boxes: boxes * 1.25,
        lambda boxes: boxes[::-1],
        lambda boxes: boxes[:, [1, 0, 3, 2]],
        lambda boxes: boxes[:, [2, 3, 0, 1]],
    ],
    ids=["right", "up", "wider", "scaled", "exchanged", "transposed", "swapped"],
)
def test_a_wrong_box_shows(change: Callable[[np.ndarray], np.ndarray]) -> None:
    for seed in range(5):
        with pytest.raises(AssertionError):
            boxes_on_their_colors(_Samples(pictures(1, suffix=".jpg", seed=seed), change=change))


def test_a_wrong_class_shows() -> None:
    with pytest.raises(AssertionError, match="center"):
        boxes_on_their_colors(_Samples(pictures(1), first_class=1))


def test_a_wrong_picture_shows() -> None:
    given = pictures(5)
    for one, other in pairwise(given):
        mixed = Picture(one.name, other.data, one.width, one.height, one.objects)
        with pytest.raises(AssertionError):
            boxes_on_their_colors(_Samples([mixed]))
