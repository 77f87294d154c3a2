"""Detections and training steps on a GPU, by preset, precision and batch: images a second, launches, memory.

    python benchmarks/gpu.py [--presets NAME …] [--batches 1 8 32 128] [--precisions float32 bfloat16 float16]
                             [--seconds 1] [--json FILE]

Detectors are optimized, and detect as `predict --min_score 0.3` does, in images of 480×640 that are on the GPU before.
Steps are the run's own, with the preset's optimizer and resizer, and do not wait for one another; they are measured
with batches of up to 16. Of each row are stated the precision that computed, for how many images the first suppression
sufficed, what was launched for a batch, the share of the time in which kernels ran, and the most memory that PyTorch's
allocator held, weights and optimizer's slots included; of steps also how long the first two took, which compile where
graphs are captured. A batch that does not fit is listed as such. A page beside the JSON has the same as tables. Last
come suppression and matching alone, by Triton's kernels and without. Beside
torchvision's: `speed.py --device cuda`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

import boxwright as bw
from boxwright.base.device import set_tf32, usable_device
from boxwright.base.distributed import ALONE
from boxwright.data.batch import Batch, collate, to_input
from boxwright.data.shapes import ShapesDataset
from boxwright.nn.criteria.set_matching import match
from boxwright.nn.detector import Detector
from boxwright.nn.postprocessing.nms import Nms
from boxwright.nn.suppression.fixed_shape import CheckedPairs, suppress_in_checked_rounds
from boxwright.pipeline.training import TrainingPlan, build_training
from boxwright.training.losses import graphed
from boxwright.training.state import new_state, placed
from boxwright.training.step import Learner, check_step
from boxwright.types import PaddedDetections

RESULTS = Path(__file__).parent / "results" / "gpu-cuda.json"
PRESETS = (
    "ssd_mobilenet_v2_fpnlite_320",
    "d_fine_n_coco",
    "ssd_resnet50_v1_fpn_640",
    "torchvision_fasterrcnn_resnet50_fpn_coco",
    "ssd_mobilenet_v2_320",
    "efficientdet_d0",
    "refinedet320_vgg16_coco",
    "d_fine_s_coco",
    "d_fine_l_coco",
)
SCORE = 0.3
# Images of the largest batch of a step.
MOST_TRAINED = 16
# Calls that are profiled, and the fewest that are timed.
PROFILED, FEWEST = 3, 5
GIB = 1 << 30


def main() -> None:
    """Measure each combination and print a line for it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="*", default=PRESETS)
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 8, 32, 128])
    parser.add_argument("--precisions", nargs="*", default=["float32", "bfloat16", "float16"])
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement, after a warm-up")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    set_tf32(products=False)
    device = usable_device(arguments.device)
    rows: list[dict[str, Any]] = []
    for preset in arguments.presets:
        for precision in arguments.precisions:
            for work, measured in WORKS.items():
                for batch in arguments.batches:
                    if work.startswith("train") and batch > MOST_TRAINED:
                        continue
                    row = {"preset": preset, "work": work, "precision": precision, "batch": batch}
                    measure = partial(measured, preset, precision, batch, arguments.seconds, device)
                    rows.append(row | in_memory(measure))
                    print(json.dumps(rows[-1]), flush=True)
                    write(rows, device, arguments.json)
    if device.type == "cuda":
        rows += kernels(arguments.seconds, device)
        write(rows, device, arguments.json)


def kernels(seconds: float, device: torch.device) -> list[dict[str, Any]]:
    """Return the numbers of suppression and matching for 16 images, by Triton's kernels and without them."""
    from boxwright.nn.suppression.bit_matrix import suppress_by_bits

    rows = []
    ways: dict[str, CheckedPairs] = {"kernels": suppress_by_bits, "plain tensors": suppress_in_checked_rounds}
    for candidates, (way, suppress) in itertools.product((1024, 4096), ways.items()):
        corners = torch.rand(16, candidates, 2, device=device) * 600
        boxes = torch.cat([corners, corners + 10 + torch.rand_like(corners) * 90], 2)
        scores = torch.rand(16, candidates, device=device).sort(1, descending=True).values
        labels = torch.randint(0, 90, (16, candidates), device=device)
        row = {"preset": f"suppression of {candidates}", "work": way, "precision": "float32", "batch": 16}
        rows.append(row | timed(partial(suppress, boxes, scores, labels, 90, 0.6, 100), 16, seconds, device))
    for objects, way in itertools.product((8, 64), ways):
        costs, valid = torch.rand(8, 16, 300, objects, device=device), torch.ones(16, objects, device=device) > 0
        row = {"preset": f"matching of 300 with {objects}", "work": way, "precision": "float32", "batch": 16}
        with mock.patch("boxwright.nn.criteria.set_matching.has_kernels", return_value=way == "kernels"):
            rows.append(row | timed(partial(match, costs, valid), 16, seconds, device))
    return rows


def write(rows: list[dict[str, Any]], device: torch.device, path: Path) -> None:
    """Write the rows so far, and a page of them: a run that is cut off leaves what it measured."""
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    facts = {"device": name, "torch": torch.__version__, "cuda": torch.version.cuda, "rows": rows}
    path.write_text(json.dumps(facts, indent=1) + "\n")
    columns = ["preset", "work", "precision", "batch", "images_per_second", "launches", "busy", "complete", "gib"]
    lines = [f"# {name}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}", ""]
    lines += [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    lines += [f"| {' | '.join(str(row.get(column, row.get('error', ''))) for column in columns)} |" for row in rows]
    path.with_suffix(".md").write_text("\n".join(lines) + "\n")


def in_memory(measured: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what is measured, or that it does not fit."""
    try:
        return measured()
    except torch.cuda.OutOfMemoryError:
        return {"error": "out of memory"}
    except (bw.ConfigError, bw.TrainingError) as error:  # what has no graph
        return {"error": str(error)}


def optimized(preset: str, precision: str, device: torch.device) -> Detector:
    """Return a detector as `predict --min_score 0.3` opens it."""
    torch.manual_seed(0)
    config = bw.load_config(f"preset:{preset}", ["train_config.fine_tune_checkpoint="])
    detector = placed(bw.build_detector(config), device).eval().optimize(dtype=getattr(torch, precision))
    detector.postprocessor = detector.postprocessor.above(SCORE)
    return detector


def measure_detection(preset: str, precision: str, batch: int, seconds: float, device: torch.device) -> dict[str, Any]:
    """Return the numbers of detecting in a batch."""
    return detecting(optimized(preset, precision, device), batch, seconds, device)


def measure_graphs(preset: str, precision: str, batch: int, seconds: float, device: torch.device) -> dict[str, Any]:
    """Return the numbers of detecting in a batch by a CUDA graph."""
    return detecting(optimized(preset, precision, device).use_cuda_graphs(), batch, seconds, device)


def detecting(detector: Detector, batch: int, seconds: float, device: torch.device) -> dict[str, Any]:
    """Return the numbers of a detector's call."""
    images = [torch.randint(0, 256, (3, 480, 640), dtype=torch.uint8, device=device) for _ in range(batch)]
    again: list[int] = []
    exactly = Nms.image_by_image

    def counting(
        nms: Nms, boxes: torch.Tensor, scores: torch.Tensor, windows: torch.Tensor, indices: Sequence[int]
    ) -> PaddedDetections:
        again.extend(indices)
        return exactly(nms, boxes, scores, windows, indices)

    with mock.patch.object(Nms, "image_by_image", counting):
        detector.detect(images)
    # A CPU suppresses image by image from the first.
    row = {"complete": f"{batch - len(again)} of {batch}"} if device.type == "cuda" else {}
    return row | timed(lambda: detector.detect(images), batch, seconds, device)


def measure_training(preset: str, precision: str, batch: int, seconds: float, device: torch.device) -> dict[str, Any]:
    """Return the numbers of training steps."""
    return training(preset, precision, batch, seconds, device, lambda learner, plan: learner.module)


def measure_graphed_training(
    preset: str, precision: str, batch: int, seconds: float, device: torch.device
) -> dict[str, Any]:
    """Return the numbers of training steps by CUDA graphs; the first steps compile and capture."""
    return training(preset, precision, batch, seconds, device, lambda learner, plan: graphed(learner.losses, plan))


def training(
    preset: str,
    precision: str,
    batch: int,
    seconds: float,
    device: torch.device,
    module: Callable[[Learner, TrainingPlan], nn.Module],
) -> dict[str, Any]:
    """Return the numbers of training steps, of which a module computes the losses; and how long the first two took."""
    torch.manual_seed(0)
    config = bw.load_config(
        f"preset:{preset}",
        [
            f"train_config.batch_size={batch}",
            "train_config.fine_tune_checkpoint=",
            f"train_config.use_bfloat16={str(precision == 'bfloat16').lower()}",
            f"train_config.use_float16={str(precision == 'float16').lower()}",
            "train_input_reader.tf_record_input_reader.input_path=none",
            "train_input_reader.load_instance_masks=true",  # for detectors with masks; others read none
        ],
    )
    detector = placed(bw.build_detector(config), device).train()
    plan = build_training(config, workers=0)
    learner = Learner(new_state(detector, plan), plan, ALONE)
    learner.module = module(learner, plan)
    made = made_up(detector, batch).to(device)
    report = None

    def step() -> None:
        nonlocal report
        report = learner.step(made, report, wait=False)

    began = time.perf_counter()
    for _ in range(2):
        step()
    check_step(report, learner.state)
    first = {"input": list(made.images.shape[2:]), "first_steps_s": round(time.perf_counter() - began, 1)}
    row = first | timed(step, batch, seconds, device)
    check_step(report, learner.state)
    return row


WORKS = {
    "detect": measure_detection,
    "detect, --cuda_graphs": measure_graphs,
    "train": measure_training,
    "train, --cuda_graphs": measure_graphed_training,
}


def _nothing_to_wait_for() -> None:
    """Return at once: a CPU has computed what it was told."""


def timed(run: Callable[[], object], batch: int, seconds: float, device: torch.device) -> dict[str, Any]:
    """Return images per second by the median call, GiB at most, launches of a call and the share of busy time."""
    on_gpu = device.type == "cuda"
    synchronize: Callable[[], object] = torch.cuda.synchronize if on_gpu else _nothing_to_wait_for
    if on_gpu:
        torch.cuda.empty_cache()
    for _ in range(3):
        run()
    synchronize()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    calls: list[float] = []
    while len(calls) < FEWEST or sum(calls) < seconds:
        began = time.perf_counter()
        run()
        synchronize()
        calls.append(time.perf_counter() - began)
    row: dict[str, Any] = {"images_per_second": round(batch / sorted(calls)[len(calls) // 2], 1)}
    return row | profiled(run) if on_gpu else row


def profiled(run: Callable[[], object]) -> dict[str, Any]:
    """Return the kernels and copies that a call launches, the share of its time in which they run, and GiB at most."""
    peak = torch.cuda.max_memory_allocated() / GIB
    profiler: Any = torch.profiler  # which lacks annotations in part
    with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as profile:
        began = time.perf_counter()
        for _ in range(PROFILED):
            run()
        torch.cuda.synchronize()
        passed = time.perf_counter() - began
    events = [event for event in profile.events() if event.device_type.name == "CUDA"]
    busy = sum(event.time_range.elapsed_us() for event in events) / 1e6 / passed
    return {"launches": len(events) // PROFILED, "busy": round(min(busy, 1.0), 2), "gib": round(peak, 2)}


def made_up(detector: Detector, count: int) -> Batch:
    """Return a batch of pictures of shapes on the CPU."""
    dataset = ShapesDataset(count, seed=0, size=(480, 640))
    return collate([to_input(dataset[number], detector.preprocessor.resizer) for number in range(count)])


if __name__ == "__main__":
    main()
