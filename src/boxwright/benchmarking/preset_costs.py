"""The file of what presets cost: read without PyTorch, written by `boxwright.benchmarking.presets`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from boxwright.base.files import write_whole
from boxwright.config.preset import FOLDER

COSTS = FOLDER / "costs.json"
# Height and width of the picture that is looked at: COCO's most frequent size. Some networks take it as it is.
PICTURE = (480, 640)


@dataclass(frozen=True)
class PresetCost:
    """What an inference of a preset's network costs.

    Attributes:
        height: Of the network's input, for a picture of 480×640 pixels.
        width: Of the same.
        parameters: Numbers that are learnt, with the preset's classes.
        macs: Multiplications, each with an addition, of convolutions and matrix products, by their definition;
            without a mask head's, which looks at as many objects as were found.
    """

    height: int
    width: int
    parameters: int
    macs: int


def read_costs() -> dict[str, PresetCost]:
    """Return what each preset costs, by name."""
    return {name: PresetCost(**row) for name, row in json.loads(COSTS.read_text(encoding="utf-8")).items()}


def write_costs(path: Path, costs: dict[str, PresetCost]) -> None:
    """Write what presets cost, a line each."""
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(asdict(cost))}" for name, cost in sorted(costs.items()))
    write_whole(path, f"{{\n{rows}\n}}\n")
