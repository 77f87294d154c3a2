"""The annotation tools that files are written for."""

from __future__ import annotations

from enum import Enum


class Tool(str, Enum):
    """An annotation tool."""

    CVAT = "cvat"
    LABEL_STUDIO = "label_studio"
    FIFTYONE = "fiftyone"
