"""The peak memory and time of a training step at batch 1 and full size, for each configuration in folders of files.

    python benchmarks/official_memory.py PATH … --json FILE [--only N] [--most 14]
    python benchmarks/official_memory.py --table --json FILE

Each configuration runs in a process of its own, which is ended where it needs more than `--most` GiB, or more than the
machine has left; it is then measured with `--recompute`, by which the backbone computes its maps again in the backward
pass, and if that is too much as well, with inputs of half the size. FILE is written after each configuration; what it
has without an error is not measured again. The step is the run's own; image and objects are made up, weights are
random, the optimizer is the configuration's, whose slots exist before the step, as they do in all but a run's first.
Time is the processor's, which other programs change little. A keypoint label map is written from the keypoints that the
configuration names. `--table` prints FILE as a table for the documentation.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

import boxwright as bw
from boxwright.base.distributed import ALONE
from boxwright.data.batch import Batch
from boxwright.families.center_net.criteria.criterion import CenterNetCriterion
from boxwright.families.center_net.criteria.keypoints import KeypointTask
from boxwright.nn.detector import Detector
from boxwright.pipeline import messages as m
from boxwright.pipeline.training import build_training
from boxwright.training.losses import recompute_blocks
from boxwright.training.state import new_state
from boxwright.training.step import Learner
from boxwright.types import Targets
from boxwright.types.context_features import ContextFeatures
from boxwright.types.masks import InstanceMasks

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.center_nets import give_keypoint_label_map  # of the repository, not of the package

WHOLE, RECOMPUTED, HALF = WAYS = ("", ", recomputed", ", half the size")
OBJECTS = 8
PICTURE = (480, 640, 3)
GIB = 1 << 30
# The machine keeps this much for its other programs.
LEFT_GIB = 1.5
MACHINES = re.compile(r"_tpu-\d+|_gpu-\d+|_coco17|\.config")


def main() -> None:
    """Measure each configuration and write the results, or print them as a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, help="files, or folders of them")
    parser.add_argument("--most", type=float, default=14.0, help="GiB that a step may need")
    parser.add_argument("--only", type=int, default=10**6, help="how many to measure in this call")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    rows = json.loads(arguments.json.read_text()) if arguments.json and arguments.json.exists() else []
    if arguments.table:
        print("\n".join(table(rows)))
        return
    # What failed is tried again: other programs may have left too little memory.
    rows = [row for row in rows if "error" not in row]
    known = {row["config"] for row in rows}
    for path in [path for path in files(arguments.paths) if path.name not in known][: arguments.only]:
        rows.append({"config": path.name, **measured_alone(path, arguments.most)})
        print(json.dumps(rows[-1]), flush=True)
        if arguments.json:
            arguments.json.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")


def files(paths: list[Path]) -> list[Path]:
    """Return the files, and those of folders by name."""
    return [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*.config")))]


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return a row for each configuration, ordered by name."""
    lines = ["| configuration | input | parameters | peak memory | processor time |", "|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: str(row["config"])):
        plain = MACHINES.sub("", row["config"])
        name = plain if " " in plain else f"`{plain}`"
        if "error" in row:
            lines.append(f"| {name} | | | {row['error']} | |")
            continue
        height, width = row["input"]
        size = f"{height}" if height == width else f"{height}×{width}"
        millions = f"{row['parameters'] / 1e6:.1f} M"
        seconds = f"{row['cpu_seconds']:.0f} s" if "cpu_seconds" in row else ""
        lines.append(f"| {name} | {size}{row['way']} | {millions} | {row['peak_gib']:.1f} GiB | {seconds} |")
    return lines


def measured_alone(path: Path, most: float) -> dict[str, Any]:
    """Return the row of a configuration, measured in a process of its own; in the first of `WAYS` that is possible."""
    row: dict[str, Any] = {}
    for way in WAYS:
        row = run_alone(path, most, way)
        if "needs" not in row:
            break
    return row


def run_alone(path: Path, most: float, way: str) -> dict[str, Any]:
    """Return what `measured` does in a process of its own, or why it was ended."""
    # Forked, as importing PyTorch takes longer than many a step; this process computes nothing itself.
    context = multiprocessing.get_context("fork")
    theirs, ours = context.Pipe(duplex=False)
    process = context.Process(target=send_measured, args=(ours, path, way))
    process.start()
    ours.close()
    peak = 0.0
    while process.is_alive() and not theirs.poll(0.05):
        peak = max(peak, resident(process.pid or 0))
        if peak > most or left() < LEFT_GIB:
            process.kill()
            process.join()
            return {"way": way, "needs": round(peak, 1), "error": f"needs more than {peak:.0f} GiB"}
    try:
        return dict(theirs.recv())
    except EOFError:
        return {"way": way, "error": f"exit status {process.exitcode}"}
    finally:
        process.join()


def send_measured(into: Any, path: Path, way: str) -> None:
    """Send a configuration's measurements, or its error."""
    try:
        # Libraries' pages that this process shares with its parent and has not touched yet are not resident in it.
        shared = resident(os.getppid()) - resident(os.getpid())
        row = measured(path, way)
        into.send(row | {"peak_gib": round(row["peak_gib"] + shared, 2)})
    except Exception as error:  # noqa: BLE001  # any is a result
        into.send({"way": way, "error": f"{type(error).__name__}: {str(error)[:300]}"})


def resident(process: int) -> float:
    """Return a process's resident memory in GiB."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * resource.getpagesize() / GIB


def left() -> float:
    """Return the memory that the machine still has, in GiB."""
    found = re.search(r"MemAvailable: +(\d+)", Path("/proc/meminfo").read_text())
    return int(found[1]) * 1024 / GIB if found else LEFT_GIB


def measured(path: Path, way: str) -> dict[str, Any]:
    """Return the peak memory and the processor's time of a step of a configuration."""
    torch.manual_seed(0)
    config = bw.load_config(path, ["train_config.batch_size=1", "train_config.fine_tune_checkpoint="])
    if way == HALF and config.model is not None:
        halve(config.model)
    with tempfile.TemporaryDirectory() as folder:
        give_keypoint_label_map(config, Path(folder))
        detector = bw.build_detector(config)
    plan = build_training(config, workers=0)
    learner = Learner(new_state(detector.train(), plan), plan, ALONE)
    if way == RECOMPUTED:
        recompute_blocks(detector.network.get_submodule("backbone"))
    batch = made_up(detector, config)
    allocate_slots(learner)
    began = time.process_time()
    report = learner.step(batch)
    return {
        "input": list(batch.images.shape[2:]),
        "way": way,
        "parameters": sum(one.numel() for one in detector.parameters()),
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB,
        "cpu_seconds": round(time.process_time() - began, 2),
        "loss": round(report.losses["Loss/total_loss"], 3),
    }


def allocate_slots(learner: Learner) -> None:
    """Let the optimizer allocate what it remembers, by an update that changes nothing: its rate is 0."""
    optimizer = learner.state.optimizer
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()


def halve(model: m.DetectionModel) -> None:
    """Halve the sides of a model's inputs."""
    family = getattr(model, model.which("model") or "")
    resizer = family.image_resizer
    one = getattr(resizer, resizer.which("image_resizer_oneof"))
    for name in ("height", "width", "min_dimension", "max_dimension"):
        if hasattr(one, name):
            setattr(one, name, getattr(one, name) // 2)


def made_up(detector: Detector, config: m.TrainEvalPipelineConfig) -> Batch:
    """Return a batch of one picture, with objects of the first class, their masks and keypoints, and context."""
    picture = torch.randint(0, 256, PICTURE, dtype=torch.uint8)
    image, true_size = detector.preprocessor.resizer(picture)
    height, width = true_size
    corners = torch.rand(1, OBJECTS, 2, 2).sort(dim=2).values
    corners[:, :, 1] += 0.05
    boxes = corners.flatten(2) * torch.tensor([width, height, width, height]) / 1.05
    ones = torch.ones(1, OBJECTS)
    size = (image.shape[0], image.shape[1])
    masks = np.zeros((OBJECTS, *size), np.uint8)
    for mask, box in zip(masks, boxes[0].int().tolist(), strict=True):
        cv2.rectangle(mask, box[:2], box[2:], 1, -1)
    targets = Targets(
        boxes,
        torch.zeros(ones.shape, dtype=torch.int64),
        ones,
        ones > 0,
        keypoints=keypoints_of(detector, boxes),
        masks=InstanceMasks.stack([masks], OBJECTS, size),
        context=context_of(config),
    )
    pixels = image.round().to(torch.uint8).permute(2, 0, 1)[None].contiguous()
    return Batch(pixels, torch.tensor([true_size]), targets, ("made up",), keys=((0, 0),))


def keypoints_of(detector: Detector, boxes: torch.Tensor) -> torch.Tensor | None:
    """Return keypoints within boxes, if the detector learns some."""
    tasks = detector.criterion.tasks if isinstance(detector.criterion, CenterNetCriterion) else ()
    points = [max(one.keypoints.indices) + 1 for one in tasks if isinstance(one, KeypointTask)]
    if not points:
        return None
    low, high = boxes[..., None, :2], boxes[..., None, 2:]
    return low + torch.rand(1, OBJECTS, max(points), 2) * (high - low)


def context_of(config: m.TrainEvalPipelineConfig) -> ContextFeatures | None:
    """Return as many features of other images as a configuration uses, if it does."""
    two_stage = config.model.faster_rcnn if config.model else None
    if two_stage is None or two_stage.context_config is None:
        return None
    asked = two_stage.context_config
    return ContextFeatures.stack([torch.rand(asked.max_num_context_features, asked.context_feature_length)])


if __name__ == "__main__":
    main()
