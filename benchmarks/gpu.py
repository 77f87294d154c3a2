"""Images a second and peak memory of training steps and detections on a GPU, by preset, batch and precision.

    python benchmarks/gpu.py [--presets NAME …] [--batches 8 16] [--precisions float32 bfloat16] [--json FILE]

The step is the run's own, with the preset's optimizer and resizer; images are made-up shapes of 480×640 that are on the
GPU before. Steps do not wait for one another. A batch that does not fit is listed as such. Memory is what PyTorch's
allocator held at most, the weights and optimizer's slots included. Beside torchvision's: `speed.py --device cuda`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import boxwright as bw
from boxwright.base.device import set_tf32, usable_device
from boxwright.base.distributed import ALONE
from boxwright.data.batch import Batch, collate, to_input
from boxwright.data.shapes import ShapesDataset
from boxwright.nn.detector import Detector
from boxwright.pipeline.training import build_training
from boxwright.training.state import new_state, placed
from boxwright.training.step import Learner, check_step

RESULTS = Path(__file__).parent / "results" / "gpu-cuda.json"
PRESETS = (
    "ssd_mobilenet_v2_fpnlite_320",
    "ssd_resnet50_v1_fpn_640",
    "efficientdet_d0",
    "refinedet320_vgg16_coco",
    "center_net_resnet101_v2_512",
    "torchvision_fasterrcnn_resnet50_fpn_coco",
    "mask_rcnn_resnet50_fpn_coco",
    "d_fine_s_coco",
)
GIB = 1 << 30


def main() -> None:
    """Measure each combination and print a line for it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="*", default=PRESETS)
    parser.add_argument("--batches", nargs="*", type=int, default=[8, 16])
    parser.add_argument("--precisions", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    set_tf32(products=False)
    device = usable_device(arguments.device)
    rows: list[dict[str, Any]] = []
    for preset in arguments.presets:
        for precision in arguments.precisions:
            for count in arguments.batches:
                row = {"preset": preset, "precision": precision, "batch": count}
                rows.append(row | measured(preset, precision, count, arguments.repeats, device))
                print(json.dumps(rows[-1]), flush=True)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    facts = {"device": name, "torch": torch.__version__, "cuda": torch.version.cuda, "rows": rows}
    arguments.json.write_text(json.dumps(facts, indent=1) + "\n")


def measured(preset: str, precision: str, count: int, repeats: int, device: torch.device) -> dict[str, Any]:
    """Return the numbers of one combination."""
    torch.manual_seed(0)
    changes = [
        f"train_config.batch_size={count}",
        "train_config.fine_tune_checkpoint=",
        "train_input_reader.tf_record_input_reader.input_path=none",
        "train_input_reader.load_instance_masks=true",  # for detectors with masks; others read none
    ]
    if precision != "float32":
        changes.append(f"train_config.use_{precision}=true")
    config = bw.load_config(f"preset:{preset}", changes)
    detector = placed(bw.build_detector(config), device).train()
    plan = build_training(config, workers=0)
    learner = Learner(new_state(detector, plan), plan, ALONE)
    batch = made_up(detector, count).to(device)
    images = [torch.randint(0, 256, (3, 480, 640), dtype=torch.uint8) for _ in range(count)]
    report = None

    def step() -> None:
        nonlocal report
        report = learner.step(batch, report, wait=False)

    row: dict[str, Any] = {"input": list(batch.images.shape[2:])}
    try:
        row |= timed("train", step, count, repeats, device)
        check_step(report, learner.state)
        row |= timed("detect", lambda: detector.eval().detect(images), count, repeats, device)
    except torch.cuda.OutOfMemoryError:
        row["error"] = "out of memory"
    return row


def timed(name: str, run: Callable[[], object], count: int, repeats: int, device: torch.device) -> dict[str, Any]:
    """Return images per second by the median of repeats, and GiB at most."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
    for _ in range(3):
        run()
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_allocated() / GIB if on_gpu else 0.0
    return {f"{name}_images_per_second": round(count / sorted(seconds)[repeats // 2], 1), f"{name}_gib": round(peak, 2)}


def made_up(detector: Detector, count: int) -> Batch:
    """Return a batch of pictures of shapes on the CPU."""
    dataset = ShapesDataset(count, seed=0, size=(480, 640))
    return collate([to_input(dataset[number], detector.preprocessor.resizer) for number in range(count)])


if __name__ == "__main__":
    main()
