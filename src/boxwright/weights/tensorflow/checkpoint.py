"""TensorFlow's checkpoints of all formats: TF2's and TF1's bundles, the first format, and frozen graphs.

The first format, which TF-Slim's classifiers use, is one file, a table of tensor slices by name (`model.ckpt`). A
frozen graph (`frozen_inference_graph.pb`) has a detector's weights as constants; it is not run, and only constants
named like a detector's variables are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from boxwright.base.errors import CheckpointError
from boxwright.base.files import diagnose_wrong_file, file_size, is_file, is_folder, read_file, shown
from boxwright.base.limits import CHECKPOINT_BYTES
from boxwright.nn.tensorflow_names.checkpoint_keys import ATTRIBUTE
from boxwright.weights.tensorflow.bundle import Bundle, find_bundle, find_newest, has_bundle
from boxwright.weights.tensorflow.object_graph import GraphDef, SavedTensorSlices, check_sizes, to_array
from boxwright.weights.tensorflow.sstable import is_table, read_table

_NUMERIC = (1, 2, 3, 9, 14, 19)


class SavedSlices(Mapping[str, "NDArray[Any]"]):
    """A checkpoint; keys are the names of all numeric tensors."""

    def __init__(self, path: str | Path) -> None:
        """Read the file.

        Raises:
            CheckpointError: If it has another format, or is damaged.
        """
        self.path = Path(path)
        where = shown(path)
        if problem := CHECKPOINT_BYTES.exceeded(file_size(path)):
            raise CheckpointError(f"{where}: {problem}")
        table = read_table(read_file(path, CheckpointError), where, CHECKPOINT_BYTES)
        try:
            meta = SavedTensorSlices.FromString(table.pop(b"", b"")).meta
        except DecodeError:
            raise CheckpointError(f"{where}: its list of tensors is damaged") from None
        self._meta = {tensor.name: tensor for tensor in meta.tensor if tensor.type in _NUMERIC}
        if not self._meta:
            raise CheckpointError(f"{where}: a table, but not a checkpoint: it lists no tensors")
        try:
            check_sizes((row.type, [dim.size for dim in row.shape.dim]) for row in self._meta.values())
        except ValueError as error:
            raise CheckpointError(f"{where}: {error}") from None
        self._slices: dict[str, list[bytes]] = {}
        # By the name in each value: a table's keys encode it as ordered code, which need not be decoded then.
        for value in table.values():
            self._slices.setdefault(_name(value, where), []).append(value)

    def __iter__(self) -> Iterator[str]:
        return iter(self._meta)

    def __len__(self) -> int:
        return len(self._meta)

    def __getitem__(self, key: str) -> NDArray[Any]:
        meta = self._meta[key]
        shape = tuple(dim.size for dim in meta.shape.dim)
        try:
            parts = [SavedTensorSlices.FromString(value).data for value in self._slices.get(key, [])]
            if not parts:
                raise ValueError("its values are missing")
            extents = parts[0].slice.extent
            if len(parts) == 1 and all(not extent.start and extent.length in (0, -1) for extent in extents):
                return to_array(parts[0].data, meta.type, shape)
            return _joined(parts, meta.type, shape)
        except (DecodeError, ValueError) as error:
            raise CheckpointError(f"{shown(self.path)}: {key}: {error}") from None


def _name(value: bytes, where: str) -> str:
    try:
        return str(SavedTensorSlices.FromString(value).data.name)
    except DecodeError:
        raise CheckpointError(f"{where}: a slice is damaged") from None


def _joined(parts: list[Any], dtype: int, shape: tuple[int, ...]) -> NDArray[Any]:
    """Join slices; a ValueError says that they do not fill the shape."""
    whole: NDArray[Any] | None = None
    filled = np.zeros(shape, np.bool_) if min(shape, default=0) >= 0 else np.zeros(0, np.bool_)
    for part in parts:
        extents = [(extent.start, extent.length) for extent in part.slice.extent]
        inside = (start >= 0 and start + length <= side for (start, length), side in zip(extents, shape, strict=False))
        if len(extents) != len(shape) or not all(inside):
            raise ValueError(f"a slice lies outside shape {list(shape)}")
        # A missing length is the whole side.
        sides = tuple(length or side for (_, length), side in zip(extents, shape, strict=True))
        values = to_array(part.data, dtype, sides)
        if whole is None:
            whole = np.zeros(shape, values.dtype)
        place = tuple(slice(start, start + side) for (start, _), side in zip(extents, sides, strict=True))
        whole[place], filled[place] = values, True
    if whole is None or not filled.all():
        raise ValueError(f"its slices do not fill shape {list(shape)}")
    return whole


_VARIABLES = (
    "weights",
    "biases",
    "depthwise_weights",
    "pointwise_weights",
    "gamma",
    "beta",
    "moving_mean",
    "moving_variance",
)
_SCOPES = (
    "FeatureExtractor/",
    # Without a slash: one for each feature map, BoxPredictor_0/ and so on.
    "BoxPredictor",
    "WeightSharedConvolutionalBoxPredictor/",
    "FirstStageFeatureExtractor/",
    # The first convolution of a region proposal network has no scope around it.
    "Conv/",
    "FirstStageBoxPredictor/",
    "SecondStageFeatureExtractor/",
    "SecondStageBoxPredictor/",
)


class FrozenGraph(Mapping[str, "NDArray[Any]"]):
    """The weights in a graph, by TF1's variable names."""

    def __init__(self, path: str | Path) -> None:
        """Read the file.

        Raises:
            CheckpointError: If it is not a graph, is damaged, or has no detector's weights.
        """
        self.path = Path(path)
        where = shown(path)
        if problem := CHECKPOINT_BYTES.exceeded(file_size(path)):
            raise CheckpointError(f"{where}: {problem}")
        data = read_file(path, CheckpointError)
        if instead := diagnose_wrong_file(data):
            raise CheckpointError(f"{where}: {instead}")
        try:
            graph = GraphDef.FromString(data)
        except DecodeError:
            raise CheckpointError(f"{where}: not a graph of TensorFlow's (GraphDef), or cut off") from None
        self._constants = {node.name: node for node in graph.node if node.op == "Const" and _is_variable(node.name)}
        if not self._constants:
            some = ", ".join(sorted({node.op for node in graph.node})[:6]) or "nothing"
            raise CheckpointError(
                f"{where}: a graph of {len(graph.node)} nodes ({some}), but none is a constant with the weights of a "
                "detector of TensorFlow 1's object detection; only frozen graphs of those are read"
            )

        tensors = [attr.value.tensor for node in self._constants.values() for attr in node.attr if attr.key == "value"]
        try:
            check_sizes((tensor.dtype, [dim.size for dim in tensor.shape.dim]) for tensor in tensors)
        except ValueError as error:
            raise CheckpointError(f"{where}: {error}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._constants)

    def __len__(self) -> int:
        return len(self._constants)

    def __getitem__(self, key: str) -> NDArray[Any]:
        node = self._constants[key]
        tensors = [attr.value.tensor for attr in node.attr if attr.key == "value"]
        try:
            if len(tensors) != 1:
                raise ValueError("a constant without a value")
            (tensor,) = tensors
            return to_array(tensor, tensor.dtype, tuple(dim.size for dim in tensor.shape.dim))
        except ValueError as error:
            raise CheckpointError(f"{shown(self.path)}: {key}: {error}") from None


def _is_variable(name: str) -> bool:
    return name.startswith(_SCOPES) and name.rsplit("/", 1)[-1] in _VARIABLES


FROZEN_GRAPH = "frozen_inference_graph.pb"
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
        graph = path / FROZEN_GRAPH
        return find_newest(path, files) if files else graph if is_file(graph) else None
    if path.suffix.lower() == ".index" or is_file(f"{path}.index"):
        return find_bundle(path)
    return path if is_file(path) and (path.suffix.lower() == ".pb" or is_table(path)) else None


def find_training(folder: str | Path) -> Path | None:
    """Return the newest checkpoint of a TensorFlow run, which its folder's `checkpoint` file names; else None."""
    folder = Path(folder)
    checkpoint = find_tensorflow(folder) if is_file(folder / "checkpoint") else None
    return (
        checkpoint
        if checkpoint is not None and checkpoint.parent == folder and checkpoint.suffix.lower() != ".pb"
        else None
    )


def open_tensorflow(path: Path) -> Mapping[str, NDArray[Any]]:
    """Open the result of `find_tensorflow`."""
    if is_file(f"{path}.index"):
        return Bundle(path)
    return FrozenGraph(path) if path.suffix.lower() == ".pb" else SavedSlices(path)


def read_step(arrays: Mapping[str, NDArray[Any]]) -> int:
    """Return the number of training steps in a checkpoint; 0 if unknown."""
    counters = (arrays[key] for key in _COUNTERS if key in arrays)
    return next((int(counter) for counter in counters if counter.ndim == 0 and counter.dtype.kind in "iu"), 0)
