"""Small data sets on disk in every format, as people have them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
from PIL import Image

from boxwright.data.convert import write_coco, write_tfrecords, write_voc, write_yolo
from boxwright.data.shapes import ShapesDataset

SIZE = (64, 80)


def shapes(count: int, seed: int) -> ShapesDataset:
    return ShapesDataset(count, seed=seed, size=SIZE)


def voc(folder: Path, count: int = 20) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # masks are left out
        write_voc(shapes(count, 1), folder)
    return folder


def yolo(folder: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write_yolo(shapes(20, 1), folder / "data.yaml", "train")
        write_yolo(shapes(6, 2), folder / "data.yaml", "val")
    return folder


def roboflow_yolo(folder: Path) -> Path:
    """A YOLO export of Roboflow's: train, valid and test beside data.yaml, which names them from a folder below."""
    for name, count, seed in (("train", 20, 1), ("valid", 6, 2), ("test", 4, 3)):
        for kind in ("images", "labels"):
            (folder / name / kind).mkdir(parents=True)
        dataset = shapes(count, seed)
        for number in range(count):
            sample = dataset[number]
            Image.fromarray(sample.image).save(folder / name / "images" / f"{number}_jpg.rf.{seed}a.png")
            boxes = sample.boxes / np.array([SIZE[1], SIZE[0]] * 2, np.float32)
            rows = [
                f"{label} {(x0 + x1) / 2:.6f} {(y0 + y1) / 2:.6f} {x1 - x0:.6f} {y1 - y0:.6f}"
                for label, (x0, y0, x1, y1) in zip(sample.labels.tolist(), boxes.tolist(), strict=True)
            ]
            text = "\n".join(rows) if number else ""  # a picture without objects has an empty file
            (folder / name / "labels" / f"{number}_jpg.rf.{seed}a.txt").write_text(text)
    names = [item.name for item in shapes(1, 1).categories]
    (folder / "data.yaml").write_text(
        f"train: ../train/images\nval: ../valid/images\ntest: ../test/images\n\nnc: {len(names)}\nnames: {names}\n\n"
        "roboflow:\n  workspace: somebody\n  license: CC BY 4.0\n"
    )
    return folder


def roboflow_coco(folder: Path) -> Path:
    """A COCO export of Roboflow's: category 0 is a superclass that no object has."""
    for name, count, seed in (("train", 20, 1), ("valid", 6, 2)):
        dataset = shapes(count, seed)
        (folder / name).mkdir(parents=True)
        images, rows = [], []
        for number in range(count):
            sample = dataset[number]
            Image.fromarray(sample.image).save(folder / name / f"{number}.jpg")
            images.append({"id": number, "file_name": f"{number}.jpg", "height": SIZE[0], "width": SIZE[1]})
            for label, (x0, y0, x1, y1) in zip(sample.labels.tolist(), sample.boxes.tolist(), strict=True):
                box = [x0, y0, x1 - x0, y1 - y0]
                rows.append({"id": len(rows), "image_id": number, "category_id": label + 1, "bbox": box, "iscrowd": 0})
                rows[-1]["area"] = box[2] * box[3]
        own = [{"id": item.label + 1, "name": item.name, "supercategory": "shapes"} for item in dataset.categories]
        categories = [{"id": 0, "name": "shapes", "supercategory": "none"}, *own]
        content = {"images": images, "annotations": rows, "categories": categories}
        (folder / name / "_annotations.coco.json").write_text(json.dumps(content))
    return folder


def coco(folder: Path) -> Path:
    """COCO's own layout: annotations in one folder, pictures in one folder a list."""
    for name, count, seed in (("train2017", 20, 1), ("val2017", 6, 2)):
        path = write_coco(shapes(count, seed), folder / "whole" / name / "instances.json")
        (folder / "annotations").mkdir(exist_ok=True)
        path.rename(folder / "annotations" / f"instances_{name}.json")
        (path.parent / "images").rename(folder / name)
    return folder


def tfrecords(folder: Path) -> Path:
    write_tfrecords(shapes(20, 1), folder / "train.record", num_shards=2)
    write_tfrecords(shapes(6, 2), folder / "val.record")
    return folder
