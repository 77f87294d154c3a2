"""After the parity tests: how many recordings were matched, and which could not be tried."""

from __future__ import annotations

from typing import Any

import pytest

from tests.parity.recordings import FOLDER, MATCHED, UNSUPPORTED


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if (
        report.when == "call"
        and report.passed
        and "/parity/" in report.nodeid
        and "shipped_folder" not in report.nodeid
        and "no_test_reads" not in report.nodeid
    ):
        MATCHED.append(report.nodeid)
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not MATCHED and not UNSUPPORTED:
        return
    terminalreporter.section(f"parity with {FOLDER.name}")
    terminalreporter.write_line(f"{len(MATCHED)} checks matched, {len(UNSUPPORTED)} recordings unsupported")
    for line in UNSUPPORTED:
        terminalreporter.write_line(f"  unsupported: {line}")
