"""RefineDet's three ideas, one after the other, at equal steps, data and seeds (RefineDet, table 3).

    [BOXWRIGHT_DATA=folder-that-holds-bccd] python benchmarks/refinedet_ablation.py
        [--data shapes|bccd] [--steps 800] [--seeds 3] [--variants ssd one-step two-step full]
        [--threads 2] [--device cuda]

The same small MobileNetV2 learns from scratch, on made-up shapes that are many, small and overlap
(128×128), or on blood cells (192×128), five times for each seed:

- ssd: class and box are predicted on the backbone's maps, as SSD does, on four maps;
- tcb: the same on maps that the transfer connection made;
- one-step: an anchor refinement module before it, whose loss counts, but whose boxes are not used: the
  paper's row without two-step regression;
- two-step: its boxes are where the second step starts from;
- full: negative anchors filtered besides.

Prints AP by COCO's measure as mean and spread over seeds; every run is written to
`benchmarks/results/` when it ends, and is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import boxwright as bw
from boxwright.data.convert import write_tfrecords
from boxwright.data.shapes import ShapesDataset
from boxwright.training.allocator import keep_freed_memory

HERE = Path(__file__).parent
AP, AP50 = "DetectionBoxes_Precision/mAP", "DetectionBoxes_Precision/mAP@.50IOU"
NORMED = "{ activation: RELU regularizer { l2_regularizer { weight: 0.0001 } } batch_norm { decay: 0.97 } }"
TRANSFER = f"transfer_connection {{ depth: 96 conv_hyperparams {NORMED} }}"
VARIANTS = {
    "ssd": "",
    "tcb": TRANSFER,
    "one-step": f"{TRANSFER} anchor_refinement {{ objectness_threshold: 0 object_anchors: TILED }}",
    "two-step": f"{TRANSFER} anchor_refinement {{ objectness_threshold: 0 }}",
    "full": f"{TRANSFER} anchor_refinement {{ }}",
}
DATA = {
    "shapes": {
        "size": "height: 128 width: 128",
        "classes": 4,
        "scale": 2.0,
        "train": 'label_map_path: "DATA/label_map.pbtxt" tf_record_input_reader { input_path: "DATA/train.record" }',
        "eval": 'label_map_path: "DATA/label_map.pbtxt" tf_record_input_reader { input_path: "DATA/val.record" }',
        "crop": "",
    },
    "bccd": {
        "size": "height: 128 width: 192",
        "classes": 3,
        "scale": 3.0,
        "train": f'label_map_path: "{HERE}/bccd_label_map.pbtxt" '
        'voc_input_reader { root: "DATA/bccd" image_set: "trainval" }',
        "eval": f'label_map_path: "{HERE}/bccd_label_map.pbtxt" '
        'voc_input_reader { root: "DATA/bccd" image_set: "test" }',
        "crop": """data_augmentation_options { random_vertical_flip { } }
          data_augmentation_options { random_crop_image { min_object_covered: 0.0 min_aspect_ratio: 1.0
            max_aspect_ratio: 1.6 min_area: 0.5 overlap_thresh: 0.4 random_coef: 0.4 } }""",
    },
}


def configuration(data: str, variant: str, steps: int, folder: Path) -> str:
    """Write a variant's configuration.

    Args:
        data: A key of `DATA`.
        variant: A key of `VARIANTS`.
        steps: How many.
        folder: Where the data is.

    Returns:
        The text.
    """
    what = DATA[data]
    return f"""
model {{ refinedet {{
  num_classes: {what["classes"]}
  image_resizer {{ fixed_shape_resizer {{ {what["size"]} }} }}
  feature_extractor {{ type: "refinedet_mobilenet_v2" depth_multiplier: 0.5
    override_base_feature_extractor_hyperparams: true conv_hyperparams {NORMED} }}
  anchor_generator {{ multiscale_anchor_generator {{ min_level: 3 max_level: 6 anchor_scale: {what["scale"]}
    aspect_ratios: [1.0, 2.0, 0.5] scales_per_octave: 1 }} }}
  {VARIANTS[variant]}
}} }}
train_config {{
  batch_size: 16 num_steps: {steps}
  optimizer {{ use_moving_average: true moving_average_decay: 0.995 adam_optimizer {{ learning_rate {{
    cosine_decay_learning_rate {{ learning_rate_base: 0.002 total_steps: {steps} warmup_learning_rate: 0.0002
      warmup_steps: {max(steps // 20, 1)} }} }} }} }}
  gradient_clipping_by_norm: 10
  data_augmentation_options {{ random_horizontal_flip {{ }} }} {what["crop"]}
}}
train_input_reader {{ {what["train"]} }}
eval_config {{ use_moving_averages: true batch_size: 8 }}
eval_input_reader {{ shuffle: false {what["eval"]} }}
""".replace("DATA", str(folder))


def run(data: str, variant: str, seed: int, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train and evaluate once.

    Args:
        data: A key of `DATA`.
        variant: A key of `VARIANTS`.
        seed: Of weights, order and augmentation.
        arguments: Of the command.
        folder: Where the data is.

    Returns:
        AP, AP50, seconds and machine.
    """
    with tempfile.TemporaryDirectory() as model_dir:
        path = Path(model_dir) / "variant.config"
        path.write_text(configuration(data, variant, arguments.steps, folder))
        config = bw.load_config(path)
        settings = bw.RunSettings(
            seed=seed, evaluate=False, checkpoint_every_n=10**6, summarize_every_n=0, workers=1, device=arguments.device
        )
        began = time.monotonic()
        if bw.train(config, Path(model_dir) / "m", settings) < arguments.steps:
            raise SystemExit("stopped; runs that ended are kept")
        seconds = time.monotonic() - began
        metrics = bw.evaluate(config, Path(model_dir) / "m")
    machine = f"{arguments.device}, torch {torch.__version__}"
    return {"AP": metrics[AP], "AP50": metrics[AP50], "seconds": seconds, "machine": machine}


def read(path: Path) -> dict[str, Any]:
    """Read the runs that ended.

    Args:
        path: Where they are.

    Returns:
        "variant/seed" to what `run` returned.
    """
    return json.loads(path.read_text()) if path.is_file() else {}


def table(runs: dict[str, dict[str, Any]]) -> None:
    """Print mean and spread of each variant.

    Args:
        runs: "variant/seed" to what `run` returned.
    """
    print(f"{'':10}{'AP':>18}{'AP50':>18}{'seeds':>7}")
    for variant in VARIANTS:
        found = [one for name, one in runs.items() if name.split("/")[0] == variant]
        if not found:
            continue
        cells = []
        for what in ("AP", "AP50"):
            values = [one[what] for one in found]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            cells.append(f"{statistics.mean(values):.4f} ± {spread:.4f}")
        print(f"{variant:10}{cells[0]:>18}{cells[1]:>18}{len(found):>7}")


def main() -> None:
    """Run what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=[*DATA], default="shapes")
    parser.add_argument("--variants", nargs="+", choices=[*VARIANTS], default=[*VARIANTS])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    path = HERE / "results" / f"refinedet-ablation-{arguments.data}-{arguments.steps}.json"
    path.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(os.environ.get("BOXWRIGHT_DATA", temporary)).resolve()
        if arguments.data == "shapes":
            folder = Path(temporary)
            for name, count, seed in (("train", 1500, 0), ("val", 300, 1)):
                hard = ShapesDataset(count, seed=seed, size=(128, 128), max_objects=16, radii=(0.035, 0.15))
                write_tfrecords(hard, folder / f"{name}.record")
        for seed in range(arguments.seeds):
            for variant in arguments.variants:
                name = f"{variant}/{seed}"
                if name in read(path):
                    continue
                found = run(arguments.data, variant, seed, arguments, folder)
                # Another process may have written its own runs meanwhile.
                path.write_text(json.dumps(read(path) | {name: found}, indent=1) + "\n")
                print(f"{name}: {found}", flush=True)
    table(read(path))


if __name__ == "__main__":
    main()
