"""RetinaNet's pyramid (Focal Loss for Dense Object Detection, section 4): coarser maps from the backbone's last.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.nn.layers import ConvSettings, make_conv
from boxwright.nn.necks.fpn_paper import PaperFeaturePyramid


class RetinaNetPyramid(nn.Module):
    """P3–P5 as in the paper's pyramid; P6 from C5, and P7 from P6 after a ReLU, each of half the size."""

    def __init__(self, in_channels: Sequence[int], depth: int, settings: ConvSettings) -> None:
        """Build the pyramid."""
        super().__init__()
        rule = settings.kernel
        self.pyramid = PaperFeaturePyramid(in_channels, depth, settings)
        self.sixth = make_conv(in_channels[-1], depth, 3, rule, stride=2, bias=True, padding=1)
        self.seventh = make_conv(depth, depth, 3, rule, stride=2, bias=True, padding=1)
        self.channels = (depth,) * (len(in_channels) + 2)

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """Return all levels, finest first."""
        levels: list[Tensor] = self.pyramid(features)
        sixth = self.sixth(features[-1])
        return [*levels, sixth, self.seventh(F.relu(sixth))]
