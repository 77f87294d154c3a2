"""Loading TF2 checkpoints by scope, and what the report says."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import boxwright as bw
from boxwright.config.load import parse_message
from boxwright.families.shared.feature_extractor import SSD_EXTRACTORS
from boxwright.nn.detector import Detector
from boxwright.nn.tensorflow_names.checkpoint_keys import ATTRIBUTE
from boxwright.pipeline import messages as m
from boxwright.weights.export_weights import write_safetensors, write_tensorflow_checkpoint
from boxwright.weights.tensorflow.bundle import Bundle
from boxwright.weights.tensorflow.variables import tf1_variables, tf2_variables, to_tensorflow
from tests.conftest import GOLDEN, SMALL_MODEL, Silent
from tests.nn.test_detectors import KINDS, config
from tests.two_stage_models import ONE_MAP, PYRAMID, RFCN


def small(text: str = SMALL_MODEL, seed: int = 0) -> Detector:
    torch.manual_seed(seed)
    return bw.build_detector(parse_message(text, m.TrainEvalPipelineConfig))


# The same blocks as in others, more often; of several variants of a backbone the last ones.
LARGE = (
    "resnet101",
    "resnet152",
    "inception_resnet",
    "b2_",
    "b3_",
    "inception_v3",
    "_dsp",
    "_edgetpu",
    "_gpu",
    "v3_small",
    "nas",
)


def quick_first(kinds: Iterable[str]) -> list[Any]:
    return [
        pytest.param(kind, marks=pytest.mark.slow) if any(part in kind for part in LARGE) else kind for kind in kinds
    ]


@pytest.mark.slow_except("ssd_mobilenet_v1_ppn")
@pytest.mark.parametrize("kind", quick_first(kind for kind in KINDS if not kind.startswith("timm")))
def test_every_network_goes_there_and_back(kind: str, tmp_path: Path) -> None:
    """Every parameter and statistic is written under a key of its own, and comes back to the same bits."""
    goes_there_and_back(config(kind), tmp_path)


TWO_STAGES = {
    "resnet50_keras": ONE_MAP,
    "resnet50_fpn_keras with masks": PYRAMID,
    "rfcn": RFCN,
    **{
        kind: ONE_MAP.replace("resnet50_keras", kind)
        for kind in ("resnet50", "inception_v2", "mobilenet_v1", "inception_resnet_v2", "nas", "pnas")
    },
    "inception_resnet_v2_keras": ONE_MAP.replace("resnet50_keras", "inception_resnet_v2_keras"),
}


@pytest.mark.slow_except("inception_v2")
@pytest.mark.parametrize("kind", quick_first(TWO_STAGES))
def test_every_two_stage_network_goes_there_and_back(kind: str, tmp_path: Path) -> None:
    goes_there_and_back(parse_message(TWO_STAGES[kind], m.DetectionModel), tmp_path)


HALVES = {
    "resnet50": ("resnet_v1_50/block3/unit_1/", "resnet_v1_50/block4/unit_3/", 0),
    "inception_v2": ("InceptionV2/Mixed_4e/", "InceptionV2/Mixed_5c/", 0),
    # Its separable last blocks have names and shapes of their own; norms have the classifier's.
    "mobilenet_v1": ("MobilenetV1/Conv2d_11_pointwise/weights", "MobilenetV1/Conv2d_13_pointwise/BatchNorm/beta", 4),
}


@pytest.mark.slow_cases("resnet50", "mobilenet_v1")
@pytest.mark.parametrize("kind", HALVES)
def test_halves_of_a_classifier_of_tf_slim(kind: str) -> None:
    """As TF restores one: variables of both halves without their detector's scopes."""
    model = parse_message(TWO_STAGES[kind], m.DetectionModel)
    first, second, missing = HALVES[kind]
    detector, other = bw.build_detector(model), bw.build_detector(model)
    state = detector.network.state_dict()
    named = tf1_variables(detector.network).named
    arrays = {variable.key: variable.to_theirs(state[name].numpy()) for name, variable in named.items()}
    scopes = ("FirstStageFeatureExtractor/", "SecondStageFeatureExtractor/")
    own = ("_pointwise/depthwise_weights", "_pointwise/pointwise_weights")
    classifier = {
        key.partition("/")[2]: value
        for key, value in arrays.items()
        if key.startswith(scopes) and not key.endswith(own)
    }
    report = bw.load_weights(other, classifier, "classification", min_share=0.5)
    keys = set(report.restored.values())
    assert any(key.startswith(first) for key in keys)
    assert any(key.startswith(second) for key in keys)
    assert keys == set(classifier)
    assert sum(name.startswith(("backbone.", "second.features.")) for name in report.kept) == missing


def goes_there_and_back(model: m.TrainEvalPipelineConfig | m.DetectionModel, tmp_path: Path) -> None:
    torch.manual_seed(0)
    detector, other = bw.build_detector(model), bw.build_detector(model)
    write_tensorflow_checkpoint(detector, tmp_path / "ckpt-7", step=7)
    named = [table(detector.network) for table in (tf2_variables, tf1_variables)]
    variables = next(one.named for one in named if not one.unnamed)
    assert len({variable.key for variable in variables.values()}) == len(variables)
    report = bw.load_weights(other, tmp_path / "ckpt-7")
    assert not report.kept
    assert set(report.unused.values()) == {"a counter"}
    ours, theirs = detector.network.state_dict(), other.network.state_dict()
    learnt = [name for name in ours if "num_batches" not in name]
    fixed = {name for name in learnt if name not in report.restored}
    assert all(name.endswith("weight") and theirs[name].eq(1).all() for name in fixed), "gains that are never learnt"
    for name in report.restored:
        assert torch.equal(theirs[name], ours[name]), name


def test_kinds_are_all_of_them() -> None:
    assert {kind for kind in SSD_EXTRACTORS if "efficientnet" not in kind} - set(KINDS) == {
        "ssd_vgg16",
        "ssd_pnasnet",
        "ssd_spaghettinet",
        "timm",
    }


def test_networks_without_tensorflow_names(tmp_path: Path) -> None:
    detector = bw.build_detector(config("timm/test_resnet.r160_in1k"))
    with pytest.raises(bw.CheckpointError, match="no TF2 names are known for a TimmBackbone"):
        write_tensorflow_checkpoint(detector, tmp_path / "x")


def test_roots_of_saved_models_and_classifiers(tmp_path: Path) -> None:
    detector, arrays = small(), to_tensorflow(small().network)[0]
    exported = {key.replace("model/", "_model/", 1): value for key, value in arrays.items()}
    assert not bw.load_weights(detector, exported).kept
    prefix = "model/_feature_extractor/classification_backbone/"
    classifier = {f"feature_extractor/{k.removeprefix(prefix)}": v for k, v in arrays.items() if k.startswith(prefix)}
    assert len(classifier) > 100
    report = bw.load_weights(small(seed=1), classifier, "classification")
    assert all(name.startswith("backbone.") for name in report.restored)
    assert not report.unused
    with pytest.raises(bw.CheckpointError, match="cannot be restored"):
        bw.load_weights(small(), classifier, "detection")


@pytest.mark.slow
def test_efficientnet_from_either_path() -> None:
    detector = bw.build_detector(config("ssd_efficientnet-b0_bifpn_keras"))
    arrays, aliases = to_tensorflow(detector.network)
    assert len(aliases) > 100
    moved = {key.replace("_efficientnet/", "classification_backbone/"): value for key, value in arrays.items()}
    assert not bw.load_weights(detector, moved).kept


def test_scopes_where_classes_differ(tmp_path: Path) -> None:
    write_tensorflow_checkpoint(small(), tmp_path / "ckpt-1")
    other = small(SMALL_MODEL.replace("num_classes: 4", "num_classes: 9"), seed=1)
    before = {name: value.clone() for name, value in other.network.state_dict().items()}
    with pytest.raises(bw.CheckpointError, match="scope 'full': 2 of "):
        bw.load_weights(other, tmp_path)
    assert all(torch.equal(value, before[name]) for name, value in other.network.state_dict().items())
    # As TensorFlow has it: no head at all, whatever would fit.
    report = bw.load_weights(other, tmp_path, "detection")
    assert {name.split(".")[0] for name in report.kept} == {"head"}
    assert all(torch.equal(v, before[n]) for n, v in other.network.state_dict().items() if n.startswith("head."))
    assert {name.split(".")[0] for name in report.restored} == {"backbone", "neck"}
    report = bw.load_weights(other, tmp_path, "transfer")
    assert {name.rsplit(".", 2)[0] for name in report.kept} == {"head.classes"}
    text = str(report)
    assert "reset" in text
    assert "shape [10, 32, 1, 1] in the source, [20, 32, 1, 1] here" in text
    assert "of a predictor whose shape differs" in text
    report = bw.load_weights(other, tmp_path, "classification")
    assert all(name.startswith("backbone.") for name in report.restored)


@pytest.mark.slow
def test_a_share_that_is_enough() -> None:
    arrays, _ = to_tensorflow(small().network)
    key = next(key for key in arrays if "kernel" in key)
    arrays.pop(key)
    with pytest.raises(bw.CheckpointError, match="1 of .* cannot be restored.*not in the source"):
        bw.load_weights(small(), arrays)
    report = bw.load_weights(small(), arrays, min_share=0.9)
    assert list(report.kept.values()) == ["not in the source"]
    with pytest.raises(bw.CheckpointError, match="cannot be restored"):
        bw.load_weights(small(), {}, min_share=0.0)


@pytest.mark.slow
def test_moving_averages(tmp_path: Path) -> None:
    arrays, _ = to_tensorflow(small().network)
    key = next(key for key in arrays if "kernel" in key)
    with pytest.raises(bw.CheckpointError, match="has none of 184"):
        bw.load_weights(small(), arrays, use_average=True)

    def shadow_of(key: str) -> str:
        return key.replace(ATTRIBUTE, f"/.OPTIMIZER_SLOT/optimizer/average{ATTRIBUTE}")

    shadow = shadow_of(key)
    arrays[shadow] = arrays[key] + 1
    with pytest.raises(bw.CheckpointError, match="has none of 183 of 184 weights"):
        bw.load_weights(small(), arrays, use_average=True)
    statistics = ("moving_mean", "moving_variance")
    plain = [other for other in arrays if "SLOT" not in other and not any(name in other for name in statistics)]
    for other in plain:
        arrays.setdefault(shadow_of(other), arrays[other])
    detector = small()
    name = {variable.key: name for name, variable in tf2_variables(detector.network).named.items()}[key]
    assert bw.load_weights(detector, arrays, use_average=True).restored[name] == shadow
    averaged = detector.network.state_dict()[name].clone()
    report = bw.load_weights(detector, arrays)
    assert report.unused == dict.fromkeys(map(shadow_of, plain), "state of the optimizer")
    torch.testing.assert_close(averaged, detector.network.state_dict()[name] + 1)


def test_a_tensorflow_export_is_predicted_with(tmp_path: Path) -> None:
    """The layout of TF's exporter: pipeline.config above checkpoint/."""
    detector = small()
    (tmp_path / "pipeline.config").write_text(SMALL_MODEL)
    write_tensorflow_checkpoint(detector, tmp_path / "checkpoint" / "ckpt-0", step=12)
    image = np.random.default_rng(0).integers(0, 255, (50, 60, 3), np.uint8)
    (wanted,) = detector.detect([image])
    for path in (tmp_path / "checkpoint" / "ckpt-0", tmp_path / "checkpoint"):
        restored, _, step = bw.restore_detector(path)
        assert step == 12
        (found,) = restored.detect([image])
        assert torch.equal(found.scores, wanted.scores)
    (tmp_path / "pipeline.config").unlink()
    with pytest.raises(bw.CheckpointError, match="there is no pipeline.config beside or above"):
        bw.restore_detector(tmp_path / "checkpoint")


@pytest.mark.slow
@pytest.mark.parametrize(
    "scope",
    [
        ["fine_tune_checkpoint_type=transfer"],
        # Of TF2's semantics, whose trainer refuses the switch: predictors that fit are restored, as in TF1.
        ["fine_tune_checkpoint_type=detection", "load_all_detection_checkpoint_vars=true"],
    ],
)
def test_fine_tuning_from_tensorflow(mobilenet_config: Path, tmp_path: Path, scope: list[str]) -> None:
    write_tensorflow_checkpoint(bw.build_detector(bw.load_config(mobilenet_config)), tmp_path / "tf" / "ckpt-0")
    messages: list[str] = []

    class Listener(Silent):
        def message(self, text: str) -> None:
            messages.append(text)

        def step(self, step: int) -> None: ...

        def evaluated(self, step: int, event: Any) -> None: ...

    overrides = [
        f"train_config.fine_tune_checkpoint={tmp_path}/tf/ckpt-0",
        *(f"train_config.{override}" for override in scope),
        "train_config.num_steps=1",
    ]
    bw.train(
        bw.load_config(mobilenet_config, overrides),
        tmp_path / "run",
        bw.RunSettings(workers=0, preflight=False, evaluate=False),
        {"test": Listener()},
    )
    assert any("tensors restored, 0 reset" in text for text in messages)


def test_safetensors_written_are_read(tmp_path: Path) -> None:
    detector, other = small(), small(seed=1)
    write_safetensors(detector, tmp_path / "folder" / "w.safetensors")
    assert not bw.load_weights(other, tmp_path / "folder" / "w.safetensors").kept
    for name, value in detector.network.state_dict().items():
        assert torch.equal(value, other.network.state_dict()[name])


def test_recorded_checkpoint_by_scope() -> None:
    """The recorded detector has three classes; one of seven takes all but the class predictor."""
    import json

    text = json.loads((GOLDEN / "checkpoint" / "model.json").read_text())["model_text"]
    other = bw.build_detector(parse_message(text.replace("num_classes: 3", "num_classes: 7"), m.DetectionModel))
    report = bw.load_weights(other, GOLDEN / "checkpoint" / "tf2_checkpoint", "transfer")
    assert {name.rsplit(".", 2)[0] for name in report.kept} == {"head.classes"}
    assert len(report.restored) + len(report.kept) == 384
    assert len(Bundle(GOLDEN / "checkpoint" / "tf2_checkpoint")) == 622
