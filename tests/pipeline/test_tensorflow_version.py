"""TF1's meaning of TF1's names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import boxwright as bw
from boxwright.config.load import dump_message, parse_message
from boxwright.nn.heads.convolutional import WeightSharedHead
from boxwright.nn.layers import Conv2d, ReLU6
from boxwright.nn.necks.fpn import FeaturePyramid, smoothed, unsmoothed
from boxwright.nn.optimization.optimizers import Optimizer, RMSProp, RMSPropTF1
from boxwright.nn.ssd import SSD
from boxwright.pipeline import messages as m
from boxwright.pipeline.optimizer import build_optimizer
from boxwright.pipeline.tensorflow_version import explain_version, keep_version, tensorflow_version
from boxwright.pipeline.training import build_training
from boxwright.weights.restore import other_meaning
from boxwright.weights.store import FORMAT, read_checkpoint, save_archive
from tests.conftest import SMALL_MODEL

RMS_PROP = """
rms_prop_optimizer { learning_rate { constant_learning_rate { learning_rate: 0.004 } }
  momentum_optimizer_value: 0.9 decay: 0.9 epsilon: 1.0 }
"""
TRAIN = f"""
train_config {{ num_steps: 2 batch_size: 1 optimizer {{ {RMS_PROP} }} }}
train_input_reader {{ coco_input_reader {{ annotations: "a.json" image_folder: "b" }} }}
"""


def pipeline(kind: str, text: str = SMALL_MODEL) -> bw.Pipeline:
    return parse_message(text.replace("ssd_mobilenet_v2_fpn_keras", kind) + TRAIN, bw.Pipeline)


def ssd(config: bw.Pipeline) -> SSD:
    network = bw.build_detector(config).network
    assert isinstance(network, SSD)
    return network


@pytest.mark.parametrize(("kind", "version"), [("ssd_mobilenet_v2_fpn", 1), ("ssd_mobilenet_v2_fpn_keras", 2)])
def test_the_name_decides(kind: str, version: int) -> None:
    config = pipeline(kind)
    assert tensorflow_version(config.model) == version
    plan = build_training(config)
    neck = ssd(config).neck
    assert isinstance(neck, FeaturePyramid)
    if version == 1:
        assert plan.optimizer.rule == RMSPropTF1(0.9, 0.9, 1.0)
        assert plan.optimizer.schedule(1000) == pytest.approx(0.004)
        assert neck.hand_down is unsmoothed
    else:
        assert plan.optimizer.rule == RMSProp(0.9, 1.0)
        # The rate that is printed is the one applied: 0.004 / (1 + 0.9 · 1000).
        assert plan.optimizer.schedule(1000) == pytest.approx(4.4395e-6, rel=1e-4)
        assert neck.hand_down is smoothed


@pytest.mark.parametrize("kind", ["ssd_mobilenet_v2_fpn", "ssd_mobilenet_v2_fpn_keras"])
@pytest.mark.parametrize(
    ("more", "scope"),
    [
        ("from_detection_checkpoint: true", "detection"),
        ("from_detection_checkpoint: true load_all_detection_checkpoint_vars: true", "transfer"),
        ('fine_tune_checkpoint_type: "detection" load_all_detection_checkpoint_vars: true', "transfer"),
        ('fine_tune_checkpoint_type: "classification" load_all_detection_checkpoint_vars: true', "classification"),
        ('fine_tune_checkpoint_type: "full" load_all_detection_checkpoint_vars: true', "full"),
    ],
)
def test_all_variables_of_a_detection_checkpoint(kind: str, more: str, scope: str) -> None:
    """The switch counts for checkpoints of detection alone, in both versions' semantics."""
    config = pipeline(kind)
    assert config.train_config is not None
    text = f'train_config {{ fine_tune_checkpoint: "ckpt-0" {more} }}'
    fine_tuned = parse_message(text, bw.Pipeline).train_config
    assert fine_tuned is not None
    fine_tuned.num_steps, fine_tuned.batch_size, fine_tuned.optimizer = 2, 1, config.train_config.optimizer
    config.train_config = fine_tuned
    assert build_training(config).fine_tune.scope == scope


def test_the_configuration_may_say_otherwise() -> None:
    text = SMALL_MODEL.replace("min_depth: 8", "min_depth: 8 tensorflow_version: 2")
    config = pipeline("ssd_mobilenet_v2_fpn", text)
    assert tensorflow_version(config.model) == 2
    neck = ssd(config).neck
    assert isinstance(neck, FeaturePyramid)
    assert neck.hand_down is smoothed
    with pytest.raises(bw.ConfigError, match="ssd_mobilenet_v3_small is not a type of TensorFlow 2"):
        bw.build_detector(pipeline("ssd_mobilenet_v3_small", text.replace("fpn {", "#fpn {")))
    text = SMALL_MODEL.replace("min_depth: 8", "min_depth: 8 tensorflow_version: 1")
    with pytest.raises(bw.ConfigError, match="ssd_mobilenet_v2_fpn_keras is not a type of TensorFlow 1"):
        bw.build_detector(pipeline("ssd_mobilenet_v2_fpn_keras", text))


def test_rms_prop_by_hand() -> None:
    """Two steps with gradients 2 and 1: squares 1.3 and 1.27, velocities 0.1·2/√2.3 and 0.9 v + 0.1/√2.27."""
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    plan = build_optimizer(parse_message(RMS_PROP, m.Optimizer), version=1)
    optimizer = Optimizer([weight], plan.rule)
    optimizer.param_groups[0]["lr"] = 0.1
    first = 0.1 * 2 / 2.3**0.5
    second = 0.9 * first + 0.1 / 2.27**0.5
    for gradient, wanted in ((2.0, 1 - first), (1.0, 1 - first - second)):
        weight.grad = torch.tensor([gradient])
        optimizer.step()
        assert weight.item() == pytest.approx(wanted, rel=1e-6)


def test_towers_have_relu6() -> None:
    text = SMALL_MODEL.replace("activation: RELU_6", "activation: SWISH")
    for kind, wanted in (("ssd_mobilenet_v2_fpn", ReLU6), ("ssd_mobilenet_v2_fpn_keras", torch.nn.SiLU)):
        head = ssd(pipeline(kind, text)).head
        assert isinstance(head, WeightSharedHead)
        assert isinstance(head.box_tower.activation, wanted)


def test_depthwise_kernels_are_penalized() -> None:
    for kind, wanted in (("ssd_mobilenet_v2_fpn", True), ("ssd_mobilenet_v2_fpn_keras", False)):
        neck = ssd(pipeline(kind)).neck
        assert isinstance(neck, FeaturePyramid)
        convs = [part for part in neck.smooth.modules() if isinstance(part, Conv2d) and part.groups == 1]
        assert convs
        assert all(bool(conv.regularizer.l2) is wanted for conv in convs), kind


def test_resnets_with_a_pooling_pyramid_keep_their_own() -> None:
    """TF's extractor passes the flag on in the place of `num_layers`: its backbone has ReLU whatever is configured."""
    for neck, wanted in (("ppn", {"ReLU"}), ("fpn", {"ReLU6"})):
        kind, levels = f"ssd_resnet50_v1_{neck}", "fpn { min_level: 3 max_level: 5 additional_layer_depth: 32 }"
        text = SMALL_MODEL.replace(levels, "num_layers: 3 " if neck == "ppn" else levels)
        config = pipeline(kind, text)
        assert config.model is not None
        assert config.model.ssd is not None
        assert config.model.ssd.feature_extractor is not None
        config.model.ssd.feature_extractor.override_base_feature_extractor_hyperparams = True
        activations = {type(part).__name__ for part in ssd(config).backbone.modules()} & {"ReLU", "ReLU6"}
        assert activations == wanted
        assert ("without effect" in explain_version(config)) is (neck == "ppn")


def test_what_is_said() -> None:
    said = explain_version(pipeline("ssd_mobilenet_v2_fpn"))
    assert said.splitlines()[0] == "ssd_mobilenet_v2_fpn is TensorFlow 1's, whose meaning applies:"
    for part in ("decay 0.9: the decay of the average of squares", "fpn: the sum goes down", "keeps RELU_6", "towers"):
        assert part in said
    assert "a decay of the learning rate" in explain_version(pipeline("ssd_mobilenet_v2_fpn_keras"))
    assert explain_version(parse_message(SMALL_MODEL, bw.Pipeline)) == ""


def test_a_run_keeps_its_meaning(tmp_path: Path, mobilenet_config: Path) -> None:
    """A checkpoint written before TF1's meaning was known (format 1) has TF2's, and so has the run that resumes it."""
    one_step = ["train_config.num_steps=1"]
    mobilenet_config.write_text(
        mobilenet_config.read_text().replace("ssd_mobilenet_v2_fpn_keras", "ssd_mobilenet_v2_fpn")
    )
    config = bw.load_config(mobilenet_config)
    old = bw.load_config(mobilenet_config, [*one_step, "model.ssd.feature_extractor.tensorflow_version=2"])
    settings = bw.RunSettings(evaluate=False, workers=0, preflight=False)
    bw.train(old, tmp_path / "m", settings)
    path = tmp_path / "m" / "ckpt-1.pt"
    content = read_checkpoint(path)
    with path.open("wb+") as file:
        save_archive({**content, "format": 1, "config": dump_message(bw.load_config(mobilenet_config, one_step))}, file)
    detector, stored, _ = bw.restore_detector(path)
    assert tensorflow_version(stored.model) == 2
    assert isinstance(detector.network.get_submodule("neck"), FeaturePyramid)
    assert detector.network.get_submodule("neck").hand_down is smoothed
    again, _, _ = bw.restore_detector(path, config=config)
    assert again.network.get_submodule("neck").hand_down is smoothed
    assert bw.train(config, tmp_path / "m", settings).step == 6
    assert tensorflow_version(bw.load_config(tmp_path / "m" / "pipeline.config").model) == 2
    assert tensorflow_version(config.model) == 1, "left as it was"


def test_a_checkpoint_of_a_later_version(tmp_path: Path) -> None:
    with (tmp_path / "ckpt-1.pt").open("wb+") as file:
        save_archive({"format": FORMAT + 1}, file)
    with pytest.raises(bw.CheckpointError, match="written by a later version of Boxwright"):
        read_checkpoint(tmp_path / "ckpt-1.pt")


def test_a_meaning_is_not_carried_to_another_type() -> None:
    slim, keras, small = (
        pipeline(kind) for kind in ("ssd_mobilenet_v2_fpn", "ssd_mobilenet_v2_fpn_keras", "ssd_mobilenet_v3_small")
    )
    assert keep_version(keras, slim) == keras
    assert keep_version(small, keras) == small


def test_fine_tuning_from_a_run_of_the_other_meaning_is_said(tmp_path: Path, mobilenet_config: Path) -> None:
    text = mobilenet_config.read_text()
    mobilenet_config.write_text(text.replace("ssd_mobilenet_v2_fpn_keras", "ssd_mobilenet_v2_fpn"))
    settings = bw.RunSettings(evaluate=False, workers=0, preflight=False)
    old = ["train_config.num_steps=1", "model.ssd.feature_extractor.tensorflow_version=2"]
    bw.train(bw.load_config(mobilenet_config, old), tmp_path / "old", settings)
    config = bw.load_config(mobilenet_config)
    assert other_meaning(tmp_path / "old", config).startswith(
        f"{tmp_path / 'old'} was trained with TensorFlow 2's meaning"
    )
    assert other_meaning(tmp_path / "old", bw.load_config(mobilenet_config, old)) == ""
    # Its last convolution has another width: what is missing of a checkpoint of ours is an error.
    start = [
        f'train_config.fine_tune_checkpoint="{tmp_path / "old"}"',
        'train_config.fine_tune_checkpoint_type="detection"',
    ]
    with pytest.raises(bw.CheckpointError, match="scope 'detection'"):
        bw.train(bw.load_config(mobilenet_config, start), tmp_path / "new", settings)
