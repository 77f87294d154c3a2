"""PNASNet-5, large (Liu et al., 2018), as TF-Slim defines it."""

from __future__ import annotations

from boxwright.nn.backbones.cells import CellLayout, CellPlan, Recipe, slim_settings

_CELL = Recipe(
    (
        ((1, "separable_5x5"), (1, "max_pool")),
        ((0, "separable_7x7"), (0, "max_pool")),
        ((0, "separable_5x5"), (0, "separable_3x3")),
        ((4, "separable_3x3"), (0, "max_pool")),
        ((1, "separable_3x3"), (0, "none")),
    ),
    outputs=(2, 3, 4, 5, 6),
)
PNASNET = CellLayout(
    (
        CellPlan("cell_stem_0", _CELL, 54, stride=2),
        CellPlan("cell_stem_1", _CELL, 108, stride=2),
        *(
            CellPlan(f"cell_{number}", _CELL, 216 * 2 ** (number // 4), stride=2 if number in (4, 8) else 1)
            for number in range(12)
        ),
    ),
    most_dropped=0.4,
)
PNASNET_SETTINGS = slim_settings(l2=4e-5)
