"""Variants of EXIF orientation: every orientation, in each format, as tools draw on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.brought.layouts import (
    VISDRONE_COLORS,
    coco,
    darknet,
    kitti,
    raccoon,
    retinanet,
    visdrone,
    voc,
    write_pictures,
    yolo,
    yolo_with_classes,
)
from tests.brought.pictures import Picture, pictures, renamed
from tests.brought.tool_layouts import (
    createml,
    cvat,
    datumaro,
    imagefolder,
    label_studio,
    labelme,
    parquet,
    records,
    supervisely,
    via,
)
from tests.brought.variant import Variant

Write = Callable[[list[Picture], Path], Path]

# Formats that state the size of the picture that was labeled, and so may show that it was the stored one.
SIZED: dict[str, Write] = {
    "VOC": voc,
    "COCO": coco,
    "raccoon CSV": raccoon,
    "LabelMe": labelme,
    "Label Studio": label_studio,
    "CVAT": cvat,
    "Datumaro": lambda given, to: datumaro({"default": given}, to),
    "Supervisely": supervisely,
}
UNSIZED: dict[str, Write] = {
    "YOLO": lambda given, to: yolo({"train": given}, to),
    "YOLO with classes.txt": yolo_with_classes,
    "Darknet": lambda given, to: darknet({"train": given}, to),
    "CreateML": createml,
    "RetinaNet CSV": retinanet,
    "VIA": via,
    "KITTI": kitti,
    "imagefolder": lambda given, to: imagefolder({"train": given}, to),
    "Parquet": lambda given, to: parquet({"train": given}, to),
    "VisDrone": visdrone,
    "VOC without size": lambda given, to: voc(given, to, sized=False),
    "COCO without size": lambda given, to: coco(given, to, sized=False),
}
FORMATS = {**SIZED, **UNSIZED}
# VisDrone's classes are numbers with names of their own; the others' names are colors.
_COLORS = {"VisDrone": VISDRONE_COLORS}
_SAID = r"upright.*EXIF|EXIF.*upright|orientation"


def _of(write: Write, **drawn: Any) -> Callable[[Path], Path]:
    return lambda to: write(pictures(**{"suffix": ".jpg", **drawn}), to)


def _mixed(write: Write, *conventions: tuple[int, str]) -> Callable[[Path], Path]:
    """Return what writes one picture of each orientation, with its tool's convention."""

    def make(to: Path) -> Path:
        given = [
            pictures(5, suffix=".jpg", orientation=orientation, convention=convention)[number]  # type: ignore[arg-type]
            for number, (orientation, convention) in enumerate(conventions)
        ]
        return write(given, to)

    return make


def _beside_others(to: Path) -> Path:
    """Write turned pictures of which half have no labels."""
    given = pictures(suffix=".jpg", orientation=6)
    write_pictures(renamed(given, "unlabeled {number}.jpg"), to)
    return yolo_with_classes(given, to)


ORIENTATIONS: dict[str, Variant] = {
    **{
        f"{name}, EXIF 6, drawn upright": Variant(_of(write, orientation=6), classes=_COLORS.get(name, {}))
        for name, write in FORMATS.items()
    },
    **{
        f"{name}, EXIF {orientation}, drawn upright": Variant(_of(FORMATS[name], orientation=orientation))
        for name in ("VOC", "COCO", "YOLO")
        for orientation in (2, 3, 4, 5, 7, 8)
    },
    **{
        f"{name}, EXIF 6, labels of the stored pixels, whose size is stated": Variant(
            _of(write, orientation=6, convention="stored")
        )
        for name, write in SIZED.items()
    },
    **{
        f"{name}, EXIF {orientation}, labels of the stored pixels, whose size is stated": Variant(
            _of(FORMATS[name], orientation=orientation, convention="stored")
        )
        for name in ("VOC", "COCO")
        for orientation in (5, 7, 8)
    },
    **{
        f"{name}, square, EXIF {orientation}": Variant(_of(write, orientation=orientation, size=(80, 80)), said=_SAID)
        for name, write in {name: FORMATS[name] for name in ("VOC", "COCO", "YOLO", "CVAT")}.items()
        for orientation in (3, 6)
    },
    **{
        f"{name}, EXIF {orientation}, labels of the stored pixels, EXIF ignored as asked": Variant(
            _of(FORMATS[name], orientation=orientation, convention="stored"), ignore_exif=True
        )
        for name, orientation in (("YOLO", 6), ("VOC", 3), ("COCO", 2), ("CreateML", 8), ("VOC", 6))
    },
    "EXIF 3, of which nothing shows the rule, is said": Variant(_of(voc, orientation=3), said=_SAID),
    "PNG with EXIF 6": Variant(_of(coco, suffix=".png", orientation=6)),
    "WebP with EXIF 6": Variant(_of(FORMATS["YOLO"], suffix=".webp", orientation=6)),
    "TFRecords of EXIF 6, as TensorFlow reads them": Variant(
        lambda to: records({"train.record": pictures(suffix=".jpg", orientation=6, convention="stored")}, to)
    ),
    "VOC of two tools, one upright and one stored": Variant(
        _mixed(voc, (6, "upright"), (6, "stored"), (1, "upright"), (8, "stored"), (5, "upright"))
    ),
    "YOLO of all orientations": Variant(_mixed(FORMATS["YOLO"], *((number, "upright") for number in (1, 2, 3, 6, 8)))),
    "YOLO, EXIF 6, half of the pictures without labels": Variant(_beside_others, said="without (a )?label|no label"),
}
