"""Detections and training steps beside torchvision's closest detectors: our time and memory over theirs.

    python benchmarks/speed.py [--only NAME …] [--device cpu] [--threads 2] [--rounds 9] [--json FILE]

`boxwright benchmark` measures each pair in interleaved rounds of one process, with random weights, on made-up pictures
of 480×640; ratios are medians of rounds, and memory is what the tensors of the first batch's run take at most.
Faster R-CNN and Mask R-CNN are the same networks on both sides; the others differ in backbone and anchors. A pair that
is measured again replaces its rows in `results/speed-DEVICE.json`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# Preset → torchvision's detector and batches, of detections and of steps.
PAIRS = {
    "ssd_mobilenet_v2_fpnlite_320": ("ssdlite320_mobilenet_v3_large", (1, 8), (8,)),
    "ssd_resnet50_v1_fpn_640": ("retinanet_resnet50_fpn@640", (1,), (1,)),
    "torchvision_fasterrcnn_resnet50_fpn_coco": ("fasterrcnn_resnet50_fpn", (1,), (1,)),
    "torchvision_maskrcnn_resnet50_fpn_coco": ("maskrcnn_resnet50_fpn", (1,), (1,)),
}
Row = dict[str, Any]


def rows_of(preset: str, given: argparse.Namespace) -> list[Row]:
    """Return a row for each batch of detections and of steps."""
    theirs, detections, steps = PAIRS[preset]
    rows: list[Row] = []
    for what, batches in (("detection", detections), ("step", steps)):
        with tempfile.TemporaryDirectory() as folder:
            numbers = Path(folder) / "numbers.json"
            # Torchvision's is the first, which the others are compared with.
            command = [sys.executable, "-m", "boxwright", "benchmark", f"torchvision:{theirs}"]
            command += ["--compare", f"preset:{preset}", "--device", given.device, "--threads", str(given.threads)]
            command += ["--rounds", str(given.rounds), "--out", str(numbers), *(["--train"] if what == "step" else [])]
            command += [word for batch in batches for word in ("--batch", str(batch))]
            subprocess.run(command, check=True)
            measured = json.loads(numbers.read_text())
        about = {"threads": given.threads, "versions": measured["versions"], "torchvision": theirs}
        memory = {name: facts["peak_mib"] for name, facts in measured["facts"].items()}
        for batch in batches:
            first, second = (timing for timing in measured["timings"] if timing["batch"] == batch)
            rows.append(
                {
                    "preset": preset,
                    "what": what,
                    "batch": batch,
                    "ms": round(second["median_ms"], 1),
                    "torchvision's ms": round(first["median_ms"], 1),
                    "ratio": round(second["ratio"], 3),
                    "memory ratio": round(memory[f"preset:{preset}"] / memory[f"torchvision:{theirs}"], 3),
                    **about,
                }
            )
    return rows


def table(results: dict[str, Any]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = ["| | torchvision's | | time | memory |", "|---|---|---|---:|---:|"]
    for row in results["rows"]:
        memory = f"{row['memory ratio']:.2f}" if "memory ratio" in row else ""
        what = f"{row['what']}, batch {row['batch']}"
        cells = (f"`{row['preset']}`", f"`{row['torchvision']}`", what, f"{row['ratio']:.2f}", memory)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(PAIRS), choices=list(PAIRS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    path = given.json or HERE / "results" / f"speed-{given.device}.json"
    results = json.loads(path.read_text()) if path.is_file() else {"rows": []}
    for preset in given.only:
        others = [row for row in results["rows"] if row["preset"] != preset]
        results["rows"] = [*others, *rows_of(preset, given)]
        path.write_text(json.dumps(results, indent=1) + "\n")
    print("\n".join(table(results)))


if __name__ == "__main__":
    main()
