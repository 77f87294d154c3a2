"""Variants of labels: which class, which numbers, and what must be refused as it means something else."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.brought.layouts import (
    coco,
    number_of,
    raccoon,
    voc,
    voc_xml,
    write,
    write_pictures,
    xywh,
    yolo,
    yolo_row,
)
from tests.brought.pictures import CLASSES, Object, Picture, pictures
from tests.brought.tool_layouts import createml, imagefolder, label_map, parquet, records
from tests.brought.variant import Variant

# Neither the order of the alphabet nor that of `CLASSES`.
_OTHER_ORDER = {"green": 1, "red": 2, "blue": 3}
# Of the ten objects of five pictures, in which the classes take turns.
_BLUE = sum(one.name == "blue" for picture in pictures() for one in picture.objects)
_HALVES = {"train": pictures()[:4], "val": pictures()[4:]}


def _beside(make: Callable[[Path], Path], text: str, name: str = "label_map.pbtxt") -> Callable[[Path], Path]:
    """Return what writes a label map beside data."""

    def whole(to: Path) -> Path:
        write(to / name, text)
        return make(to)

    return whole


def _voc(**options: Any) -> Callable[[Path], Path]:
    return lambda to: voc(pictures(), to, **options)


def _coco(**options: Any) -> Callable[[Path], Path]:
    return lambda to: coco(pictures(), to, **options)


def _yolo(row: Callable[[Object, Picture], Sequence[str]] = yolo_row, **content: Any) -> Callable[[Path], Path]:
    return lambda to: yolo(_HALVES, to, row=row, content=content)


def _records(**options: Any) -> Callable[[Path], Path]:
    return lambda to: records({"train.record": pictures()}, to, **options)


_ORDERED = label_map(list(_OTHER_ORDER))
_FEWER = label_map(["red", "green"])

CLASS_IDENTITY: dict[str, Variant] = {
    "VOC, label map beside": Variant(_beside(_voc(), _ORDERED), ids=_OTHER_ORDER),
    "VOC, label map of another name beside": Variant(_beside(_voc(), _ORDERED, "labelmap.pbtxt"), ids=_OTHER_ORDER),
    "COCO, label map beside": Variant(_beside(_coco(), _ORDERED), ids=_OTHER_ORDER),
    "YOLO, label map beside": Variant(_beside(_yolo(), _ORDERED), ids=_OTHER_ORDER),
    "raccoon CSV, label map beside": Variant(
        _beside(lambda to: raccoon(pictures(), to), _ORDERED, "label_map.pbtxt"), ids=_OTHER_ORDER
    ),
    "TFRecords, label map beside": Variant(_records(map_text=label_map()), ids={"red": 1, "green": 2, "blue": 3}),
    "TFRecords of numbers alone, map of another name": Variant(_records(text=None, map_name="shapes_label_map.pbtxt")),
    "VOC, label map with fewer classes": Variant(_beside(_voc(), _FEWER), 10 - _BLUE, refused="blue", said="blue"),
    "COCO, label map with fewer classes": Variant(_beside(_coco(), _FEWER), 10 - _BLUE, refused="blue", said="blue"),
    "YOLO, label map with fewer classes": Variant(_beside(_yolo(), _FEWER), 10 - _BLUE, refused="blue", said="blue"),
    "TFRecords, label map with fewer classes": Variant(
        _records(map_text=_FEWER), 10 - _BLUE, refused="blue", problem="blue"
    ),
    "TFRecords, display_name alone": Variant(_records(map_text=label_map(key="display_name"))),
    "TFRecords, id 0 background": Variant(_records(map_text=label_map(["background", *CLASSES], first=0))),
    "TFRecords, id 0 none_of_the_above": Variant(
        _records(map_text=label_map(["none_of_the_above", *CLASSES], first=0)), refused="none_of_the_above|id.* 0"
    ),
    "TFRecords, numbers off by one, texts right": Variant(_records(first=2)),
    "TFRecords, zero-based with texts, no map": Variant(_records(first=0, map_name="")),
    "TFRecords, zero-based without texts": Variant(
        _records(first=0, text=None), None, refused="from 0|zero-based|start at 0"
    ),
    "TFRecords, texts of another case": Variant(_records(text=str.title), refused="(?-i:Red)", said="(?-i:Red)"),
    "label map with a BOM": Variant(_records(map_text="\ufeff" + label_map())),
    "label map that is JSON": Variant(_records(map_text='{"1": "red"}'), None, refused="label_map.pbtxt"),
    "label map without quotes": Variant(
        _records(map_text="item {\n id: 1\n name: red\n}\n"), None, refused="label_map.pbtxt:3:8|line 3"
    ),
    "VOC, names that differ in case alone": Variant(
        lambda to: voc_of(to, [voc_xml(one, names={"red": "Red"} if number else {}) for number, one in _numbered()]),
        said="(?-i:Red)",
    ),
    "COCO, category ids from 0": Variant(_coco(first_category=0)),
    "COCO, category ids with gaps, unsorted": Variant(_coco(change=lambda content: _renumbered(content, (90, 3, 17)))),
    "COCO, one name twice": Variant(_coco(change=lambda content: _name_twice(content)), said="red"),
    "COCO, an unused background": Variant(
        _coco(change=lambda content: content["categories"].insert(0, {"id": 0, "name": "background"}))
    ),
    "COCO without categories": Variant(
        _coco(change=lambda content: content.pop("categories")), None, refused="categories"
    ),
}


def _numbered() -> list[tuple[int, Picture]]:
    return list(enumerate(pictures()))


def voc_of(to: Path, texts: Sequence[str | bytes]) -> Path:
    """Write VOC with these annotations of the first pictures."""
    for picture, text in zip(pictures(), texts, strict=False):
        write_pictures([picture], to / "JPEGImages")
        write(to / "Annotations" / f"{picture.stem}.xml", text)
    return to


def _renumbered(content: dict[str, Any], ids: tuple[int, ...]) -> None:
    for row in content["annotations"]:
        row["category_id"] = ids[row["category_id"] - 1]
    for row in content["categories"]:
        row["id"] = ids[row["id"] - 1]


def _name_twice(content: dict[str, Any]) -> None:
    content["categories"].append({"id": 4, "name": "red"})
    for row in content["annotations"][5:]:
        row["category_id"] = 4 if row["category_id"] == 1 else row["category_id"]


# Rows of numbers in YOLO's label files


def _more(*columns: str) -> Callable[[Object, Picture], list[str]]:
    return lambda one, picture: [*yolo_row(one, picture), *columns]


def _outline(*corners: str) -> Callable[[Object, Picture], list[str]]:
    """Return the writer of an outline through corners and sides, as "x1 y1"."""

    def row(one: Object, picture: Picture) -> list[str]:
        x1, y1, x2, y2 = one.box
        sides = {"x1": x1, "x2": x2, "x": (x1 + x2) / 2, "y1": y1, "y2": y2, "y": (y1 + y2) / 2}
        numbers = [sides[name] for corner in corners for name in corner.split()]
        lengths = (picture.width, picture.height) * len(corners)
        return [str(number_of(one)), *(f"{side / length:.6f}" for side, length in zip(numbers, lengths, strict=True))]

    return row


_TRIANGLE = _outline("x1 y1", "x2 y1", "x y2")
_QUADRANGLE = _outline("x1 y1", "x2 y1", "x2 y2", "x1 y2")
_PENTAGON = _outline("x1 y1", "x2 y1", "x2 y2", "x y2", "x1 y2")


def _keypoints(count: int, numbers: int) -> Callable[[Object, Picture], list[str]]:
    """Return the writer of a box and keypoints in it."""

    def row(one: Object, picture: Picture) -> list[str]:
        x1, y1, x2, y2 = one.box
        values = []
        for number in range(count):
            share = (number + 1) / (count + 1)
            x, y = (x1 + share * (x2 - x1)) / picture.width, (y1 + share * (y2 - y1)) / picture.height
            values += [f"{x:.6f}", f"{y:.6f}", "2"][:numbers]
        return [*yolo_row(one, picture), *values]

    return row


def _mixed(one: Object, picture: Picture) -> list[str]:
    rows = (_TRIANGLE, _QUADRANGLE, _PENTAGON)
    return rows[number_of(one)](one, picture)


def _float_class(one: Object, picture: Picture) -> list[str]:
    number, *rest = yolo_row(one, picture)
    return [f"{number}.0", *rest]


NUMBERS: dict[str, Variant] = {
    "YOLO, 6 columns with confidence": Variant(_yolo(_more("0.83")), said="confidence"),
    "YOLO, 7 columns with confidence and id": Variant(_yolo(_more("0.83", "4")), said="confidence"),
    "YOLO, 7 columns of triangles": Variant(_yolo(_TRIANGLE)),
    "YOLO, 9 columns of oriented boxes": Variant(_yolo(_QUADRANGLE)),
    "YOLO, 11 columns of pentagons": Variant(_yolo(_PENTAGON)),
    "YOLO, polygons of various lengths": Variant(_yolo(_mixed)),
    "YOLO, boxes and polygons": Variant(
        _yolo(lambda one, picture: (yolo_row if one.name == "red" else _PENTAGON)(one, picture))
    ),
    "YOLO, pose of 5 × 3 with kpt_shape": Variant(_yolo(_keypoints(5, 3), kpt_shape=[5, 3])),
    "YOLO, pose of 5 × 2 with kpt_shape": Variant(_yolo(_keypoints(5, 2), kpt_shape=[5, 2])),
    "YOLO, pose of 4 × 3 without kpt_shape": Variant(_yolo(_keypoints(4, 3)), said="keypoint"),
    "YOLO, pose of 5 × 3 without kpt_shape": Variant(_yolo(_keypoints(5, 3)), said="keypoint"),
    "YOLO, pose of 5 × 2 without kpt_shape": Variant(_yolo(_keypoints(5, 2)), said="keypoint"),
    "YOLO, pose of 17 × 3 without kpt_shape": Variant(_yolo(_keypoints(17, 3)), said="keypoint"),
    "YOLO, class numbers as floats": Variant(_yolo(_float_class)),
    "YOLO, a line of words": Variant(
        _yolo(lambda one, picture: ["red", *yolo_row(one, picture)[1:]]), None, refused="line 1"
    ),
    "COCO, ids as floats": Variant(_coco(change=lambda content: _ids(content, float))),
    "COCO, ids as texts": Variant(_coco(change=lambda content: _ids(content, str))),
    "COCO, image ids text in images alone": Variant(
        _coco(change=lambda content: [row.update(id=str(row["id"])) for row in content["images"]])
    ),
    "COCO, annotation ids that repeat": Variant(
        _coco(change=lambda content: [row.update(id=1) for row in content["annotations"]])
    ),
    "COCO, negatives as empty boxes": Variant(_coco(change=lambda content: _empty_boxes(content)), said="bbox|box"),
    "COCO, annotations of absent images": Variant(
        _coco(change=lambda content: content["images"].pop()), 8, said="2 .*annotation|annotation.*2"
    ),
    "COCO, crowds": Variant(_coco(change=lambda content: content["annotations"].append(_crowd())), 10),
    "VOC, two boxes in one object": Variant(lambda to: _voc_of_twins(to)),
    "VOC, difficult in words": Variant(
        lambda to: voc_of(
            to,
            [
                voc_xml(one, extra=f"<difficult>{word}</difficult>")
                for one, word in zip(pictures(), ("Unspecified", "False", "0.0", "", "no"), strict=True)
            ],
        )
    ),
    "VOC, difficult that is so, in words": Variant(
        lambda to: voc_of(
            to,
            [
                voc_xml(one, extra=f"<difficult>{word}</difficult>")
                for one, word in zip(pictures(), ("True", "yes", "1.0", "1", "0"), strict=True)
            ],
        ),
        difficult=8,
    ),
    "VOC, swapped corners": Variant(lambda to: voc_of(to, [_swapped(one) for one in pictures()]), said="swap|corner"),
    "VOC, one file not XML": Variant(
        lambda to: voc_of(to, [*map(voc_xml, pictures()[:4]), "<annotation><filename>R&D"]), 8, problem="p4.xml"
    ),
}


def _ids(content: dict[str, Any], kind: Callable[[int], Any]) -> None:
    for rows in content.values():
        for row in rows:
            row.update({key: kind(row[key]) for key in ("id", "image_id", "category_id") if key in row})


def _empty_boxes(content: dict[str, Any]) -> None:
    for box in ([], [0, 0, 0, 0], [-1, -1, -1, -1]):
        content["annotations"].append({"id": 99, "image_id": 1, "category_id": 1, "bbox": box, "area": 0})


def _crowd() -> dict[str, Any]:
    return {"id": 99, "image_id": 1, "category_id": 1, "bbox": [0, 0, 30, 30], "area": 900, "iscrowd": 1}


def _voc_of_twins(to: Path) -> Path:
    for picture in pictures(alike=True):
        write_pictures([picture], to / "JPEGImages")
        write(to / "Annotations" / f"{picture.stem}.xml", _two_boxes(picture))
    return to


def _two_boxes(picture: Picture) -> str:
    """Return an annotation whose one object has the boxes of both."""
    boxes = voc_xml(picture).split("<bndbox>")[1:]
    second = boxes[1].split("</bndbox>")[0]
    text = voc_xml(replace(picture, objects=picture.objects[:1]))
    return text.replace("</bndbox>", f"</bndbox><bndbox>{second}</bndbox>")


def _swapped(picture: Picture) -> str:
    turned = [Object(one.name, (one.box[2], one.box[3], one.box[0], one.box[1])) for one in picture.objects]
    return voc_xml(replace(picture, objects=tuple(turned)))


# Numbers that mean something else than the format has


def _corners(one: Object) -> Sequence[float]:
    return one.box


def _centers(one: Object) -> Sequence[float]:
    x, y, width, height = xywh(one)
    return x + width / 2, y + height / 2, width, height


def _units(one: Object, picture: Picture, box: Callable[[Object], Sequence[float]]) -> list[float]:
    return [side / length for side, length in zip(box(one), (picture.width, picture.height) * 2, strict=True)]


def _in_units(picture: Picture) -> Picture:
    """Return a picture whose boxes are shares of it, its size unchanged."""
    objects = [Object(one.name, tuple(_units(one, picture, _corners))) for one in picture.objects]  # type: ignore[arg-type]
    return replace(picture, objects=tuple(objects))


def _larger(picture: Picture) -> Picture:
    """Return a picture as it was labeled before it was made half as large."""
    objects = [Object(one.name, tuple(2 * side for side in one.box)) for one in picture.objects]  # type: ignore[arg-type]
    return replace(picture, objects=tuple(objects), width=2 * picture.width, height=2 * picture.height)


def _in_pixels(one: Object, picture: Picture) -> list[str]:
    return [str(number_of(one)), *(f"{side:.1f}" for side in _centers(one))]


def _corner_row(one: Object, picture: Picture) -> list[str]:
    return [str(number_of(one)), *(f"{side:.6f}" for side in _units(one, picture, _corners))]


def _from_one(one: Object, picture: Picture) -> list[str]:
    number, *rest = yolo_row(one, picture)
    return [str(int(number) + 1), *rest]


def _all(change: Callable[[Picture], Picture], many: int = 5) -> list[Picture]:
    return [change(picture) for picture in pictures(many)]


_PIXELS, _CORNERS, _SHARES, _RESIZED = (
    "pixel",
    "corner|x_?max|x2",
    "normali[sz]ed|units of|shares|0 to 1",
    "resized|size",
)

OTHER_NUMBERS: dict[str, Variant] = {
    "YOLO, classes from 1": Variant(_yolo(_from_one), None, refused="from 1|start at 1"),
    "YOLO, pixels": Variant(_yolo(_in_pixels), None, refused=_PIXELS),
    "YOLO, corners": Variant(lambda to: yolo({"train": pictures(20)}, to, row=_corner_row), None, refused=_CORNERS),
    "COCO, corners": Variant(lambda to: coco(pictures(20), to, box=_corners), None, refused=_CORNERS),
    "COCO, shares": Variant(lambda to: coco(_all(_in_units), to), None, refused=_SHARES),
    "VOC, shares": Variant(lambda to: voc(_all(_in_units), to), None, refused=_SHARES),
    "raccoon CSV, shares": Variant(lambda to: raccoon(_all(_in_units), to), None, refused=_SHARES),
    "raccoon CSV, width and height": Variant(
        lambda to: raccoon(pictures(20), to, box=xywh), None, refused="width|corner"
    ),
    "CreateML, shares": Variant(lambda to: createml(_all(_in_units), to), None, refused=_SHARES),
    "TFRecords, pixels": Variant(
        lambda to: records({"train.record": [replace(one, width=1, height=1) for one in pictures()]}, to),
        None,
        refused=_PIXELS,
    ),
    "COCO, pictures resized since": Variant(lambda to: coco(_all(_larger), to), None, refused=_RESIZED),
    "VOC, pictures resized since": Variant(lambda to: voc(_all(_larger), to), None, refused=_RESIZED),
    "raccoon CSV, pictures resized since": Variant(lambda to: raccoon(_all(_larger), to), None, refused=_RESIZED),
    "imagefolder of corners, which the data show": Variant(
        lambda to: imagefolder({"train": pictures(20)}, to, box=_corners), 40, refused=_CORNERS
    ),
    "Parquet of corners, which the data show": Variant(
        lambda to: parquet({"train": pictures(20)}, to, box=_corners), 40, refused=_CORNERS
    ),
    "Parquet that names its classes": Variant(lambda to: parquet({"train": pictures()}, to, names=CLASSES)),
    "COCO that is a list of boxes": Variant(
        lambda to: write(to / "annotations.json", json.dumps([{"image_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5}])),
        None,
        refused="expected",
    ),
}
