"""Samples that one processor prepares for training, beside torchvision's and Albumentations' transforms, in one run.

    python benchmarks/loader.py PICTURES [--rounds 7] [--count 64] [--json FILE]

Each reads the same JPEG files with ten boxes each from the disk, decodes them, mirrors half of them and resizes them to
320×320 without antialiasing; Boxwright's from TFRecords and through its loader's own code, checks of the groundtruth
included. One row more is of D-FINE's training: colors, canvas and crop at random, antialiased to 640×640. Compared is
processor time of one thread, which other programs change little; the kinds take turns within a round, and a ratio is
the median over the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import albumentations
import cv2
import numpy as np
import torch
from torchvision import io, tv_tensors
from torchvision.transforms import v2

import boxwright as bw
from boxwright.data.augmentation.flip import RandomHorizontalFlip
from boxwright.data.augmentation.transform import Chain
from boxwright.data.convert import encode_example
from boxwright.data.loader import TrainingExamples
from boxwright.data.tfrecord import write_records
from boxwright.data.tfrecord_dataset import TFRecordDataset
from boxwright.nn.preprocessing import FixedShapeResizer
from boxwright.pipeline.augmentation import build_augmentation
from boxwright.types import Categories, Category, Sample

SIZE, BOXES = 320, 10
Kind = Callable[[int], Any]
# OpenCV returns None for what is no picture; all of these are.
read_bgr: Callable[[str], Any] = cv2.imread


def boxwright_kinds(paths: Sequence[Path], boxes: np.ndarray[Any, Any], folder: Path) -> dict[str, Kind]:
    """Return what prepares a sample as a training does: mirrored and resized, and as D-FINE's."""
    categories = Categories((Category(0, 1, "object"),))
    labels = np.zeros(BOXES, np.int64)

    def record(path: Path) -> bytes:
        sample = Sample(read_bgr(str(path))[..., ::-1], boxes, labels, id=path.stem, filename=path.name)
        return encode_example(sample, path.read_bytes(), categories)

    write_records(folder / "pictures.record", map(record, paths))
    dataset = TFRecordDataset([folder / "pictures.record"], categories)
    examples = TrainingExamples(dataset, Chain((RandomHorizontalFlip(),)), FixedShapeResizer(SIZE, SIZE), seed=0)
    config = bw.load_config("preset:d_fine_n_coco", ["train_input_reader={ external_input_reader { } }"])
    resizer = bw.build_detector(config).preprocessor.resizer
    of_d_fine = TrainingExamples(dataset, build_augmentation(config, dataset), resizer, seed=0)
    return {"boxwright": lambda index: examples[0, index], "boxwright, D-FINE": lambda index: of_d_fine[0, index]}


def torchvision_kind(paths: Sequence[Path], boxes: np.ndarray[Any, Any]) -> Kind:
    """Return what prepares a sample by torchvision's transforms, version 2."""
    change = v2.Compose([v2.RandomHorizontalFlip(), v2.Resize((SIZE, SIZE), antialias=False)])

    def prepare(index: int) -> Any:
        image = io.decode_jpeg(io.read_file(str(paths[index])), io.ImageReadMode.RGB)
        size = (image.shape[1], image.shape[2])
        target = tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=size)
        return change(tv_tensors.Image(image), target)

    return prepare


def albumentations_kind(paths: Sequence[Path], boxes: np.ndarray[Any, Any]) -> Kind:
    """Return what prepares a sample by Albumentations, with OpenCV's decoder."""
    change = albumentations.Compose(
        [albumentations.HorizontalFlip(p=0.5), albumentations.Resize(SIZE, SIZE)],
        bbox_params=albumentations.BboxParams("pascal_voc", label_fields=["labels"]),
    )

    def prepare(index: int) -> Any:
        image = cv2.cvtColor(read_bgr(str(paths[index])), cv2.COLOR_BGR2RGB)
        changed = change(image=image, bboxes=boxes, labels=np.zeros(BOXES))
        return torch.from_numpy(changed["image"]).permute(2, 0, 1)

    return prepare


def seconds(kind: Kind, count: int) -> float:
    """Return the processor's seconds for so many samples."""
    start = time.process_time()
    for index in range(count):
        kind(index)
    return time.process_time() - start


def main() -> None:
    """Measure, and print a row for each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path, help="a folder of JPEG files of one size")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    paths = sorted(arguments.pictures.glob("*.jpg"))[: arguments.count]
    height, width = read_bgr(str(paths[0])).shape[:2]
    corners = np.random.default_rng(0).uniform([0, 0, 0.5, 0.5], [0.45, 0.45, 1, 1], (BOXES, 4))
    boxes = (corners * [width, height, width, height]).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        kinds = {
            **boxwright_kinds(paths, boxes, Path(folder)),
            "torchvision": torchvision_kind(paths, boxes),
            "albumentations": albumentations_kind(paths, boxes),
        }
        for kind in kinds.values():
            seconds(kind, len(paths))
        rounds = [{name: seconds(kind, len(paths)) for name, kind in kinds.items()} for _ in range(arguments.rounds)]
    result = {
        name: {
            "images_per_second": round(len(paths) / statistics.median(times[name] for times in rounds), 1),
            "ratio": round(statistics.median(times[name] / times["boxwright"] for times in rounds), 3),
        }
        for name in kinds
    }
    print("| | images a second and core | time over Boxwright's |\n|---|---|---|")
    for name, row in result.items():
        print(f"| {name} | {row['images_per_second']} | {row['ratio']} |")
    if arguments.json is not None:
        versions = {
            name: version(name) for name in ("torch", "torchvision", "albumentations", "opencv-python-headless")
        }
        arguments.json.write_text(json.dumps({"rows": result, "size": [height, width], "versions": versions}, indent=1))


if __name__ == "__main__":
    main()
