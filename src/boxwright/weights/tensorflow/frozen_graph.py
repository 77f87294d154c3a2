"""Frozen graphs (`frozen_inference_graph.pb`): a detector's weights, as constants of a TensorFlow graph.

The graph is not run: only constants named like a detector's variables are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from boxwright.base.errors import CheckpointError
from boxwright.base.files import read_file, shown, size_of
from boxwright.base.limits import CHECKPOINT_BYTES
from boxwright.base.wrong_file import diagnose_wrong_file
from boxwright.weights.tensorflow.protos import GraphDef
from boxwright.weights.tensorflow.tensor_proto import array_of, check_sizes

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
        if problem := CHECKPOINT_BYTES.exceeded(size_of(path)):
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
            return array_of(tensor, tensor.dtype, tuple(dim.size for dim in tensor.shape.dim))
        except ValueError as error:
            raise CheckpointError(f"{shown(self.path)}: {key}: {error}") from None


def _is_variable(name: str) -> bool:
    return name.startswith(_SCOPES) and name.rsplit("/", 1)[-1] in _VARIABLES
