"""Print what a GPU is told in a step, by configuration, as a table: `python -m tests.cuda.table`; no GPU is needed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import boxwright as bw
from boxwright.types import Categories, Category
from tests.cuda.families import learner_from, on_fake_gpu
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
    "preset:torchvision_fasterrcnn_resnet50_fpn_coco",
    "preset:kerod_resnet50_fpn_coco",
    "preset:mask_rcnn_resnet50_fpn_coco",
)
# What presets lack; the batch is made up.
_READER = "train_input_reader { load_instance_masks: true tf_record_input_reader { } }"
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


if __name__ == "__main__":
    for line in lines():
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
