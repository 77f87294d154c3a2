"""Final losses of small trainings in float32 and in bfloat16, by family: whether they differ more than seeds do.

    OMP_NUM_THREADS=1 python benchmarks/precision.py [--contenders NAME …] [--seeds 0 1 2 3] [--steps 150] [--json FILE]

Every network is trained from fresh weights on pictures of shapes, 96×96 (RefineDet: 128×128) and four at a time, with
the run's own step, on the CPU. Both precisions begin with the same weights and see the same batches. bfloat16 is
PyTorch's autocast, as in a run with `train_config.use_bfloat16`: convolutions and matrix products round, losses and
weights are float32. A training's final loss is the mean of its last 40 steps, without the penalty on weights.

Two precisions count as equal if the means over the seeds differ by no more than the standard deviation of float32's
seeds. A row is written as soon as it is there; one that is there is not trained again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

import boxwright as bw
from boxwright.base.distributed import ALONE
from boxwright.config.load import parse_message
from boxwright.data.batch import Batch, collate, to_input
from boxwright.data.shapes import ShapesDataset
from boxwright.nn.criteria.criterion import REGULARIZATION, TOTAL
from boxwright.pipeline.messages import Optimizer, TrainEvalPipelineConfig
from boxwright.pipeline.training import build_training
from boxwright.training.state import new_state
from boxwright.training.step import Learner

RESULTS = Path(__file__).parent / "results" / "precision-cpu.json"
IMAGES, BATCH, LAST = 256, 4, 40
PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Contender:
    """A small network of a family.

    Attributes:
        preset: What it is made from.
        changes: Overrides that make it small.
        rate: The highest learning rate, of Adam.
        side: Of its input, in pixels.
    """

    family: str
    preset: str
    changes: tuple[str, ...] = ()
    rate: float = 0.002
    side: int = 96


_MOBILENET = 'feature_extractor { type: "mobilenet_v2" depth_multiplier: 0.35 pretrained: false }'
_THIN = "{ num_filters: 64 kernel_sizes: 3 }"
CONTENDERS = {
    "SSD (`init`'s preset)": Contender("ssd", "ssd_hgnetv2_fpn_small"),
    "SSD, a map for each scale": Contender("ssd", "ssd_mobilenet_v2_320"),
    "FPNLite": Contender("ssd", "ssd_mobilenet_v2_fpnlite_320"),
    "EfficientDet": Contender("ssd", "efficientdet_d0"),
    "Mask R-CNN": Contender("faster_rcnn", "mask_rcnn_hgnetv2_fpn_small"),
    "RefineDet": Contender("refinedet", "refinedet_mobilenet_v2_shapes", side=128),
    "SRN": Contender("srn", "srn_mobilenet_v2_wider_face", ("model.srn.depth=48",), 0.001),
    "AlignDet": Contender(
        "align_det",
        "align_det_resnet101_coco",
        (
            f"model {{ align_det {{ {_MOBILENET} depth: 48 num_layers_before_predictor: 1 freeze_batchnorm: false "
            "step { kernel_size: 3 depth: 48 } } }",
        ),
        0.001,
    ),
    "CenterNet": Contender(
        "center_net",
        "center_net_resnet101_v2_512",
        (
            'model { center_net { feature_extractor { type: "timm/mobilenetv2_050" use_separable_conv: true } '
            f"object_detection_task {{ scale_head_params {_THIN} offset_head_params {_THIN} }} "
            f"object_center_params {{ center_head_params {_THIN} }} }} }}",
        ),
    ),
    "D-FINE": Contender("d_fine", "d_fine_n_coco", ("model.d_fine.sync_batch_norm=false",), 0.0005),
    "RF-DETR": Contender(
        "rf_detr",
        "rf_detr_nano_coco",
        (
            "model { rf_detr { feature_extractor { width: 96 depth: 4 num_heads: 3 patch: 8 windows: 2 grid: 12 "
            "taken: [2, 4] } decoder { depth: 64 num_layers: 2 feedforward: 128 num_queries: 50 "
            "num_groups: 3 self_heads: 4 cross_heads: 8 } } }",
        ),
        0.0005,
    ),
}


def configuration(contender: Contender, precision: str, steps: int) -> TrainEvalPipelineConfig:
    """Return the whole configuration of a training."""
    resizer, warmup = f"fixed_shape_resizer {{ height: {contender.side} width: {contender.side} }}", max(steps // 10, 1)
    config = bw.load_config(
        f"preset:{contender.preset}",
        [
            f"model {{ {contender.family} {{ num_classes: 4 image_resizer {{ {resizer} }} }} }}",
            *contender.changes,
            f"train_config.num_steps={steps}",
            f"train_config.batch_size={BATCH}",
            f"train_config.use_bfloat16={str(precision == 'bfloat16').lower()}",
            "train_config.fine_tune_checkpoint=",
            "train_input_reader.tf_record_input_reader.input_path=none",
            "train_input_reader.load_instance_masks=true",
        ],
    )
    train = config.train_config
    if train is None:
        raise TypeError(f"{contender.preset} is not trained")
    # Those of presets are for long trainings.
    train.optimizer = parse_message(
        f"""adam_optimizer {{ learning_rate {{ cosine_decay_learning_rate {{ total_steps: {steps} warmup_steps: {warmup}
            learning_rate_base: {contender.rate} warmup_learning_rate: {contender.rate / 10} }} }} }}
        use_moving_average: false""",
        Optimizer,
    )
    train.gradient_clipping_by_norm = 10.0
    for name in ("multi_scale", "freeze_variables"):
        train.clear(name)
    return config


@cache
def dataset() -> ShapesDataset:
    """Return the pictures that all learn from."""
    return ShapesDataset(IMAGES, seed=0, size=(128, 128))


def batches(detector: bw.Detector, seed: int, steps: int) -> Iterator[Batch]:
    """Yield batches of pictures in an order that follows from the seed."""
    samples = [to_input(dataset()[number], detector.preprocessor.resizer) for number in range(IMAGES)]
    generator = torch.Generator().manual_seed(seed)
    order: list[int] = []
    for _ in range(steps):
        if len(order) < BATCH:
            order = torch.randperm(IMAGES, generator=generator).tolist()
        yield collate([samples[order.pop()] for _ in range(BATCH)])


def train(contender: Contender, precision: str, seed: int, steps: int) -> dict[str, Any]:
    """Train once; return the first and the final loss, and the seconds that it took."""
    torch.manual_seed(seed)
    config = configuration(contender, precision, steps)
    detector = bw.build_detector(config, dataset().categories).train()
    plan = build_training(config, workers=0).with_seed(seed)
    learner = Learner(new_state(detector, plan), plan, ALONE)
    losses, report = [], None
    began = time.perf_counter()
    for batch in batches(detector, seed, steps):
        report = learner.step(batch, report)
        losses.append(sum(value for name, value in report.losses.items() if name not in (REGULARIZATION, TOTAL)))
    return {
        "first loss": round(statistics.fmean(losses[:5]), 4),
        "final loss": round(statistics.fmean(losses[-LAST:]), 4),
        "seconds": round(time.perf_counter() - began, 1),
    }


def final_losses(rows: Sequence[dict[str, Any]], name: str, precision: str) -> list[float]:
    """Return the final losses of a contender in a precision, by seed."""
    ours = [row for row in rows if row["contender"] == name and row["precision"] == precision]
    return [row["final loss"] for row in sorted(ours, key=lambda row: row["seed"])]


def equal(whole: Sequence[float], half: Sequence[float]) -> bool:
    """Tell whether the means differ by no more than the first's standard deviation."""
    return abs(statistics.fmean(half) - statistics.fmean(whole)) <= statistics.stdev(whole)


def _spread(losses: Sequence[float]) -> str:
    """Return the mean and the standard deviation of losses in words."""
    return f"{statistics.fmean(losses):.3f} ± {statistics.stdev(losses):.3f}"


def table(results: dict[str, Any]) -> list[str]:
    """Return the table of what was measured."""
    rows = results["rows"]
    lines = [
        "| network | `model` | seeds | first loss | final, float32 | bfloat16 | difference / deviation | equal |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for name in dict.fromkeys(row["contender"] for row in rows):
        whole, half = (final_losses(rows, name, precision) for precision in PRECISIONS)
        ours = [row for row in rows if row["contender"] == name and row["precision"] == "float32"]
        first = statistics.fmean(row["first loss"] for row in ours)
        difference = (statistics.fmean(half) - statistics.fmean(whole)) / statistics.stdev(whole)
        lines.append(
            f"| {name} | `{ours[0]['family']}` | {len(whole)} | {first:.2f} | {_spread(whole)} | {_spread(half)} | "
            f"{difference:+.2f} | {'yes' if equal(whole, half) else 'no'} |"
        )
    return lines


def main() -> None:
    """Train what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS), metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--json", type=Path, default=RESULTS)
    given = parser.parse_args()
    empty: dict[str, Any] = {"torch": torch.__version__, "rows": []}
    results = json.loads(given.json.read_text()) if given.json.is_file() else empty
    for name in given.contenders:
        for seed in given.seeds:
            for precision in PRECISIONS:
                key = {"contender": name, "precision": precision, "seed": seed, "steps": given.steps}
                if any(all(row[part] == value for part, value in key.items()) for row in results["rows"]):
                    continue
                contender = CONTENDERS[name]
                row = {**key, "family": contender.family, **train(contender, precision, seed, given.steps)}
                results["rows"].append(row)
                given.json.write_text(json.dumps(results, indent=1) + "\n")
                print(json.dumps(row), flush=True)
    print("\n".join(table(results)))


if __name__ == "__main__":
    main()
