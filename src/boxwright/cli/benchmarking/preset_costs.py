"""The file of presets' machine-independent costs: read without PyTorch, counted with it.

python -m boxwright.cli.benchmarking.preset_costs [NAME …]    counts these presets (default: all) and rewrites the file
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from boxwright.base.files import write_whole
from boxwright.config.preset import FOLDER, PREFIX, preset_names

COSTS = FOLDER / "costs.json"
# Height and width of the picture: COCO's most frequent size. Some networks do not resize it.
PICTURE = (480, 640)


@dataclass(frozen=True)
class PresetCost:
    """The costs of one inference of a preset's network.

    Attributes:
        height: Height of the network's input for a picture of 480×640 pixels.
        macs: Multiply-accumulate operations of convolutions and matrix products, by their definition; without a mask
            head's, which depend on the number of detections.
    """

    height: int
    width: int
    parameters: int
    macs: int


def read_costs() -> dict[str, PresetCost]:
    """Return each preset's costs, by name."""
    return {name: PresetCost(**row) for name, row in json.loads(COSTS.read_text(encoding="utf-8")).items()}


def write_costs(path: Path, costs: dict[str, PresetCost]) -> None:
    """Write presets' costs, one per line."""
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(asdict(cost))}" for name, cost in sorted(costs.items()))
    write_whole(path, f"{{\n{rows}\n}}\n")


def count_preset(name: str) -> PresetCost:
    """Return the costs of a preset's network.

    Only the choice of proposals in a first stage depends on values; other detectors are counted on PyTorch's `meta`
    device, which computes nothing.
    """
    import torch

    from boxwright.cli.benchmarking.facts import count_operations, count_parameters
    from boxwright.pipeline.detector import build_detector
    from boxwright.pipeline.load import load_config

    config = load_config(f"{PREFIX}{name}")
    two_stage = config.model is not None and config.model.faster_rcnn is not None
    with torch.no_grad(), torch.random.fork_rng([]), torch.device("cpu" if two_stage else "meta"):
        torch.manual_seed(0)  # the cost of the second stage depends on the number of proposals of random weights
        detector = build_detector(config).eval().requires_grad_(False)
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
