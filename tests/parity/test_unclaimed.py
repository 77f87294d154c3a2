"""What a folder holds that no test here looks at is reported, recording by recording."""

from __future__ import annotations

import pytest

from tests.conftest import GOLDEN
from tests.parity.recordings import FOLDER, unclaimed, unsupported


def test_the_shipped_folder_is_claimed_whole() -> None:
    if FOLDER == GOLDEN:
        assert unclaimed() == []


@pytest.mark.parametrize("name", unclaimed() if FOLDER != GOLDEN else [])
def test_what_no_test_reads(name: str) -> None:
    unsupported(name, "no test here reads it")
