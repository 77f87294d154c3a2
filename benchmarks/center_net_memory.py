"""The peak memory and time of a training step at batch 1 and full size, for each CenterNet in folders of files.

    python benchmarks/center_net_memory.py FOLDER … [--most 14] [--json FILE]

Each configuration runs in a process of its own, which is ended where it needs more than `--most` GiB. The step is the
run's own; image and objects are made up, the optimizer is the configuration's. A keypoint label map is written from the
keypoints that the configuration names. A configuration that is refused is listed with the reason.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import boxwright as bw
from boxwright.base.errors import BoxwrightError
from boxwright.builders.training import build_training
from boxwright.criteria.center_net.criterion import CenterNetCriterion
from boxwright.criteria.center_net.keypoints import KeypointTask
from boxwright.data.batch import Batch
from boxwright.distributed import ALONE
from boxwright.models.detector import Detector
from boxwright.training.state import new_state
from boxwright.training.step import Learner
from boxwright.types import Targets

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.center_nets import give_keypoint_label_map  # of the repository, not of the package

OBJECTS = 8
GIB = 1 << 30


def main() -> None:
    """Measure each configuration and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--most", type=float, default=14.0, help="GiB that a step may need")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", type=Path, help="measure one file in this process and print JSON")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measured(arguments.one)))
        return
    paths = [path for folder in arguments.folders for path in sorted(folder.rglob("*.config")) if is_center_net(path)]
    rows = []
    for path in paths:
        rows.append({"config": path.name, **run_alone(path, arguments.most)})
        print(json.dumps(rows[-1]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


def is_center_net(path: Path) -> bool:
    """Return whether a file configures a CenterNet."""
    return "center_net {" in path.read_text(errors="replace")


def run_alone(path: Path, most: float) -> dict[str, Any]:
    """Return the row of a configuration, measured in a process of its own."""
    command = [sys.executable, __file__, "--one", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        peak = 0.0
        while process.poll() is None:
            peak = max(peak, resident(process.pid))
            if peak > most:
                process.kill()
            time.sleep(0.05)
        output = process.stdout.read() if process.stdout else ""
    if peak > most:
        return {"error": f"needs more than {most:g} GiB"}
    return dict(json.loads(output)) if process.returncode == 0 else {"error": f"exit status {process.returncode}"}


def resident(process: int) -> float:
    """Return a process's resident memory in GiB."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * resource.getpagesize() / GIB


def measured(path: Path) -> dict[str, Any]:
    """Return the peak memory and time of two steps of a configuration."""
    torch.manual_seed(0)
    config = bw.load_config(path, ["train_config.batch_size=1", "train_config.fine_tune_checkpoint="])
    with tempfile.TemporaryDirectory() as folder:
        give_keypoint_label_map(config, Path(folder))
        try:
            detector = bw.build_detector(config)
        except BoxwrightError as error:
            return {"error": str(error).partition("refused")[0].rsplit(": ", 2)[-2] + " is refused"}
    plan = build_training(config, workers=0)
    learner = Learner(new_state(detector.train(), plan), plan, ALONE)
    batch = made_up(detector)
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        report = learner.step(batch)
        seconds.append(time.perf_counter() - began)
    return {
        "input": list(batch.images.shape[2:]),
        "parameters": sum(one.numel() for one in detector.parameters()),
        "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB, 2),
        "seconds": round(min(seconds), 2),
        "loss": round(report.losses["Loss/total_loss"], 3),
    }


def made_up(detector: Detector) -> Batch:
    """Return a batch of one square image, with objects of the first class and their keypoints."""
    image, true_size = detector.preprocessor.resizer(torch.randint(0, 256, (640, 640, 3), dtype=torch.uint8))
    height, width = true_size
    corners = torch.rand(1, OBJECTS, 2, 2).sort(dim=2).values
    corners[:, :, 1] += 0.05
    boxes = corners.flatten(2) * torch.tensor([width, height, width, height]) / 1.05
    ones = torch.ones(1, OBJECTS)
    tasks = detector.criterion.tasks if isinstance(detector.criterion, CenterNetCriterion) else ()
    points = [max(one.keypoints.indices) + 1 for one in tasks if isinstance(one, KeypointTask)]
    keypoints = None
    if points:
        low, high = boxes[..., None, :2], boxes[..., None, 2:]
        keypoints = low + torch.rand(1, OBJECTS, max(points), 2) * (high - low)
    targets = Targets(boxes, torch.zeros(ones.shape, dtype=torch.int64), ones, ones > 0, keypoints=keypoints)
    pixels = image.round().to(torch.uint8).permute(2, 0, 1)[None].contiguous()
    return Batch(pixels, torch.tensor([true_size]), targets, ("made up",), keys=((0, 0),))


if __name__ == "__main__":
    main()
