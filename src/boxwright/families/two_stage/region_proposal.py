"""The head of a region proposal network (Faster R-CNN, section 3.1): objectness and boxes.

Dimensions: B batch, A anchors, C channels.
"""

from __future__ import annotations

from torch import Tensor, nn

from boxwright.nn.heads.convolutional import AnchorHead


class RegionProposalHead(AnchorHead):
    """One convolution for all levels, then box codes and two class logits for each anchor."""

    def __init__(self, convolve: nn.Module, predict: AnchorHead, levels: int) -> None:
        """Assemble the head.

        Args:
            predict: From its maps to codes and logits; columns are background, object.
            levels: How many maps there are.
        """
        super().__init__()
        convolve.calls_per_pass = levels  # type: ignore[assignment]  # what counts updates of statistics reads it
        self.convolve, self.predict, self.output = convolve, predict, predict.output

    @property
    def class_layers(self) -> tuple[str, ...]:
        """Empty: objectness has no classes."""
        return ()

    def forward(self, features: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return box codes [B, A, 4] and class logits [B, A, 2], level by level, row by row."""
        codes, logits = self.predict([self.convolve(level) for level in features])
        return codes, logits
