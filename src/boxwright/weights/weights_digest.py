"""The digest by which a detector's weights are known again."""

from __future__ import annotations

import hashlib

import torch

from boxwright.nn.detector import Detector


def weights_sha256(detector: Detector) -> str:
    """Return the SHA-256 of a detector's weights, by name, shape and value."""
    digest = hashlib.sha256()
    for name, value in sorted(detector.network.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        # As bytes, since NumPy has no bfloat16.
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
