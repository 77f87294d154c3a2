"""The Python of docs/python.md, run as it stands."""

from __future__ import annotations

import re
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.api.models import small_run
from tests.training.autoconfig.datasets import yolo

BLOCKS = re.findall(
    r"```python\n(.*?)```", (Path(__file__).parent.parent / "docs" / "python.md").read_text(), re.DOTALL
)


@pytest.mark.slow
def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(BLOCKS) == 14
    run = small_run()
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run.folder, tmp_path / "model")
    (tmp_path / "model" / "export").mkdir()
    shutil.copy(run.onnx, tmp_path / "model" / "export" / "detector.onnx")
    shutil.copy(run.config, tmp_path / "pipeline.config")
    (tmp_path / "photos").mkdir()
    for path in (tmp_path / "photo.jpg", tmp_path / "photos" / "1.jpg"):
        Image.open(run.picture).save(path)
    yolo(tmp_path / "yolo")
    names = {"image": np.asarray(Image.open(run.picture).convert("RGB"))}
    for number, block in enumerate(BLOCKS):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            exec(compile(block, f"docs/python.md, block {number}", "exec"), names)
    assert (tmp_path / "out.jpg").is_file()
    assert (tmp_path / "history.png").is_file()
