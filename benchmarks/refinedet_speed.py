"""RefineDet320 against SSD300 on the same VGG-16, and against the structure of the public PyTorch port.

    python benchmarks/refinedet_speed.py [--device cuda] [--repeats 5] [--compile]

Frames a second of whole detection (resizing, network, decoding, suppression), with 21 columns of classes and
fresh weights whose background is made likely, so that about as few anchors pass as in a trained detector.
The paper has 40.3 against 46 frames a second, a ratio of 0.88 (Titan X, batch 1). The port's structure is the
same layers in PyTorch's default memory layout, each class of each image suppressed by itself.
Prints milliseconds, ratios within this run, and the share of network and of the rest; `--compile` adds the whole
training step, network and criterion in one graph. Writes all to `benchmarks/results/`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torchvision
from torch import Tensor, nn

from boxwright.nn.criteria.terms import LossTerm
from boxwright.nn.detector import Detector
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.load import load_config
from boxwright.runtime.allocator import keep_freed_memory
from boxwright.types import CascadePredictions, Targets

HERE = Path(__file__).parent
PATHS = {
    "RefineDet320": "preset:refinedet320_vgg16_voc",
    "SSD300": "preset:ssd300_vgg16_voc",
}
BACKGROUND = 6.0
Run = Callable[[], object]


def build(name: str, device: str) -> Detector:
    """Build a detector whose anchors are mostly background.

    Args:
        name: A key of `PATHS`.
        device: Where to.

    Returns:
        The detector.
    """
    torch.manual_seed(0)
    detector = build_detector(load_config(PATHS[name]))
    for level in detector.network.head.classes:  # type: ignore[union-attr]
        with torch.no_grad():
            level[-1].bias.view(-1, 21)[:, 0] += BACKGROUND
    return detector.to(device).to(memory_format=torch.channels_last)


def port(detector: Detector) -> Callable[[Tensor], list[list[Tensor]]]:
    """Detect as the port does: the same layers, PyTorch's default layout, loops over images and classes.

    Args:
        detector: A RefineDet, whose weights are taken.

    Returns:
        Inputs to boxes of each class of each image.
    """
    network = build("RefineDet320", "cpu").network
    network.load_state_dict(detector.network.state_dict())
    network = network.to(next(detector.parameters()).device).to(memory_format=torch.contiguous_format)
    coder = detector.postprocessor.detection.box_coder  # type: ignore[attr-defined]

    @torch.no_grad()
    def detect(inputs: Tensor) -> list[list[Tensor]]:
        predictions: CascadePredictions = network(inputs.contiguous(), None)
        first = predictions.refinement
        results = []
        for image in range(len(inputs)):
            anchors = coder.decode(first.box_codes[image], first.anchors)
            boxes = coder.decode(predictions.detection.box_codes[image], anchors)
            scores = predictions.detection.class_logits[image].softmax(-1)
            objects = first.class_logits[image].softmax(-1)[:, 1] > 0.01
            found = []
            for label in range(1, scores.shape[1]):
                mask = objects & (scores[:, label] > 0.01)
                if not mask.any():
                    continue
                some, of = boxes[mask], scores[mask, label]
                best = of.topk(min(1000, len(of))).indices
                found.append(some[best][torchvision.ops.nms(some[best], of[best], 0.45)])
            results.append(found)
        return results

    return detect


def samples(batch: int, size: int, device: str) -> tuple[Tensor, Targets]:
    """Make up images and targets.

    Args:
        batch: How many.
        size: Their side.
        device: Where to.

    Returns:
        Images [B, H, W, 3] in 0..255, and eight boxes each.
    """
    random = torch.Generator().manual_seed(0)
    corner = torch.rand(batch, 8, 2, generator=random) * size / 2
    boxes = torch.cat([corner, corner + 20 + torch.rand(batch, 8, 2, generator=random) * size / 3], -1)
    labels = torch.randint(20, (batch, 8), generator=random)
    valid = torch.ones(batch, 8, dtype=torch.bool)
    images = torch.randint(0, 256, (batch, size, size, 3), generator=random, dtype=torch.uint8)
    return images.to(device), Targets(boxes, labels, valid.float(), valid).to(device)


def measure(runs: dict[str, Run], device: str, repeats: int) -> dict[str, float]:
    """Time runs in turn, so that what disturbs one disturbs all.

    Args:
        runs: Name to what is run.
        device: Where it runs.
        repeats: How often.

    Returns:
        Name to median milliseconds.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(repeats + 1):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            if device == "cuda":
                torch.cuda.synchronize()
            if number:  # the first warms up
                times[name].append(1000 * (time.perf_counter() - began))
    return {name: statistics.median(values) for name, values in times.items()}


def detection(batch: int, device: str, repeats: int) -> dict[str, float]:
    """Measure whole detection, and its parts.

    Args:
        batch: Images at once.
        device: Where.
        repeats: How often.

    Returns:
        Name to milliseconds.
    """
    runs: dict[str, Run] = {}
    for name in PATHS:
        detector = build(name, device).eval()
        images, _ = samples(batch, 300 if name == "SSD300" else 320, device)
        inputs, sizes = detector.preprocess(images)
        with torch.no_grad():
            predictions = detector.predict(inputs)

        def whole(detector: Detector = detector, images: Tensor = images) -> object:
            with torch.no_grad():
                inputs, sizes = detector.preprocess(images)
                return detector.postprocess(detector.predict(inputs), sizes)

        def network(module: nn.Module = detector.network, inputs: Tensor = inputs) -> object:
            with torch.no_grad():
                return module(inputs)

        def rest(
            detector: Detector = detector, predictions: CascadePredictions = predictions, sizes: Tensor = sizes
        ) -> object:
            return detector.postprocess(predictions, sizes)

        runs |= {name: whole, f"{name} network": network, f"{name} decoding, suppression": rest}
        if name == "RefineDet320":
            theirs = port(detector)
            runs["port's structure"] = partial(theirs, inputs)
    return measure(runs, device, repeats)


def training(batch: int, device: str, repeats: int) -> dict[str, float]:
    """Measure a training step, plain and in one graph.

    Args:
        batch: Images at once.
        device: Where.
        repeats: How often.

    Returns:
        Name to milliseconds.
    """
    detector = build("RefineDet320", device).train()
    images, targets = samples(batch, 320, device)
    inputs, _ = detector.preprocess(images)

    def losses(inputs: Tensor, targets: Targets) -> Tensor:
        return LossTerm.sum(detector.criterion(detector.predict(inputs), targets))

    compiled = torch.compile(losses, fullgraph=True)

    def step(compute: Callable[[Tensor, Targets], Tensor]) -> None:
        detector.zero_grad(set_to_none=True)
        torch.autograd.backward(compute(inputs, targets))

    return measure({"step": lambda: step(losses), "step, one graph": lambda: step(compiled)}, device, repeats)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--compile", action="store_true")
    arguments = parser.parse_args()
    keep_freed_memory()
    report: dict[str, object] = {"machine": f"{arguments.device}, torch {torch.__version__}"}
    for batch in (1, 8):
        rows = detection(batch, arguments.device, arguments.repeats)
        rows["frames of RefineDet320 / SSD300"] = rows["SSD300"] / rows["RefineDet320"]
        rows["frames of RefineDet320 / port's structure"] = rows["port's structure"] / rows["RefineDet320"]
        report[f"batch {batch}"] = rows
        print(f"batch {batch}")
        for name, value in rows.items():
            print(f"  {name:44}{value:10.2f}", flush=True)
    if arguments.compile:
        report["training, batch 4"] = rows = training(4, arguments.device, arguments.repeats)
        for name, value in rows.items():
            print(f"  {name:44}{value:10.2f}", flush=True)
    path = HERE / "results" / f"refinedet-speed-{arguments.device}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
