"""Print what a GPU is told in a step, by configuration, as a table: `python -m tests.cuda.table`; no GPU is needed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch

import boxwright as bw
from boxwright.builders.training import build_training
from boxwright.data.batch import collate, to_input
from boxwright.data.shapes import ShapesDataset
from boxwright.distributed import ALONE
from boxwright.training.state import new_state, placed
from boxwright.training.step import Learner
from boxwright.types import Categories, Category
from tests.cuda.fake import fake_batch, fake_cuda, to_fake

ROOT = Path(__file__).parents[2]
CONFIGURATIONS = (
    "benchmarks/bccd.config",
    "configs/ssd_vgg16/ssd300_vgg16_voc.config",
    "configs/refinedet/refinedet320_vgg16_coco.config",
    "configs/srn/srn_resnet50_wider_face.config",
    "configs/align_det/align_det_resnet101_coco.config",
    "configs/faster_rcnn/torchvision_fasterrcnn_resnet50_fpn_coco.config",
    "configs/faster_rcnn/kerod_resnet50_fpn_coco.config",
    "configs/faster_rcnn/mask_rcnn_resnet50_fpn_coco.config",
)
_STEADY = 2  # steps after which slots and copies are there


def row(path: str, precision: str) -> str:
    """Return a line of the table: kernels and waits of a step of two images of 480 × 640."""
    config = bw.load_config(ROOT / path, [f"train_config.use_bfloat16={str(precision == 'bfloat16').lower()}"])
    classes = Categories(tuple(Category(n, n + 1, str(n)) for n in range(_classes(config))))
    detector = placed(bw.build_detector(config, classes), torch.device("cpu")).train()
    plan = build_training(config, workers=0)
    dataset = ShapesDataset(2, seed=0, size=(480, 640))
    batch = collate([to_input(dataset[number], detector.preprocessor.resizer) for number in range(2)])
    with fake_cuda() as ledger:
        to_fake(detector, ledger.mode)
        there = fake_batch(batch, ledger.mode)
        learner = Learner(new_state(detector, plan), plan, ALONE)
        for _ in range(_STEADY):
            learner.learn(there, wait=False)
        ledger.clear()
        learner.learn(there, wait=False)
    waits = ", ".join(f"{count} × {operation} ({place})" for (place, operation), count in sorted(ledger.waits.items()))
    size = "×".join(str(side) for side in batch.images.shape[-2:])
    return f"| {Path(path).stem} | {size} | {precision} | {sum(ledger.kernels.values())} | {waits} |"


def _classes(config: object) -> int:
    model = config.model  # type: ignore[attr-defined]
    chosen = model.ssd or model.refinedet or model.srn or model.align_det or model.faster_rcnn
    return int(chosen.num_classes)


def lines() -> Iterator[str]:
    """Yield the table."""
    yield "| configuration | input | precision | operations | waits |"
    yield "|---|---|---|---:|---|"
    for path in CONFIGURATIONS:
        for precision in ("float32", "bfloat16"):
            yield row(path, precision)


if __name__ == "__main__":
    for line in lines():
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
