"""Writing PyTorch's own format: a program that `torch.export.load` reads with only PyTorch installed."""

from __future__ import annotations

import io
from pathlib import Path

import torch

from boxwright.base.files import write_whole
from boxwright.base.quiet import quiet
from boxwright.runtime.metadata import Metadata
from boxwright.runtime.pt2_members import ABOUT, packed_members, sealed_parts, unpacked_members
from boxwright.runtime.seal import seal
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
