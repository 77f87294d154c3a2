"""Data sets made after what others reported: the folders that BOXWRIGHT_REPORTS names, each with its `cases.tsv`.

The table says how many boxes are read for training and evaluation; a test list is kept back, and is not counted. The
colors are the classes, as in `test_what_people_bring.py`.
"""

from __future__ import annotations

import csv
import os
from dataclasses import replace
from pathlib import Path

import pytest

from boxwright.base.errors import DataError
from tests.brought.check import count_of_all, opened
from tests.brought.variant import Variant, hold

_FOLDERS = [Path(name) for name in os.environ.get("BOXWRIGHT_REPORTS", "").split(os.pathsep) if name]
_ABSENT = "BOXWRIGHT_REPORTS names no folders of reported data; test_what_people_bring.py makes its own"


def _cases() -> dict[str, tuple[Path, dict[str, str]]]:
    found: dict[str, tuple[Path, dict[str, str]]] = {}
    for folder in _FOLDERS:
        with (folder / "cases.tsv").open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
                found[row["case"]] = (folder / row["case"] / row["inside"], row)
    return found


CASES = _cases()


def _made(path: Path) -> Path:
    return path


def _read(boxes: int | None = 20, **options: str) -> Variant:
    return Variant(_made, boxes, **options)  # type: ignore[arg-type]


# Cases whose number of boxes in the table is not the whole verdict: a refusal is wanted or will do, or a word is.
VERDICTS: dict[str, Variant] = {
    "03-voc-exif3-upside-down": _read(said="EXIF"),
    "04-coco-exif6-square": _read(said="EXIF"),
    "17-voc-filename-of-another": _read(said="filename"),
    "18-voc-all-same-filename": _read(said="filename"),
    "31-voc-class-spelling": _read(said="(?-i:Green)"),
    "32-voc-ampersand": _read(18, problem="R&D 4"),
    "34-voc-negatives-and-orphans": _read(12, problem="p2"),
    "50-coco-no-categories": _read(None, refused="categories"),
    "51-coco-xyxy": _read(None, refused="corner"),
    "52-coco-normalized": _read(None, refused="normali[sz]ed|units of|shares|0 to 1"),
    "57-coco-one-missing-image": _read(18, problem="im07"),
    "62-coco-size-wrong": _read(None, refused="resized|size"),
    "70-yolo-parent-named-images": _read(refused="label"),
    "71-yolo-labels-folder-misnamed": _read(refused="label"),
    "73-yolo-conf-6-columns": _read(said="confidence"),
    "76-yolo-pose-no-kpt_shape": _read(said="keypoint"),
    "77-yolo-classes-from-1": _read(None, refused="from 1|start at 1"),
    "79-yolo-names-gaps": _read(None, refused="names"),
    "80-yolo-names-yes-no": replace(_read(20), classes={"on": "red", "off": "green", "no": "blue"}),
    "81-yolo-nc-only": _read(None, refused="names"),
    "82-yolo-pixels-not-normalized": _read(None, refused="pixel"),
    # Each of its ten label files has the boxes of one class alone.
    "85-yolo-openimages-v4-toolkit": _read(10),
    "88-tfrec-zero-based-labels": _read(None, refused="from 0|zero-based|start at 0"),
    # Refusing with both spellings was its verdict, and TensorFlow goes by the number where there is no text.
    "90-tfrec-text-case-differs": _read(refused="(?-i:Red)", said="(?-i:Red)"),
    "96-labelmap-none_of_the_above-0": _read(None, refused="none_of_the_above"),
    "97-labelmap-all-in-one-item": _read(None, refused="label_map.pbtxt:3|line 3|twice"),
    "99-labelmap-missing-quote": _read(None, refused="label_map.pbtxt:[0-9]"),
    "100-labelmap-braces-json": _read(None, refused="label_map.pbtxt:1|line 1"),
    "101-labelmap-missing-class": _read(14, refused="blue", problem="blue"),
    "109-imagenet-style-folders": _read(None, refused="box|annotation"),
    "114-label-studio-json-min": _read(refused="as JSON"),
    "118-cvat-video-xml": _read(refused="CVAT for images"),
    "122-paligemma-jsonl-empty-folder": _read(None, refused="annotation"),
    "123-coco-orphan-annotations": _read(16, said="4 .*annotation|annotation.*4"),
    "128-voc-classes-of-subset": _read(14, refused="blue", said="blue"),
    "129-voc-labelmap-order-ignored-by-init": replace(_read(), ids={"red": 1, "green": 2, "blue": 3}),
}
# Of pictures that are read too dark, which is another matter: their colors show nothing.
_WITHOUT_COLORS = "07-voc-16bit-12bit-range"
_ROTATED = "29-voc-robndbox"


def test_how_many_there_are() -> None:
    if not _FOLDERS:
        pytest.skip(_ABSENT)
    assert len(CASES) == 123
    assert VERDICTS.keys() <= CASES.keys()
    without = {name for name, (_, row) in CASES.items() if row["boxes"] == "None"}
    assert without <= VERDICTS.keys() | {_ROTATED}, "cases without a number of boxes need a verdict"


def test_pictures_of_a_camera_of_12_bits_are_read() -> None:
    if _WITHOUT_COLORS not in CASES:
        pytest.skip(_ABSENT)
    assert count_of_all(opened(CASES[_WITHOUT_COLORS][0])) == (20, "")


def test_a_rotated_box_is_read_as_the_upright_one_around_it() -> None:
    if _ROTATED not in CASES:
        pytest.skip(_ABSENT)
    data = opened(CASES[_ROTATED][0])
    # Nothing is drawn where the rotated box is.
    assert count_of_all(data) == (21, "")
    assert "rotated boxes, read as the upright boxes around them: 1 (p3.xml)" in data.said


@pytest.mark.parametrize("name", sorted(CASES.keys() - {_WITHOUT_COLORS, _ROTATED}))
def test_case(name: str) -> None:
    path, row = CASES[name]
    variant = VERDICTS.get(name) or _read(int(row["boxes"]))
    hold(replace(variant, allow_paths_outside="--allow_paths_outside" in row["options of init"]), path)


def test_paths_outside_are_refused_unless_asked_for() -> None:
    if not _FOLDERS:
        pytest.skip(_ABSENT)
    with pytest.raises(DataError, match="allow_paths_outside|outside"):
        count_of_all(opened(CASES["67-yolo-path-outside"][0]))
