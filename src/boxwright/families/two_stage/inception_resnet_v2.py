"""TF-Slim's Inception-ResNet v2 (Szegedy et al., 2017, figures 3 to 9) and NASNet-A, large (Zoph et al., 2018)."""

from __future__ import annotations

from boxwright.nn.backbones.cells import CellLayout, CellPlan, Recipe, slim_settings
from boxwright.nn.backbones.inception import Block, Conv, InceptionLayout, Pool, Residual
from boxwright.nn.layers import Padding


# Residuals are scaled down, without which wide networks of this kind died early in training (section 3.3).
def _block_35(number: int) -> Residual:
    return Residual(
        f"Repeat/block35_{number}",
        (
            (Conv("Conv2d_1x1", 1, 32),),
            (Conv("Conv2d_0a_1x1", 1, 32), Conv("Conv2d_0b_3x3", 3, 32)),
            (Conv("Conv2d_0a_1x1", 1, 32), Conv("Conv2d_0b_3x3", 3, 48), Conv("Conv2d_0c_3x3", 3, 64)),
        ),
        scale=0.17,
    )


def _block_17(number: int, dilation: int) -> Residual:
    return Residual(
        f"Repeat_1/block17_{number}",
        (
            (Conv("Conv2d_1x1", 1, 192),),
            (
                Conv("Conv2d_0a_1x1", 1, 128),
                Conv("Conv2d_0b_1x7", (1, 7), 160, dilation=dilation),
                Conv("Conv2d_0c_7x1", (7, 1), 192, dilation=dilation),
            ),
        ),
        scale=0.1,
    )


def _block_8(name: str, scale: float = 0.2, *, activated: bool = True) -> Residual:
    return Residual(
        name,
        (
            (Conv("Conv2d_1x1", 1, 192),),
            (Conv("Conv2d_0a_1x1", 1, 192), Conv("Conv2d_0b_1x3", (1, 3), 224), Conv("Conv2d_0c_3x1", (3, 1), 256)),
        ),
        scale,
        activated,
    )


def _stem(padding: Padding) -> tuple[Conv | Pool | Block, ...]:
    return (
        Conv("Conv2d_1a_3x3", 3, 32, stride=2, padding=padding),
        Conv("Conv2d_2a_3x3", 3, 32, padding=padding),
        Conv("Conv2d_2b_3x3", 3, 64),
        Pool("max", stride=2, padding=padding),
        Conv("Conv2d_3b_1x1", 1, 80),
        Conv("Conv2d_4a_3x3", 3, 192, padding=padding),
        Pool("max", stride=2, padding=padding),
        Block(
            "Mixed_5b",
            (
                (Conv("Conv2d_1x1", 1, 96),),
                (Conv("Conv2d_0a_1x1", 1, 48), Conv("Conv2d_0b_5x5", 5, 64)),
                (Conv("Conv2d_0a_1x1", 1, 64), Conv("Conv2d_0b_3x3", 3, 96), Conv("Conv2d_0c_3x3", 3, 96)),
                (Pool("average"), Conv("Conv2d_0b_1x1", 1, 64)),
            ),
        ),
    )


def inception_resnet_v2(
    padding: Padding = "same", middle_stride: int = 2, tail_padding: Padding | None = None
) -> InceptionLayout:
    """Return the network; a region proposal network reads "Repeat_1/block17_20".

    Args:
        padding: Of strided layers: "same" where detectors align maps with pixels, "valid" for the classifier.
        middle_stride: 2; or 1 for maps of stride 8, whose convolutions are then dilated.
        tail_padding: Of strided layers after those maps, for a second stage's crops: "valid" in TF1; None for the same.
    """
    tail = tail_padding or padding
    return InceptionLayout(
        "InceptionResnetV2",
        (
            *_stem(padding),
            *(_block_35(number) for number in range(1, 11)),
            Block(
                "Mixed_6a",
                (
                    (Conv("Conv2d_1a_3x3", 3, 384, stride=middle_stride, padding=padding),),
                    (
                        Conv("Conv2d_0a_1x1", 1, 256),
                        Conv("Conv2d_0b_3x3", 3, 256),
                        Conv("Conv2d_1a_3x3", 3, 384, stride=middle_stride, padding=padding),
                    ),
                    (Pool("max", stride=middle_stride, padding=padding),),
                ),
            ),
            # Dilation makes up for a stride that was left out (TF-Slim's atrous form).
            *(_block_17(number, 2 // middle_stride) for number in range(1, 21)),
            Block(
                "Mixed_7a",
                (
                    (Conv("Conv2d_0a_1x1", 1, 256), Conv("Conv2d_1a_3x3", 3, 384, stride=2, padding=tail)),
                    (Conv("Conv2d_0a_1x1", 1, 256), Conv("Conv2d_1a_3x3", 3, 288, stride=2, padding=tail)),
                    (
                        Conv("Conv2d_0a_1x1", 1, 256),
                        Conv("Conv2d_0b_3x3", 3, 288),
                        Conv("Conv2d_1a_3x3", 3, 320, stride=2, padding=tail),
                    ),
                    (Pool("max", stride=2, padding=tail),),
                ),
            ),
            *(_block_8(f"Repeat_2/block8_{number}") for number in range(1, 10)),
            # TF-Slim's tenth block is outside of the repeated ones: neither scaled nor activated.
            _block_8("Block8", 1.0, activated=False),
            Conv("Conv2d_7b_1x1", 1, 1536),
        ),
    )


_NORMAL = Recipe(
    (
        ((0, "separable_5x5"), (1, "separable_3x3")),
        ((1, "separable_5x5"), (1, "separable_3x3")),
        ((0, "avg_pool"), (1, "none")),
        ((1, "avg_pool"), (1, "avg_pool")),
        ((0, "separable_3x3"), (0, "none")),
    ),
    outputs=(1, 2, 3, 4, 5, 6),
)
_REDUCTION = Recipe(
    (
        ((0, "separable_5x5"), (1, "separable_7x7")),
        ((0, "max_pool"), (1, "separable_7x7")),
        ((0, "avg_pool"), (1, "separable_5x5")),
        ((3, "none"), (2, "avg_pool")),
        ((2, "separable_3x3"), (0, "max_pool")),
    ),
    outputs=(3, 4, 5, 6),
)


def _cells() -> tuple[CellPlan, ...]:
    plans = [CellPlan(f"cell_stem_{number}", _REDUCTION, 42 * 2**number, stride=2) for number in range(2)]
    for number in range(18):
        filters = 168 * 2 ** (number // 6)
        if number in (6, 12):
            # The cell behind a reduction reads what the reduction read before its own input.
            name = f"reduction_cell_{number // 6 - 1}"
            plans.append(CellPlan(name, _REDUCTION, filters, stride=2, passes_on=True))
        plans.append(CellPlan(f"cell_{number}", _NORMAL, filters))
    return tuple(plans)


NASNET = CellLayout(_cells(), most_dropped=0.3)
NASNET_SETTINGS = slim_settings(l2=5e-5)
