"""Inception v2 (Ioffe and Szegedy, 2015, figure 5), as TF-Slim lays it out."""

from __future__ import annotations

from boxwright.nn.backbones.inception import Block, Conv, InceptionLayout, Pool, Separable

# Standard deviations of kernels before a 3×3, and of projections.
_REDUCE, _PROJECT = 0.09, 0.1


def _block(
    name: str,
    plain: int,
    single: tuple[int, int],
    double: tuple[int, int],
    projected: int,
    pool: str = "average",
) -> Block:
    """Return a block that keeps the size: a 1×1, a 3×3, two 3×3, and a pool."""
    return Block(
        name,
        (
            (Conv("Conv2d_0a_1x1", 1, plain),),
            (Conv("Conv2d_0a_1x1", 1, single[0], deviation=_REDUCE), Conv("Conv2d_0b_3x3", 3, single[1])),
            (
                Conv("Conv2d_0a_1x1", 1, double[0], deviation=_REDUCE),
                Conv("Conv2d_0b_3x3", 3, double[1]),
                Conv("Conv2d_0c_3x3", 3, double[1]),
            ),
            (Pool(pool), Conv("Conv2d_0b_1x1", 1, projected, deviation=_PROJECT)),
        ),
    )


def _halving(name: str, single: tuple[int, int], double: tuple[int, int]) -> Block:
    """Return a block that halves the size."""
    return Block(
        name,
        (
            (Conv("Conv2d_0a_1x1", 1, single[0], deviation=_REDUCE), Conv("Conv2d_1a_3x3", 3, single[1], stride=2)),
            (
                Conv("Conv2d_0a_1x1", 1, double[0], deviation=_REDUCE),
                Conv("Conv2d_0b_3x3", 3, double[1]),
                Conv("Conv2d_1a_3x3", 3, double[1], stride=2),
            ),
            (Pool("max", stride=2),),
        ),
    )


INCEPTION_V2 = InceptionLayout(
    "InceptionV2",
    (
        # Separable as in the paper's appendix; TF-Slim gives this kernel alone a deviation of 1.
        Separable("Conv2d_1a_7x7", 7, 64, stride=2, deviation=1.0),
        Pool("max", stride=2),
        Conv("Conv2d_2b_1x1", 1, 64, deviation=_PROJECT),
        Conv("Conv2d_2c_3x3", 3, 192),
        Pool("max", stride=2),
        _block("Mixed_3b", 64, (64, 64), (64, 96), 32),
        _block("Mixed_3c", 64, (64, 96), (64, 96), 64),
        _halving("Mixed_4a", (128, 160), (64, 96)),
        _block("Mixed_4b", 224, (64, 96), (96, 128), 128),
        _block("Mixed_4c", 192, (96, 128), (96, 128), 128),
        _block("Mixed_4d", 160, (128, 160), (128, 160), 96),
        _block("Mixed_4e", 96, (128, 192), (160, 192), 96),
        _halving("Mixed_5a", (128, 192), (192, 256)),
        _block("Mixed_5b", 352, (192, 320), (160, 224), 128),
        _block("Mixed_5c", 352, (192, 320), (192, 224), 128, pool="max"),
    ),
)
