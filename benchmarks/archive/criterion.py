"""What makes the criterion cheap, against the plain way: losses of column numbers, and hard example mining.

    python benchmarks/archive/criterion.py [--rounds 9] [--threads 2]

Losses with their gradients: eight pictures, 12,804 anchors, 91 columns, those of MobileNetV2-FPNLite 320. Mining as
every configuration that has it asks for it (overlap 0.99, 3000 examples): SSD-MobileNet's 1917 anchors and SSD300's
8732, eight pictures. In interleaved rounds of one process.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torchvision.ops import nms

from boxwright.nn.criteria.class_index_losses import NO_COLUMN, as_rows
from boxwright.nn.criteria.classification_losses import (
    ClassificationLoss,
    SigmoidCrossEntropy,
    SigmoidFocal,
    SoftmaxCrossEntropy,
)
from boxwright.nn.suppression.mining import suppress_batch
from boxwright.runtime.allocator import keep_freed_memory
from boxwright.runtime.measure import Timing, measure

LOSSES: dict[str, ClassificationLoss] = {
    "focal": SigmoidFocal(),
    "sigmoid": SigmoidCrossEntropy(),
    "softmax": SoftmaxCrossEntropy(),
}


def runs(loss: ClassificationLoss, logits: Tensor, targets: Tensor, weights: Tensor) -> Callable[[], None]:
    """Return what computes a loss and its gradient."""

    def run() -> None:
        leaf = logits.detach().requires_grad_()
        torch.autograd.backward(loss(leaf, targets, weights).sum())

    return run


def boxes_of(count: int) -> Tensor:
    """Return decoded boxes of eight pictures, [8, count, 4]: some see the same object, most their own place."""
    centre, half = torch.rand(8, count, 2) * 300, torch.rand(8, count, 2) * 60 + 5
    boxes = torch.cat([centre - half, centre + half], 2)
    boxes[:, :50] = boxes[:, :1] + torch.randn(8, 50, 4) * 0.3
    return boxes


def one_by_one(boxes: Tensor, scores: Tensor) -> None:
    """Suppress in each picture, comparing all."""
    for image, values in zip(boxes, scores, strict=True):
        nms(image, values, 0.99)[:3000]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    torch.manual_seed(0)
    logits, weights = torch.randn(8, 12804, 91) - 4, torch.ones(8, 12804, 1)
    classes = torch.full((8, 12804), NO_COLUMN)
    classes[:, ::300] = 5
    rows = as_rows(classes, 91)
    for name, loss in LOSSES.items():
        timings = measure(
            {"rows": runs(loss, logits, rows, weights), "columns": runs(loss, logits, classes, weights)},
            len(logits),
            arguments.rounds,
        )
        show(name, timings)
    for count in (1917, 8732):
        boxes, scores = boxes_of(count), torch.rand(8, count)
        both: dict[str, Callable[[], object]] = {
            "all compared": partial(one_by_one, boxes, scores),
            "near ones": partial(suppress_batch, boxes, scores, 0.99, 3000),
        }
        show(f"mining {count}", measure(both, len(boxes), arguments.rounds))


def show(what: str, timings: list[Timing]) -> None:
    """Print them."""
    for one in timings:
        print(f"{what:12} {one.name:12} {one.least_ms:7.1f} ms  ratio {one.ratio:.2f} (least {one.ratio_least:.2f})")


if __name__ == "__main__":
    main()
