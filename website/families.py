"""What each page on a family of models ends with: its presets, weights that fit, and numbers that were measured."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from boxwright.cli.benchmarking.preset_costs import read_costs
from boxwright.config.preset import PREFIX
from boxwright.pipeline.load import load_config
from boxwright.weights.published import published_for

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
# A page's message in `model`; Context R-CNN is a Faster R-CNN with one more message.
PAGES = {
    "ssd.md": "ssd",
    "two_stage.md": "faster_rcnn",
    "context_rcnn.md": "context_rcnn",
    "centernet.md": "center_net",
    "refinedet.md": "refinedet",
    "srn.md": "srn",
    "align_det.md": "align_det",
    "d_fine.md": "d_fine",
    "rf_detr.md": "rf_detr",
}
_OFFICIAL = (
    ("context_rcnn", "context_rcnn"),
    ("center_?net|resnet_v2_50, keypoints", "center_net"),
    ("faster_rcnn|mask_rcnn|rfcn", "faster_rcnn"),
    ("ssd|efficientdet", "ssd"),
)
_THEIRS = "torchvision's ms"
Row = tuple[object, ...]


def section(page: str) -> str:
    """Return the section that a page on a family ends with; empty for other pages."""
    family = PAGES.get(page)
    if family is None:
        return ""
    parts = ["\n## Presets, and weights that fit\n", *presets_of(family)]
    measured = [f"{text}\n" for text in (_against_torchvision(family), _memory(family)) if text]
    return "\n".join([*parts, *(["\n## Measured\n"] if measured else []), *measured])


def presets_of(family: str) -> Iterator[str]:
    """Yield the lines of the table of a family's presets."""
    names = [name for name in read_costs() if find_family(name) == family]
    yield (
        "Parameters and arithmetic are for the preset's own classes and its input of a 480×640 image; weights have\n"
        "the licenses of those who publish them, and are [fetched by name](weights.md) ([all models](models.md)).\n"
    )
    yield from preset_rows(names)


def preset_rows(names: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a table of presets: what they cost, and weights that others have published for them."""
    costs = read_costs()
    rows = []
    for name in names:
        cost = costs[name]
        weights = "; ".join(f"{cell(one.name)} (the {one.holds}, {cell(one.license)})" for one in published_for(name))
        size = f"{cost.width}×{cost.height}"
        rows.append((f"`{name}`", size, f"{cost.parameters / 1e6:.1f} M", f"{cost.macs / 1e9:.1f}", weights))
    yield from table(("preset", "input", "parameters", "GMAC", "weights that fit, and their licenses"), rows)


@cache
def find_family(preset: str) -> str:
    """Return the name of the message that a preset's model is, as in `PAGES`."""
    model = load_config(f"{PREFIX}{preset}").model
    if model is None:
        raise SystemExit(f"{preset} has no model")
    if model.faster_rcnn is not None and model.faster_rcnn.context_config is not None:
        return "context_rcnn"
    return next(name for name in PAGES.values() if getattr(model, name, None) is not None)


def _read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def _memory(family: str) -> str:
    rows = []
    for row in _read("official-memory-cpu"):
        of = next((name for pattern, name in _OFFICIAL if re.search(pattern, row["config"])), None)
        if of == family and row["config"].endswith(".config") and not row["config"].startswith("a user"):
            height, width = row["input"]
            seconds = f"{row['cpu_seconds']:.0f} s" if "cpu_seconds" in row else ""
            name = f"`{row['config'].removesuffix('.config')}`"
            rows.append((name, f"{width}×{height}", f"{row['peak_gib']:.1f} GiB", seconds))
    if not rows:
        return ""
    head = ("TensorFlow's configuration", "input", "peak memory", "processor time")
    about = "A training step of one picture on a CPU, whole process (`python benchmarks/official_memory.py FOLDER`;"
    return "\n".join((f"{about} [how](memory.md)):\n", *table(head, rows)))


def _against_torchvision(family: str) -> str:
    rows = [
        (f"`{row['preset']}`", f"{row['what']}, batch {row['batch']}", f"{row['ms']:.0f} ms", f"{row[_THEIRS]:.0f} ms")
        for row in _read("speed-cpu")["rows"]
        if find_family(row["preset"]) == family
    ]
    if not rows:
        return ""
    about = "Times beside torchvision's closest detector, two threads of a CPU (`python benchmarks/speed.py`):\n"
    return "\n".join((about, *table(("preset", "", "here", "torchvision"), rows)))


def table(head: Row, rows: Iterable[Row]) -> Iterator[str]:
    """Yield the lines of a table of Markdown."""
    yield _line(head)
    yield "|---" * len(head) + "|"
    yield from map(_line, rows)


def _line(cells: Row) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def cell(text: str) -> str:
    """Return a text that may stand in a cell of a table."""
    return re.sub(r"([|<*_\[\]{}`])", r"\\\1", " ".join(text.split()))
