"""What of a source of weights is restored, and how its first convolution takes colours."""

from __future__ import annotations

from typing import Literal

__all__ = ["ChannelOrder", "Scope"]

Scope = Literal["full", "detection", "classification", "transfer"]
ChannelOrder = Literal["RGB", "BGR"]
