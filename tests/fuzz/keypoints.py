"""Readers of keypoints under the fuzzer: COCO's annotations, and label maps of CenterNet's keypoint tasks and of data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from boxwright.base.errors import BoxwrightError
from boxwright.config.load import parse_message
from boxwright.data.batch import to_input
from boxwright.data.coco import CocoDataset, coco_annotation
from boxwright.data.image_io import encode_jpeg
from boxwright.data.label_map import label_map_text, load_label_map
from boxwright.evaluation.pictures import draw_sample
from boxwright.families.center_net.build_tasks import build_class_keypoints
from boxwright.nn.preprocessing import FixedShapeResizer
from boxwright.pipeline import messages as m
from tests.center_nets import BOXES, CENTERS, FOCAL, L1
from tests.fuzz.reader import AcceptedError, Reader

LABEL_MAP = """item { id: 1 name: "circle" keypoints { id: 0 label: "top" } keypoints { id: 2 label: "bottom" } }
item { id: 2 name: "square" display_name: "S" keypoints { id: 1 label: "corner" } }
"""
COCO: dict[str, Any] = {
    "images": [{"id": 1, "file_name": "a.jpg", "height": 24, "width": 30}, {"id": 2, "file_name": "a.jpg"}],
    "categories": [
        {"id": 1, "name": "circle", "keypoints": ["top", "bottom"], "skeleton": [[1, 2]]},
        {"id": 7, "name": "square", "keypoints": ["corner"]},
    ],
    "annotations": [
        {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 9, 9], "keypoints": [3, 2, 2, 4.5, 11, 1]},
        {"id": 2, "image_id": 1, "category_id": 7, "bbox": [1, 2, 9, 9], "keypoints": [0, 0, 0], "num_keypoints": 0},
        {
            "id": 3,
            "image_id": 2,
            "category_id": 1,
            "bbox": [0, 0, 5, 5],
            "track_id": 4,
            "dp_I": [1, 24.0],
            "dp_x": [9, 255.5],
            "dp_y": [0, 128],
            "dp_U": [0.5, 1],
            "dp_V": [0, 0.25],
        },
    ],
}


def _give_image(folder: Path) -> None:
    (folder / "a.jpg").write_bytes(encode_jpeg(np.full((24, 30, 3), 128, np.uint8)))


def _use(dataset: CocoDataset) -> None:
    """Do with samples what a run and `convert` do; what was read comes back when it is written and read again."""
    for index in range(len(dataset)):
        sample = dataset[index]
        example = to_input(sample, FixedShapeResizer(32, 32))
        if (
            example.keypoints is not None
            and not np.isfinite(example.keypoints[..., :2][example.keypoints[..., 2] > 0]).all()
        ):
            raise AcceptedError("a visible keypoint that is not finite reaches the loss")
        if example.dense_pose is not None and not np.isfinite(example.dense_pose).all():
            raise AcceptedError("a point of DensePose that is not finite reaches the loss")
        draw_sample(sample, dataset.categories)
        for number, label in enumerate(sample.labels):
            row = coco_annotation(sample, number, dataset.categories.by_label(int(label)))
            json.dumps(row, allow_nan=False)


def _coco_keypoints() -> Reader:
    def read(data: bytes, folder: Path) -> None:
        _give_image(folder)
        (folder / "c.json").write_bytes(data)
        (folder / "map.pbtxt").write_text(LABEL_MAP)
        problems: list[Exception] = []
        for categories in (None, load_label_map(folder / "map.pbtxt")):
            for count in (None, 3):
                try:
                    _use(CocoDataset(folder / "c.json", folder, categories, num_keypoints=count, dense_pose=True))
                except BoxwrightError as error:
                    problems.append(error)
        if len(problems) == 4:
            raise problems[0]

    return Reader(lambda: [json.dumps(COCO).encode()], read)


def _keypoint_label_map() -> Reader:
    def read(data: bytes, folder: Path) -> None:
        path = folder / "map.pbtxt"
        path.write_bytes(data)
        task = 'keypoint_estimation_task { keypoint_class_name: "NAME" loss { FOCAL L1 } }'
        text = f'center_net {{ num_classes: 2 {BOXES} {CENTERS} keypoint_label_map_path: "{path}" '
        text += "".join(task.replace("NAME", name) for name in ("circle", "square"))
        config = parse_message(f"{text} }}".replace("FOCAL", FOCAL).replace("L1", L1), m.DetectionModel).center_net
        if config is None:
            raise AcceptedError("no CenterNet")
        found = build_class_keypoints(config, None)
        places = [index for one in found for index in one.indices]
        if len(set(places)) < len(places) or max(places) > 10_000 or min(places) < 0:
            raise AcceptedError(f"places {places}")
        categories = load_label_map(path)
        (folder / "again.pbtxt").write_text(label_map_text(categories))
        if load_label_map(folder / "again.pbtxt") != categories:
            raise AcceptedError("a label map does not come back the same")
        _give_image(folder)
        (folder / "c.json").write_text(json.dumps(COCO))
        _use(CocoDataset(folder / "c.json", folder, categories, num_keypoints=None))

    return Reader(lambda: [LABEL_MAP.encode(), LABEL_MAP.replace("circle", "a b").encode() + LABEL_MAP.encode()], read)


KEYPOINT_READERS = {"coco_keypoints": _coco_keypoints(), "keypoint_label_map": _keypoint_label_map()}
