"""What files hold, read from files: the section that the page on file formats ends with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import torch

from website.drawn import Commands

# How deep, and how many keys of one object, are shown.
_DEEPEST, _MOST_KEYS = 3, 16
# The tour's.
_COMMANDS = (
    "boxwright export demo/model",
    "boxwright evaluate --model_dir demo/model --out evaluation --report report",
    "boxwright predict demo/blood_cells/test --model_dir demo/model --out predictions --json --coco",
)


def section(commands: Commands) -> str:
    """Return the section on what files hold, of those that commands write in a folder with the demo's run."""
    for line in _COMMANDS:
        commands.output(line)
    parts = [
        "\n## As written\n",
        "The keys of files that these commands wrote when this page was built, each with the kind of its value:",
        ", ".join(f"`{command}`" for command in _COMMANDS) + ", after the short run of [the tour](tour.md).\n",
    ]
    for name, content in _contents(commands.work):
        parts += [f"**{name}**\n", "```text", *_keys(content, 0), "```\n"]
    return "\n".join(parts)


def _contents(work: Path) -> Iterator[tuple[str, Any]]:
    model = work / "demo" / "model"
    yield "A checkpoint", torch.load(next(iter(sorted(model.glob("ckpt-*.pt")))), weights_only=True)
    lines = (model / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    yield "A line of `metrics.jsonl`", json.loads(lines[0])
    yield "`performance_summary.json`", _read(model / "performance_summary.json")
    exported = model / "export" / "detector.onnx"
    (own,) = (one.value for one in onnx.load(exported).metadata_props if one.key == "boxwright")
    yield "The object `boxwright` in an exported file", json.loads(own)
    yield "`detector.onnx.parity.json`", _read(exported.with_name("detector.onnx.parity.json"))
    for name in ("evaluation.json", "metrics.json", "truth.json"):
        yield f"An evaluation's `{name}`", _read(work / "evaluation" / name)
    for name in ("thresholds.json", "label_errors.json"):
        yield f"A report's `{name}`", _read(work / "report" / name)
    for name in ("detections.json", "coco.json"):
        yield f"`{name}` of a prediction", _read(work / "predictions" / name)


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _keys(value: Any, depth: int) -> Iterator[str]:
    """Yield a line for each key, with the keys of what it holds below it."""
    indent = "  " * depth
    if isinstance(value, list):
        yield f"{indent}list of {len(value)}{', the first:' if value else ''}"
        yield from _keys(value[0], depth + 1) if value and depth < _DEEPEST else ()
        return
    if not isinstance(value, dict):
        yield f"{indent}{_kind(value)}"
        return
    for number, (key, item) in enumerate(value.items()):
        if number == _MOST_KEYS:
            yield f"{indent}… {len(value)} in all"
            return
        yield f"{indent}{key}: {_kind(item)}"
        if isinstance(item, dict | list) and item and depth < _DEEPEST:
            yield from _inside(item, depth + 1)


def _inside(item: dict[str, Any] | list[Any], depth: int) -> Iterator[str]:
    """Yield the lines of an object, or of a list's first object: that its numbers are numbers, its own line says."""
    inner = item[0] if isinstance(item, list) else item
    if isinstance(inner, dict):
        yield from _keys(inner, depth)


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} [{', '.join(map(str, value.shape))}]"
    if isinstance(value, list):
        return f"list of {_kind(value[0])}" if value else "empty list"
    kinds = {bool: "true or false", int: "integer", float: "number", str: "text", dict: "object", type(None): "null"}
    return next((kind for type_, kind in kinds.items() if isinstance(value, type_)), type(value).__name__)
