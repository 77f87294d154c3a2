"""Blood cells in two stages: our Faster R-CNN against torchvision's of like size, both from scratch, several seeds.

    BOXWRIGHT_DATA=folder-that-holds-bccd python benchmarks/archive/bccd_two_stage.py [--minutes 3] [--seeds 3]

As `bccd.py`, whose loops these are: the same data at 320×240, the same wall time, the same metrics; ours is
`bccd_two_stage.config`, torchvision's `fasterrcnn_mobilenet_v3_large_320_fpn`. The seeds of both take turns, so that
other work on the machine costs both. Prints AP, its mean and its spread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any

import torch
import torchvision
from bccd import HERE, run_ours, run_torchvision
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn

from boxwright.runtime.allocator import keep_freed_memory


def theirs(classes: int) -> Any:
    """Make torchvision's."""
    return fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None, num_classes=classes)


def main() -> None:
    """Train and measure in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0, help="wall time of each training")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    folder = os.environ.get("BOXWRIGHT_DATA")
    if not folder or not (Path(folder) / "bccd").is_dir():
        raise SystemExit("set BOXWRIGHT_DATA to the folder that holds bccd/ (Annotations, ImageSets, JPEGImages)")
    root, seconds = Path(folder) / "bccd", arguments.minutes * 60
    keep_freed_memory()
    rows: dict[str, list[dict[str, float]]] = {"ours": [], "torchvision": []}
    for seed in range(arguments.seeds):
        config = HERE / "bccd_two_stage.config"
        rows["ours"].append(run_ours(root, seconds, HERE / "results" / "bccd_two_stage", config, seed))
        rows["torchvision"].append(run_torchvision(root, seconds, theirs, seed, rate=0.02))
        print({name: [round(row["AP"], 3) for row in some] for name, some in rows.items()}, flush=True)
    machine = f"{os.cpu_count()} cores, torch {torch.__version__}, torchvision {torchvision.__version__}"
    report = {"machine": machine, "minutes": arguments.minutes, **rows}
    (HERE / "results" / "bccd_two_stage.json").write_text(json.dumps(report, indent=1) + "\n")
    for name, some in rows.items():
        found = [row["AP"] for row in some]
        spread = statistics.stdev(found) if len(found) > 1 else 0.0
        images = statistics.mean(row["images"] for row in some)
        print(f"{name:12} AP {statistics.mean(found):.3f} ± {spread:.3f}  {images:.0f} images")


if __name__ == "__main__":
    main()
