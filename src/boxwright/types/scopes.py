"""What of a source of weights is restored, and how its first convolution takes colors."""

from __future__ import annotations

from typing import Literal

Scope = Literal["full", "detection", "classification", "transfer"]
ChannelOrder = Literal["RGB", "BGR"]
