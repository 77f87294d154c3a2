"""Whole training loops: ours against torchvision's reference loop, at equal architecture, batch and data.

    python benchmarks/training.py [--device cuda] [--steps 30] [--batch 4] [--more]

Both read the same JPEG images (made up, 320×320) from disk with one worker, flip them at random and
train a ResNet-50 with a feature pyramid from P3 to P7 and two shared heads of four convolutions, 256
wide: our `ssd_resnet50_v1_fpn_keras`, torchvision's `retinanet_resnet50_fpn`. Theirs is the loop of
torchvision's reference scripts: batches as lists, the losses read at every step, SGD. Each runs in a
process of its own, for its peak memory. `--more` adds bfloat16 and compiled rows, and batches of 8 and
16. Prints images a second, the ratio within this run, the share of a step outside convolutions, and
peak memory; writes them to `benchmarks/results/`.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from torchvision.models.detection import retinanet_resnet50_fpn

from boxwright.data.augmentation.flip import RandomHorizontalFlip
from boxwright.data.coco import CocoDataset
from boxwright.data.convert import write_coco
from boxwright.data.shapes import ShapesDataset
from boxwright.pipeline.load import load_config
from boxwright.runtime.allocator import keep_freed_memory
from boxwright.training.log import Scalars
from boxwright.training.settings import RunSettings
from boxwright.training.train import train

HERE = Path(__file__).parent
SIZE, IMAGES = 320, 64
CONFIG = """
model { ssd {
  num_classes: 4
  image_resizer { fixed_shape_resizer { height: 320 width: 320 } }
  feature_extractor {
    type: "ssd_resnet50_v1_fpn_keras"
    fpn { min_level: 3 max_level: 7 additional_layer_depth: 256 }
    conv_hyperparams { activation: RELU batch_norm { } }
  }
  anchor_generator { multiscale_anchor_generator { aspect_ratios: [1.0, 2.0, 0.5] scales_per_octave: 3 } }
  box_predictor { weight_shared_convolutional_box_predictor {
    depth: 256 num_layers_before_predictor: 4 class_prediction_bias_init: -4.6
    conv_hyperparams { activation: RELU force_use_bias: true } } }
  box_coder { faster_rcnn_box_coder { } }
  similarity_calculator { iou_similarity { } }
  matcher { argmax_matcher { unmatched_threshold: 0.4 force_match_for_each_row: true } }
  encode_background_as_zeros: true
  loss { classification_loss { weighted_sigmoid_focal { alpha: 0.25 } } localization_loss { weighted_smooth_l1 { } } }
  post_processing { batch_non_max_suppression { score_threshold: 0.01 } score_converter: SIGMOID }
} }
train_config {
  data_augmentation_options { random_horizontal_flip { } }
  optimizer { use_moving_average: false momentum_optimizer {
    learning_rate { constant_learning_rate { learning_rate: 0.0001 } } } }
}
train_input_reader { coco_input_reader { annotations: "DATA/instances.json" image_folder: "DATA/images" } }
"""


class Speedometer:
    """Notes when each step of a run was done."""

    def __init__(self, batch: int) -> None:
        """Start, for so many images a step."""
        self.batch = batch
        self.at: dict[int, float] = {}

    def on_event(self, step: int, event: object) -> None:
        """Take in that a step's numbers are there."""
        if isinstance(event, Scalars):
            self.at[step] = time.perf_counter()

    def close(self) -> None:
        """Hear the end."""

    def speed(self) -> float:
        """Compute images a second, over all steps but the first quarter."""
        steps = sorted(self.at)
        first = steps[len(steps) // 4]
        return (steps[-1] - first) * self.batch / (self.at[steps[-1]] - self.at[first])


def run_ours(data: Path, batch: int, steps: int, arguments: argparse.Namespace) -> float:
    """Train ours.

    Args:
        data: The images' folder.
        batch: Images a step.
        steps: How many.
        arguments: Of the command.

    Returns:
        Images a second.
    """
    path = data / f"pipeline-{batch}.config"
    path.write_text(CONFIG.replace("DATA", str(data)))
    changes = [f"train_config.batch_size={batch}", f"train_config.num_steps={steps}"]
    changes += ["train_config.use_bfloat16=true"] if arguments.bfloat16 else []
    meter = Speedometer(batch)
    settings = RunSettings(
        evaluate=False,
        log_every_n=1,
        checkpoint_every_n=10**6,
        summarize_every_n=0,
        compile=arguments.compile,
        device=arguments.device,
    )
    with tempfile.TemporaryDirectory() as model_dir:
        train(load_config(path, changes), model_dir, settings, {"speed": meter})
    return meter.speed()


class _Reference(torch.utils.data.Dataset[Any]):
    """The data as torchvision's detectors want them."""

    def __init__(self, dataset: CocoDataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        sample = RandomHorizontalFlip()(self.dataset[index], np.random.default_rng(index))
        image = torch.from_numpy(np.ascontiguousarray(sample.image)).permute(2, 0, 1).float() / 255
        return image, {"boxes": torch.from_numpy(sample.boxes), "labels": torch.from_numpy(sample.labels)}


def _lists(batch: list[Any]) -> tuple[Any, ...]:
    return tuple(zip(*batch, strict=True))


def run_torchvision(data: Path, batch: int, steps: int, arguments: argparse.Namespace) -> float:
    """Train torchvision's, as its reference scripts do.

    Args:
        data: The images' folder.
        batch: Images a step.
        steps: How many.
        arguments: Of the command.

    Returns:
        Images a second.
    """
    model = retinanet_resnet50_fpn(
        weights=None,
        weights_backbone=None,
        num_classes=5,
        min_size=SIZE,
        max_size=SIZE,
        trainable_backbone_layers=5,
        norm_layer=torch.nn.BatchNorm2d,
    )
    model = model.to(arguments.device).train()
    loader = torch.utils.data.DataLoader(
        _Reference(CocoDataset(data / "instances.json", data / "images")),
        batch,
        shuffle=True,
        num_workers=1,
        collate_fn=_lists,
        drop_last=True,
    )
    optimizer = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9)
    meter, step = Speedometer(batch), 0
    while step < steps:
        for images, targets in loader:
            on_device = [{k: v.to(arguments.device) for k, v in target.items()} for target in targets]
            losses = model([image.to(arguments.device) for image in images], on_device)
            total = sum(losses.values())
            float(total.detach())
            optimizer.zero_grad()
            torch.autograd.backward(total)
            optimizer.step()
            step += 1
            meter.on_event(step, Scalars({}))
            if step == steps:
                break
    return meter.speed()


def measure(name: str, data: Path, arguments: argparse.Namespace) -> dict[str, float]:
    """Run one in this process.

    Args:
        name: "ours" or "torchvision".
        data: The images' folder.
        arguments: Of the command.

    Returns:
        Images a second, peak memory in GiB, share outside convolutions.
    """
    keep_freed_memory()  # for both: it is not what is compared
    run = {"ours": run_ours, "torchvision": run_torchvision}[name]
    speed = run(data, arguments.batch, arguments.steps, arguments)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    if arguments.device == "cuda":
        peak = torch.cuda.max_memory_allocated() / 2**30
    with torch.profiler.profile() as profile:
        run(data, arguments.batch, 4, arguments)
    rows = [(row.key, row.self_cpu_time_total + row.self_device_time_total) for row in profile.key_averages()]
    # Work only: neither the ranges that name stages, nor waiting for data.
    rows = [(key, spent) for key, spent in rows if key.startswith(("aten::", "torch::", "torchvision::"))]
    convolutions = sum(spent for key, spent in rows if "conv" in key)
    return {"images/s": speed, "peak GiB": peak, "outside convolutions": 1 - convolutions / sum(s for _, s in rows)}


def start(name: str, data: Path, batch: int, arguments: argparse.Namespace, *more: str) -> dict[str, float]:
    """Run one in a process of its own.

    Args:
        name: "ours" or "torchvision".
        data: The images' folder.
        batch: Images a step.
        arguments: Of the command.
        *more: Further flags.

    Returns:
        What `measure` returns.
    """
    command = [sys.executable, __file__, "--one", name, "--data", str(data), "--batch", str(batch)]
    command += ["--steps", str(arguments.steps), "--device", arguments.device, *more]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    row: dict[str, float] = json.loads(found.stdout.splitlines()[-1])
    title = " ".join([name, f"batch {batch}", *(flag.removeprefix("--") for flag in more)])
    print(f"{title:36}" + "  ".join(f"{key} {value:.2f}" for key, value in row.items()), flush=True)
    return row


def main() -> None:
    """Measure all, print the table, write it beside this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--more", action="store_true", help="bfloat16, compiled, larger batches")
    parser.add_argument("--bfloat16", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--compile", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments.data, arguments)))
        return
    rows: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        write_coco(ShapesDataset(IMAGES, seed=0, size=(SIZE, SIZE)), data / "instances.json")
        batch = arguments.batch
        rows["ours"] = start("ours", data, batch, arguments)
        rows["torchvision"] = start("torchvision", data, batch, arguments)
        if arguments.more:
            rows["ours bfloat16"] = start("ours", data, batch, arguments, "--bfloat16")
            rows["ours compiled"] = start("ours", data, batch, arguments, "--compile")
            rows["ours bfloat16 compiled"] = start("ours", data, batch, arguments, "--bfloat16", "--compile")
            for larger in (2 * batch, 4 * batch):
                rows[f"ours batch {larger}"] = start("ours", data, larger, arguments)
                rows[f"torchvision batch {larger}"] = start("torchvision", data, larger, arguments)
    ratio = rows["ours"]["images/s"] / rows["torchvision"]["images/s"]
    print(f"ours / torchvision, images a second: {ratio:.2f}")
    libraries = f"torch {torch.__version__}, torchvision {torchvision.__version__}"
    versions = f"{arguments.device}, {torch.get_num_threads()} threads, {libraries}"
    report = {"machine": versions, "batch": arguments.batch, "rows": rows, "ratio": ratio}
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / f"training-{arguments.device}.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
