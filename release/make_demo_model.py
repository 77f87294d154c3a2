"""Make the detector that ships with Boxwright: train it on the shipped blood cells, and store it in half precision.

    python release/make_demo_model.py [WORK-FOLDER]

Written to `src/boxwright/assets/demo`. The training takes about ten minutes on one core; a run in the work folder is
resumed, or used if it is complete. The card states the average precision of the file as it is stored.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from boxwright.base.safetensors_file import pack_safetensors, read_safetensors
from boxwright.cli.demo_cells import evaluate_shipped
from boxwright.data.sample_data import BLOOD_CELLS
from boxwright.weights.demo_model import DEMO_MODEL, SMALL_BACKBONE
from boxwright.weights.export_weights import WEIGHTS, pack_weights_folder
from boxwright.weights.restore import restore_detector

ROOT = Path(__file__).parent.parent
EPOCHS, SEED = 36, 0
COMMAND = (
    *("train", str(BLOOD_CELLS.relative_to(ROOT)), "--epochs", f"{EPOCHS:g}", "--seed", str(SEED)),
    *("--device", "cpu", "--threads", "1", "--batch", "8"),
    *("--set", SMALL_BACKBONE),
)
_AP, _AP50 = "DetectionBoxes_Precision/mAP", "DetectionBoxes_Precision/mAP@.50IOU"
_CARD = """# The detector of the demo

`bw.load("demo")` finds blood cells: platelets, red and white blood cells (`Platelets`, `RBC`, `WBC`) in pictures from a
light microscope. It shows what Boxwright does; it is no medical device, and was never tried on other pictures.

| | |
|---|---|
| network | the preset `ssd_hgnetv2_fpn_small` with `{change}`: {parameters:,} parameters |
| input | {width}×{height} |
| data | {images} training pictures of [BCCD][1] by shenggan (MIT), resized to 384×288: `assets/blood_cells` |
| training | from random weights: `boxwright {command} --model_dir MODEL`, {steps} steps |
| stored as | float16, {size:.2f} MB; computes in float32 |
| on the 72 test pictures | **AP {ap:.3f}, AP50 {ap50:.3f}**, of this file as it is stored |
| license | weights: Apache-2.0, the Boxwright developers; data: MIT |

`python release/make_demo_model.py` makes this folder, and measures what is above.

[1]: https://github.com/Shenggan/BCCD_Dataset
"""


def train(work: Path) -> None:
    """Train, or resume."""
    subprocess.run([sys.executable, "-m", "boxwright", *COMMAND, "--model_dir", str(work)], cwd=ROOT, check=True)


def write_model(run: Path) -> None:
    """Write a run's detector in half precision, with its configuration and classes."""
    detector, config, step = restore_detector(run)
    DEMO_MODEL.mkdir(parents=True, exist_ok=True)
    for name, content in pack_weights_folder(detector, config, step).items():
        (DEMO_MODEL / name).write_bytes(content)
    weights = {name: tensor.half() for name, tensor in read_safetensors(DEMO_MODEL / WEIGHTS).items()}
    if infinite := [name for name, tensor in weights.items() if not tensor.isfinite().all()]:
        sys.exit(f"{infinite[0]} has values that float16 cannot hold")
    (DEMO_MODEL / WEIGHTS).write_bytes(pack_safetensors(weights))


def write_card(metrics: Mapping[str, float]) -> None:
    """Write the model card, with what was measured."""
    _, config, step = restore_detector(DEMO_MODEL)
    ssd: Any = config.model and config.model.ssd
    resizer = ssd.image_resizer.fixed_shape_resizer
    images = json.loads((BLOOD_CELLS / "train.json").read_text())["images"]
    card = _CARD.format(
        change=SMALL_BACKBONE,
        parameters=sum(tensor.numel() for tensor in read_safetensors(DEMO_MODEL / WEIGHTS).values()),
        width=resizer.width,
        height=resizer.height,
        images=len(images),
        command=shlex.join(COMMAND),
        steps=step,
        size=(DEMO_MODEL / WEIGHTS).stat().st_size / 1e6,
        ap=metrics[_AP],
        ap50=metrics[_AP50],
    )
    (DEMO_MODEL / "README.md").write_text(card)
    print(card)


def main() -> None:
    """Replace the shipped detector."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("work", type=Path, nargs="?", help="the run's folder; default: a temporary one")
    with tempfile.TemporaryDirectory() as temporary:
        run = parser.parse_args().work or Path(temporary) / "run"
        train(run)
        write_model(run)
        metrics, _ = evaluate_shipped(Path(temporary) / "demo")
        write_card(metrics)


if __name__ == "__main__":
    main()
