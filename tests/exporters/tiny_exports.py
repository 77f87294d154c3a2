"""One tiny export of each format, whose program is a few operators: for tests that damage files."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from boxwright.base.quiet import quiet
from boxwright.exporters.graph import save_pt2
from boxwright.exporters.litert_file import save_litert
from boxwright.exporters.onnx_file import onnx_bytes, onnx_model, openvino_model, save_openvino
from boxwright.runtime.metadata import Metadata
from tests.made_once import made_once

ABOUT = Metadata(
    format="onnx",
    boxwright="1",
    config="model { }",
    num_classes=1,
    categories=[{"id": 1, "name": "circle", "label": 0}],
    step=7,
    created="2020-01-01T00:00:00Z",
    weights_sha256="0" * 64,
    input={"name": "input_tensor", "type": "image_tensor", "dtype": "uint8"},
    outputs={},
    suppression={},
    versions={},
    parity={"verdict": "passed"},
)

_SCALING = {"size": [8, 6], "pixel centre": 0.5, "scaling": {"scale": [1 / 255] * 3, "offset": [0.0] * 3}}
LITERT_ABOUT = replace(ABOUT, format="litert", input={**ABOUT.input, **_SCALING})


class Tiny(nn.Module):
    """Finds two boxes in every picture; the first one's score is the mean of its red channel times a weight."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((channels,), 1 / 255))
        self.boxes: Tensor
        self.register_buffer("boxes", torch.tensor([[[0.1, 0.2, 0.5, 0.6], [0.0, 0.0, 1.0, 1.0]]]))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        means = images.float().mean((1, 2)) * self.weight
        scores = means[:, :2]
        return {
            "detection_boxes": self.boxes + 0 * means[:, :1, None],
            "detection_scores": scores,
            "detection_classes": torch.ones_like(scores),
            "num_detections": torch.ones_like(scores[:, 0]) * 2,
        }


def program_of(network: nn.Module, channels: int = 3) -> torch.export.ExportedProgram:
    """Return a network as a program of ATen's operators, with batch, height and width left open."""
    images = torch.zeros(2, 8, 6, channels, dtype=torch.uint8)
    dims = {number: torch.export.Dim(name, min=1, max=4096) for number, name in enumerate(("batch", "height", "width"))}
    with torch.no_grad(), quiet():
        found = torch.export.export(network.eval(), (images,), dynamic_shapes=(dims,), strict=False)
        return found.run_decompositions({})


def tiny_export(suffix: str) -> Path:
    """Return a tiny export of a format; it belongs to all tests of a run: copy it before it is damaged."""
    return made_once(f"tiny{suffix}", lambda folder: _MAKERS[suffix](folder / f"tiny{suffix}")) / f"tiny{suffix}"


def copied_export(suffix: str, folder: Path) -> Path:
    """Copy a tiny export, with what lies beside it, to a folder of a test's own."""
    source = tiny_export(suffix)
    for one in source.parent.glob("tiny.*"):
        if one.is_file():
            shutil.copy(one, folder / one.name)
    return folder / source.name


def tiny_export_of(channels: int) -> Path:
    """Return a tiny ONNX file that takes pictures of so many channels."""
    about = replace(ABOUT, input={**ABOUT.input, "channels": channels})

    def make(folder: Path) -> None:
        model = onnx_model(program_of(Tiny(channels), channels))
        (folder / "tiny.onnx").write_bytes(onnx_bytes(model, about))

    return made_once(f"tiny-{channels}", make) / "tiny.onnx"


def _onnx(path: Path) -> None:
    path.write_bytes(onnx_bytes(onnx_model(program_of(Tiny())), ABOUT))


def _openvino(path: Path) -> None:
    model = openvino_model(onnx_model(program_of(Tiny())).SerializeToString())
    save_openvino(model, replace(ABOUT, format="openvino"), path)


def _pt2(path: Path) -> None:
    save_pt2(program_of(Tiny()), replace(ABOUT, format="pt2"), path)


def _litert(path: Path) -> None:
    from tests.exporters.test_litert import lite

    save_litert(lite()[0], LITERT_ABOUT, path)


_MAKERS = {".onnx": _onnx, ".xml": _openvino, ".pt2": _pt2, ".tflite": _litert}
PICTURE = np.full((1, 20, 30, 3), 51, np.uint8)
