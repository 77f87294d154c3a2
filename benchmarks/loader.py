"""Samples that one processor prepares for training, beside torchvision's and Albumentations' transforms, in one run.

    python benchmarks/loader.py PICTURES [--rounds 7] [--count 64] [--json FILE]

Each reads the same JPEG files with ten boxes each from the disk, decodes them, mirrors half of them and resizes them to
320×320 without antialiasing; Boxwright's from TFRecords and through its loader's own code, checks of the groundtruth
included. Further rows are of the trainings of presets, of D-FINE's by torchvision's transforms as its authors set them,
of trainings whose decoded pictures are held in memory, or read from the cache of `boxwright train --cache`, and of
decoding alone, whole and at a quarter of the size.
Compared is processor time of one thread, which other programs change little; the kinds take turns within a round, and a
ratio is the median over the rounds. Then batches of 16 arrive from one and from two worker processes, each stream three
times unless `--worker_rounds` says otherwise: images a second by the clock, beside torchvision's in PyTorch's loader.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import albumentations
import cv2
import numpy as np
import simplejpeg
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision import io, tv_tensors
from torchvision.transforms import v2

import boxwright as bw
from boxwright.data.augmentation.flip import RandomHorizontalFlip
from boxwright.data.augmentation.transform import Chain
from boxwright.data.coco import CocoDataset
from boxwright.data.convert import encode_example
from boxwright.data.dataset import Dataset as Samples
from boxwright.data.loader import TrainingExamples, training_batches
from boxwright.data.order import SamplePosition, StreamSettings
from boxwright.data.tfrecord import write_records
from boxwright.data.tfrecord_dataset import TFRecordDataset
from boxwright.nn.preprocessing import FixedShapeResizer
from boxwright.pipeline.augmentation import build_augmentation
from boxwright.training.examples import keep_pixels
from boxwright.types import Categories, Category, Sample

SIZE, BOXES, BATCH, STEP = 320, 10, 16, 15_000
Kind = Callable[[int], Any]
# Those of their first stage, but DEIM's, which begins with mosaics at step 14,658.
PRESETS = {
    "FPNLite 320": "ssd_mobilenet_v2_fpnlite_320",
    "D-FINE": "d_fine_n_coco",
    "DEIM, with mosaics": "deim_d_fine_s_coco",
    "RF-DETR": "rf_detr_nano_coco",
    "EfficientDet": "efficientdet_d0",
    "RefineDet": "refinedet512_vgg16_coco",
    "CenterNet": "center_net_resnet101_v2_512",
    "torchvision's Faster R-CNN": "torchvision_fasterrcnn_resnet50_fpn_coco",
}
# With picture files, and with `--cache`.
CACHED = ("FPNLite 320", "EfficientDet", "D-FINE")
FILES, KEPT, FILLING = ", picture files", ", cached", ", filling the cache"
# OpenCV returns None for what is no picture; all of these are.
read_bgr: Callable[[str], Any] = cv2.imread


def boxwright_examples(paths: Sequence[Path], boxes: np.ndarray[Any, Any], folder: Path) -> dict[str, TrainingExamples]:
    """Return what a training prepares: mirrored and resized, and D-FINE's."""
    categories = Categories((Category(0, 1, "object"),))
    labels = np.zeros(BOXES, np.int64)

    def record(path: Path) -> bytes:
        sample = Sample(read_bgr(str(path))[..., ::-1], boxes, labels, id=path.stem, filename=path.name)
        return encode_example(sample, path.read_bytes(), categories)

    write_records(folder / "pictures.record", map(record, paths))
    dataset = TFRecordDataset([folder / "pictures.record"], categories)
    held = InMemory(dataset)
    resizer = FixedShapeResizer(SIZE, SIZE)
    return {
        "boxwright": TrainingExamples(dataset, Chain((RandomHorizontalFlip(),)), resizer, seed=0),
        "boxwright, in memory": TrainingExamples(held, Chain((RandomHorizontalFlip(),)), resizer, seed=0),
        **{name: preset_examples(dataset, preset) for name, preset in PRESETS.items()},
        "D-FINE, in memory": preset_examples(held, PRESETS["D-FINE"]),
    }


def cached_kinds(paths: Sequence[Path], boxes: np.ndarray[Any, Any], folder: Path) -> dict[str, Kind]:
    """Return trainings of picture files: without a cache, with a full one, and one that begins with an empty one."""
    os.environ["BOXWRIGHT_CACHE"] = str(folder)
    sizes = (boxes[:, 2:] - boxes[:, :2]).tolist()
    objects = [{"category_id": 1, "bbox": [*box[:2], *size]} for box, size in zip(boxes.tolist(), sizes, strict=True)]
    content = {
        "images": [{"id": number, "file_name": path.name} for number, path in enumerate(paths)],
        "annotations": [{**row, "image_id": number} for number in range(len(paths)) for row in objects],
        "categories": [{"id": 1, "name": "object"}],
    }
    (folder / "pictures.json").write_text(json.dumps(content))
    files, cached = (CocoDataset(folder / "pictures.json", paths[0].parent) for _ in range(2))
    cache = keep_pixels(cached)
    cache.reserve()

    def fill(examples: TrainingExamples, index: int) -> Any:
        if index == 0:
            cache.path.unlink()
            cache.reserve()
        return _prepared(examples, index)

    kinds: dict[str, Kind] = {}
    for name in CACHED:
        kinds[f"{name}{FILES}"] = partial(_prepared, preset_examples(files, PRESETS[name]))
        kinds[f"{name}{KEPT}"] = partial(_prepared, preset_examples(cached, PRESETS[name]))
        kinds[f"{name}{FILLING}"] = partial(fill, preset_examples(cached, PRESETS[name]))
    return kinds


def preset_examples(dataset: Samples, preset: str) -> TrainingExamples:
    """Return what a preset's training prepares."""
    config = bw.load_config(f"preset:{preset}", ["train_input_reader={ external_input_reader { } }"])
    resizer = bw.build_detector(config).preprocessor.resizer
    return TrainingExamples(dataset, build_augmentation(config, dataset), resizer, seed=0)


class InMemory:
    """A data set whose samples were read before, with their decoded images: what a cache of them could save at most."""

    def __init__(self, dataset: TFRecordDataset) -> None:
        self.name, self.categories, self.encoded = dataset.name, dataset.categories, dataset.encoded
        self._samples = [dataset[index] for index in range(len(dataset))]

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Sample:
        """Return a sample; its pixels are copied, as from memory that processes share."""
        return self._samples[index].with_fields({"image": self._samples[index].image.copy()})


@dataclass
class TorchvisionExamples(Dataset[Any]):
    """Samples by torchvision's transforms, version 2."""

    paths: Sequence[Path]
    boxes: np.ndarray[Any, Any]
    change: v2.Compose

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        """Return an image and its targets."""
        image = io.decode_jpeg(io.read_file(str(self.paths[index])), io.ImageReadMode.RGB)
        size = (image.shape[1], image.shape[2])
        boxes = tv_tensors.BoundingBoxes(self.boxes, format="XYXY", canvas_size=size)
        return self.change(tv_tensors.Image(image), {"boxes": boxes, "labels": torch.zeros(len(boxes))})


def torchvision_examples(paths: Sequence[Path], boxes: np.ndarray[Any, Any]) -> dict[str, TorchvisionExamples]:
    """Return what torchvision prepares: mirrored and resized, and as in the configuration of D-FINE's authors."""
    plain = v2.Compose([v2.RandomHorizontalFlip(), v2.Resize((SIZE, SIZE), antialias=False)])
    of_d_fine = v2.Compose(
        [
            v2.RandomPhotometricDistort(p=0.5),
            v2.RandomZoomOut(fill=0),
            v2.RandomApply([v2.RandomIoUCrop()], p=0.8),
            v2.SanitizeBoundingBoxes(min_size=1),
            v2.RandomHorizontalFlip(),
            v2.Resize((640, 640)),
        ]
    )
    return {
        "torchvision": TorchvisionExamples(paths, boxes, plain),
        "torchvision, D-FINE": TorchvisionExamples(paths, boxes, of_d_fine),
    }


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


def by_workers(ours: TrainingExamples, theirs: TorchvisionExamples, workers: int, batches: int) -> dict[str, float]:
    """Return the images a second that arrive from workers, each stream alone, after the first batch of each worker."""
    stream = iter(training_batches(ours, StreamSettings(BATCH, workers=workers)))
    endless = RandomSampler(theirs, replacement=True, num_samples=10**9)
    loader = DataLoader(theirs, BATCH, sampler=endless, num_workers=workers, collate_fn=_stacked)
    return {"boxwright": _rate(stream, workers, batches), "torchvision": _rate(iter(loader), workers, batches)}


def _stacked(samples: list[Any]) -> Any:
    return torch.stack([image for image, _ in samples]), [target for _, target in samples]


def _rate(stream: Iterator[Any], workers: int, batches: int) -> float:
    # What workers prepared ahead, four batches each at most, does not count.
    for _ in range(4 * workers):
        next(stream)
    start = time.perf_counter()
    for _ in range(batches):
        next(stream)
    elapsed = time.perf_counter() - start
    del stream
    return BATCH * batches / elapsed


def main() -> None:
    """Measure, and print a row for each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path, help="a folder of JPEG files of one size")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--worker_rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    paths = sorted(arguments.pictures.glob("*.jpg"))[: arguments.count]
    height, width = read_bgr(str(paths[0])).shape[:2]
    corners = np.random.default_rng(0).uniform([0, 0, 0.5, 0.5], [0.45, 0.45, 1, 1], (BOXES, 4))
    boxes = (corners * [width, height, width, height]).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = boxwright_examples(paths, boxes, Path(folder)), torchvision_examples(paths, boxes)
        kinds: dict[str, Kind] = {
            **{name: partial(_prepared, examples) for name, examples in ours.items()},
            **cached_kinds(paths, boxes, Path(folder)),
            **{name: examples.__getitem__ for name, examples in theirs.items()},
            "albumentations": albumentations_kind(paths, boxes),
            **decoding_kinds(paths),
        }
        for kind in kinds.values():
            seconds(kind, len(paths))
        rounds = [{name: seconds(kind, len(paths)) for name, kind in kinds.items()} for _ in range(arguments.rounds)]
        pair = ours["D-FINE"], theirs["torchvision, D-FINE"]
        arrived = {
            workers: [by_workers(*pair, workers, batches=6) for _ in range(arguments.worker_rounds)]
            for workers in (1, 2)
        }
    rows = {
        name: {
            "images_per_second": round(len(paths) / statistics.median(times[name] for times in rounds), 1),
            "ratio": round(statistics.median(times[name] / times["boxwright"] for times in rounds), 3),
        }
        for name in kinds
    }
    cache = {
        f"{name}{ending}": _least_and_median([times[f"{name}{ending}"] / times[f"{name}{FILES}"] for times in rounds])
        for name in CACHED
        for ending in (KEPT, FILLING)
    }
    streams = {
        f"{name}, D-FINE": {
            str(workers): round(statistics.median(rates[name] for rates in found), 1)
            for workers, found in arrived.items()
            if found
        }
        for name in ("boxwright", "torchvision")
    }
    print("| | images a second and core | time over Boxwright's |\n|---|---:|---:|")
    for name, row in rows.items():
        print(f"| {name} | {row['images_per_second']} | {row['ratio']} |")
    print("\n| time over that without a cache | least, median |\n|---|---:|")
    for name, ratios in cache.items():
        print(f"| {name} | {ratios} |")
    if arguments.worker_rounds:
        print("\n| images a second from workers | 1 | 2 |\n|---|---:|---:|")
        for name, rates in streams.items():
            print(f"| {name} | {rates['1']} | {rates['2']} |")
    if arguments.json is not None:
        versions = {
            name: version(name) for name in ("torch", "torchvision", "albumentations", "opencv-python-headless")
        }
        result = {"rows": rows, "cache": cache, "workers": streams, "size": [height, width], "versions": versions}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


def _least_and_median(ratios: Sequence[float]) -> list[float]:
    return [round(min(ratios), 3), round(statistics.median(ratios), 3)]


def _prepared(examples: TrainingExamples, index: int) -> Any:
    return examples[SamplePosition(0, index, STEP)]


def decoding_kinds(paths: Sequence[Path]) -> dict[str, Kind]:
    """Return what only decodes files, as Boxwright does, and at a quarter of their sides."""
    files = [path.read_bytes() for path in paths]
    height, width = simplejpeg.decode_jpeg_header(files[0])[:2]
    quarter = {"min_height": height // 4, "min_width": width // 4}
    return {
        "decoding alone": lambda index: simplejpeg.decode_jpeg(files[index], fastdct=True),
        "decoding alone, at a quarter": lambda index: simplejpeg.decode_jpeg(files[index], fastdct=True, **quarter),
    }


if __name__ == "__main__":
    main()
