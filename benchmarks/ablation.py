"""Detectors that look twice: each idea after the other, at equal steps, data and seeds.

    [BOXWRIGHT_DATA=folder-that-holds-bccd] python benchmarks/ablation.py
        [--family refinedet|srn|align_det] [--data shapes|crowds|bccd] [--steps 800] [--seeds 3]
        [--variants ssd one-step …] [--threads 2] [--device cuda]

The same small MobileNetV2 (width 0.5) learns from scratch on made-up shapes that are many, small and overlap (128×128),
on made-up crowds of faces, most of them tiny (128×128), or on blood cells (192×128), once for each row and seed. The
rows, whose configurations stand in `VARIANTS`:

refinedet (RefineDet, table 3): ssd, predicted from the backbone's maps; tcb, from the transfer connection's; one-step,
with the loss of a first step whose boxes are not used; two-step, whose boxes the second step starts from; full, with
easy negatives filtered; early, two-step whose second step takes boxes of IoU 0.35 for positive; ahead, two-step whose
first step's box loss counts four times.

srn (SRN, table 1): base, one step on the pyramid; stc, with two-step classification on fine levels; str, with two-step
regression on coarse ones; both; rfe, both and the receptive field enhancement.

align_det: base, a RetinaNet of one box a cell; window, a second step that looks around the cell; roi_conv, one that
looks at the box.

Prints AP by COCO's measure as mean and spread over seeds, and on cells the platelets' at IoU 0.5; every run is written
to `benchmarks/results/` when it ends, and is not run again.
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
from boxwright.data.dataset import Dataset
from boxwright.data.shapes import ShapesDataset
from boxwright.runtime.allocator import keep_freed_memory
from crowds import CrowdsDataset

HERE = Path(__file__).parent
COLUMNS = {
    "AP": "DetectionBoxes_Precision/mAP",
    "AP50": "DetectionBoxes_Precision/mAP@.50IOU",
    "AP75": "DetectionBoxes_Precision/mAP@.75IOU",
    "small": "DetectionBoxes_Precision/mAP (small)",
    "Platelets": "PascalBoxes_PerformanceByCategory/AP@0.5IOU/Platelets",
}
NORMED = "{ activation: RELU regularizer { l2_regularizer { weight: 0.0001 } } batch_norm { decay: 0.97 } }"
PLAIN = """{ activation: RELU regularizer { l2_regularizer { weight: 0.0001 } }
    initializer { variance_scaling_initializer { factor: 1.0 } } }"""
TRANSFER = f"transfer_connection {{ depth: 96 conv_hyperparams {NORMED} }}"
EARLY = "matcher { bipartite_argmax_matcher { matched_threshold: 0.35 unmatched_threshold: 0.35 } }"
AHEAD = """loss { classification_loss { weighted_softmax { } } localization_loss { weighted_smooth_l1 { } }
    localization_weight: 4 hard_example_miner { num_hard_examples: 0 iou_threshold: 1 loss_type: CLASSIFICATION
      max_negatives_per_positive: 3 } }"""
FILTER, MOVE = "two_step_classification { }", "two_step_regression { }"
VARIANTS = {
    "refinedet": {
        "ssd": "",
        "tcb": TRANSFER,
        "one-step": f"{TRANSFER} anchor_refinement {{ objectness_threshold: 0 object_anchors: TILED }}",
        "two-step": f"{TRANSFER} anchor_refinement {{ objectness_threshold: 0 }}",
        "full": f"{TRANSFER} anchor_refinement {{ }}",
        "ahead": f"{TRANSFER} anchor_refinement {{ objectness_threshold: 0 {AHEAD} }}",
        "early": f"{TRANSFER} anchor_refinement {{ objectness_threshold: 0 }} {EARLY}",
    },
    "srn": {
        "base": "receptive_field_enhancement: false",
        "stc": f"receptive_field_enhancement: false {FILTER}",
        "str": f"receptive_field_enhancement: false {MOVE}",
        "both": f"receptive_field_enhancement: false {FILTER} {MOVE}",
        "rfe": f"{FILTER} {MOVE}",
    },
    "align_det": {
        "base": "",
        "window": "step { sampling: WINDOW depth: 128 }",
        "roi_conv": "step { depth: 128 }",
    },
}
BACKBONE = f"""depth_multiplier: 0.5
    override_base_feature_extractor_hyperparams: true conv_hyperparams {NORMED}"""
MODELS = {
    "refinedet": f"""refinedet {{ RESIZER num_classes: CLASSES
  feature_extractor {{ type: "refinedet_mobilenet_v2" {BACKBONE} }}
  anchor_generator {{ multiscale_anchor_generator {{ min_level: 3 max_level: 6 anchor_scale: SCALE
    aspect_ratios: [1.0, 2.0, 0.5] scales_per_octave: 1 }} }} VARIANT }}""",
    # The released coder's codes are a tenth as large: within so few steps nothing of boxes is learnt from them.
    "srn": f"""srn {{ RESIZER num_classes: CLASSES depth: 48 conv_hyperparams {PLAIN}
  box_coder {{ faster_rcnn_box_coder {{ }} }}
  feature_extractor {{ type: "mobilenet_v2" {BACKBONE} }} VARIANT }}""",
    "align_det": f"""align_det {{ RESIZER num_classes: CLASSES depth: 64 num_layers_before_predictor: 2
  conv_hyperparams {NORMED} feature_extractor {{ type: "mobilenet_v2" {BACKBONE} }}
  anchor_generator {{ multiscale_anchor_generator {{ min_level: 3 max_level: 7 anchor_scale: SCALE
    aspect_ratios: [1.0] scales_per_octave: 1 }} }} VARIANT }}""",
}
RECORDS = 'label_map_path: "DATA/label_map.pbtxt" tf_record_input_reader { input_path: "DATA/SPLIT.record" }'
CELLS = f"""label_map_path: "{HERE}/bccd_label_map.pbtxt" voc_input_reader {{ root: "DATA/bccd" image_set: "SPLIT" }}"""
DATA = {
    "shapes": {"size": "height: 128 width: 128", "classes": "4", "scale": "2.0", "reader": RECORDS, "crop": ""},
    "crowds": {"size": "height: 128 width: 128", "classes": "1", "scale": "2.0", "reader": RECORDS, "crop": ""},
    "bccd": {
        "size": "height: 128 width: 192",
        "classes": "3",
        "scale": "3.0",
        "reader": CELLS,
        "crop": """data_augmentation_options { random_vertical_flip { } }
          data_augmentation_options { random_crop_image { min_object_covered: 0.0 min_aspect_ratio: 1.0
            max_aspect_ratio: 1.6 min_area: 0.5 overlap_thresh: 0.4 random_coef: 0.4 } }""",
    },
}
SPLITS = {"bccd": ("trainval", "test")}


def made_up(data: str) -> dict[str, Dataset]:
    """Return the images of a kind of made-up data, to learn from and to evaluate on."""
    if data == "crowds":
        return {"train": CrowdsDataset(1500), "val": CrowdsDataset(300, seed=1)}
    return {
        name: ShapesDataset(count, seed=seed, size=(128, 128), max_objects=16, radii=(0.035, 0.15))
        for name, count, seed in (("train", 1500, 0), ("val", 300, 1))
    }


def configuration(family: str, data: str, variant: str, steps: int, folder: Path) -> str:
    """Write a variant's configuration.

    Args:
        family: A key of `VARIANTS`.
        data: A key of `DATA`.
        variant: A key of the family's variants.
        steps: How many.
        folder: Where the data is.

    Returns:
        The text.
    """
    what, (train, test) = DATA[data], SPLITS.get(data, ("train", "val"))
    model = MODELS[family].replace("VARIANT", VARIANTS[family][variant])
    model = model.replace("RESIZER", f"image_resizer {{ fixed_shape_resizer {{ {what['size']} }} }}")
    model = model.replace("CLASSES", what["classes"]).replace("SCALE", what["scale"])
    return f"""
model {{ {model} }}
train_config {{
  batch_size: 16 num_steps: {steps}
  optimizer {{ use_moving_average: true moving_average_decay: 0.995 adam_optimizer {{ learning_rate {{
    cosine_decay_learning_rate {{ learning_rate_base: 0.002 total_steps: {steps} warmup_learning_rate: 0.0002
      warmup_steps: {max(steps // 20, 1)} }} }} }} }}
  gradient_clipping_by_norm: 10
  data_augmentation_options {{ random_horizontal_flip {{ }} }} {what["crop"]}
}}
train_input_reader {{ {what["reader"].replace("SPLIT", train)} }}
eval_config {{ use_moving_averages: true batch_size: 8
  metrics_set: ["coco_detection_metrics", "pascal_voc_detection_metrics"] }}
eval_input_reader {{ shuffle: false {what["reader"].replace("SPLIT", test)} }}
""".replace("DATA", str(folder))


def run(variant: str, seed: int, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train and evaluate once.

    Args:
        variant: A key of the family's variants.
        seed: Of weights, order and augmentation.
        arguments: Of the command.
        folder: Where the data is.

    Returns:
        The columns, seconds and machine.
    """
    with tempfile.TemporaryDirectory() as model_dir:
        path = Path(model_dir) / "variant.config"
        path.write_text(configuration(arguments.family, arguments.data, variant, arguments.steps, folder))
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
    found = {name: metrics[key] for name, key in COLUMNS.items() if key in metrics}
    return {**found, "seconds": seconds, "machine": machine}


def read(path: Path) -> dict[str, Any]:
    """Read the runs that ended.

    Args:
        path: Where they are.

    Returns:
        "variant/seed" to what `run` returned.
    """
    return json.loads(path.read_text()) if path.is_file() else {}


def table(variants: list[str], runs: dict[str, dict[str, Any]]) -> None:
    """Print mean and spread of each variant.

    Args:
        variants: The rows.
        runs: "variant/seed" to what `run` returned.
    """
    columns = [name for name in COLUMNS if any(name in one for one in runs.values())]
    print(f"{'':10}{''.join(f'{name:>18}' for name in columns)}{'seeds':>7}")
    for variant in variants:
        found = [one for name, one in runs.items() if name.split("/")[0] == variant]
        if not found:
            continue
        cells = []
        for what in columns:
            values = [one[what] for one in found if what in one] or [float("nan")]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            cells.append(f"{statistics.mean(values):.4f} ± {spread:.4f}")
        print(f"{variant:10}{''.join(f'{cell:>18}' for cell in cells)}{len(found):>7}")


def main() -> None:
    """Run what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=[*VARIANTS], default="refinedet")
    parser.add_argument("--data", choices=[*DATA], default="shapes")
    parser.add_argument("--variants", nargs="+", default=[])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    known = VARIANTS[arguments.family]
    if unknown := [name for name in arguments.variants if name not in known]:
        parser.error(f"{arguments.family} has no rows {', '.join(unknown)}; it has {', '.join(known)}")
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    path = HERE / "results" / f"{arguments.family}-ablation-{arguments.data}-{arguments.steps}.json"
    path.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(os.environ.get("BOXWRIGHT_DATA", temporary)).resolve()
        if arguments.data != "bccd":
            folder = Path(temporary)
            for name, dataset in made_up(arguments.data).items():
                write_tfrecords(dataset, folder / f"{name}.record")
        for seed in range(arguments.seeds):
            for variant in arguments.variants or known:
                name = f"{variant}/{seed}"
                if name in read(path):
                    continue
                found = run(variant, seed, arguments, folder)
                # Another process may have written its own runs meanwhile.
                path.write_text(json.dumps(read(path) | {name: found}, indent=1) + "\n")
                print(f"{name}: {found}", flush=True)
    table([*known], read(path))


if __name__ == "__main__":
    main()
