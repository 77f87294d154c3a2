"""Writing pictures and their labels as tools lay them out; each function returns the path that a user would give.

The functions share no code with the package's own writers and readers, except for the records of TensorFlow.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import yaml

from tests.brought.pictures import CLASSES, Object, Picture

Splits = Mapping[str, Sequence[Picture]]


def write(path: Path, content: str | bytes, encoding: str = "utf-8") -> Path:
    """Write a file, and its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode(encoding))
    return path


def write_pictures(pictures: Iterable[Picture], folder: Path) -> Path:
    """Write pictures into a folder, and return it."""
    for picture in pictures:
        write(folder / picture.name, picture.data)
    return folder


def number_of(one: Object) -> int:
    return CLASSES.index(one.name)


def xywh(one: Object) -> list[float]:
    x1, y1, x2, y2 = one.box
    return [x1, y1, x2 - x1, y2 - y1]


# Pascal VOC


def voc_xml(
    picture: Picture,
    *,
    filename: str | None = None,
    sized: bool = True,
    names: Mapping[str, str] | None = None,
    extra: str = "<difficult>0</difficult>",
) -> str:
    """Return one annotation, as labelImg writes it.

    Args:
        names: What classes are called in the annotation.
        extra: What each object has besides its name and box.
    """
    objects = []
    for one in picture.objects:
        sides = "".join(
            f"<{tag}>{side:g}</{tag}>" for tag, side in zip(("xmin", "ymin", "xmax", "ymax"), one.box, strict=True)
        )
        name = escape((names or {}).get(one.name, one.name))
        objects.append(f"<object><name>{name}</name>{extra}<bndbox>{sides}</bndbox></object>\n")
    size = f"<size><width>{picture.width}</width><height>{picture.height}</height><depth>3</depth></size>\n"
    head = f"<filename>{escape(picture.name if filename is None else filename)}</filename>\n"
    return f"<annotation>\n{head}{size if sized else ''}{''.join(objects)}</annotation>\n"


def voc(
    pictures: Sequence[Picture],
    folder: Path,
    *,
    images: str = "JPEGImages",
    annotations: str = "Annotations",
    stem: Callable[[Picture], str] = lambda picture: picture.stem,
    ending: str = ".xml",
    encoding: str = "utf-8",
    text: Callable[[Picture], str] | None = None,
    **options: Any,
) -> Path:
    """Write a folder of pictures and one of XML files; both may be the folder itself.

    Args:
        text: Returns a picture's annotation, in place of `voc_xml` with the options.
    """
    write_pictures(pictures, folder / images)
    for picture in pictures:
        content = text(picture) if text else voc_xml(picture, **options)
        write(folder / annotations / f"{stem(picture)}{ending}", content, encoding)
    return folder


# COCO


def coco_content(
    pictures: Sequence[Picture],
    *,
    file_name: Callable[[Picture], str] = lambda picture: picture.name,
    first_category: int = 1,
    sized: bool = True,
    box: Callable[[Object], Sequence[float]] = xywh,
) -> dict[str, Any]:
    """Return the content of a COCO file, as plain lists that a test may change."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, picture in enumerate(pictures, start=1):
        size = {"width": picture.width, "height": picture.height} if sized else {}
        images.append({"id": number, "file_name": file_name(picture), **size})
        for one in picture.objects:
            row = {"image_id": number, "category_id": first_category + number_of(one), "bbox": list(box(one))}
            annotations.append({"id": len(annotations) + 1, "area": xywh(one)[2] * xywh(one)[3], "iscrowd": 0, **row})
    categories = [{"id": first_category + label, "name": name} for label, name in enumerate(CLASSES)]
    return {"images": images, "annotations": annotations, "categories": categories}


def coco(
    pictures: Sequence[Picture],
    folder: Path,
    *,
    name: str = "annotations.json",
    images: str = "images",
    encoding: str = "utf-8",
    change: Callable[[dict[str, Any]], Any] = lambda content: content,
    **options: Any,
) -> Path:
    """Write a COCO file and a folder of pictures.

    Args:
        change: Changes the file's content in place.
    """
    write_pictures(pictures, folder / images)
    content = coco_content(pictures, **options)
    change(content)
    write(folder / name, json.dumps(content), encoding)
    return folder


# YOLO and Darknet


def yolo_row(one: Object, picture: Picture) -> list[str]:
    """Return the class and its box, as YOLO has them."""
    x1, y1, x2, y2 = one.box
    width, height = picture.width, picture.height
    sides = ((x1 + x2) / 2 / width, (y1 + y2) / 2 / height, (x2 - x1) / width, (y2 - y1) / height)
    return [str(number_of(one)), *(f"{side:.6f}" for side in sides)]


Row = Callable[[Object, Picture], Sequence[str]]


def yolo_text(picture: Picture, row: Row = yolo_row) -> str:
    return "".join(" ".join(row(one, picture)) + "\n" for one in picture.objects)


def yolo(
    splits: Splits,
    folder: Path,
    *,
    row: Row = yolo_row,
    images: str = "{split}/images",
    labels: str = "{split}/labels",
    content: Mapping[str, Any] | None = None,
    yaml_encoding: str = "utf-8",
) -> Path:
    """Write pictures and labels of each split, and a `data.yaml`.

    Args:
        content: What `data.yaml` says otherwise or besides.
    """
    for split, pictures in splits.items():
        write_pictures(pictures, folder / images.format(split=split))
        for picture in pictures:
            write(folder / labels.format(split=split) / f"{picture.stem}.txt", yolo_text(picture, row))
    lists = {split: images.format(split=split) for split in splits}
    text = yaml.safe_dump({**lists, "nc": len(CLASSES), "names": list(CLASSES), **(content or {})}, sort_keys=False)
    write(folder / "data.yaml", text, yaml_encoding)
    return folder


def yolo_with_classes(
    pictures: Sequence[Picture], folder: Path, *, images: str = ".", labels: str = ".", row: Row = yolo_row
) -> Path:
    """Write pictures and labels, with `classes.txt` in place of `data.yaml`."""
    write_pictures(pictures, folder / images)
    for picture in pictures:
        write(folder / labels / f"{picture.stem}.txt", yolo_text(picture, row))
    write(folder / "classes.txt", "\n".join(CLASSES) + "\n")
    return folder


def darknet(splits: Splits, folder: Path, *, prefix: str = "data/") -> Path:
    """Write what CVAT exports as YOLO 1.1: `obj.data`, `obj.names` and a list of each split."""
    lines = [f"classes = {len(CLASSES)}", f"names = {prefix}obj.names", "backup = backup/"]
    for split, pictures in splits.items():
        name = f"obj_{split}_data"
        write_pictures(pictures, folder / name)
        for picture in pictures:
            write(folder / name / f"{picture.stem}.txt", yolo_text(picture))
        write(folder / f"{split}.txt", "".join(f"{prefix}{name}/{picture.name}\n" for picture in pictures))
        lines.append(f"{split} = {prefix}{split}.txt")
    write(folder / "obj.names", "\n".join(CLASSES) + "\n")
    write(folder / "obj.data", "\n".join(lines) + "\n")
    return folder


def open_images_toolkit(pictures: Sequence[Picture], folder: Path) -> Path:
    """Write what OIDv4_ToolKit downloads: a folder for each class, and in its `Label` the boxes of that class alone."""
    for picture in pictures:
        for one in picture.objects:
            write(folder / "train" / one.name / picture.name, picture.data)
            line = " ".join([one.name, *(f"{side:.1f}" for side in one.box)])
            write(folder / "train" / one.name / "Label" / f"{picture.stem}.txt", f"{line}\n")
    return folder


# Tables


def _write_table(path: Path, rows: Iterable[Sequence[object]], encoding: str = "utf-8") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding=encoding) as file:
        csv.writer(file).writerows(rows)
    return path


def raccoon_table(
    pictures: Sequence[Picture],
    path: Path,
    *,
    encoding: str = "utf-8",
    box: Callable[[Object], Any] = lambda one: one.box,
) -> Path:
    """Write the table of xml_to_csv.py, which the raccoon tutorial and Roboflow's export for TensorFlow have."""
    head = ("filename", "width", "height", "class", "xmin", "ymin", "xmax", "ymax")
    rows = [
        (picture.name, picture.width, picture.height, one.name, *box(one))
        for picture in pictures
        for one in picture.objects
    ]
    return _write_table(path, [head, *rows], encoding)


def raccoon(pictures: Sequence[Picture], folder: Path, *, images: str = "images", **options: Any) -> Path:
    write_pictures(pictures, folder / images)
    raccoon_table(pictures, folder / "train_labels.csv", **options)
    return folder


def retinanet(pictures: Sequence[Picture], folder: Path, *, empty: Sequence[Picture] = ()) -> Path:
    """Write keras-retinanet's two tables, which have no head; a picture without objects has a row of empty fields."""
    write_pictures([*pictures, *empty], folder / "images")
    rows = [(f"images/{picture.name}", *one.box, one.name) for picture in pictures for one in picture.objects]
    nothing = [(f"images/{picture.name}", "", "", "", "", "") for picture in empty]
    _write_table(folder / "classes.csv", [(name, label) for label, name in enumerate(CLASSES)])
    _write_table(folder / "annotations.csv", [*rows, *nothing])
    return folder


def kitti(pictures: Sequence[Picture], folder: Path) -> Path:
    """Write KITTI's folders; each picture also has a region to ignore."""
    write_pictures(pictures, folder / "training" / "image_2")
    for picture in pictures:
        lines = [
            " ".join([one.name, "0.00 0 -1.57", *(f"{side:.2f}" for side in one.box), "1.5 1.6 3.6 0.1 1.5 8.4 0.01"])
            for one in picture.objects
        ]
        lines.append("DontCare -1 -1 -10 1.00 1.00 4.00 4.00 -1 -1 -1 -1000 -1000 -1000 -10")
        write(folder / "training" / "label_2" / f"{picture.stem}.txt", "\n".join(lines) + "\n")
    return folder


# VisDrone's classes are numbers with names of their own.
VISDRONE_COLORS = {"pedestrian": "red", "people": "green", "bicycle": "blue"}


def visdrone(pictures: Sequence[Picture], folder: Path) -> Path:
    """Write VisDrone's folders; each picture also has an ignored region, category 0."""
    write_pictures(pictures, folder / "images")
    for picture in pictures:
        lines = [
            ",".join([*(f"{side:g}" for side in xywh(one)), f"1,{number_of(one) + 1},0,0"]) for one in picture.objects
        ]
        write(folder / "annotations" / f"{picture.stem}.txt", "\n".join([*lines, "1,1,4,4,0,0,0,0"]) + "\n")
    return folder
