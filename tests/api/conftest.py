"""The run that the tests of the Python API share."""

from __future__ import annotations

import pytest

from tests.api.models import SmallRun, small_run


@pytest.fixture(scope="session")
def run() -> SmallRun:
    return small_run()
