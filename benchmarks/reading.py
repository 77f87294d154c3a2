"""Reading annotated pictures: opening data and reading every sample, by this checkout and by another one, in turn.

    BOXWRIGHT_DATA=folder-that-holds-bccd python benchmarks/reading.py OTHER_CHECKOUT [--rounds 5] [--files 10000]

Made-up data have small pictures, so that reading annotations counts; BCCD's are decoded as in training. Times are of
the processor. Ratios of rounds go to results/reading-cpu.json: this checkout's time over the other's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from small_data import about

HERE = Path(__file__).parent
RESULT = HERE / "results" / "reading-cpu.json"
# Run in a process of its own by either checkout, whose readers have the same names and arguments.
READ = """
import sys, time
kind, path = sys.argv[1:]
if kind == "voc":
    from boxwright.data.voc import VocDataset as Dataset
elif kind == "coco":
    from boxwright.data.coco import CocoDataset as Dataset
else:
    from boxwright.data.yolo import YoloDataset as Dataset
began = time.process_time()
data = Dataset(path)
for number in range(len(data)):
    data[number]
print(time.process_time() - began)
"""


def make(folder: Path, files: int) -> dict[str, tuple[str, Path]]:
    """Write made-up data in three formats, and return each with its path."""
    from boxwright.data.convert import write_coco, write_voc, write_yolo
    from boxwright.data.shapes import ShapesDataset

    data = ShapesDataset(files, seed=1, size=(32, 48))
    write_voc(data, folder / "voc")
    write_coco(data, folder / "coco" / "instances.json")
    write_yolo(data, folder / "yolo" / "data.yaml")
    return {
        f"VOC, {files} files": ("voc", folder / "voc"),
        f"COCO, {files} files": ("coco", folder / "coco" / "instances.json"),
        f"YOLO, {files} files": ("yolo", folder / "yolo" / "data.yaml"),
        "BCCD": ("voc", Path(os.environ["BOXWRIGHT_DATA"]) / "bccd"),
    }


def seconds(checkout: Path, kind: str, path: Path) -> float:
    """Return the processor time of opening and reading data."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", READ, kind, str(path)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)


def main() -> None:
    """Measure in turn, and write the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--files", type=int, default=10_000)
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, (kind, path) in make(Path(folder), given.files).items():
            pairs = [(seconds(HERE.parent, kind, path), seconds(given.other, kind, path)) for _ in range(given.rounds)]
            ratios = sorted(ours / theirs for ours, theirs in pairs)
            least = min(ours for ours, _ in pairs) / min(theirs for _, theirs in pairs)
            row = {"data": name, "of the least": round(least, 3), "median": round(statistics.median(ratios), 3)}
            rows.append({**row, "rounds": [round(ratio, 3) for ratio in ratios], **about("reading.py")})
            print(json.dumps(row), flush=True)
    RESULT.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
