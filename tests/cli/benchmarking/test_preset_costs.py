"""What presets and runs cost: the table against detectors that are built anew, numbers of the papers, and by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torchvision.models.detection import FasterRCNN_ResNet50_FPN_Weights, MaskRCNN_ResNet50_FPN_Weights

from boxwright.cli.benchmarking.facts import facts
from boxwright.cli.benchmarking.preset_costs import PresetCost, count_preset, read_costs, write_costs
from boxwright.config.preset import preset_names
from boxwright.nn.layers import Conv2d

OWN_INITIALIZERS = True  # how many regions are computed follows from the weights

QUICK = (
    "ssd_mobilenet_v2_320",
    "ssd_mobilenet_v2_fpnlite_320",
    "efficientdet_d1",
    "refinedet320_vgg16_voc",
    "srn_mobilenet_v2_wider_face",
    "mask_rcnn_mobilenet_v3_fpn_shapes",
)


def test_every_preset_has_a_row() -> None:
    assert list(read_costs()) == preset_names()


@pytest.mark.slow_except("refinedet320_vgg16_voc")
@pytest.mark.parametrize("name", QUICK)
def test_the_table_is_what_is_built(name: str) -> None:
    assert read_costs()[name] == count_preset(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in preset_names() if name not in QUICK])
def test_the_whole_table_is_what_is_built(name: str) -> None:
    known, counted = read_costs()[name], count_preset(name)
    # How many proposals of random weights are left depends on the last digits, so on the processor and its threads.
    assert counted.macs == pytest.approx(known.macs, rel=0.005)
    assert replace(counted, macs=known.macs) == known


def test_numbers_that_others_have_published() -> None:
    costs = read_costs()
    # Tan et al., table 2: 3.9 million parameters and 2.5 · 10⁹ multiplications for D0.
    assert costs["efficientdet_d0"].parameters == pytest.approx(3.9e6, rel=0.01)
    assert costs["efficientdet_d0"].macs == pytest.approx(2.5e9, rel=0.01)
    # Torchvision's own counts; frozen normalization has its scales and offsets as buffers there.
    theirs = {"fasterrcnn": FasterRCNN_ResNet50_FPN_Weights.COCO_V1, "maskrcnn": MaskRCNN_ResNet50_FPN_Weights.COCO_V1}
    for kind, weights in theirs.items():
        ours = costs[f"torchvision_{kind}_resnet50_fpn_coco"].parameters
        assert ours == pytest.approx(weights.meta["num_params"], rel=0.01)


def test_written_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"b": PresetCost(1, 2, 3, 4), "a": PresetCost(5, 6, 7, 8)}
    write_costs(tmp_path / "costs.json", wanted)
    monkeypatch.setattr("boxwright.cli.benchmarking.preset_costs.COSTS", tmp_path / "costs.json")
    assert read_costs() == wanted
    assert list(read_costs()) == ["a", "b"]


def test_operations_are_those_of_the_definition() -> None:
    conv = Conv2d(128, 160, 3, bias=True).requires_grad_(False)
    inputs = torch.randn(1, 128, 40, 48).to(memory_format=torch.channels_last)
    found = facts(conv, lambda: conv(inputs), lambda: conv(inputs))
    assert found.gflops == pytest.approx(2 * 40 * 48 * 128 * 160 * 9 / 1e9)
    assert found.parameters == 128 * 160 * 9 + 160
    assert found.peak_mib >= 40 * 48 * 160 * 4 / 2**20
