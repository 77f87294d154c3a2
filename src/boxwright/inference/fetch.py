"""Placeholder until the fetching of images is merged."""

from __future__ import annotations

__all__ = ["fetch_image"]


def fetch_image(url: str) -> bytes:
    """Return an image's bytes."""
    raise NotImplementedError(url)
