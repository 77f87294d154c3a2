"""Combinations that nobody reported: orientation × format × convention × names, and back through each writer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boxwright.data.convert import write_coco, write_tfrecords, write_voc, write_yolo
from boxwright.data.dataset import Dataset
from tests.brought.check import boxes_on_their_colors, count_on_colors, opened
from tests.brought.layouts import coco, voc
from tests.brought.orientation_variants import FORMATS, SIZED, Write
from tests.brought.pictures import Convention, Picture, named, pictures

_SUFFIXES = (".jpg", ".png", ".JPG", ".Png", ".jpeg", ".webp")
# "ü" in one character and in two; what shells, URLs and lists of names give a meaning to.
_STEMS = (
    "plain",
    "my photo",
    "b\u00fcro",
    "bu\u0308ro",
    "-dash",
    "a.b.c",
    "IMG_0001",
    "x (1)",
    "50% #2",
    "it's",
    "a&b",
)
_WITHOUT_VISDRONE = sorted(FORMATS.keys() - {"VisDrone"})
_ORIENTATIONS = st.integers(1, 8)


def _named_oddly(drawn: list[Picture], stem: str) -> list[Picture]:
    """Return pictures under odd names, which a number keeps apart."""
    return [named(one, f"{stem} {number}{one.name[one.name.index('.') :]}") for number, one in enumerate(drawn)]


def _on_colors(write: Write, drawn: list[Picture]) -> None:
    # Not pytest's folder: one example's files would lie beside the next one's.
    with tempfile.TemporaryDirectory() as folder:
        count, problems = count_on_colors(opened(write(drawn, Path(folder) / "brought")))
    assert (count, problems) == (2 * len(drawn), "")


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.sampled_from(_WITHOUT_VISDRONE),
    _ORIENTATIONS,
    st.sampled_from(_SUFFIXES),
    st.sampled_from(_STEMS),
    st.integers(0, 3),
)
def test_drawn_upright(name: str, orientation: int, suffix: str, stem: str, seed: int) -> None:
    drawn = pictures(2, suffix=suffix, orientation=orientation, size=(80, 96), seed=seed)
    _on_colors(FORMATS[name], _named_oddly(drawn, stem))


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(SIZED)), st.integers(5, 8), st.sampled_from(_SUFFIXES), st.sampled_from(_STEMS))
def test_drawn_on_stored_pixels_whose_size_is_stated(name: str, orientation: int, suffix: str, stem: str) -> None:
    drawn = pictures(2, suffix=suffix, orientation=orientation, convention="stored")
    _on_colors(SIZED[name], _named_oddly(drawn, stem))


_PATHS = ("images\\{name}", "..\\images\\{name}", "D:\\set\\images\\{name}", "/home/me/{name}", "./images/{name}")


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.sampled_from(_PATHS), _ORIENTATIONS, st.sampled_from(_STEMS), st.booleans())
def test_paths_of_other_machines(pattern: str, orientation: int, stem: str, by_voc: bool) -> None:
    def path(picture: Picture) -> str:
        return pattern.format(name=picture.name)

    drawn = _named_oddly(pictures(2, suffix=".jpg", orientation=orientation), stem)
    if by_voc:
        _on_colors(lambda given, to: _voc_of_paths(given, to, path), drawn)
    else:
        _on_colors(lambda given, to: coco(given, to, file_name=path), drawn)


def _voc_of_paths(drawn: list[Picture], to: Path, path: Callable[[Picture], str]) -> Path:
    for picture in drawn:
        voc([picture], to, filename=path(picture))
    return to


def _to_tfrecords(dataset: Dataset, to: Path) -> Path:
    return Path(write_tfrecords(dataset, to / "train.record")[0]).parent


# What converts a data set, and returns the path to open.
WRITERS: Mapping[str, Callable[[Dataset, Path], Path]] = MappingProxyType(
    {
        "VOC": write_voc,
        "COCO": lambda dataset, to: write_coco(dataset, to / "annotations.json").parent,
        "YOLO": lambda dataset, to: write_yolo(dataset, to / "data.yaml").parent,
        "TFRecords": _to_tfrecords,
    }
)


@pytest.mark.parametrize("target", WRITERS)
@settings(max_examples=24, deadline=None, derandomize=True)
@given(
    source=st.sampled_from(["VOC", "COCO", "YOLO"]),
    orientation=_ORIENTATIONS,
    suffix=st.sampled_from([".jpg", ".png"]),
    convention=st.sampled_from(["upright", "stored"]),
    square=st.booleans(),
)
def test_there_and_back(
    target: str, source: str, orientation: int, suffix: str, convention: Convention, square: bool
) -> None:
    """Boxes stay on their objects from each format to each; EXIF is ignored where only that makes sense of labels."""
    drawn = pictures(
        2, suffix=suffix, orientation=orientation, convention=convention, size=(80, 80) if square else (72, 96)
    )
    shown = source != "YOLO" and orientation >= 5 and not square
    ignore_exif = convention == "stored" and not shown
    with tempfile.TemporaryDirectory() as folder:
        path = FORMATS[source](drawn, Path(folder) / "given")
        (dataset,) = opened(path, ignore_exif=ignore_exif).datasets
        assert boxes_on_their_colors(dataset) == 4
        written = WRITERS[target](dataset, Path(folder) / "written")
        # Pictures are copied as they are, and need the switch again.
        (again,) = opened(written, ignore_exif=ignore_exif).datasets
        assert boxes_on_their_colors(again) == 4
