"""Sessions of PyTorch's own format; anything that could run code is refused before PyTorch reads it.

Dimensions: B batch, H W image.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from boxwright.base.errors import ExportError, translated
from boxwright.base.quiet import quiet
from boxwright.runtime.export_file import ExportFile
from boxwright.runtime.metadata import Metadata
from boxwright.runtime.pt2_members import ABOUT, packed_members, unpacked_members
from boxwright.weights.pt2_archive import checked_members


class Pt2Session:
    """A .pt2 file in PyTorch."""

    def __init__(self, file: ExportFile) -> None:
        """Open a file; an ExportError if it is damaged, or not Boxwright's."""
        members = unpacked_members(file.data, file.name)
        self.metadata = Metadata.from_json(members.get(ABOUT, b"").decode("utf-8", "replace"), file.name)
        checked = packed_members(checked_members(members, file.name))
        with translated(ExportError, f"{file.name} cannot be opened by PyTorch"):
            with quiet():
                program = torch.export.load(io.BytesIO(checked))
                self._module = program.module()
            # The keys of the dictionary that the program returns.
            self.output_names: tuple[str, ...] = tuple(program.call_spec.out_spec.context)
        self._name = file.name
        self._dtype = np.float32 if self.metadata.input.get("type") == "float_image_tensor" else np.uint8

    def run(self, images: NDArray[Any], names: Sequence[str] = ()) -> dict[str, NDArray[np.float32]]:
        """Return the named outputs, by default all, for pictures uint8 [B, H, W, 3]."""
        with translated(ExportError, f"{self._name} cannot be run by PyTorch"), torch.inference_mode():
            outputs = self._module(torch.from_numpy(np.ascontiguousarray(images, self._dtype)))
        return {name: outputs[name].numpy() for name in names or self.output_names}
