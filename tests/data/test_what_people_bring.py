"""What people bring: every label lands on its object, or the data are refused with the cause."""

from __future__ import annotations

import pytest

from tests.brought.file_variants import ENCODINGS, ENDINGS, LEFT_BY_SYSTEMS, NAMES, WHICH_PICTURE
from tests.brought.label_variants import CLASS_IDENTITY, NUMBERS, OTHER_NUMBERS
from tests.brought.layout_variants import LAYOUTS
from tests.brought.orientation_variants import ORIENTATIONS
from tests.brought.variant import Variant, hold

_TABLES = (
    ORIENTATIONS,
    CLASS_IDENTITY,
    NUMBERS,
    OTHER_NUMBERS,
    WHICH_PICTURE,
    ENDINGS,
    ENCODINGS,
    NAMES,
    LEFT_BY_SYSTEMS,
    LAYOUTS,
)
VARIANTS: dict[str, Variant] = {name: variant for table in _TABLES for name, variant in table.items()}


def test_how_many_there_are() -> None:
    assert len(VARIANTS) == sum(map(len, _TABLES)), "two have one name"
    assert len(VARIANTS) >= 120


@pytest.mark.parametrize("name", VARIANTS)
def test_variant(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    # The folder's name tells nothing of a format, a split or a cause, as `tmp_path` would.
    variant = VARIANTS[name]
    hold(variant, variant.make(tmp_path_factory.mktemp("brought")))
