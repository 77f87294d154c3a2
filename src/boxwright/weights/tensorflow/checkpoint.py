"""TensorFlow's checkpoints of all formats."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from boxwright.base.files import is_file, is_folder
from boxwright.nn.tensorflow_names.named_layers import ATTRIBUTE
from boxwright.weights.tensorflow.bundle import Bundle, find_bundle, has_bundle, newest_of
from boxwright.weights.tensorflow.frozen_graph import FrozenGraph
from boxwright.weights.tensorflow.saved_slices import SavedSlices
from boxwright.weights.tensorflow.sstable import is_table

_GRAPH = "frozen_inference_graph.pb"
_COUNTERS = (f"step{ATTRIBUTE}", f"global_step{ATTRIBUTE}", "global_step")


def find_tensorflow(source: str | Path) -> Path | None:
    """Return the bundle's prefix or the file at a path; None if it is not TensorFlow's.

    Args:
        source: A prefix (`…/ckpt-0`), its `.index`, a file of the first format (`…/model.ckpt`), a frozen graph
            (`….pb`), or a folder with one of them; a bundle takes precedence, then a file of the first format.
    """
    path = Path(source)
    if is_folder(path):
        if has_bundle(path):
            return find_bundle(path)
        files = [file for file in path.glob("*.ckpt*") if is_file(file) and is_table(file)]
        graph = path / _GRAPH
        return newest_of(path, files) if files else graph if is_file(graph) else None
    if path.suffix == ".index" or is_file(f"{path}.index"):
        return find_bundle(path)
    return path if is_file(path) and (path.suffix == ".pb" or is_table(path)) else None


def find_training(folder: str | Path) -> Path | None:
    """Return the newest checkpoint of a TensorFlow run, which its folder's `checkpoint` file names; else None."""
    folder = Path(folder)
    found = find_tensorflow(folder) if is_file(folder / "checkpoint") else None
    return found if found is not None and found.parent == folder and found.suffix != ".pb" else None


def open_tensorflow(path: Path) -> Mapping[str, NDArray[Any]]:
    """Open the result of `find_tensorflow`."""
    if is_file(f"{path}.index"):
        return Bundle(path)
    return FrozenGraph(path) if path.suffix == ".pb" else SavedSlices(path)


def step_of(arrays: Mapping[str, NDArray[Any]]) -> int:
    """Return the number of training steps in a checkpoint; 0 if unknown."""
    counters = (arrays[key] for key in _COUNTERS if key in arrays)
    return next((int(counter) for counter in counters if counter.ndim == 0 and counter.dtype.kind in "iu"), 0)
