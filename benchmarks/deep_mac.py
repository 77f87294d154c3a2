"""DeepMAC on shapes: masks of two classes are learned, masks of the other two are found.

A small CenterNet learns boxes of circles, squares, triangles and stars, and masks of circles and squares alone. On
other pictures the mask AP of triangles and stars is compared with that of filling each detected box.

    python benchmarks/deep_mac.py --out benchmarks/results/deep_mac-shapes-1200.json
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import boxwright as bw
from boxwright.config.load import parse_message
from boxwright.data.convert import write_tfrecords
from boxwright.data.shapes import SHAPES, ShapesDataset
from boxwright.evaluation.build import build_evaluation
from boxwright.evaluation.network import evaluate_on_dataset
from boxwright.nn.detector import Detector
from boxwright.pipeline.message import TrainEvalPipelineConfig as Pipeline
from boxwright.types import Detections

SIDE = 64
# At most so many shapes in a picture, of these radii in units of its side: small pictures need large shapes.
MOST, RADII = 3, (0.12, 0.3)
MASKED = (1, 2)
UNSEEN = tuple(name for number, name in enumerate(SHAPES, start=1) if number not in MASKED)

CONFIG = """
model { center_net {
  num_classes: 4
  image_resizer { fixed_shape_resizer { height: SIDE width: SIDE } }
  feature_extractor { type: "hourglass_10" channel_means: [128, 128, 128] channel_stds: [64, 64, 64] }
  object_detection_task {
    localization_loss { l1_localization_loss { } }
    scale_head_params { num_filters: 64 kernel_sizes: 3 }
    offset_head_params { num_filters: 64 kernel_sizes: 3 }
  }
  object_center_params {
    classification_loss { penalty_reduced_logistic_focal_loss { alpha: 2 beta: 4 } }
    center_head_params { num_filters: 64 kernel_sizes: 3 }
    max_box_predictions: 20
  }
  deepmac_mask_estimation {
    classification_loss { weighted_sigmoid { } }
    task_loss_weight: 5
    dim: 16 pixel_embedding_dim: 8 mask_size: 16
    network_type: "NETWORK" num_init_channels: 16
    allowed_masked_classes_ids: [1, 2]
  }
} }
train_config {
  batch_size: 8 num_steps: STEPS gradient_clipping_by_norm: 10
  data_augmentation_options { random_horizontal_flip { } }
  optimizer { adamw_optimizer { weight_decay: 0
    learning_rate { cosine_decay_learning_rate { learning_rate_base: 0.003 total_steps: STEPS
      warmup_learning_rate: 0.0003 warmup_steps: 20 } } } use_moving_average: false }
}
train_input_reader { load_instance_masks: true mask_type: PNG_MASKS label_map_path: "FOLDER/label_map.pbtxt"
  tf_record_input_reader { input_path: "FOLDER/train.record" } }
eval_config { metrics_set: "coco_mask_metrics" metrics_set: "coco_detection_metrics"
  include_metrics_per_category: true batch_size: 8 }
eval_input_reader { load_instance_masks: true mask_type: PNG_MASKS label_map_path: "FOLDER/label_map.pbtxt"
  shuffle: false tf_record_input_reader { input_path: "FOLDER/train.record" } }
"""


def filled(detector: Detector) -> Detector:
    """Return the same detector, but each mask is its whole box."""
    one = copy.copy(detector)

    def detect_runs(
        images: Any, judge: Any, context: Any = None
    ) -> Iterator[tuple[list[Detections], dict[str, float]]]:
        for found, losses in detector.detect_runs(images, judge, context=context):
            yield [replace(each, masks=torch.ones(len(each), 2, 2)) for each in found], losses

    one.detect_runs = detect_runs  # type: ignore[method-assign, assignment]
    return one


def pictures(count: int, seed: int) -> ShapesDataset:
    """Return made-up pictures."""
    return ShapesDataset(count, seed=seed, size=(SIDE, SIDE), max_objects=MOST, radii=RADII)


def learned(folder: Path, network: str, steps: int, images: int, seed: int) -> tuple[Detector, Pipeline]:
    """Return a trained detector, and its configuration."""
    write_tfrecords(pictures(images, seed), folder / "train.record")
    text = CONFIG.replace("SIDE", str(SIDE)).replace("STEPS", str(steps)).replace("NETWORK", network)
    config = parse_message(text.replace("FOLDER", folder.as_posix()), Pipeline)
    settings = bw.RunSettings(workers=0, evaluate=False, log_every_n=100, seed=seed)
    bw.train(config, folder / "model", settings)
    detector = bw.load(folder / "model", device="cpu").detector
    return detector.eval(), config


def mask_ap(detector: Detector, config: Pipeline, images: int, seed: int) -> dict[str, float]:
    """Return the mask AP of each class, and the box AP, on other pictures."""
    plan = build_evaluation(config, config.eval_input_reader[0])
    values = evaluate_on_dataset(detector, pictures(images, seed + 1000), replace(plan, losses=False)).metrics
    found = {name: values[f"DetectionMasks_PerformanceByCategory/mAP/{name}"] for name in SHAPES}
    return found | {"boxes": values["DetectionBoxes_Precision/mAP"]}


def compared(network: str, steps: int, images: int, seed: int) -> dict[str, Any]:
    """Return AP with DeepMAC's masks and with filled boxes, of each class and of the unseen ones on average."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        detector, config = learned(Path(folder), network, steps, images, seed)
        deep, boxes = (mask_ap(one, config, 150, seed) for one in (detector, filled(detector)))
    unseen = {name: float(np.mean([ap[one] for one in UNSEEN])) for name, ap in (("deep", deep), ("filled", boxes))}
    seconds = round(time.perf_counter() - started)
    return {"network": network, "steps": steps, "images": images, "seed": seed, "seconds": seconds} | {
        "deep": deep,
        "filled": boxes,
        "unseen": unseen | {"gain": unseen["deep"] - unseen["filled"]},
    }


def main() -> None:
    """Print what was found, and write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="hourglass10")
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found = [compared(arguments.network, arguments.steps, arguments.images, seed) for seed in arguments.seeds]
    print(json.dumps(found, indent=1))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
