"""A whole detector as one graph: pictures in, TensorFlow's named outputs out (its `exporter_lib_v2`).

Between preprocessing and outputs, no tensor's shape depends on data. `torch.export` makes a program of the graph, with
dynamic batch, height and width; as a .pt2 file it is read with only PyTorch installed.

Dimensions: B batch, H W image, D detections (padded), A anchors or proposals, C columns of the class head (of pictures:
channels), P keypoints, h w mask.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from boxwright.base.errors import ExportError
from boxwright.base.files import write_whole
from boxwright.base.quiet import quiet
from boxwright.exporters.resizing import ResizedBatch, resizing
from boxwright.nn.detector import Detector
from boxwright.nn.network import evaluation_mode
from boxwright.nn.postprocessing.nms import decompositions, pair_decompositions
from boxwright.runtime.export_file import ABOUT, packed_members, sealed_parts, unpacked_members
from boxwright.runtime.metadata import Metadata, seal
from boxwright.types import PaddedDetections, RawDetections
from boxwright.types.detection_outputs import to_tf_outputs
from boxwright.types.padded_detections import normalized
from boxwright.weights.pt2_archive import plain_members

INPUT = "input_tensor"
PREPROCESSED = "preprocessed_inputs"


class DetectionGraph(nn.Module):
    """Detects in a batch of pictures of one size."""

    def __init__(self, detector: Detector) -> None:
        """Take a detector in evaluation mode with laid anchors; ExportError if its resizer cannot be in a graph."""
        super().__init__()
        self.resize = resizing(detector.preprocessor.resizer)
        self.preprocessor, self.network, self.postprocessor = (
            detector.preprocessor,
            detector.network,
            detector.postprocessor,
        )

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Return TensorFlow's outputs, all float32, and `PREPROCESSED`, the network's input.

        Args:
            images: uint8 or float32 [B, H, W, 3] in 0..255; of more channels if the detector takes them.

        Returns:
            `detection_boxes` [B, D, 4] as ymin, xmin, ymax, xmax in 0..1 of the picture; `detection_scores`,
            `detection_classes` (from 1; 1 where padded, as in TF) and `detection_anchor_indices` [B, D];
            `num_detections` [B]; `raw_detection_boxes` [B, A, 4] in 0..1 of the network's input, not clipped (those of
            regions: of the picture, clipped), and `raw_detection_scores` [B, A, C]; those of `DETECTION_OUTPUTS` that
            the detector predicts; and `detections_complete` [B], 0 if candidates that suppression ignored could have
            changed the result.
        """
        resized: ResizedBatch = self.resize(images)
        inputs = self.preprocessor.normalize(resized.pixels.permute(0, 3, 1, 2), resized.true_sizes)
        # Contiguous: a program keeps its example's strides, and those of a batch of one differ.
        return self.outputs(inputs.contiguous(), resized.true_sizes)

    def outputs(self, inputs: Tensor, true_sizes: Tensor) -> dict[str, Tensor]:
        """Return the same as `forward`, for preprocessed pictures.

        Args:
            inputs: float32 [B, C, H', W'].
            true_sizes: int64 [B, 2]; each (height, width) without padding.
        """
        predictions = self.network(inputs, true_sizes)
        raw = self.postprocessor.decode(predictions)
        detections = self.postprocessor.select(predictions, raw, true_sizes)
        return named_outputs(inputs, raw, detections, true_sizes)


def named_outputs(
    inputs: Tensor, raw: RawDetections, detections: PaddedDetections, true_sizes: Tensor
) -> dict[str, Tensor]:
    """Return TensorFlow's outputs by name, float32; as `DetectionGraph.forward` describes them.

    Args:
        true_sizes: int64 [B, 2]; each input's (height, width) without padding.
    """
    outputs = {PREPROCESSED: inputs, **_detections(detections, true_sizes), **raw.to_tf(true_sizes)}
    return {name: value.to(torch.float32) for name, value in outputs.items()}


def _detections(detections: PaddedDetections, true_sizes: Tensor) -> dict[str, Tensor]:
    valid = detections.valid
    outputs = {
        "detection_boxes": normalized(detections.boxes, true_sizes),
        "detection_scores": detections.scores,
        "detection_classes": detections.labels + 1,
        "num_detections": valid.sum(1),
        "detection_anchor_indices": detections.anchors,
    }
    # Rows of padding are 0 in these outputs, as in TF's.
    more = to_tf_outputs(detections, true_sizes[:, None, None].to(detections.boxes))
    outputs |= {name: values * valid.view(*valid.shape, *[1] * (values.ndim - 2)) for name, values in more.items()}
    if detections.complete is not None:
        outputs["detections_complete"] = detections.complete
    return outputs


def save_pt2(program: torch.export.ExportedProgram, metadata: Metadata, path: Path) -> None:
    """Write a program without custom operators as a .pt2; OutputError if that fails."""
    buffer = io.BytesIO()  # PyTorch's own writer aborts the process if the disk is full
    with quiet():
        torch.export.save(program, buffer)
    members = plain_members(unpacked_members(buffer.getvalue(), "the program"))
    members[ABOUT] = metadata.to_json().encode()
    members[ABOUT] = seal(sealed_parts(members))[-1]
    write_whole(path, packed_members(members))


LARGEST_BATCH, LARGEST_SIDE = 1024, 16384
# All different and above 1: torch.export would treat equal sides as one, and a side of 1 as a constant.
_EXAMPLE = (2, 64, 80)
Suppression = Literal["operator", "padded", "none"]


def detection_program(
    detector: Detector,
    suppression: Suppression,
    times: int = 1,
    *,
    with_inputs: bool = False,
    dtype: torch.dtype = torch.uint8,
    batch: int = 0,
    image_size: Sequence[int] = (),
) -> torch.export.ExportedProgram:
    """Return a whole detector as a program from pictures [B, H, W, C] to `DetectionGraph`'s outputs.

    Args:
        detector: On the CPU; its mode is left unchanged.
        suppression: "operator": the program keeps `boxwright::suppress_pairs`, for a runtime with such an operator;
            "padded": it has PyTorch's own operators only; "none": it ends with raw outputs.
        times: The multiple of suppression's usual number of candidates.
        with_inputs: Whether to include the network's input in the outputs.
        dtype: Of the pictures: uint8 or float32, both in 0..255.
        batch: How many pictures the program takes; 0 for any number.
        image_size: The pictures' (height, width); empty for any.

    Raises:
        ExportError: If the detector cannot be exported.
    """
    with evaluation_mode(detector):
        graph = _SelectedOutputs(DetectionGraph(detector), raw=suppression == "none", inputs=with_inputs)
        resizer = detector.preprocessor.resizer
        if resizer.output_size is None:
            raise ExportError("image_resizer: inputs can have any size, which a graph cannot represent")
        # Into buffers, which the graph carries; it would lay them at each call otherwise.
        detector.network.lay_anchors(resizer.output_size, resizer.channels)
        sizes = (batch or _EXAMPLE[0], *(image_size or _EXAMPLE[1:]))
        example = torch.zeros(*sizes, detector.image_channels, dtype=dtype)
        dims = {} if batch else {0: torch.export.Dim("batch", min=1, max=LARGEST_BATCH)}
        if not image_size:
            dims[1] = torch.export.Dim("height", min=1, max=LARGEST_SIDE)
            dims[2] = torch.export.Dim("width", min=1, max=LARGEST_SIDE)
        with torch.no_grad(), quiet():
            program = torch.export.export(graph.eval(), (example,), dynamic_shapes=(dims or None,), strict=False)
            table = decompositions(times) if suppression == "padded" else pair_decompositions(times)
            plain: torch.export.ExportedProgram = program.run_decompositions(table)
        return plain


class _SelectedOutputs(nn.Module):
    """Some of a graph's outputs; what only the others need is not in the program."""

    def __init__(self, graph: DetectionGraph, *, raw: bool, inputs: bool) -> None:
        super().__init__()
        self.whole, self.raw, self.inputs = graph, raw, inputs

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return {name: value for name, value in self.whole(images).items() if self._wants(name)}

    def _wants(self, name: str) -> bool:
        return self.inputs if name == PREPROCESSED else name.startswith("raw_") or not self.raw
