"""Print what a GPU is told in a step or a detection, by configuration, as a table; no GPU is needed.

python -m tests.cuda.table steps
python -m tests.cuda.table detection [PRESET …]
"""

from __future__ import annotations

import copy
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

import boxwright as bw
from boxwright.types import Categories, Category
from tests.cuda.families import learner_from, on_fake_gpu
from tests.cuda.inference import detecting_on_fake_gpu, optimize_for_gpu
from tests.cuda.replays import launches
from tests.cuda.waits import ALWAYS

ROOT = Path(__file__).parents[2]
CONFIGURATIONS = (
    "benchmarks/bccd.config",
    "preset:ssd300_vgg16_voc",
    "preset:refinedet320_vgg16_coco",
    "preset:srn_resnet50_wider_face",
    "preset:align_det_resnet101_coco",
    "preset:d_fine_n_coco",
    "preset:deim_d_fine_s_coco",
    "preset:rf_detr_nano_coco",
    "preset:rf_detr_seg_nano_coco",
    "preset:torchvision_fasterrcnn_resnet50_fpn_coco",
    "preset:kerod_resnet50_fpn_coco",
    "preset:mask_rcnn_resnet50_fpn_coco",
)
# What presets lack; the batch is made up.
_READER = "train_input_reader { load_instance_masks: true tf_record_input_reader { } }"
DETECTORS = (
    "ssd_mobilenet_v2_320",
    "ssd_mobilenet_v2_fpnlite_320",
    "ssd_resnet50_v1_fpn_640",
    "efficientdet_d0",
    "refinedet320_vgg16_coco",
    "d_fine_n_coco",
    "d_fine_s_coco",
    "d_fine_l_coco",
    "rf_detr_nano_coco",
    "rf_detr_large_coco",
    "rf_detr_seg_nano_coco",
    "rf_detr_seg_large_coco",
    "torchvision_fasterrcnn_resnet50_fpn_coco",
)
_IMAGES = 16
_STEADY = 2  # steps after which slots and copies are there


def step(path: str, precision: str) -> tuple[str, int, Counter[str], int]:
    """Return the input's size, the operations, the waits, and the launches with graphs of a step.

    It is of two images of 480 × 640. Graphs want inputs of one size; padded to one, detectors do as much.
    """
    overrides = [f"train_config.use_bfloat16={str(precision == 'bfloat16').lower()}"]
    if path.startswith("preset:"):
        config = bw.load_config(path, [*overrides, _READER])
    else:
        config = bw.load_config(ROOT / path, overrides)
    classes = Categories(tuple(Category(n, n + 1, str(n)) for n in range(_classes(config))))
    learner, batch, plan = learner_from(config, classes, (480, 640))
    with on_fake_gpu(learner, batch, plan, steps=_STEADY) as run:
        run.step()
        told, told_waits = sum(run.recorder.kernels.values()), Counter(run.recorder.waits)
        run.recorder.clear()
        captured = launches(run)
    waits: Counter[str] = Counter()
    for (place, operation), count in told_waits.items():
        if (place, operation) not in ALWAYS:
            waits[operation] += count
    return "×".join(str(side) for side in batch.images.shape[-2:]), told, waits, captured


def row(path: str) -> str:
    """Return a line of the table."""
    (size, whole, waits, captured), (_, half, _, _) = (step(path, precision) for precision in ("float32", "bfloat16"))
    told = ", ".join(f"{count} × {operation}" for operation, count in sorted(waits.items())) or "none"
    return f"| `{path}` | {size} | {whole} | {half} | {captured} | {told} |"


def _classes(config: object) -> int:
    model = config.model  # type: ignore[attr-defined]
    return int(model.chosen("model").num_classes)


def lines() -> Iterator[str]:
    """Yield the table."""
    yield "| configuration | input | operations, float32 | bfloat16 | launches with `--cuda_graphs` | waits |"
    yield "|---|---|---:|---:|---:|---|"
    for path in CONFIGURATIONS:
        yield row(path)


def detection(preset: str) -> str:
    """Return a line of the table of detections: of 16 images of 480 × 640 that come from the CPU, as by `predict`."""
    torch.manual_seed(0)
    detector = bw.build_detector(bw.load_config(f"preset:{preset}", ["train_config.fine_tune_checkpoint="]))
    images = [np.zeros((480, 640, 3), np.uint8)] * _IMAGES
    half = optimize_for_gpu(detector, torch.bfloat16)
    whole = copy.deepcopy(half)
    whole.network.float()
    whole.dtype = torch.float32
    operations = []
    for optimized in (whole, half):
        with detecting_on_fake_gpu(optimized) as recorder:
            optimized.detect(images)  # anchors are laid once
            recorder.clear()
            optimized.detect(images)
            operations.append(sum(recorder.kernels.values()))
        if optimized is whole:
            moved = [recorder.moved_bytes.total() / 1e9, recorder.moved_bytes["nn/suppression"] / 1e9]
    waits: Counter[str] = Counter()
    for (_, operation), count in recorder.waits.items():
        waits[operation] += count
    copied = recorder.copied_bytes / _IMAGES / 1024
    told = ", ".join(f"{count} × {operation}" for operation, count in sorted(waits.items()))
    return f"| `{preset}` | {operations[0]} | {operations[1]} | {moved[0]:.1f} | {moved[1]:.1f} | {copied:.0f} KiB | {told} |"


def detection_lines(presets: Sequence[str]) -> Iterator[str]:
    """Yield the table of detections."""
    yield "| preset | operations, float32 | bfloat16 | GB moved, float32 | of these suppression | copied to the CPU, per image | waits |"
    yield "|---|---:|---:|---:|---:|---:|---|"
    yield from map(detection, presets)


if __name__ == "__main__":
    kind, *presets = sys.argv[1:] or ["steps"]
    for line in detection_lines(presets or DETECTORS) if kind == "detection" else lines():
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
