"""What is compared of a run and an export that an earlier version left."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import boxwright as bw
from boxwright.data.shapes import ShapesDataset
from boxwright.weights.store import read_checkpoint

FOLDER = Path(__file__).parent


def sums_of(checkpoint: Path) -> dict[str, str]:
    """Return the SHA-256 of each part of a checkpoint, over all its tensors and numbers in order."""
    content = read_checkpoint(checkpoint)
    return {part: _sum(content[part]) for part in ("network", "optimizer", "step", "seed")}


def _sum(content: Any) -> str:
    digest = hashlib.sha256()
    for name, value in _leaves(content, ""):
        data = value.numpy().tobytes() if isinstance(value, Tensor) else repr(value).encode()
        digest.update(name.encode() + b"\0" + data)
    return digest.hexdigest()


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{name}/{key}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{name}/{number}")
    else:
        yield name, value


def resumed_to(step: int, folder: Path) -> Path:
    """Take a run that lies in a folder, as `run` beside its configuration, to a step; return its last checkpoint."""
    torch.manual_seed(1)  # what a run draws follows from its own seed
    settings = bw.RunSettings(workers=0, device="cpu", evaluate=False, log_every_n=1, preflight=False)
    with chdir(folder):  # the configuration names its data beside it
        bw.train("pipeline.config", "run", settings, overrides=[f"train_config.num_steps={step}"])
    return folder / "run" / f"ckpt-{step}.pt"


def losses_of(run: Path) -> list[float]:
    """Return the total loss of each step, as the run's log has it."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["Loss/total_loss"] for row in rows if "Loss/total_loss" in row]


def detections_of(export: Path) -> list[dict[str, Any]]:
    """Return what an export finds in a picture: label, score and box of each object."""
    result = bw.load(export).detect([ShapesDataset(1, seed=9, size=(64, 80))[0].image])[0]
    found = zip(result.labels.tolist(), result.scores.tolist(), result.boxes.tolist(), strict=True)
    return [{"label": label, "score": score, "box": box} for label, score, box in found]
