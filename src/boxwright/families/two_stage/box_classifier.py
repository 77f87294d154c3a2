"""The head that classifies regions and refines their boxes (Faster R-CNN, section 3.2; TF's mask_rcnn_box_predictor).

Dimensions: N regions, K foreground classes, C channels.
"""

from __future__ import annotations

from torch import Tensor, nn

from boxwright.nn.batch_norm import NormSettings, make_norm
from boxwright.nn.layers import Dense, KernelRule

CODE_SIZE = 4
# TF2's dense layers ignore initializer and regularizer of fc_hyperparams; TF1's take them.
_KERAS = KernelRule()


class BoxClassifierHead(nn.Module):
    """The mean of a crop's features, then a dense layer for codes and one for logits.

    Attributes:
        box_columns: K, or 1 if all classes share a box.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        *,
        share_boxes: bool = False,
        dropout: float = 0.0,
        rule: KernelRule = _KERAS,
        norm: NormSettings | None = None,
    ) -> None:
        """Build the layers.

        Args:
            dropout: The share of features dropped before each layer.
            norm: Normalization after each layer; None for none.
        """
        super().__init__()
        self.num_classes, self.box_columns = num_classes, 1 if share_boxes else num_classes

        def layers(out: int) -> nn.Sequential:
            dense = rule.apply(Dense(in_channels, out, bias=norm is None))
            return nn.Sequential(*([nn.Dropout(dropout)] if dropout else []), dense, make_norm(out, norm))

        self.boxes = layers(self.box_columns * CODE_SIZE)
        self.classes = layers(num_classes + 1)

    @property
    def dense_layer(self) -> int:
        """The index of the dense layer in `boxes` and `classes`."""
        return len(self.classes) - 2

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return box codes [N, K or 1, 4] and class logits [N, K + 1] for features [N, C, H, W]."""
        mean = features.mean((2, 3), keepdim=True)
        codes, logits = self.boxes(mean).flatten(1), self.classes(mean).flatten(1)
        return codes.view(codes.shape[0], self.box_columns, CODE_SIZE), logits
