"""PyTorch's own format: a program that `torch.export.load` reads where nothing but PyTorch is installed.

Dimensions: B batch, H W image.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from boxwright.errors import ExportError
from boxwright.exporters.program import quiet
from boxwright.files import shown
from boxwright.runtime.metadata import KEY, Metadata
from boxwright.runtime.optional import first_line

__all__ = ["Pt2Session", "save_pt2"]

_ENTRY = f"{KEY}.json"


def save_pt2(program: torch.export.ExportedProgram, metadata: Metadata, path: Path) -> None:
    """Write a program.

    Args:
        program: Of `detection_program`, without operators of ours.
        metadata: What it says of itself.
        path: The .pt2.
    """
    with quiet():
        torch.export.save(program, path, extra_files={_ENTRY: metadata.to_json()})


class Pt2Session:
    """A .pt2 file in PyTorch."""

    def __init__(self, source: str | Path) -> None:
        """Open a file.

        Args:
            source: The file.

        Raises:
            ExportError: Where the file is damaged, or not ours.
        """
        extra = {_ENTRY: ""}
        try:
            with quiet():
                program = torch.export.load(source, extra_files=extra)
        except (RuntimeError, OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            reason = first_line(error)
            raise ExportError(f"{shown(source)} cannot be opened by PyTorch: {reason}") from None
        text: Any = extra[_ENTRY]
        self.metadata = Metadata.from_json(text.decode() if isinstance(text, bytes) else text, shown(source))
        self._module = program.module()
        self._dtype = np.float32 if self.metadata.input.get("type") == "float_image_tensor" else np.uint8
        self.output_names: tuple[str, ...] = tuple(program.call_spec.out_spec.context)

    def run(self, images: NDArray[Any], names: Sequence[str] = ()) -> dict[str, NDArray[np.float32]]:
        """Return the outputs of some names, or all, for pictures uint8 [B, H, W, 3]."""
        with torch.inference_mode():
            found = self._module(torch.from_numpy(np.ascontiguousarray(images, self._dtype)))
        return {name: found[name].numpy() for name in names or self.output_names}
