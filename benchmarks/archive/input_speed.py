"""The input pipeline against torchvision's reference transforms: images a second, read, decoded, augmented, batched.

    BOXWRIGHT_DATA=folder-that-holds-bccd python benchmarks/archive/input_speed.py [--rounds 5] [--images 160]

Three chains on the same JPEG files of blood cells: TF's of ssd_mobilenet_v2 (mirror, SSD's crop) against torchvision's
"ssdlite" preset, Caffe-SSD's against its "ssd" preset, and Mask R-CNN's (mirror, 800 to 1333 pixels, masks of
ellipses) against its "hflip" preset and its model's resizing. The presets are those of torchvision's
references/detection/presets.py, on PIL images, as is their default; their last steps (to float, normalization) belong
to the network's side here and are left out, which favours torchvision. Batches of 8, by 0, 1 and 2 workers, in turns.
Prints images a second and ratios (above 1 is faster), and where ours spends its time, by step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from PIL import Image
from pycocotools import mask as coco_mask
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.transforms import v2

from boxwright.config.load import parse_message
from boxwright.data.batch import collate, to_input
from boxwright.data.coco import CocoDataset
from boxwright.data.loader import TrainingExamples, training_batches
from boxwright.data.order import StreamSettings
from boxwright.families.shared.image_resizer import build_image_resizer
from boxwright.pipeline import messages as m
from boxwright.pipeline.augmentation.steps import build_steps

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))
from tests.training.test_masks_of_cells import write_ellipses  # noqa: E402  # of the repository, not of the package

BATCH, AHEAD = 8, 8
CHAINS: dict[str, tuple[list[str], str]] = {
    "ssd_mobilenet_v2": (
        ["random_horizontal_flip { }", "ssd_random_crop { }"],
        "fixed_shape_resizer { height: 300 width: 300 }",
    ),
    "Caffe-SSD": (
        [
            "caffe_distort { }",
            "random_expand { }",
            "overlap_crop { }",
            "random_interpolation_resize { height: 300 width: 300 }",
            "random_horizontal_flip { }",
        ],
        "fixed_shape_resizer { height: 300 width: 300 }",
    ),
    "Mask R-CNN": (
        ["random_horizontal_flip { }"],
        "keep_aspect_ratio_resizer { min_dimension: 800 max_dimension: 1333 pad_to_max_dimension: false }",
    ),
}


def their_chain(name: str) -> Any:
    """Return torchvision's transforms, by its presets, and the resizing that its models do."""
    if name == "ssd_mobilenet_v2":  # "ssdlite"
        return v2.Compose([v2.RandomIoUCrop(), v2.RandomHorizontalFlip(0.5), v2.PILToTensor(), v2.Resize((300, 300))])
    if name == "Caffe-SSD":  # "ssd"
        fill = {tv_tensors.Image: (123, 117, 104), Image.Image: (123, 117, 104), "others": 0}
        return v2.Compose(
            [
                v2.RandomPhotometricDistort(),
                v2.RandomZoomOut(fill=fill),
                v2.RandomIoUCrop(),
                v2.RandomHorizontalFlip(0.5),
                v2.PILToTensor(),
                v2.Resize((300, 300)),
            ]
        )
    return v2.Compose([v2.RandomHorizontalFlip(0.5), v2.PILToTensor(), v2.Resize(800, max_size=1333)])


class Theirs(Dataset[Any]):
    """The same files as torchvision's reference reads them: CocoDetection, polygons to masks, transforms."""

    def __init__(self, folder: Path, annotations: Path, chain: Any, *, masks: bool) -> None:
        """Group the annotations."""
        content = json.loads(annotations.read_text())
        self.folder, self.chain, self.masks = folder, chain, masks
        self.images = content["images"]
        self.objects: dict[int, list[Any]] = {image["id"]: [] for image in self.images}
        for row in content["annotations"]:
            self.objects[row["image_id"]].append(row)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        """Return an image and its target, transformed."""
        row = self.images[index]
        image = Image.open(self.folder / row["file_name"]).convert("RGB")
        objects, size = self.objects[row["id"]], (row["height"], row["width"])
        boxes = torch.tensor([item["bbox"] for item in objects], dtype=torch.float32).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        target: dict[str, Any] = {
            "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=size),
            "labels": torch.tensor([item["category_id"] for item in objects]),
        }
        if self.masks:
            planes = [
                torch.from_numpy(coco_mask.decode(coco_mask.frPyObjects(item["segmentation"], *size)).any(2))
                for item in objects
            ]
            target["masks"] = tv_tensors.Mask(torch.stack(planes).to(torch.uint8))
        return self.chain(image, target)


def _unstacked(items: list[Any]) -> list[Any]:
    """Keep samples apart where sizes differ, as torchvision's reference does; stack images of one size."""
    images = [image for image, _ in items]
    same = len({image.shape for image in images}) == 1
    return [torch.stack(images) if same else images, [target for _, target in items]]


def ours(name: str, folder: Path, annotations: Path, workers: int) -> Iterator[Any]:
    """Yield our batches, without end."""
    steps, resizer = CHAINS[name]
    dataset = CocoDataset(annotations, folder, load_masks=name == "Mask R-CNN")
    chain = build_steps([parse_message(step, m.PreprocessingStep) for step in steps], dataset)
    examples = TrainingExamples(dataset, chain, build_image_resizer(parse_message(resizer, m.ImageResizer)), 0)
    return iter(training_batches(examples, StreamSettings(BATCH, workers=workers)))


def theirs(name: str, folder: Path, annotations: Path, workers: int) -> Iterator[Any]:
    """Yield torchvision's batches, without end."""
    dataset = Theirs(folder, annotations, their_chain(name), masks=name == "Mask R-CNN")
    while True:
        yield from DataLoader(
            dataset,
            BATCH,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
            collate_fn=_unstacked,
            persistent_workers=False,
        )


def rate(batches: Iterator[Any], images: int) -> float:
    """Return the images a second over some batches, after those that workers have prepared while others were timed."""
    for _ in islice(batches, AHEAD):
        pass
    began = time.perf_counter()
    count = sum(BATCH for _ in islice(batches, images // BATCH))
    return count / (time.perf_counter() - began)


def by_step(name: str, folder: Path, annotations: Path, images: int) -> dict[str, float]:
    """Return the milliseconds an image takes in each step of ours, in one process."""
    steps, resizer = CHAINS[name]
    dataset = CocoDataset(annotations, folder, load_masks=name == "Mask R-CNN")
    built = [(step.split()[0], build_steps([parse_message(step, m.PreprocessingStep)], dataset)) for step in steps]
    resize = build_image_resizer(parse_message(resizer, m.ImageResizer))
    spent: dict[str, float] = {}

    def timed(what: str, since: float) -> float:
        now = time.perf_counter()
        spent[what] = spent.get(what, 0.0) + now - since
        return now

    done = []
    for index in range(images):
        rng, clock = np.random.default_rng(index), time.perf_counter()
        sample = dataset[index % len(dataset)]
        clock = timed("read and decode", clock)
        for what, step in built:
            sample = step(sample, rng)
            clock = timed(what, clock)
        done.append(to_input(sample, resize))
        clock = timed("resize to the input", clock)
        if len(done) == BATCH:
            collate(done)
            done = []
            timed("batch", clock)
    return {what: seconds / images * 1000 for what, seconds in spent.items()}


def main() -> None:
    """Measure in turns, print, write the figures down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=160, help="of each in a round")
    arguments = parser.parse_args()
    data = os.environ.get("BOXWRIGHT_DATA")
    if not data or not (Path(data) / "bccd").is_dir():
        raise SystemExit("set BOXWRIGHT_DATA to the folder that holds bccd/ (Annotations, ImageSets, JPEGImages)")
    torch.set_num_threads(1)
    found: dict[str, Any] = {"torchvision": torchvision.__version__, "torch": torch.__version__, "rows": {}}
    with tempfile.TemporaryDirectory() as scratch:
        annotations, folder = Path(scratch) / "cells.json", Path(data) / "bccd" / "JPEGImages"
        write_ellipses(Path(data) / "bccd", "trainval", annotations, most=10_000)
        for name in CHAINS:
            for workers in (0, 1, 2):
                streams = [make(name, folder, annotations, workers) for make in (ours, theirs)]
                for stream in streams:
                    rate(stream, 4 * BATCH)  # workers start
                rounds = [[rate(stream, arguments.images) for stream in streams] for _ in range(arguments.rounds)]
                del streams
                ratios = [a / b for a, b in rounds]
                best = [max(row[i] for row in rounds) for i in (0, 1)]
                row = {"ours": best[0], "theirs": best[1], "least": min(ratios), "median": statistics.median(ratios)}
                found["rows"][f"{name}, {workers} workers"] = row
                print(
                    f"{name:<18} {workers} workers  ours {best[0]:6.1f}  theirs {best[1]:6.1f} images/s  "
                    f"ratio {row['least']:.2f} at least, {row['median']:.2f} median",
                    flush=True,
                )
            parts = by_step(name, folder, annotations, arguments.images)
            found["rows"][f"{name}, ms by step"] = parts
            print("  " + ", ".join(f"{what} {spent:.2f}" for what, spent in parts.items()) + " ms an image", flush=True)
    (HERE / "results" / "input-speed-cpu.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
