from __future__ import annotations

import pytest
import torch

from boxwright.base.errors import ConfigError
from boxwright.config.load import parse_message
from boxwright.families.shared.anchor_generator import build_anchor_generator
from boxwright.nn.anchor_grids import tile_anchors
from boxwright.pipeline import messages as m

IN_PIXELS = {"anchors/0", "anchors/5"}  # recorded without normalisation


def test_tiling_by_hand() -> None:
    boxes = tile_anchors((1, 2), [(2, 4), (4, 2)], (8, 10), (4, 5))
    assert boxes.tolist() == [[3, 3, 7, 5], [4, 2, 6, 6], [13, 3, 17, 5], [14, 2, 16, 6]]


def test_ssd_anchors_follow_the_shorter_side() -> None:
    """On a 200 × 100 image, a square of scale 0.5 is 50 pixels wide and high."""
    config = "ssd_anchor_generator { num_layers: 1 scales: 0.5 aspect_ratios: 1 reduce_boxes_in_lowest_layer: false }"
    generator = build_anchor_generator(parse_message(config, m.AnchorGenerator))
    (level,) = generator([(1, 1)], (100, 200))
    torch.testing.assert_close(level[0], torch.tensor([75.0, 25.0, 125.0, 75.0]))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "AnchorGenerator: empty; set one of"),
        ("ssd_anchor_generator { num_layers: 3 scales: 0.1 }", "3 layers, but scales are"),
        ("ssd_anchor_generator { num_layers: 2 height_stride: [8, 16] }", "expected none, or one a layer"),
        (
            "flexible_grid_anchor_generator { anchor_grid { base_sizes: [8, 9] aspect_ratios: [1, 2, 3] } }",
            "as many base_sizes as aspect_ratios",
        ),
        (
            "flexible_grid_anchor_generator { anchor_grid { base_sizes: 8 aspect_ratios: 1 } }",
            "set height_stride and width_stride",
        ),
    ],
)
def test_bad_configurations(text: str, wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted):
        build_anchor_generator(parse_message(text, m.AnchorGenerator))
