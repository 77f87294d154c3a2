"""Made-up data written as YOLO and Open Images have it, from a COCO file, by other code than the readers'."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import yaml


def _coco(shapes_data: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((shapes_data / "coco" / "instances.json").read_text())
    return content


def yolo_of(shapes_data: Path, *, outlines: bool = False) -> Path:
    """Write `data.yaml`, images and labels; return the first."""
    folder = shapes_data / ("yolo-outlines" if outlines else "yolo")
    if (folder / "data.yaml").is_file():
        return folder / "data.yaml"
    content = _coco(shapes_data)
    for name in ("images", "labels"):
        (folder / name / "train").mkdir(parents=True)
    ids = sorted(category["id"] for category in content["categories"])
    for image in content["images"]:
        shutil.copy(shapes_data / "coco" / "images" / image["file_name"], folder / "images" / "train")
        lines = []
        for item in content["annotations"]:
            if item["image_id"] != image["id"]:
                continue
            x, y, width, height = item["bbox"]
            corners = [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]
            if outlines:
                numbers = [side for px, py in corners for side in (px / image["width"], py / image["height"])]
            else:
                numbers = [
                    *((x + width / 2) / image["width"], (y + height / 2) / image["height"]),
                    *(width / image["width"], height / image["height"]),
                ]
            lines.append(" ".join([str(ids.index(item["category_id"])), *(f"{number:.8f}" for number in numbers)]))
        if lines:
            (folder / "labels" / "train" / f"{Path(image['file_name']).stem}.txt").write_text("\n".join(lines) + "\n")
    names = {ids.index(category["id"]): category["name"] for category in content["categories"]}
    (folder / "data.yaml").write_text(yaml.safe_dump({"path": ".", "train": "images/train", "names": names}))
    return folder / "data.yaml"


def open_images_of(shapes_data: Path) -> Path:
    """Write the CSV of boxes beside the images, and those of descriptions and image-level labels; return the first."""
    folder = shapes_data / "open_images"
    boxes = folder / "train-annotations-bbox.csv"
    if boxes.is_file():
        return boxes
    content = _coco(shapes_data)
    (folder / "images").mkdir(parents=True)
    by_id = {image["id"]: image for image in content["images"]}
    for image in content["images"]:
        shutil.copy(shapes_data / "coco" / "images" / image["file_name"], folder / "images")
    codes = {category["id"]: f"/m/0{category['id']}" for category in content["categories"]}
    with boxes.open("w", newline="") as file:
        writer = csv.writer(file)
        names = "ImageID Source LabelName Confidence XMin XMax YMin YMax IsOccluded IsTruncated IsGroupOf IsDepiction"
        writer.writerow([*names.split(), "IsInside"])
        for number, item in enumerate(content["annotations"]):
            image = by_id[item["image_id"]]
            x, y, width, height = item["bbox"]
            sides = (
                x / image["width"],
                (x + width) / image["width"],
                y / image["height"],
                (y + height) / image["height"],
            )
            name = Path(image["file_name"]).stem
            writer.writerow([name, "xclick", codes[item["category_id"]], 1, *sides, 0, 0, int(number % 5 == 0), 0, 0])
    with (folder / "class-descriptions-boxable.csv").open("w", newline="") as file:
        csv.writer(file).writerows([[codes[category["id"]], category["name"]] for category in content["categories"]])
    with (folder / "image-labels.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["ImageID", "Source", "LabelName", "Confidence"])
        for image in content["images"]:
            writer.writerow([Path(image["file_name"]).stem, "verification", codes[content["categories"][0]["id"]], 0])
    return boxes
