"""NASNet-A, large (Zoph et al., 2018), as TF-Slim defines it."""

from __future__ import annotations

from boxwright.nn.backbones.cells import CellLayout, CellPlan, Recipe, slim_settings

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
