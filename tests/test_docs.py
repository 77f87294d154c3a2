"""Pictures in the documentation are what their commands make."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_picture_of_refinedet(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "docs/draw_refinedet.py",
        "preset:refinedet320_vgg16_voc",
        str(tmp_path / "refinedet.svg"),
    ]
    subprocess.run(command, check=True, cwd=ROOT)
    assert (tmp_path / "refinedet.svg").read_text() == (ROOT / "docs" / "refinedet.svg").read_text()
    # Four levels of six parts and three deconvolutions: 4 × 5 ways along a row, and two for each deconvolution.
    assert (tmp_path / "refinedet.svg").read_text().count('<path d="M') == 1 + 4 * 5 + 2 * 3


def test_limits_are_all_documented() -> None:
    from boxwright.base.limits import LIMITS

    text = (ROOT / "docs" / "reliability.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `BOXWRIGHT_MAX_")]
    assert len(rows) == len(LIMITS) == 16
    for limit, row in zip(LIMITS, rows, strict=True):
        name, default = (cell.strip() for cell in row.strip("|").split("|")[:2])
        assert (name, int(default.replace(",", ""))) == (f"`{limit.variable}`", limit.default)


def test_faults_name_tests_that_are_there() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text()
    named = {part for line in text.splitlines() for part in line.split("`") if part.startswith("tests/")}
    assert len(named) >= 9
    assert all((ROOT / name).is_file() for name in named)
