"""Ten minutes of good and hostile clients while files are exchanged under the server; `benchmarks/soak.py` is the hour."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.exporters.exported import exported_detector

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_ten_minutes_of_load_and_reloads(tmp_path: Path) -> None:
    """What is asked well is answered; memory, descriptors and threads stay. BOXWRIGHT_SOAK_MINUTES makes it shorter."""
    other = tmp_path / "other.onnx"
    other.write_bytes(exported_detector().file.read_bytes())
    minutes = os.environ.get("BOXWRIGHT_SOAK_MINUTES", "10")
    command = [
        sys.executable,
        ROOT / "benchmarks" / "soak.py",
        ROOT / "tests" / "kept" / "detector.onnx",
        "--other",
        other,
    ]
    done = subprocess.run(
        [*map(str, command), "--minutes", minutes, "--out", str(tmp_path / "soak.json")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = json.loads((tmp_path / "soak.json").read_text())
    assert found["failures"] == []
    assert found["reloads"] >= 1
    assert found["good"]["200"] > 20
