"""D-FINE from scratch on 292 images of blood cells, by learning rate, loss, denoising and size; FPNLite beside.

    BOXWRIGHT_DATA=folder-that-holds-bccd python benchmarks/d_fine_recipe.py [--device cuda] [--only NAME …]

Batches of 16 at 256×320 (FPNLite: its own 240×320), augmentation of benchmarks/bccd.config, averaged weights. Prints
the average precision on the test images of each, and writes it to --json.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

import boxwright as bw

HERE = Path(__file__).parent
BASE = (HERE / "bccd.config").read_text()
AUGMENTATION = BASE[BASE.index("  data_augmentation_options {") : BASE.index("train_input_reader {")]
READERS = BASE[BASE.index("train_input_reader {") :]


def d_fine(
    steps: int, rate: float, size: str = "N", clip: float = 0.5, loss: str = "VARIFOCAL", denoising: int = 100
) -> str:
    """Return a configuration: a twelfth of the steps to warm up, half at the full rate, then a cosine."""
    return f"""model {{ d_fine {{ num_classes: 3 size: {size}
      image_resizer {{ fixed_shape_resizer {{ height: 256 width: 320 resize_method: BILINEAR_ANTIALIASED }} }}
      denoising {{ num_queries: {denoising} }} loss {{ classification: {loss} }} }} }}
    train_config {{ batch_size: 16 num_steps: {steps} gradient_clipping_by_norm: {clip}
      optimizer {{ adamw_optimizer {{ weight_decay: 1e-4 learning_rate {{ cosine_decay_learning_rate {{
            learning_rate_base: {rate} total_steps: {steps} warmup_learning_rate: {rate / 100}
            warmup_steps: {steps // 12} hold_base_rate_steps: {steps // 2} end_factor: 0.05 }} }} }}
        use_moving_average: true moving_average_decay: 0.998 }}
    {AUGMENTATION}{READERS}"""


def recipes(steps: int) -> dict[str, str]:
    """Return the configurations by name."""
    fpnlite = BASE.replace("num_steps: 3000", f"num_steps: {steps}")
    return {
        "d_fine_n, rate 2e-4, clip 0.1": d_fine(steps, 2e-4, clip=0.1),
        "d_fine_n, rate 1e-3": d_fine(steps, 1e-3),
        "d_fine_n, rate 1e-3, matchability-aware": d_fine(steps, 1e-3, loss="MATCHABILITY_AWARE"),
        "d_fine_n, rate 1e-3, no denoising": d_fine(steps, 1e-3, denoising=0),
        "d_fine_s, rate 5e-4": d_fine(steps, 5e-4, size="S"),
        "fpnlite": fpnlite.replace("total_steps: 3000", f"total_steps: {steps}"),
    }


def main() -> None:
    """Train each recipe and print its average precision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--seeds", nargs="*", type=int, default=[1])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    data = Path(os.environ["BOXWRIGHT_DATA"]) / "bccd"
    rows = []
    for name, text in recipes(arguments.steps).items():
        if arguments.only and name not in arguments.only:
            continue
        for seed in arguments.seeds:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "pipeline.config"
                path.write_text(
                    text.replace('"bccd"', f'"{data}"').replace('"bccd_label', f'"{HERE.absolute()}/bccd_label')
                )
                run = bw.train(path, Path(folder) / "run", device=arguments.device, seed=seed)
                metrics = bw.evaluate(run.folder, device=arguments.device)
            row = {
                "recipe": name,
                "seed": seed,
                "AP": metrics["DetectionBoxes_Precision/mAP"],
                "AP50": metrics["DetectionBoxes_Precision/mAP@.50IOU"],
            }
            rows.append(row)
            print(json.dumps(row), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
