"""What a folder holds that no test here looks at is reported, recording by recording."""

from __future__ import annotations

import pytest

from tests.conftest import GOLDEN
from tests.parity.recordings import FOLDER, UNSUPPORTED, unclaimed


def test_the_shipped_folder_is_claimed_whole() -> None:
    if FOLDER == GOLDEN:
        assert unclaimed() == []


def test_what_no_test_reads() -> None:
    if FOLDER != GOLDEN and (names := unclaimed()):
        UNSUPPORTED.extend(f"{name}: no test here reads it" for name in names)
        pytest.skip(f"unsupported: {', '.join(names)}")
