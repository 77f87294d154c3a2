"""Classification losses of column numbers against the same losses of dense rows, with their gradients.

    python benchmarks/criterion.py [--rounds 9] [--threads 2]

Eight pictures, 12,804 anchors, 91 columns: those of MobileNetV2-FPNLite 320. In interleaved rounds of one process.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

from boxwright.criteria.class_index_losses import NO_COLUMN, as_rows
from boxwright.criteria.classification_losses import (
    ClassificationLoss,
    SigmoidCrossEntropy,
    SigmoidFocal,
    SoftmaxCrossEntropy,
)
from boxwright.runtime.measure import measure
from boxwright.training.allocator import keep_freed_memory

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
        for one in timings:
            print(f"{name:8} {one.name:8} {one.least_ms:7.1f} ms  ratio {one.ratio:.2f} (least {one.ratio_least:.2f})")


if __name__ == "__main__":
    main()
