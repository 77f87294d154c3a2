"""Twenty minutes on real data: our SSD against torchvision's SSDLite, both from scratch.

    BOXWRIGHT_DATA=folder-that-holds-bccd python benchmarks/archive/bccd.py [--minutes 20] [--only ours|torchvision]

Both see the blood-cell images (BCCD) at 320×240, train on `trainval` for the same wall time, and
are measured on `test` by the same COCO metrics. Ours is `bccd.config` as it stands; the length of
its cosine is set from the speed of its first steps, within the same time. The other is
`ssdlite320_mobilenet_v3_large` of torchvision with its own losses and anchors, horizontal flips,
momentum SGD and a cosine of the same length. Results are written to `benchmarks/archive/results/`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from torchvision.models.detection import ssdlite320_mobilenet_v3_large
from torchvision.models.detection.transform import GeneralizedRCNNTransform

from boxwright.data.augmentation.flip import RandomHorizontalFlip
from boxwright.data.voc import VocDataset
from boxwright.evaluation.build import EvaluationPlan
from boxwright.evaluation.image_results import ImageResults
from boxwright.evaluation.metrics.coco import CocoMetrics
from boxwright.evaluation.network import evaluate_on_dataset
from boxwright.evaluation.write import write_evaluation
from boxwright.pipeline.input_reader import build_dataset
from boxwright.pipeline.load import load_config
from boxwright.runtime.allocator import keep_freed_memory
from boxwright.training.log import Event, Scalars
from boxwright.training.settings import RunSettings
from boxwright.training.train import train
from boxwright.types import Detections
from boxwright.weights.restore import restore_detector

HERE = Path(__file__).parent
SIZE = (240, 320)
AP, AP50 = "DetectionBoxes_Precision/mAP", "DetectionBoxes_Precision/mAP@.50IOU"


class Printer:
    """Prints a run's steps now and then."""

    def __init__(self, total: int = 0, batch: int = 16) -> None:
        """Start the clock; a run has so many steps, of so many images."""
        self.total, self.batch = total, batch
        self.began = self.last = time.monotonic()
        self.speed = 0.0

    def on_event(self, step: int, event: Event) -> None:
        """Print a step of a run."""
        if isinstance(event, Scalars) and "steps_per_sec" in event.values:
            self.step(step, self.total, dict(event.values), event.values["steps_per_sec"] * self.batch)

    def close(self) -> None:
        """Do nothing at the end."""

    def step(self, step: int, total: int, values: dict[str, float], images_per_second: float) -> None:
        """Print a step, every half minute.

        Args:
            step: Steps done.
            total: Steps in all.
            values: Loss terms and learning rate.
            images_per_second: Lately.
        """
        now, self.speed = time.monotonic(), images_per_second
        if now - self.last > 30:
            self.last = now
            loss = values["Loss/total_loss"]
            print(
                f"{now - self.began:6.0f} s  step {step}/{total}  loss {loss:.3f}  {images_per_second:.1f}/s",
                flush=True,
            )

    def evaluated(self, step: int, evaluation: Any) -> None:
        """Hear of an evaluation; there is none in these runs.

        Args:
            step: Steps done.
            evaluation: What was found.
        """


def run_ours(
    root: Path, seconds: float, out: Path, path: Path = HERE.parent / "bccd.config", seed: int = 0
) -> dict[str, float]:
    """Train and measure ours.

    Args:
        root: The BCCD folder.
        seconds: Wall time of training, calibration and compilation included.
        out: Where pictures go.
        path: The configuration.
        seed: Of the run.

    Returns:
        AP, AP50, images seen, seconds.
    """
    overrides = [
        f"train_input_reader.voc_input_reader.root={root}",
        f"eval_input_reader.voc_input_reader.root={root}",
        f"train_input_reader.label_map_path={HERE.parent / 'bccd_label_map.pbtxt'}",
        f"eval_input_reader.label_map_path={HERE.parent / 'bccd_label_map.pbtxt'}",
    ]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        warm = 60
        trial = load_config(path, [*overrides, f"train_config.num_steps={warm}"])
        settings = RunSettings(evaluate=False, checkpoint_every_n=10**6)
        batch = trial.train_config.batch_size if trial.train_config else 1
        printer = Printer(warm, batch)
        train(trial, Path(scratch) / "trial", settings, {"printer": printer})
        # The speed at the trial's end; three parts in a hundred are left for the start and for noise.
        steps = int((seconds - (time.monotonic() - began)) * 0.97 * printer.speed / batch)
        schedule = "train_config.optimizer.adam_optimizer.learning_rate.cosine_decay_learning_rate.total_steps"
        config = load_config(path, [*overrides, f"train_config.num_steps={steps}", f"{schedule}={steps}"])
        left = seconds - (time.monotonic() - began)
        settings = RunSettings(evaluate=False, checkpoint_every_n=10**6, max_seconds=left, log_every_n=20, seed=seed)
        done = train(config, Path(scratch) / "run", settings, {"printer": Printer(steps, batch)})
        took = time.monotonic() - began
        detector, config, _ = restore_detector(Path(scratch) / "run", use_average=True)
    dataset = build_dataset(config.eval_input_reader[0], "eval_input_reader")
    plan = EvaluationPlan(batch_size=8, num_pictures=12)
    with ImageResults(out) as results:
        evaluation = evaluate_on_dataset(detector, dataset, plan, keep=results.add)
        write_evaluation(evaluation, results, out)
    print(json.dumps(evaluation.metrics, indent=1))
    images = (done + warm) * (config.train_config.batch_size if config.train_config else 0)
    return {"AP": evaluation.metrics[AP], "AP50": evaluation.metrics[AP50], "images": images, "seconds": took}


class TorchvisionSamples(torch.utils.data.Dataset[Any]):
    """BCCD as torchvision's detectors want it, at 320×240, flipped at random."""

    def __init__(self, dataset: VocDataset) -> None:
        """Remember the data.

        Args:
            dataset: The data.
        """
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Read and flip one sample.

        Args:
            index: From 0.

        Returns:
            Image float [3, 240, 320] and its target.
        """
        sample = self.dataset[index]
        sample = RandomHorizontalFlip()(sample, np.random.default_rng(int(torch.randint(2**31, ()))))
        height, width = sample.image.shape[:2]
        image = torch.from_numpy(sample.image).permute(2, 0, 1)[None].float() / 255
        image = torch.nn.functional.interpolate(image, SIZE, mode="bilinear", antialias=True)[0]
        boxes = torch.from_numpy(sample.boxes) * torch.tensor([SIZE[1] / width, SIZE[0] / height] * 2)
        keep = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
        return image, {"boxes": boxes[keep], "labels": torch.from_numpy(sample.labels)[keep] + 1}


def _pairs(batch: list[Any]) -> tuple[Any, ...]:
    return tuple(zip(*batch, strict=True))


def ssdlite(classes: int) -> Any:
    """Make torchvision's SSDLite."""
    return ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=classes)


def run_torchvision(
    root: Path, seconds: float, build: Callable[[int], Any] = ssdlite, seed: int = 0, rate: float = 0.05
) -> dict[str, float]:
    """Train and measure one of torchvision's.

    Args:
        root: The BCCD folder.
        seconds: Wall time of training.
        build: Makes it, given its classes with background.
        seed: Of weights and order.
        rate: The largest learning rate.

    Returns:
        AP, AP50, images seen, seconds.
    """
    torch.manual_seed(seed)
    training = VocDataset(root, "trainval")
    model = build(len(training.categories) + 1)
    model.transform = GeneralizedRCNNTransform(
        SIZE[0], SIZE[1], [0.5] * 3, [0.5] * 3, size_divisible=1, fixed_size=(SIZE[1], SIZE[0])
    )
    model = model.to(memory_format=torch.channels_last).train()
    loader = torch.utils.data.DataLoader(
        TorchvisionSamples(training), batch_size=16, shuffle=True, num_workers=1, collate_fn=_pairs, drop_last=True
    )
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9, weight_decay=4e-5)
    began, images, printer = time.monotonic(), 0, Printer()
    while time.monotonic() - began < seconds:
        for pictures, targets in loader:
            share = min((time.monotonic() - began) / seconds, 1.0)
            warm = min(images / 1600, 1.0)
            for group in optimizer.param_groups:
                group["lr"] = rate * warm * 0.5 * (1 + math.cos(math.pi * share))
            loss = sum(model(list(pictures), list(targets)).values())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
            images += len(pictures)
            speed = images / (time.monotonic() - began)
            printer.step(images // 16, int(speed * seconds / 16), {"Loss/total_loss": float(loss)}, speed)
            if time.monotonic() - began >= seconds:
                break
    took = time.monotonic() - began
    metrics = _measure_torchvision(model.eval(), VocDataset(root, "test", training.categories))
    print(json.dumps(metrics, indent=1))
    return {"AP": metrics[AP], "AP50": metrics[AP50], "images": images, "seconds": took}


@torch.no_grad()
def _measure_torchvision(model: torch.nn.Module, dataset: VocDataset) -> dict[str, float]:
    metrics = CocoMetrics(dataset.categories)
    for index in range(len(dataset)):
        sample = dataset[index]
        height, width = sample.image.shape[:2]
        image = torch.from_numpy(sample.image).permute(2, 0, 1)[None].float() / 255
        image = torch.nn.functional.interpolate(image, SIZE, mode="bilinear", antialias=True)[0]
        (found,) = model([image])
        boxes = found["boxes"] * torch.tensor([width / SIZE[1], height / SIZE[0]] * 2)
        metrics.add(sample, Detections(boxes, found["scores"], found["labels"] - 1, (height, width)).arrays())
    return metrics.compute().values


def main() -> None:
    """Run what was asked for and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0, help="wall time of each training")
    parser.add_argument("--only", choices=("ours", "torchvision"), help="run one of the two")
    arguments = parser.parse_args()
    folder = os.environ.get("BOXWRIGHT_DATA")
    if not folder or not (Path(folder) / "bccd").is_dir():
        raise SystemExit("set BOXWRIGHT_DATA to the folder that holds bccd/ (Annotations, ImageSets, JPEGImages)")
    root, seconds, results = Path(folder) / "bccd", arguments.minutes * 60, HERE / "results"
    results.mkdir(exist_ok=True)
    keep_freed_memory()  # for both: it is not what is compared
    path = results / "bccd.json"
    report: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    report["machine"] = (
        f"{os.cpu_count()} cores, torch {torch.__version__}, torchvision {torchvision.__version__}, "
        + (f"Python {platform.python_version()}")
    )
    if arguments.only != "torchvision":
        report["ours"] = run_ours(root, seconds, results / "bccd")
    if arguments.only != "ours":
        report["torchvision"] = run_torchvision(root, seconds)
    path.write_text(json.dumps(report, indent=1) + "\n")
    for name in ("ours", "torchvision"):
        if name in report:
            row = report[name]
            print(
                f"{name:12} AP {row['AP']:.3f}  AP50 {row['AP50']:.3f}  "
                f"{row['images']:.0f} images in {row['seconds']:.0f} s"
            )


if __name__ == "__main__":
    main()
