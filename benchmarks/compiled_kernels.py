"""A training step whose layers are computed by the compiled kernels, over one whose layers are PyTorch's operators.

    python benchmarks/compiled_kernels.py [--rounds 9] [--json FILE]

Presets: SSD MobileNetV2 320 and FPNLite 320 at batch 8, EfficientDet-D0, ResNet-50 FPN and Faster R-CNN at batch 1;
made-up images with eight boxes each; forward, losses and backward. Both kinds take turns within a round of one process;
least and median.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import boxwright as bw  # first: it sets how long threads spin, which PyTorch reads when it is imported

# isort: split
import torch

from boxwright.nn.cpu_acceleration import use_kernels
from boxwright.nn.criteria.terms import LossTerm
from boxwright.runtime.allocator import keep_freed_memory
from boxwright.runtime.measure import load, measure
from boxwright.types import Targets

OBJECTS = 8
MODELS = {
    "ssd_mobilenet_v2_320": 8,
    "ssd_mobilenet_v2_fpnlite_320": 8,
    "efficientdet_d0": 1,
    "ssd_resnet50_v1_fpn_640": 1,
    "faster_rcnn_resnet50_v1_640": 1,
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    keep_freed_memory()
    found = {"torch": torch.__version__, "threads": torch.get_num_threads(), "load per core": round(load()[0], 2)}
    rows: dict[str, object] = {**found}
    for name, batch in MODELS.items():
        contenders = {kind: step(name, batch, plain=kind == "PyTorch's") for kind in ("PyTorch's", "compiled")}
        plain, compiled = measure(contenders, batch, arguments.rounds)
        rows[name] = {
            "PyTorch's ms": round(plain.median_ms, 1),
            "compiled ms": round(compiled.median_ms, 1),
            "ratio least": round(compiled.ratio_least, 3),
            "ratio": round(compiled.ratio, 3),
        }
        print(name, json.dumps(rows[name]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


def step(name: str, batch: int, *, plain: bool) -> Callable[[], object]:
    """Return a step of a preset's detector."""
    torch.manual_seed(0)
    detector = bw.build_detector(bw.load_config(f"preset:{name}")).to(memory_format=torch.channels_last).train()
    if plain:
        use_kernels(detector.network, ())
    size = detector.preprocessor.resizer.output_size or (512, 512)
    inputs, sizes = detector.preprocess(torch.randint(0, 256, (batch, *size, 3), dtype=torch.uint8))
    low = torch.rand(batch, OBJECTS, 2) * 0.6 * size[0]
    ones = torch.ones(batch, OBJECTS)
    boxes = torch.cat([low, low + 0.3 * size[0]], -1)
    targets = Targets(boxes, torch.randint(0, 90, (batch, OBJECTS)), ones, ones > 0)

    def run() -> None:
        detector.zero_grad(set_to_none=True)
        terms = detector.criterion(detector.predict(inputs, sizes, targets), targets)
        torch.autograd.backward(LossTerm.sum(terms))

    return run


if __name__ == "__main__":
    main()
