"""Settings of reports."""

from __future__ import annotations

from dataclasses import dataclass

from boxwright.base.settings import setting

_REPORT = "The report"


@dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """What a report shows; the commands that write one have an option for each."""

    max_pictures: int = setting(5000, "The most images copied into the report, those with most errors.", _REPORT, 0)
    picture_side: int = setting(640, "The longer side of those copies, in pixels.", _REPORT, 1, 4096)
    fit_calibration: bool = setting(
        False, "Fit calibrated scores on half of the images; write calibration.config, judged on the others.", _REPORT
    )
    threads: int = setting(2, "Threads that read and copy images.", _REPORT, 1)
