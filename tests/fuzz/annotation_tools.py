"""Readers of annotation tools' files under the fuzzer: CVAT's, Label Studio's and FiftyOne's, read as COCO's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

from boxwright.data.coco import CocoDataset
from tests.data.test_annotation_tools import CVAT, FIFTYONE, TASKS
from tests.fuzz.reader import AcceptedError, Reader


def _reader(name: str, seed: str) -> Reader:
    def read(data: bytes, folder: Path) -> None:
        (folder / "data" / "deep").mkdir(parents=True)
        for image in ("a.png", "b.png", "data/a.png", "data/deep/b.png"):
            Image.new("RGB", (100, 80)).save(folder / image)
        (folder / name).write_bytes(data)
        dataset = CocoDataset(folder / name)
        for index in range(len(dataset)):
            sample = dataset[index]
            if not np.isfinite(sample.boxes).all():
                raise AcceptedError("a box that is not finite")

    return Reader(lambda: [seed.encode()], read)


TOOL_READERS = {
    "cvat": _reader("annotations.xml", CVAT),
    "label_studio": _reader("export.json", json.dumps(TASKS)),
    "fiftyone": _reader("labels.json", json.dumps(FIFTYONE)),
}
