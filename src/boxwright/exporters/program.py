"""A detector as a `torch.export` program, with dynamic batch, height and width.

Writing PyTorch's own format: a program that `torch.export.load` reads with only PyTorch installed.

Dimensions: B batch, H W image, C channels.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from boxwright.base.errors import ExportError
from boxwright.base.files import write_whole
from boxwright.base.quiet import quiet
from boxwright.exporters.graph import PREPROCESSED, DetectionGraph
from boxwright.nn.detector import Detector
from boxwright.nn.network import evaluation_mode
from boxwright.nn.postprocessing.nms import decompositions, pair_decompositions
from boxwright.runtime.metadata import Metadata, seal
from boxwright.runtime.pt2_members import ABOUT, packed_members, sealed_parts, unpacked_members
from boxwright.weights.pt2_archive import plain_members


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
) -> torch.export.ExportedProgram:
    """Return a whole detector as a program from pictures [B, H, W, C] to `DetectionGraph`'s outputs.

    Args:
        detector: On the CPU; its mode is left unchanged.
        suppression: "operator": the program keeps `boxwright::suppress_pairs`, for a runtime with such an operator;
            "padded": it has PyTorch's own operators only; "none": it ends with raw outputs.
        times: The multiple of suppression's usual number of candidates.
        with_inputs: Whether to include the network's input in the outputs.
        dtype: Of the pictures: uint8 or float32, both in 0..255.

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
        example = torch.zeros(*_EXAMPLE, detector.image_channels, dtype=dtype)
        dims = {
            0: torch.export.Dim("batch", min=1, max=LARGEST_BATCH),
            1: torch.export.Dim("height", min=1, max=LARGEST_SIDE),
            2: torch.export.Dim("width", min=1, max=LARGEST_SIDE),
        }
        with torch.no_grad(), quiet():
            program = torch.export.export(graph.eval(), (example,), dynamic_shapes=(dims,), strict=False)
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
