"""The check for fields of a configuration that have no effect, or are refused."""

from __future__ import annotations

from collections.abc import Iterable

from boxwright.config.support import report
from boxwright.pipeline import messages as m
from boxwright.training.preflight.finding import Finding, some


def check_fields(config: m.TrainEvalPipelineConfig) -> Iterable[Finding]:
    """Yield the fields of a configuration that are not honored."""
    rows = list(report(config))
    refused = [str(row) for row in rows if row.status.verdict == "refused"]
    idle = [row.path for row in rows if row.status.verdict == "without effect"]
    if refused:
        yield Finding(
            "fields", "fatal", f"{len(refused)} settings are refused: {some(refused)}", "boxwright config check"
        )
    if idle:
        yield Finding(
            "fields", "note", f"{len(idle)} settings have no effect: {some(idle)}", "boxwright config check says why"
        )
    if not refused and not idle:
        yield Finding("fields", "fine", f"all {len(rows)} settings are honored")
