"""Pictures in the documentation are what their commands make."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_picture_of_refinedet(tmp_path: Path) -> None:
    config = ROOT / "configs" / "refinedet" / "refinedet320_vgg16_voc.config"
    command = [sys.executable, "docs/draw_refinedet.py", str(config), str(tmp_path / "refinedet.svg")]
    subprocess.run(command, check=True, cwd=ROOT)
    assert (tmp_path / "refinedet.svg").read_text() == (ROOT / "docs" / "refinedet.svg").read_text()
    # Four levels of six parts and three deconvolutions: 4 × 5 ways along a row, and two for each deconvolution.
    assert (tmp_path / "refinedet.svg").read_text().count('<path d="M') == 1 + 4 * 5 + 2 * 3
