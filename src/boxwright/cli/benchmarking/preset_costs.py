"""The file of presets' costs: read without PyTorch, written by `boxwright.cli.benchmarking.presets`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from boxwright.base.files import write_whole
from boxwright.config.preset import FOLDER

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
