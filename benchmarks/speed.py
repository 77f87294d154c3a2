"""Where training and inference stand against torchvision's nearest, and against themselves before: one table.

    python benchmarks/speed.py [--rounds 9] [--threads 2] [--only a b c d e f g h layouts] [--compile]

a: a step of MobileNetV2-FPNLite 320, eight pictures, of torchvision's SSDLite320 (which has a quarter of its anchors).
b: a step of SSDLite with MobileNetV2, of the same.
c: ResNet-50-FPN 640, one picture, inference and step, of torchvision's RetinaNet at 640.
d: EfficientDet-D0, one picture, optimized, of the same not optimized.
e: RefineDet320, one picture, of SSD300 on the same VGG-16.
f: whole training loops (`training.py`, which writes its own results). g: suppression (`suppression.py`, likewise).
h: ResNet-50-FPN 640: detection of its backbone alone; a step of its forward pass.
layouts: channels last of channels first, of detection and of steps, for four backbones.
criterion: loss and its gradients, of the step of a, and of c.

Contenders take turns in one process; printed and written to `benchmarks/results/speed-cpu.json` are ratios within
rounds, least and median, and milliseconds. Weights of ours are made up so that scores spread as a trained network's
do; torchvision's are fresh, but its detectors' background is made to win, so that suppression has little to do.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import boxwright  # noqa: F401  # first: it sets how long threads spin, which PyTorch reads when it is imported

# isort: split
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from boxwright.cli.benchmarking.facts import channels_first
from boxwright.cli.benchmarking.steps import our_step, their_step
from boxwright.cli.benchmarking.torchvision_detectors import their_detection, torchvision_detector
from boxwright.data.shapes import ShapesDataset
from boxwright.nn.criteria.terms import LossTerm
from boxwright.nn.detector import Detector
from boxwright.runtime.allocator import keep_freed_memory
from boxwright.runtime.measure import Timing, load, measure
from boxwright.types import AnchorPredictions, Targets

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
from tests.exporters.small_detectors import build  # noqa: E402  # of the repository, not of the package

from refinedet_speed import build as vgg  # noqa: E402  # a script beside this one
from step import ANCHORS, COMMON  # noqa: E402

RESULTS = HERE / "results" / "speed-cpu.json"
GOLDEN = HERE.parent / "tests" / "golden" / "models"
Run = Callable[[], Any]
Pixels = NDArray[np.uint8]
SSDLITE = (
    COMMON.replace("SIZE", "320")
    .replace("TYPE", "ssd_mobilenet_v2_keras")
    .replace("EXTRA", "")
    .replace("HEAD", ANCHORS)
    .replace("USE", "use_depthwise: true")
)


def recorded(name: str) -> Detector:
    """Build a detector of the recordings, with weights that find much."""
    text = json.loads((GOLDEN / f"{name}_coco17_tpu-8.json").read_text())["model_text"]
    return build(text).to(memory_format=torch.channels_last)


def pictures(count: int, size: int) -> list[Pixels]:
    """Make pictures of shapes."""
    dataset = ShapesDataset(count, seed=5, size=(size, size))
    return [dataset[number].image for number in range(count)]


def quiet(model: nn.Module) -> nn.Module:
    """Let the background win in a fresh detector of torchvision's: of thousands of boxes none scores."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "classification_head" in name and name.endswith("cls_logits.bias"):
                parameter.fill_(-8.0)
    return model


def criterion_alone(detector: Detector, given: list[Pixels]) -> Run:
    """Return the losses of predictions that are there already, and their gradients."""
    count = len(given)
    with torch.no_grad():
        inputs, sizes = detector.preprocess(torch.from_numpy(np.stack(given)))
        said: AnchorPredictions = detector.train().predict(inputs, sizes)
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(count, 8, 2, 2, generator=generator).sort(dim=2).values * 300
    corners[:, :, 1] += 16
    ones = torch.ones(count, 8)
    targets = Targets(corners.flatten(2), torch.zeros(count, 8, dtype=torch.int64), ones, ones > 0)

    def run() -> None:
        leaves = replace(
            said,
            box_codes=said.box_codes.detach().requires_grad_(),
            class_logits=said.class_logits.detach().requires_grad_(),
        )
        torch.autograd.backward(LossTerm.sum(detector.criterion(leaves, targets)))

    return run


def compiled_step(detector: Detector, given: list[Pixels]) -> Run:
    """Return a step whose network is compiled."""
    detector.network.compile(dynamic=False)
    return our_step(detector, given)


def row_a(*, compile: bool) -> dict[str, Run]:
    """List the contenders, the one that the others are compared with first."""
    given = pictures(8, 320)
    name = "ssd_mobilenet_v2_fpnlite_320x320"
    found = {
        "torchvision SSDLite320 step": their_step(torchvision_detector("ssdlite320_mobilenet_v3_large"), given),
        "FPNLite 320 step": our_step(recorded(name), given),
        "criterion": criterion_alone(recorded(name), given),
    }
    return found | ({"FPNLite 320 step, compiled": compiled_step(recorded(name), given)} if compile else {})


def row_b(*, compile: bool) -> dict[str, Run]:
    """As `row_a`, of SSDLite with MobileNetV2."""
    del compile
    given = pictures(8, 320)
    return {
        "torchvision SSDLite320 step": their_step(torchvision_detector("ssdlite320_mobilenet_v3_large"), given),
        "SSDLite MobileNetV2 320 step": our_step(build(SSDLITE).to(memory_format=torch.channels_last), given),
    }


def row_c(*, compile: bool) -> dict[str, Run]:
    """As `row_a`, of ResNet-50-FPN 640."""
    del compile
    given, name = pictures(1, 640), "ssd_resnet50_v1_fpn_640x640"
    seeing = recorded(name).optimize()
    theirs = quiet(torchvision_detector("retinanet_resnet50_fpn@640"))
    learning = torchvision_detector("retinanet_resnet50_fpn@640")
    return {
        "torchvision RetinaNet 640": their_detection(theirs, given),
        "ResNet-50-FPN 640": lambda: seeing.detect(given),
        "torchvision RetinaNet 640 step": their_step(learning, given),
        "ResNet-50-FPN 640 step": our_step(recorded(name), given),
        "criterion": criterion_alone(recorded(name), given),
    }


def row_d(*, compile: bool) -> dict[str, Run]:
    """As `row_a`, of EfficientDet-D0."""
    given, name = pictures(1, 512), "ssd_efficientdet_d0_512x512"
    before, after = build(json.loads((GOLDEN / f"{name}_coco17_tpu-8.json").read_text())["model_text"]), recorded(name)
    after.optimize()
    found: dict[str, Run] = {
        "D0, not optimized": lambda: before.detect(given),
        "D0, optimized": lambda: after.detect(given),
    }
    if compile:
        third = recorded(name).optimize(compile=True)
        found["D0, compiled"] = lambda: third.detect(given)
    return found


def row_e(*, compile: bool) -> dict[str, Run]:
    """As `row_a`, of RefineDet320."""
    del compile
    found: dict[str, Run] = {}
    for name, side in (("SSD300", 300), ("RefineDet320", 320)):
        given, detector = pictures(1, side), vgg(name, "cpu").optimize()
        found[name] = lambda detector=detector, given=given: detector.detect(given)  # type: ignore[misc]
    return found


def row_h(*, compile: bool) -> dict[str, Run]:
    """As `row_a`, of ResNet-50-FPN 640 and its parts."""
    del compile
    given, name = pictures(1, 640), "ssd_resnet50_v1_fpn_640x640"
    seeing, learning = recorded(name).optimize(), recorded(name)
    backbone = seeing.network.get_submodule("backbone")
    with torch.no_grad():
        inputs, sizes = seeing.preprocess(torch.from_numpy(np.stack(given)))

    def backbone_alone() -> None:
        with torch.no_grad():
            backbone(inputs)

    step = our_step(learning, given)
    return {
        "backbone alone": backbone_alone,
        "detection": lambda: seeing.detect(given),
        "forward of a step": lambda: learning.predict(inputs, sizes),
        "whole step": step,
    }


def row_layouts(*, compile: bool) -> dict[str, Run]:
    """As `row_a`, of each backbone in two layouts."""
    del compile
    found: dict[str, Run] = {}
    kinds: dict[str, tuple[Callable[[], Detector], list[Pixels]]] = {
        "FPNLite 320": (lambda: recorded("ssd_mobilenet_v2_fpnlite_320x320"), pictures(4, 320)),
        "EfficientDet-D0": (lambda: recorded("ssd_efficientdet_d0_512x512"), pictures(1, 512)),
        "ResNet-50-FPN 640": (lambda: recorded("ssd_resnet50_v1_fpn_640x640"), pictures(1, 640)),
        "RefineDet320": (lambda: vgg("RefineDet320", "cpu"), pictures(1, 320)),
    }
    for name, (make, given) in kinds.items():
        for layout, side in (("first", torch.contiguous_format), ("last", torch.channels_last)):
            seeing, learning = make(), make()
            step = our_step(learning, given)
            for one in (seeing, learning):
                one.to(memory_format=side)
                if layout == "first":
                    one.network.register_forward_pre_hook(channels_first)
            found[f"{name}, channels {layout}"] = lambda seeing=seeing, given=given: seeing.detect(given)  # type: ignore[misc]
            found[f"{name}, channels {layout}, step"] = step
    return found


ROWS = {"a": row_a, "b": row_b, "c": row_c, "d": row_d, "e": row_e, "h": row_h, "layouts": row_layouts}
OTHERS = {"f": "training.py", "g": "suppression.py"}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="+", default=[*ROWS, *OTHERS], choices=[*ROWS, *OTHERS])
    parser.add_argument("--compile", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    report = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for row in arguments.only:
        if row in OTHERS:
            print(f"{row}  {OTHERS[row]}", flush=True)
            subprocess.run([sys.executable, HERE / OTHERS[row]], check=True)
            continue
        busy, _ = load()
        timings = measure(ROWS[row](compile=arguments.compile), 1, arguments.rounds)
        report[row] = {"load of a core": busy, **{one.name: summary(one, timings) for one in timings}}
        for one in timings:
            kept = summary(one, timings)
            ratios = f"{kept['median ratio']:.2f} (of least times {kept['ratio of least']:.2f})"
            print(f"{row}  {one.name:40} {one.least_ms:8.1f} ms  median ratio {ratios}")
    report["machine"] = f"{arguments.threads} threads, torch {version('torch')}, torchvision {version('torchvision')}"
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")


def base(one: Timing, timings: list[Timing]) -> Timing:
    """Return what a contender is compared with: the first of its kind; a criterion with the last step."""
    if one.name == "criterion":
        return [other for other in timings if other.name.endswith("step")][-1]
    first = one.name.split(", channels")[0]
    same = [other for other in timings if ", channels" not in one.name or other.name.startswith(first)]
    return next(other for other in same if other.name.endswith("step") == ("step" in one.name))


def summary(one: Timing, timings: list[Timing]) -> dict[str, float]:
    """Return what is kept of a contender."""
    other = base(one, timings)
    shares = np.array(one.samples_ms) / np.array(other.samples_ms)
    return {
        "least ms": one.least_ms,
        "median ms": one.median_ms,
        "ratio of least": one.least_ms / other.least_ms,
        "median ratio": float(np.median(shares)),
    }


if __name__ == "__main__":
    main()
