"""Searched cells: pooling as TensorFlow pads it, drop path, and whose normalization a configuration overrides."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchvision.ops import stochastic_depth

from boxwright.config.load import parse_message
from boxwright.families.two_stage.inception_resnet_v2 import NASNET
from boxwright.nn.backbones.cells import (
    PNASNET,
    PNASNET_SETTINGS,
    CellLayout,
    CellNetwork,
    JoinedCells,
    LaterCells,
    overridden_settings,
)
from boxwright.nn.batch_norm import BatchNormSettings
from boxwright.nn.drop_path import DropPath, StochasticDepth, drop_paths
from boxwright.nn.layers import AvgPool2d, ConvSettings
from boxwright.nn.network import Network
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from tests.two_stage_models import ONE_MAP


def test_average_of_what_lies_within_the_map() -> None:
    """SAME pads an even side below and right only; what was padded does not count."""
    inputs = torch.arange(16.0).reshape(1, 1, 4, 4)
    # Windows: rows 0-2 and 2-3, columns alike.
    assert AvgPool2d(3, 2)(inputs).flatten().tolist() == pytest.approx([5.0, 6.5, 11.0, 12.5])
    # At an odd side both ends are padded: windows 0-1 and 1-2 of each side of 3.
    odd = torch.arange(9.0).reshape(1, 1, 3, 3)
    assert AvgPool2d(3, 2)(odd).flatten().tolist() == pytest.approx([2.0, 3.0, 5.0, 6.0])
    assert AvgPool2d(3, 1)(inputs)[0, 0, 0].tolist() == pytest.approx([2.5, 3.0, 4.0, 4.5])


def test_paths_are_dropped_by_example() -> None:
    torch.manual_seed(0)
    paths = DropPath(most=0.4, steps=100)
    inputs = torch.ones(4000, 2, 3, 3)
    assert torch.equal(paths(inputs), inputs)
    paths.set_step(50)
    found = paths(inputs)
    whole = found.flatten(1)
    assert torch.equal(whole.amin(1), whole.amax(1))
    assert set(whole[:, 0].tolist()) == {0.0, 1.25}
    assert abs(whole[:, 0].mean() - 1) < 0.03
    paths.set_step(10_000)
    assert paths.share == torch.tensor(0.4)
    assert paths.eval()(inputs) is inputs
    assert not paths.state_dict()


def test_later_cells_drop_more() -> None:
    """The share of cell i of n is i / n of the network's: of NASNet's 22 cells, 0.3; of PNASNet's 14, 0.4."""
    assert NASNET.drop_path("cell_17").most == pytest.approx(0.3)
    assert NASNET.drop_path("cell_stem_0").most == pytest.approx(0.3 / 22)
    assert NASNET.drop_path("reduction_cell_1").most == pytest.approx(0.3 * 16 / 22)
    assert PNASNET.drop_path("cell_0").most == pytest.approx(0.4 * 3 / 14)
    assert PNASNET.drop_path("cell_11").steps == 250_000


def small(settings: ConvSettings | None = None) -> CellNetwork:
    own = PNASNET_SETTINGS if settings is None else overridden_settings(settings, PNASNET_SETTINGS)
    return CellNetwork(PNASNET, own, taps=("cell_stem_0", "cell_stem_1"))


def test_an_overriding_configuration_adds_to_each_convolution() -> None:
    """As in TF: its normalization and activation behind each, then the network's own, with its decay and epsilon."""
    plain = small()
    assert plain.channels == (270, 540)
    assert [level.shape[1:] for level in plain.eval()(torch.zeros(1, 3, 33, 33))] == [(270, 8, 8), (540, 4, 4)]
    norm = BatchNormSettings(decay=0.9, epsilon=0.01)
    twice = small(ConvSettings(norm=norm, activation="RELU_6"))
    count = sum(isinstance(part, nn.Conv2d) for part in twice.conv0.modules())
    assert [type(part).__name__ for part in twice.conv0.children()] == ["Conv2d", "BatchNorm2d", "ReLU6"]
    assert count == 1
    assert isinstance(twice.conv0_bn, nn.BatchNorm2d)
    assert twice.conv0_bn.eps == 0.01
    bare = small(ConvSettings(norm=None, activation="RELU"))
    assert [type(part).__name__ for part in bare.conv0.children()] == ["Conv2d", "ReLU"]
    assert isinstance(bare.conv0_bn, nn.BatchNorm2d)
    assert bare.conv0_bn.eps == 0.001
    assert all(part.bias is None for part in bare.modules() if isinstance(part, nn.Conv2d))


def test_two_halves_are_the_whole() -> None:
    """What two cells say together is one map of which the later cells read both, as if it was never cut."""
    torch.manual_seed(0)
    layout = CellLayout(PNASNET.cells[:5], most_dropped=0.0)
    *_, one, two, last = (cell.name for cell in layout.cells)
    first = JoinedCells(CellNetwork(layout, PNASNET_SETTINGS, taps=(one, two))).eval()
    second = LaterCells(layout, PNASNET_SETTINGS, first).eval()
    whole = CellNetwork(layout, PNASNET_SETTINGS, taps=(last,)).eval()
    whole.load_state_dict(first.body.state_dict() | second.state_dict())
    images = torch.randn(1, 3, 33, 33)
    with torch.no_grad():
        (joined,), (wanted,) = first(images), whole(images)
        found = second(joined)
    assert joined.shape == (1, *first.channels, 4, 4)
    assert found.shape[1] == second.channels
    assert torch.equal(found, wanted.relu())
    assert float(found.amax()) > 0


@pytest.mark.slow_cases("pnas")
@pytest.mark.parametrize("kind", ["nas", "pnas"])
def test_the_first_half_trains_its_normalization(kind: str) -> None:
    """As in TF, whose builder of the classifier sets its own mode over the detector's."""
    with torch.device("meta"):
        network = build_detector(parse_message(ONE_MAP.replace("resnet50_keras", kind), m.DetectionModel)).network
    assert isinstance(network, Network)
    network.train()
    modes = {
        name.split(".")[0]: part.training for name, part in network.named_modules() if isinstance(part, nn.BatchNorm2d)
    }
    assert modes == {"backbone": True, "second": False}
    assert len(drop_paths(network)) == {"nas": 22, "pnas": 14}[kind]


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.7])
def test_it_drops_what_torchvision_drops(rate: float) -> None:
    layer, outputs = StochasticDepth(rate), torch.rand(64, 3, 4, 5)
    torch.manual_seed(1)
    expected = stochastic_depth(outputs, rate, "row")
    torch.manual_seed(1)
    assert torch.equal(layer(outputs), expected)
    dropped = (expected == 0).flatten(1).all(1)
    assert bool(dropped.any()) == (rate > 0)
    assert not dropped.all()
    assert layer.eval()(outputs) is outputs
