"""Milliseconds from a picture of 640×480 to its detections, in PyTorch and ONNX Runtime, in interleaved rounds.

    python benchmarks/latencies.py [PRESET …] [--rounds 9] [--threads 2]

Weights are random, so that only detectors without suppression take part, whose work does not depend on what they see;
those with suppression are raced with real weights (`race.py`). The times are the median and the least of the rounds. A
row is written as soon as it is there, and takes the place of an earlier one of the preset on the same processor.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

import boxwright as bw
from boxwright.runtime.measure import measure
from boxwright.weights.open_model import open_model

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE)]
from race import processor  # noqa: E402  # a script beside this one

RESULTS = HERE / "results" / "latencies-cpu.json"
PRESETS = (
    "d_fine_n_coco",
    "d_fine_s_coco",
    "d_fine_m_coco",
    "d_fine_l_coco",
    "d_fine_x_coco",
    "deim_d_fine_s_coco",
    "rf_detr_nano_coco",
    "rf_detr_small_coco",
    "rf_detr_medium_coco",
    "rf_detr_large_coco",
)


def measure_preset(preset: str, rounds: int, threads: int) -> dict[str, Any]:
    """Return a preset's row."""
    torch.manual_seed(0)
    detector = bw.build_detector(bw.load_config(f"preset:{preset}", ["train_config.fine_tune_checkpoint="])).eval()
    picture = np.random.default_rng(0).integers(0, 256, (480, 640, 3), np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "detector.onnx"
        # Scores of random weights are so near each other that rounding changes which are best.
        bw.export(detector, path, images=[picture], allow_difference=True)
        exported = open_model(path, threads=threads).detect_function()
        detector.optimize()
        runs = {"torch": lambda: detector.detect([picture]), "onnxruntime": lambda: exported([picture])}
        timings = measure(runs, 1, rounds)
    about = {"preset": preset, **{name: value for name, value in processor().items() if name != "flags"}}
    about |= {"threads": threads, "rounds": rounds, "torch": torch.__version__, "date": date.today().isoformat()}
    return about | {f"{one.name} ms": {"median": one.median_ms, "least": one.least_ms} for one in timings}


def main() -> None:
    """Measure presets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", default=PRESETS, metavar="PRESET")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    rows: list[dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else []
    for preset in given.presets:
        row = measure_preset(preset, given.rounds, given.threads)
        rows = [one for one in rows if (one["preset"], one["processor"]) != (preset, row["processor"])] + [row]
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
