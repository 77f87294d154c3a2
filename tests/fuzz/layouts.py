"""Readers of layouts under the fuzzer, each by its one changed file among pictures, and archives."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from boxwright.data.archives import unpacked
from boxwright.data.coco import CocoDataset
from boxwright.data.yolo import YoloDataset
from tests.data.layouts.test_hugging_face import SIZES, row
from tests.data.layouts.test_json_lists import REGION, createml, vott
from tests.data.layouts.test_labelme import labelme, shape
from tests.data.layouts.test_projects import META, annotation, bitmap, box, datumaro, drawn, polygon
from tests.data.layouts.test_text_labels import KITTI
from tests.data.layouts.test_via import RECT, region, via
from tests.data.yolo_folders import folder as write_yolo_folder
from tests.fuzz.reader import AcceptedError, Reader

_FILES = {
    "labelme": (
        "a.json",
        json.dumps(labelme(shape("x", "rectangle", [1, 2], [3, 4]), shape("x", "circle", [9, 9], [9, 5]))),
    ),
    "via": ("via_region_data.json", json.dumps(via(region(RECT, c="x"), region(RECT, c={"y": True})))),
    "createml": ("_annotations.createml.json", json.dumps(createml())),
    "vott": (
        "p-export.json",
        json.dumps(vott({**REGION, "type": "POLYGON", "points": [{"x": 1, "y": 2}] * 3})).replace("%20b", ""),
    ),
    "datumaro": ("annotations/default.json", json.dumps(datumaro(box(), polygon(1, 2, 11, 2, 6, 12, group=2)))),
    "supervisely": (
        "ds/ann/a.png.json",
        json.dumps(annotation(drawn("bitmap", bitmap={"origin": [4, 5], "data": bitmap(3, 2)}))),
    ),
    "imagefolder": ("metadata.jsonl", json.dumps(row(SIZES, [1, 2, 3, 4], classes=[2, 10]))),
    "kitti": ("label_2/a.txt", KITTI.format("Car", "1 2 3 4") + KITTI.format("DontCare", "5 6 7 8")),
    "visdrone": ("annotations/a.txt", "10,20,30,40,1,4,0,0\n50,10,20,20,0,0,0,0\n"),
    "csv": ("t.csv", "filename,width,height,class,xmin,ymin,xmax,ymax\na.png,100,80,cat,10,20,40,60\n"),
}


def _reader(name: str, seed: str) -> Reader:
    def read(data: bytes, folder: Path) -> None:
        for picture in ("a.png", "ds/img/a.png", "image_2/a.png", "images/default/a.png"):
            (folder / picture).parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (100, 80)).save(folder / picture)
        (folder / "meta.json").write_text(json.dumps(META))
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        # Of other layouts, the file itself is passed.
        whole = ("label_2", "annotations", "ds")
        dataset = CocoDataset(folder if name.split("/")[0] in whole else folder / name)
        for index in range(len(dataset)):
            if not np.isfinite(dataset[index].boxes).all():
                raise AcceptedError("a box that is not finite")

    return Reader(lambda: [seed.encode()], read)


def _archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("set/images/a.txt", "a" * 100)
        archive.writestr("set/b.txt", "b")
    return buffer.getvalue()


def _read_archive(data: bytes, folder: Path) -> None:
    os.environ["BOXWRIGHT_CACHE"] = str(folder / "cache")
    (folder / "a.zip").write_bytes(data)
    unpacked(folder / "a.zip")
    outside = {path.name for path in folder.iterdir()} - {"a.zip", "cache"}
    if outside:
        raise AcceptedError(f"written outside: {outside}")


def _read_data_yaml(data: bytes, folder: Path) -> None:
    write_yolo_folder(folder, {"a": "0 0.5 0.5 0.25 0.5\n", "b": "1 0.5 0.5 0.5 0.5\n"}, yaml="")
    (folder / "data.yaml").write_bytes(data)
    dataset = YoloDataset(folder / "data.yaml")
    for index in range(len(dataset)):
        if not np.isfinite(dataset[index].boxes).all():
            raise AcceptedError("a box that is not finite")


LAYOUT_READERS = {
    **{kind: _reader(name, seed) for kind, (name, seed) in _FILES.items()},
    "data_yaml": Reader(
        lambda: [b"train: images\nnames: [a, b, c]\n", b"path: &a .\nval: *a\nnc: 2\n"], _read_data_yaml
    ),
    "data_archive": Reader(lambda: [_archive()], _read_archive),
}
