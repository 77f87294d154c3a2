"""What each page on a family of models ends with: its presets, weights that fit, and numbers that were measured."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

from boxwright.cli.benchmarking.preset_costs import read_costs
from boxwright.config.preset import PREFIX
from boxwright.pipeline.load import load_config
from boxwright.pipeline.published import PUBLISHED

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
}
_OFFICIAL = (
    ("context_rcnn", "context_rcnn"),
    ("center_?net|resnet_v2_50, keypoints", "center_net"),
    ("faster_rcnn|mask_rcnn|rfcn", "faster_rcnn"),
    ("ssd|efficientdet", "ssd"),
)
# Trainings of a family's ideas from scratch, AP over seeds: file and command.
_ABLATIONS = {
    "refinedet": ("refinedet-ablation-shapes-800", "ablation.py --data shapes --steps 800"),
    "srn": ("srn-ablation-crowds-300", "ablation.py --family srn --data crowds --steps 300"),
    "align_det": ("align_det-ablation-crowds-1000", "ablation.py --family align_det --data crowds --steps 1000"),
}
Row = tuple[object, ...]


def section(page: str) -> str:
    """Return the section that a page on a family ends with; empty for other pages."""
    family = PAGES.get(page)
    if family is None:
        return ""
    parts = ["\n## Presets, and weights that fit\n", *presets_of(family), "\n## Measured\n"]
    measured = (_ablation(family), _recipe(family), _against_torchvision(family), _memory(family))
    return "\n".join([*parts, *(f"{text}\n" for text in measured if text)])


def presets_of(family: str) -> Iterator[str]:
    """Yield the lines of the table of a family's presets."""
    names = [name for name in read_costs() if _family(name) == family]
    yield (
        "Parameters and arithmetic are for the preset's own classes and its input of a 480×640 image; weights have\n"
        "the licenses of those who publish them, and nothing is downloaded ([all presets](presets.md)).\n"
    )
    yield from preset_rows(names)


def preset_rows(names: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a table of presets: what they cost, and weights that others have published for them."""
    costs = read_costs()
    rows = []
    for name in names:
        cost = costs[name]
        weights = "; ".join(
            f"{one.publisher}: {cell(one.holds)} ({cell(one.license)})" for one in PUBLISHED.get(name, ())
        )
        size = f"{cost.width}×{cost.height}"
        rows.append((f"`{name}`", size, f"{cost.parameters / 1e6:.1f} M", f"{cost.macs / 1e9:.1f}", weights))
    yield from _table(("preset", "input", "parameters", "GMAC", "weights that fit, and their licenses"), rows)


@cache
def _family(preset: str) -> str:
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
    return "\n".join((f"{about} [how](memory.md)):\n", *_table(head, rows)))


def _ablation(family: str) -> str:
    if family not in _ABLATIONS:
        return ""
    name, command = _ABLATIONS[family]
    found: dict[str, list[Mapping[str, Any]]] = {}
    for run, values in _read(name).items():
        found.setdefault(run.split("/")[0], []).append(values)
    rows = [
        (variant, len(runs), *(f"{mean(run[key] for run in runs):.3f}" for key in ("AP", "AP50")))
        for variant, runs in found.items()
    ]
    machine = next(iter(found.values()))[0]["machine"]
    about = f"Trained from scratch on made-up pictures, mean over seeds (`python benchmarks/{command}`, {machine};"
    return "\n".join((
        f"{about} [what the variants are](benchmarks.md)):\n", *_table(("variant", "seeds", "AP", "AP50"), rows)
    ))  # fmt: skip


def _recipe(family: str) -> str:
    if family != "d_fine":
        return ""
    recipe = _read("d-fine-recipe-h200")
    rows = [(row["recipe"], row["AP"], row["AP50"]) for row in recipe["rows"]]
    machine = f"{recipe['device']}, torch {recipe['torch']}"
    about = f"Blood cells, {recipe['steps']} steps from scratch (`{recipe['command']}`, {machine}):\n"
    return "\n".join((about, *_table(("recipe", "AP", "AP50"), rows)))


def _against_torchvision(family: str) -> str:
    if family == "ssd":
        found = _read("detectors-cpu")
        machine = f"`python benchmarks/detectors.py`, {found.pop('machine')}"
        rows = [
            (f"`{name}`", *(_ms(values["milliseconds"], key) for key in ("infer 1", "torchvision infer 1")))
            for name, values in found.items()
            if "infer 1" in values.get("milliseconds", {})
        ]
    elif family == "faster_rcnn":
        machine = "`python benchmarks/two_stage.py`, two threads of a CPU, the same weights"
        rows = [
            (name, f"{row['ours_ms']:.0f} ms", f"{row['theirs_ms']:.0f} ms")
            for name, row in _read("two_stage_cpu").items()
            if isinstance(row, dict) and "ours_ms" in row
        ]
    else:
        return ""
    head = ("one image" if family == "ssd" else "what", "here", "torchvision's closest detector")
    return "\n".join((f"Times beside torchvision's ({machine}):\n", *_table(head, rows)))


def _ms(values: Mapping[str, float], key: str) -> str:
    return f"{values[key]:.0f} ms" if key in values else ""


def _table(head: Row, rows: Iterable[Row]) -> Iterator[str]:
    yield _line(head)
    yield "|---" * len(head) + "|"
    yield from map(_line, rows)


def _line(cells: Row) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def cell(text: str) -> str:
    """Return a text that may stand in a cell of a table."""
    return re.sub(r"([|<*_\[\]{}`])", r"\\\1", " ".join(text.split()))
