"""`boxwright models`."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest

from boxwright.config.preset import preset_names
from boxwright.pipeline.load import load_config
from boxwright.pipeline.missing import missing_for_training
from tests import forked


def models(*words: str) -> subprocess.CompletedProcess[str]:
    return forked.run([sys.executable, "-m", "boxwright", "models", *words], timeout=120)


def test_the_table_has_every_name_whole_in_80_columns() -> None:
    lines = models("--all").stdout.splitlines()
    assert max(len(line) for line in lines) <= 80
    rows = list(takewhile(bool, lines[1:]))
    assert [row.split()[0] for row in rows] == preset_names()
    (row,) = (row for row in rows if row.startswith("efficientdet_d0 "))
    # Tan et al., table 2: 3.9 million parameters, 2.5 · 10⁹ multiplications; the zoo states an AP of 33.6.
    assert row.split() == ["efficientdet_d0", "512×512", "3.9M", "2.5", "33.6", "TF2", "zoo"]
    (row,) = (row for row in rows if row.startswith("torchvision_fasterrcnn_"))
    assert row.split()[1] == "1066×800", "width × height, as on the site"


def test_ten_are_listed_first() -> None:
    lines = models().stdout.splitlines()
    names = [row.split()[0] for row in takewhile(bool, lines[1:])]
    assert len(names) == 10
    assert names[0].startswith("rf_detr")
    assert set(names) < set(preset_names())
    assert lines[-1] == f"10 of {len(preset_names())} presets; all: boxwright models --all"
    assert [row["name"] for row in json.loads(models("--json").stdout)] == names


def test_ap_is_of_boxes_on_coco() -> None:
    rows = {line.split()[0]: line.split() for line in takewhile(bool, models("--all").stdout.splitlines()[1:])}
    assert rows["center_net_resnet50_v1_fpn_512_keypoints"][4] == "29.3", "of boxes; that of keypoints is 50.7"
    assert rows["center_net_deepmac_1024_coco"][4] == "-", "39.4 is of masks"
    assert rows["srn_resnet50_wider_face"][4] == "-", "96.5 is of faces"
    assert rows["d_fine_s_coco"][4] == "48.5", "of COCO alone, not of Objects365 before"


def test_one_or_all() -> None:
    result = models("d_fine_n_coco", "--all")
    assert result.returncode == 1
    assert "--all lists every preset" in result.stderr


def test_json() -> None:
    rows = json.loads(models("--json", "--all").stdout)
    assert [row["name"] for row in rows] == preset_names()
    row = json.loads(models("ssd_mobilenet_v2_fpnlite_640", "--json").stdout)
    assert (row["height"], row["width"]) == (640, 640)
    assert row["weights"][0]["file"] == "ssd_mobilenet_v2_fpnlite_640x640_coco17_tpu-8.tar.gz"
    assert row["weights"][0]["license"] == "not stated"
    assert "milliseconds_measured_here" not in row


@pytest.mark.parametrize("name", ["ssd_resnet50_v1_fpn_640", "refinedet320_vgg16_voc"])
def test_one_ends_with_what_to_write_next(name: str, tmp_path: Path) -> None:
    """The configuration that is shown is one that can train."""
    lines = models(name).stdout.splitlines()
    assert lines[0] == name
    start = lines.index(f'  preset: "{name}"')
    (tmp_path / "my.config").write_text("\n".join(takewhile(bool, lines[start:])))
    config = load_config(tmp_path / "my.config")
    assert missing_for_training(config) == []
    assert lines[-1] == "  boxwright train --pipeline_config_path my.config --model_dir model"


def test_what_there_is_not() -> None:
    result = models("ssd_mobilenet_v9")
    assert result.returncode == 1
    assert "did you mean ssd_mobilenet_v" in result.stderr


@pytest.mark.slow
def test_measured_is_labelled() -> None:
    result = models("mask_rcnn_mobilenet_v3_fpn_shapes", "--measure")
    assert result.returncode == 0, result.stderr
    assert "ms per image, measured now on this machine's CPU" in result.stdout


def test_it_needs_no_torch() -> None:
    code = "import sys; from boxwright.cli.models import models_command; models_command(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_show_says_what_was_scaled(tmp_path: Path) -> None:
    """`config show` of a preset is a whole configuration; its comment says which rates are not the preset's."""
    command = [sys.executable, "-m", "boxwright", "config", "show", "preset:efficientdet_d0"]
    shown = forked.run([*command, "--set", "train_config.batch_size=64"], check=True).stdout
    assert shown.startswith("# learning rates are scaled by 64 / 128")
    (tmp_path / "a.config").write_text(shown)
    read = load_config(tmp_path / "a.config")
    assert read == load_config("preset:efficientdet_d0", ["train_config.batch_size=64"])
    assert read.notes == []
