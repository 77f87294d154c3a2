"""The memory of one camera: context features from a file, for pictures that come without any (Context R-CNN)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from boxwright.base.errors import ConfigError, DataError
from boxwright.base.files import read_file, shown

if TYPE_CHECKING:
    from boxwright.nn.detector import Detector


def remember(detector: Detector, path: str | Path) -> None:
    """Let a Context R-CNN attend to the features of a file wherever a picture comes without context.

    Args:
        path: A .npy file of float32 [M, F], as `boxwright context build --banks` writes for each camera.

    Raises:
        ConfigError: For a detector of single images.
        DataError: If the file cannot be read, or its features do not fit the detector.
    """
    import io

    import torch

    attention = detector.network.attention
    if attention is None:
        raise ConfigError(f"context {shown(path)}: this detector has no context_config; it looks at single images")
    content = read_file(path)
    try:
        features = np.load(io.BytesIO(content), allow_pickle=False)
        if features.dtype != np.float32 or not np.isfinite(features).all():
            raise ValueError(f"expected finite float32 numbers, found {features.dtype}")
    except (ValueError, EOFError, OSError, AttributeError) as error:
        raise DataError(f"{shown(path)}: not a .npy file of context features: {error}") from None
    try:
        attention.remember(torch.from_numpy(features))
    except DataError as error:
        raise DataError(f"{shown(path)}: {error}") from None
