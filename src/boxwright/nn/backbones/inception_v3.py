"""Inception v3 (Szegedy et al., 2016, table 1), as TF-Slim lays it out.

Some of its scopes are misnamed.
"""

from __future__ import annotations

from boxwright.nn.backbones.inception import Block, Conv, Fork, InceptionLayout, Pool

_ROW, _COLUMN = (1, 7), (7, 1)


def _block_35(name: str, projected: int, five: tuple[str, str] = ("Conv2d_0a_1x1", "Conv2d_0b_5x5")) -> Block:
    """Return a block on the 35×35 grid."""
    return Block(
        name,
        (
            (Conv("Conv2d_0a_1x1", 1, 64),),
            (Conv(five[0], 1, 48), Conv(five[1], 5, 64)),
            (Conv("Conv2d_0a_1x1", 1, 64), Conv("Conv2d_0b_3x3", 3, 96), Conv("Conv2d_0c_3x3", 3, 96)),
            (Pool("average"), Conv("Conv2d_0b_1x1", 1, projected)),
        ),
    )


def _block_17(name: str, between: int) -> Block:
    """Return a block on the 17×17 grid."""
    return Block(
        name,
        (
            (Conv("Conv2d_0a_1x1", 1, 192),),
            (
                Conv("Conv2d_0a_1x1", 1, between),
                Conv("Conv2d_0b_1x7", _ROW, between),
                Conv("Conv2d_0c_7x1", _COLUMN, 192),
            ),
            (
                Conv("Conv2d_0a_1x1", 1, between),
                Conv("Conv2d_0b_7x1", _COLUMN, between),
                Conv("Conv2d_0c_1x7", _ROW, between),
                Conv("Conv2d_0d_7x1", _COLUMN, between),
                Conv("Conv2d_0e_1x7", _ROW, 192),
            ),
            (Pool("average"), Conv("Conv2d_0b_1x1", 1, 192)),
        ),
    )


def _block_8(name: str, column: str) -> Block:
    """Return a block on the 8×8 grid."""
    return Block(
        name,
        (
            (Conv("Conv2d_0a_1x1", 1, 320),),
            (
                Conv("Conv2d_0a_1x1", 1, 384),
                Fork((Conv("Conv2d_0b_1x3", (1, 3), 384), Conv(column, (3, 1), 384))),
            ),
            (
                Conv("Conv2d_0a_1x1", 1, 448),
                Conv("Conv2d_0b_3x3", 3, 384),
                Fork((Conv("Conv2d_0c_1x3", (1, 3), 384), Conv("Conv2d_0d_3x1", (3, 1), 384))),
            ),
            (Pool("average"), Conv("Conv2d_0b_1x1", 1, 192)),
        ),
    )


INCEPTION_V3 = InceptionLayout(
    "InceptionV3",
    (
        Conv("Conv2d_1a_3x3", 3, 32, stride=2, padding="valid"),
        Conv("Conv2d_2a_3x3", 3, 32, padding="valid"),
        Conv("Conv2d_2b_3x3", 3, 64),
        Pool("max", stride=2, padding="valid"),
        Conv("Conv2d_3b_1x1", 1, 80),
        Conv("Conv2d_4a_3x3", 3, 192, padding="valid"),
        Pool("max", stride=2, padding="valid"),
        _block_35("Mixed_5b", 32),
        # TF-Slim's spelling, different from that of its neighbors; checkpoints have it.
        _block_35("Mixed_5c", 64, ("Conv2d_0b_1x1", "Conv_1_0c_5x5")),
        _block_35("Mixed_5d", 64),
        Block(
            "Mixed_6a",
            (
                # A 3×3 kernel under a scope that says 1×1, as in TF-Slim.
                (Conv("Conv2d_1a_1x1", 3, 384, stride=2, padding="valid"),),
                (
                    Conv("Conv2d_0a_1x1", 1, 64),
                    Conv("Conv2d_0b_3x3", 3, 96),
                    Conv("Conv2d_1a_1x1", 3, 96, stride=2, padding="valid"),
                ),
                (Pool("max", stride=2, padding="valid"),),
            ),
        ),
        _block_17("Mixed_6b", 128),
        _block_17("Mixed_6c", 160),
        _block_17("Mixed_6d", 160),
        _block_17("Mixed_6e", 192),
        Block(
            "Mixed_7a",
            (
                (Conv("Conv2d_0a_1x1", 1, 192), Conv("Conv2d_1a_3x3", 3, 320, stride=2, padding="valid")),
                (
                    Conv("Conv2d_0a_1x1", 1, 192),
                    Conv("Conv2d_0b_1x7", _ROW, 192),
                    Conv("Conv2d_0c_7x1", _COLUMN, 192),
                    Conv("Conv2d_1a_3x3", 3, 192, stride=2, padding="valid"),
                ),
                (Pool("max", stride=2, padding="valid"),),
            ),
        ),
        _block_8("Mixed_7b", "Conv2d_0b_3x1"),
        _block_8("Mixed_7c", "Conv2d_0c_3x1"),
    ),
)
