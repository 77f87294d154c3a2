"""Three of TF's detectors here, against torchvision's of like size, in one run.

    python benchmarks/detectors.py [--device cuda] [--repeats 8]

The three are those of the recordings in tests/golden/models, at full size, 90 classes, with the recordings'
made-up weights, whose scores crowd as a trained network's do not. Images are random. Prints
milliseconds; ratios of ours over torchvision's (below 1 is faster) and over the figures that
TensorFlow itself took on a machine of two cores; where the time of an inference goes; and what
`torch.compile` brings, each into one graph without breaks.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import Tensor
from torchvision.models.detection import retinanet_resnet50_fpn, ssdlite320_mobilenet_v3_large

from boxwright.config.load import parse_message
from boxwright.nn.criteria.terms import LossTerm
from boxwright.nn.detector import Detector
from boxwright.nn.optimization.optimizers import Momentum, Optimizer
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.messages import DetectionModel
from boxwright.runtime.allocator import keep_freed_memory
from boxwright.types import Targets
from boxwright.weights.load_weights import load_weights

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from tests.golden.weights import weight  # noqa: E402  # of the repository, not of the package

MODELS = HERE.parent / "tests" / "golden" / "models"
# Name → side, batch of a training step, and TensorFlow's milliseconds: inference of one, of eight, a step of eight.
OURS: dict[str, tuple[int, int, tuple[float | None, ...]]] = {
    "ssd_mobilenet_v2_fpnlite_320x320_coco17_tpu-8": (320, 8, (34, 201, 508)),
    "ssd_resnet50_v1_fpn_640x640_coco17_tpu-8": (640, 1, (513, None, None)),
    "ssd_efficientdet_d0_512x512_coco17_tpu-8": (512, 1, (122, None, None)),
}
THEIRS: dict[str, tuple[Callable[..., Any], int]] = {
    "ssdlite320_mobilenet_v3_large": (ssdlite320_mobilenet_v3_large, 320),
    "retinanet_resnet50_fpn": (retinanet_resnet50_fpn, 640),
}
AGAINST = {
    "ssd_mobilenet_v2_fpnlite_320x320_coco17_tpu-8": "ssdlite320_mobilenet_v3_large",
    "ssd_resnet50_v1_fpn_640x640_coco17_tpu-8": "retinanet_resnet50_fpn",
    "ssd_efficientdet_d0_512x512_coco17_tpu-8": "retinanet_resnet50_fpn",
}
Run = Callable[[], Any]


def samples(batch: int, size: int, device: str) -> tuple[Tensor, Targets]:
    """Make random images with eight boxes each.

    Args:
        batch: How many.
        size: Their side.
        device: Where.

    Returns:
        uint8 [B, size, size, 3], and the groundtruth.
    """
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 255, (batch, size, size, 3), dtype=torch.uint8, generator=generator)
    boxes = torch.rand(batch, 8, 4, generator=generator) * size / 2
    boxes[..., 2:] += boxes[..., :2] + 8
    ones = torch.ones(batch, 8)
    return images.to(device), Targets(boxes, torch.ones(batch, 8, dtype=torch.int64), ones, ones > 0).to(device)


def ours(name: str, device: str) -> Detector:
    """Build a recorded detector with its weights.

    Args:
        name: The recording.
        device: Where it runs.

    Returns:
        The detector.
    """
    description = json.loads((MODELS / f"{name}.json").read_text())
    detector = build_detector(parse_message(description["model_text"], DetectionModel))
    load_weights(detector, {k: weight(k, tuple(s), description["gain"]) for k, s in description["variables"]})
    return detector.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def our_runs(name: str, device: str) -> dict[str, Run]:
    """List what is timed of one of ours.

    Args:
        name: The recording.
        device: Where it runs.

    Returns:
        What, to how.
    """
    size, train_batch, _ = OURS[name]
    detector = ours(name, device)
    optimizer = Optimizer([p for p in detector.parameters() if p.requires_grad], Momentum(0.9))
    optimizer.param_groups[0]["lr"] = 1e-5
    post: Any = detector.postprocessor

    def losses(inputs: Tensor, targets: Targets) -> Tensor:
        return LossTerm.sum(detector.criterion(detector.predict(inputs), targets))

    @torch.no_grad()
    def found(inputs: Tensor, windows: Tensor) -> Tensor:
        raw = post.decode(detector.predict(inputs))
        boxes: Tensor = post.nms(raw.boxes, raw.scores[..., post.background :], windows).boxes
        return boxes

    def step(loss: Callable[[Tensor, Targets], Tensor]) -> Run:
        images, targets = samples(train_batch, size, device)
        true_sizes = torch.full((train_batch, 2), size)

        def run() -> None:
            detector.train()
            inputs = detector.preprocessor.normalize(images.permute(0, 3, 1, 2), true_sizes)
            optimizer.zero_grad()
            torch.autograd.backward(loss(inputs, targets))
            optimizer.step()

        return run

    def infer(batch: int) -> Run:
        images = list(samples(batch, size, device)[0].permute(0, 3, 1, 2))
        return lambda: detector.detect(images)

    def dense(network: Callable[[Tensor, Tensor], Tensor]) -> Run:
        images, _ = samples(1, size, device)
        inputs, sizes = detector.preprocess(images)

        def run() -> None:
            detector.eval()
            network(inputs, sizes.float())

        return run

    whole = {"fullgraph": True, "dynamic": False}
    return {
        "infer 1": infer(1),
        "infer 8": infer(8),
        f"train {train_batch}": step(losses),
        f"train {train_batch}, compiled": step(torch.compile(losses, **whole)),  # type: ignore[call-overload]
        "network + padded suppression": dense(found),
        "network + padded suppression, compiled": dense(torch.compile(found, **whole)),  # type: ignore[call-overload]
        **stages(detector, size, device),
    }


def stages(detector: Detector, size: int, device: str) -> dict[str, Run]:
    """List the parts of an inference of one image.

    Args:
        detector: The detector.
        size: The side of its input.
        device: Where it runs.

    Returns:
        What, to how.
    """
    images, _ = samples(1, size, device)
    inputs, sizes = detector.preprocess(images)
    with torch.no_grad():
        predictions = detector.eval().predict(inputs)

    @torch.no_grad()
    def network() -> None:
        detector.eval().predict(inputs)

    return {
        "preprocess": lambda: detector.preprocess(images),
        "network": network,
        "postprocess": lambda: detector.postprocess(predictions, sizes),
    }


def their_runs(name: str, train_batch: int, device: str) -> dict[str, Run]:
    """List what is timed of one of torchvision's.

    Args:
        name: Its name.
        train_batch: Images of a training step.
        device: Where it runs.

    Returns:
        What, to how.
    """
    build, size = THEIRS[name]
    sides = {"min_size": size, "max_size": size} if "retinanet" in name else {}
    model = build(weights=None, weights_backbone=None, num_classes=91, **sides)
    model.to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 1e-5, momentum=0.9)

    def pictures(batch: int) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
        images, targets = samples(batch, size, device)
        rows = zip(targets.boxes, targets.labels, strict=True)
        return list(images.permute(0, 3, 1, 2)), [{"boxes": boxes, "labels": labels} for boxes, labels in rows]

    def infer(batch: int) -> Run:
        images, _ = pictures(batch)

        @torch.no_grad()
        def run() -> None:
            model.eval()
            model([image.float() / 255 for image in images])

        return run

    def train() -> None:
        model.train()
        images, rows = pictures(train_batch)
        loss = sum(model([image.float() / 255 for image in images], rows).values())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()

    return {"infer 1": infer(1), "infer 8": infer(8), f"train {train_batch}": train}


def measure(runs: dict[str, Run], device: str, repeats: int) -> dict[str, float]:
    """Time some things turn by turn, so that what else the machine does falls on all.

    Args:
        runs: What, to how.
        device: Where they run.
        repeats: How often each.

    Returns:
        What, to milliseconds, the median.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeats + 2):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            if device == "cuda":
                torch.cuda.synchronize()
            if turn > 1:
                times[name].append(1000 * (time.perf_counter() - began))
    return {name: sorted(values)[len(values) // 2] for name, values in times.items()}


def report(name: str, rows: dict[str, float]) -> dict[str, float]:
    """Compute the ratios of one of ours.

    Args:
        name: Its name.
        rows: Milliseconds, of ours and of torchvision's.

    Returns:
        Ratio's name to ratio.
    """
    _, batch, tensorflow = OURS[name]
    train = f"train {batch}"
    ratios = {
        f"{what} / torchvision": rows[what] / rows[f"torchvision {what}"] for what in ("infer 1", "infer 8", train)
    }
    for what, theirs in zip(("infer 1", "infer 8", train), tensorflow, strict=True):
        if theirs is not None:
            ratios[f"{what} / TensorFlow's figure"] = rows[what] / theirs
    ratios["compiled / not: train"] = rows[f"{train}, compiled"] / rows[train]
    dense = "network + padded suppression"
    ratios["compiled / not: network + suppression"] = rows[f"{dense}, compiled"] / rows[dense]
    parts = ("preprocess", "network", "postprocess")
    whole = sum(rows[part] for part in parts)
    return ratios | {f"share of {part}": rows[part] / whole for part in parts}


def main() -> None:
    """Measure, print, and write the results beside this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--only", default="", help="a part of the name of the detectors to measure")
    arguments = parser.parse_args()
    device = arguments.device
    keep_freed_memory()  # for both: it is not what is compared
    results: dict[str, dict[str, dict[str, float]]] = {}
    for name in (name for name in OURS if arguments.only in name):
        torch._dynamo.reset()
        theirs = their_runs(AGAINST[name], OURS[name][1], device)
        runs = our_runs(name, device) | {f"torchvision {what}": run for what, run in theirs.items()}
        rows = measure(runs, device, arguments.repeats)
        results[name] = {"milliseconds": rows, "ratios": report(name, rows)}
        print(f"{name}, against {AGAINST[name]}")
        for kind, values in results[name].items():
            for what, value in values.items():
                print(
                    f"  {what:46}{value:10.1f}" if kind == "milliseconds" else f"  {what:46}{value:10.2f}", flush=True
                )
    versions = (
        f"{device}, {torch.get_num_threads()} threads, torch {torch.__version__}, torchvision {torchvision.__version__}"
    )
    (HERE / "results").mkdir(exist_ok=True)
    if not arguments.only:
        path = HERE / "results" / f"detectors-{device}.json"
        path.write_text(json.dumps({"machine": versions, **results}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
