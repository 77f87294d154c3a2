"""Counting the machine-independent costs of presets' networks, which are kept in a file.

python -m boxwright.cli.benchmarking.presets [NAME …]    counts these presets (default: all) and rewrites the file
"""

from __future__ import annotations

import sys

import torch

from boxwright.cli.benchmarking.facts import count_operations, count_parameters
from boxwright.cli.benchmarking.preset_costs import COSTS, PICTURE, PresetCost, read_costs, write_costs
from boxwright.config.preset import PREFIX, preset_names
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.load import load_config


def count_preset(name: str) -> PresetCost:
    """Return the costs of a preset's network.

    Only the choice of proposals in a first stage depends on values; other detectors are counted on PyTorch's `meta`
    device, which computes nothing.
    """
    config = load_config(f"{PREFIX}{name}")
    two_stage = config.model is not None and config.model.faster_rcnn is not None
    with torch.no_grad(), torch.random.fork_rng([]), torch.device("cpu" if two_stage else "meta"):
        torch.manual_seed(0)  # the cost of the second stage depends on the number of proposals of random weights
        detector = build_detector(config).eval()
        inputs, true_sizes = detector.preprocess(torch.zeros(1, *PICTURE, 3))
        operations = count_operations(detector.network, lambda: detector.network(inputs, true_sizes))
    height, width = inputs.shape[2:]
    # PyTorch's counter takes a multiplication and an addition for two operations.
    return PresetCost(height, width, count_parameters(detector.network), operations // 2)


def main() -> None:
    """Count the named presets, or all, and write the file."""
    names = sys.argv[1:]
    known = read_costs() if names else {}
    for name in names or preset_names():
        known[name] = count_preset(name)
        sys.stderr.write(f"{name}: {known[name]}\n")
    write_costs(COSTS, known)


if __name__ == "__main__":
    main()
