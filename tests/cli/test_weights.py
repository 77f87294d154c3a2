"""`boxwright weights`, as it is typed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from boxwright.cli.console import console
from boxwright.cli.main import app


def run(*words: str, status: int = 0) -> str:
    with console.capture() as captured:
        result = CliRunner().invoke(app, ["weights", *words])
    assert result.exit_code == status, (result.output, result.exception)
    return captured.get() + result.output


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BOXWRIGHT_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setenv("BOXWRIGHT_OFFLINE", "1")
    return tmp_path / "weights"


def test_the_list_fits_a_terminal_and_is_searched() -> None:
    everything = run("list")
    assert "d_fine_s_coco" in everything
    assert "timm/" not in everything
    assert max(map(len, everything.splitlines())) <= 80
    assert "TF2 zoo (TensorFlow models); COCO 2017; license: not stated" in everything
    assert any(line.split()[:2] == ["rf_detr_seg_nano_coco", "40.3*"] for line in everything.splitlines())
    assert max(map(len, run("list", "--backbones").splitlines())) <= 80
    few = run("list", "rt_detr", "coco")
    assert few.count("rt_detr_v4_") == 5  # four rows, and the line of what to do next
    assert any(line.endswith("  not yet") for line in run("list", "roboflow").splitlines())
    assert "timm/resnet50.a1_in1k" in run("list", "--backbones")
    rows = json.loads(run("list", "d-fine", "--json"))
    assert rows[0]["name"] == "d_fine_n_coco"
    assert rows[0]["cached"] is None


def test_info_says_what_is_known() -> None:
    text = run("info", "d_fine_s_obj2coco")
    for part in (
        "Objects365, then COCO 2017",
        "not stated (of the weights), Apache-2.0 (of the code)",
        "academic purposes only",
        "41,847,790 bytes",
        "(stated by its publisher)",
        "boxwright train DATA --model d_fine_s_obj2coco",
    ):
        assert part in text
    assert "f3276ba8…, as its name says" in run("info", "effdet_efficientdet_d0")
    assert json.loads(run("info", "d_fine_s_coco", "--json"))["ap"] == 48.5
    assert "train DATA --model refinedet320_vgg16_voc --weights vgg16_reducedfc" in run("info", "vgg16_reducedfc")
    assert "none; its archive has a configuration" in run("info", "centernet_mobilenetv2fpn_512x512_coco17_od")


def test_a_cached_file_is_marked_and_listed(empty_cache: Path) -> None:
    empty_cache.mkdir()
    (empty_cache / "dfine_n_coco.pth").write_bytes(b"any")
    assert any(line.endswith("cached") for line in run("list", "d_fine_n_coco").splitlines())
    where = run("where")
    assert where.splitlines()[0] == str(empty_cache)
    assert "d_fine_n_coco  0.0 MB" in where


def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    from boxwright.base.errors import BoxwrightError

    def error(*words: str) -> str:
        with pytest.raises(BoxwrightError) as raised:
            CliRunner().invoke(app, ["weights", *words], catch_exceptions=False)
        return str(raised.value)

    assert "did you mean d_fine_s_coco" in error("info", "dfine_s_coco")
    assert "BOXWRIGHT_OFFLINE is set" in error("fetch", "d_fine_s_coco")
    assert "no published weights with 'nothing at all'" in error("list", "nothing", "at", "all")
    (tmp_path / "dfine_n_coco.pth").write_bytes(b"any")
    assert "has the name of d_fine_n_coco, but its SHA-256 is" in error("verify", str(tmp_path / "dfine_n_coco.pth"))
    (tmp_path / "own.pth").write_bytes(b"any")
    assert "is none of the published weights" in error("verify", str(tmp_path / "own.pth"))
    (tmp_path / "SRN.pth").write_bytes(b"any")
    unchecked = error("verify", str(tmp_path / "SRN.pth"))
    assert f"nobody states: it cannot be checked; its own is {hashlib.sha256(b'any').hexdigest()}" in unchecked
    with (tmp_path / "own.pth").open("wb") as file:
        file.truncate(14_069_355)  # torchvision's SSDLite
    assert "has the size of ssdlite320_mobilenet_v3_torchvision, but its SHA-256 is" in error(
        "verify", str(tmp_path / "own.pth")
    )
    assert "no such file" in error("verify", str(tmp_path / "nothing.pth"))
