"""SpaghettiNet: the shapes of TensorFlow's own test, names of variables, and the rounding inside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import boxwright as bw
from boxwright.base.errors import ConfigError
from boxwright.config.load import parse_message
from boxwright.config.support import refuse_contradictions
from boxwright.nn.backbones.spaghettinet import FakeQuantized, SpaghettiNet
from boxwright.pipeline import messages as m
from boxwright.weights.export_weights import write_tensorflow_checkpoint
from boxwright.weights.tensorflow.variables import tf1_variables
from tests.nn.shapes import only_shapes

# As TF's own test has them at 320 pixels: channels, and sides 20, 10, 5, 3 and 3.
CHANNELS = {"s": (120, 168, 136, 136, 64), "m": (120, 168, 136, 136, 64), "l": (120, 168, 112, 128, 64)}


@pytest.mark.slow_except("s-explicit")
@pytest.mark.parametrize("padding", ["same", "explicit"])
@pytest.mark.parametrize("size", CHANNELS)
def test_shapes(size: str, padding: str) -> None:
    with only_shapes(), torch.no_grad():
        net = SpaghettiNet(f"spaghettinet_edgetpu_{size}", padding="explicit" if padding == "explicit" else "same")
        maps = net(torch.zeros(1, 3, 320, 320))
        odd = net(torch.zeros(1, 3, 300, 333))
    assert net.channels == CHANNELS[size]
    sides = (20, 10, 5, 3, 3)
    wanted = [(1, width, side, side) for width, side in zip(CHANNELS[size], sides, strict=True)]
    assert [tuple(level.shape) for level in maps] == wanted
    assert [tuple(level.shape[2:]) for level in odd] == [(19, 21), (10, 11), (5, 6), (3, 3), (3, 3)]


MODEL = """ssd {
  num_classes: 4 image_resizer { fixed_shape_resizer { height: 128 width: 128 } }
  feature_extractor { type: "ssd_spaghettinet" spaghettinet_arch_name: "spaghettinet_edgetpu_s" }
  box_coder { faster_rcnn_box_coder { } } matcher { argmax_matcher { } } similarity_calculator { iou_similarity { } }
  box_predictor { convolutional_box_predictor { kernel_size: 3 use_depthwise: true conv_hyperparams { } } }
  anchor_generator { ssd_anchor_generator { num_layers: 5 aspect_ratios: [1.0, 2.0] } }
  post_processing { batch_non_max_suppression { } score_converter: SIGMOID }
  loss { classification_loss { weighted_sigmoid { } } localization_loss { weighted_smooth_l1 { } } } }"""


def test_names_and_the_way_there_and_back(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = parse_message(MODEL, m.DetectionModel)
    detector, other = bw.build_detector(model), bw.build_detector(model)
    keys = {variable.key for variable in tf1_variables(detector.network).named.values()}
    scope = "FeatureExtractor/spaghettinet_edgetpu_s"
    assert keys >= {
        f"{scope}/spaghetti_net/stem_node/stem/BatchNorm/gamma",
        f"{scope}/spaghetti_net/n0_0/slice_2/weights",
        f"{scope}/spaghetti_net/n1_1/concat/max",
        f"{scope}/spaghetti_net/n2_0/depthwise/depthwise_weights",
        f"{scope}/spaghetti_net/n5_0/depthwise/biases",
        f"{scope}/spaghetti_net/c0n1_3/projection/BatchNorm/moving_mean",
        f"{scope}/edge_c0n0_c0n1/1x1_before_upsample/weights",
        f"{scope}/edge_c0n1_c0n2/1x1_after_downsampling/weights",
        f"{scope}/edge_n3_c0n0/1x1_no_resampling/BatchNorm/beta",
    }
    assert f"{scope}/spaghetti_net/n5_0/depthwise/BatchNorm/beta" not in keys
    detector.train()
    inputs, sizes = detector.preprocess(torch.randint(0, 255, (2, 128, 128, 3), dtype=torch.uint8))
    predictions = detector.predict(inputs, sizes)
    assert [tuple(level.shape[2:]) for level in predictions.feature_maps] == [(8, 8), (4, 4), (2, 2), (1, 1), (1, 1)]
    predictions.class_logits.sum().backward()
    stem = detector.network.get_submodule("backbone.spaghetti_net.stem_node.stem")
    assert all(parameter.grad is not None for parameter in stem.parameters())
    write_tensorflow_checkpoint(detector, tmp_path / "ckpt-1", step=1)
    report = bw.load_weights(other, tmp_path / "ckpt-1")
    assert not report.kept
    ours, theirs = detector.network.state_dict(), other.network.state_dict()
    name = "backbone.spaghetti_net.n0_0.concat.maximum"
    assert ours[name] != 6
    assert all(torch.equal(ours[name], theirs[name]) for name in report.restored)


def test_values_are_rounded_to_levels_of_which_0_is_one() -> None:
    """Levels of 0..6 are 6 / 255 apart; of -1..2 they are 3 / 255, and -1 lies at level -85 exactly."""
    positive = FakeQuantized().eval()
    values = torch.tensor([-1.0, 0.0, 0.01, 0.02, 3.0, 7.0])
    step = 6 / 255
    assert positive(values).tolist() == pytest.approx([0, 0, 0, step, 128 * step, 6], abs=1e-6)
    both = FakeQuantized(-1.0, 2.0).eval()
    assert both(torch.tensor([-3.0, -1.0, 0.0, 0.017, 5.0])).tolist() == pytest.approx(
        [-1, -1, 0, 3 / 255, 2], abs=1e-6
    )
    # -0.994 is at level -84.5 of 3 / 255: the range moves so that 0 stays a level.
    moved = FakeQuantized(-0.99, 2.01).eval()
    assert moved(torch.tensor([0.0])).item() == 0
    assert moved(torch.tensor([-5.0])).item() == pytest.approx(-84 * 3 / 255)
    assert FakeQuantized(0.0, 0.0).eval()(torch.tensor([2.0])).item() == 0


def test_the_gradient_passes_within_the_range() -> None:
    values = torch.tensor([-1.0, 1.3, 9.0], requires_grad=True)
    FakeQuantized().eval()(values).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [0, 1, 0]


def test_the_range_is_the_average_of_batches() -> None:
    """Of n batches with the weights 0.999^(n-1) ... 1, divided by their sum; 0 is within it always."""
    layer = FakeQuantized()
    highs, lows = [4.0, 8.0, 1.0], [-1.0, 0.5, -3.0]
    for low, high in zip(lows, highs, strict=True):
        layer(torch.tensor([low, high]))
    weights = 0.999 ** np.arange(2, -1, -1)
    assert layer.maximum.item() == pytest.approx((weights * highs).sum() / weights.sum(), rel=1e-5)
    assert layer.minimum.item() == pytest.approx((weights * [-1, 0, -3]).sum() / weights.sum(), rel=1e-5)
    layer.eval()(torch.tensor([100.0]))
    assert layer.maximum.item() < 5


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('type: "ssd_spaghettinet" num_layers: 5', "num_layers: ssd_spaghettinet takes only 6"),
        ('type: "ssd_spaghettinet" use_depthwise: true', "takes only False"),
        ('type: "ssd_mobilenet_v2" spaghettinet_arch_name: "spaghettinet_edgetpu_s"', "it is for ssd_spaghettinet"),
    ],
)
def test_what_it_does_not_read(text: str, wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted):
        refuse_contradictions(parse_message(text, m.SsdFeatureExtractor))
