"""Options for restoring weights: which parts, and the color order of the first convolution."""

from __future__ import annotations

from typing import Literal

Scope = Literal["full", "detection", "classification", "transfer"]
ChannelOrder = Literal["RGB", "BGR"]
