"""RefineDet: network outputs against the public PyTorch port, losses against an independent reading of Caffe's code."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import boxwright as bw
from boxwright.config.load import parse_message
from boxwright.nn.criteria.anchor import CascadeCriterion
from boxwright.nn.criteria.target_assigner import UNMATCHED
from boxwright.nn.postprocessing.anchor import CascadePostprocessor
from boxwright.pipeline import messages as m
from boxwright.types import CascadePredictions, Targets
from tests.conftest import GOLDEN, assert_close
from tests.golden.weights import uniform_stream
from tests.nn.criteria.test_cascade import judge_of, refinedet_predictions
from tests.parity.recordings import FOLDER

WEIGHTS_ARE_LOADED = True

PATHS = sorted((FOLDER / "refinedet").glob("*.json"))
LEVELS = ("conv4_3", "conv5_3", "fc7", "conv6_2")
STAGES = (2, 2, 3, 3, 3)


def test_the_shipped_folder_is_whole() -> None:
    if FOLDER == GOLDEN:
        assert [path.stem for path in PATHS] == ["refinedet320_vgg16", "refinedet512_vgg16"]


def our_name(name: str) -> str:
    """Translate a recorded name."""
    part, *middle, kind = name.split("/")
    layer = middle[0]
    if part == "l2norm":
        return f"backbone.norms.{LEVELS.index(layer)}.scale"
    if part in ("arm_loc", "arm_conf", "odm_loc", "odm_conf"):
        head = "refinement" if part.startswith("arm") else "head"
        return f"{head}.{'boxes' if part.endswith('loc') else 'classes'}.{LEVELS.index(layer)}.0.{kind}"
    if part == "tcb":
        block = {"conv1": "lateral", "conv2": "linear", "conv3": "smooth", "deconv": "enlarge"}[middle[1]]
        return f"transfer.{block}.{LEVELS.index(layer)}.0.{kind}"
    if layer in ("fc6", "fc7"):
        return f"backbone.converted.{0 if layer == 'fc6' else 2}.{kind}"
    if layer.startswith("conv6"):
        return f"neck.extra.0.{0 if layer == 'conv6_1' else 2}.{kind}"
    stage, number = (int(digit) for digit in layer.removeprefix("conv").split("_"))
    assert number <= STAGES[stage - 1]
    return f"backbone.stages.{stage - 1}.{2 * (number - 1)}.{kind}"


def recorded_weight(name: str, shape: list[int]) -> Tensor:
    """Compute a weight as the recordings' README has it, in our order: y before x, red before blue."""
    s = 2 * uniform_stream(name, int(np.prod(shape))).reshape(shape) - 1
    if name.startswith("l2norm"):
        value = (10 if "conv4_3" in name else 8) * (1 + 0.1 * s)
    elif len(shape) == 1:
        value = 0.1 * s
    else:
        fan_in = shape[0] if "deconv" in name else np.prod(shape[1:])
        value = np.sqrt(6 / fan_in) * s
        value = value / (64 if "conv1_1" in name else 4 if name.startswith(("arm", "odm")) else 1)
    if "_loc/" in name:
        value = value.reshape(-1, 4, *shape[1:])[:, [1, 0, 3, 2]].reshape(shape)
    if name == "backbone/conv1_1/weight":
        value = value[:, ::-1]
    return torch.from_numpy(np.ascontiguousarray(value, np.float32))


def detector_for(recording: dict[str, Any]) -> bw.Detector:
    side, classes = recording["input_size"], recording["num_classes_with_background"] - 1
    text = f"""refinedet {{ num_classes: {classes} anchor_refinement {{ }} transfer_connection {{ }}
      image_resizer {{ fixed_shape_resizer {{ height: {side} width: {side} }} }}
      feature_extractor {{ type: "refinedet_vgg16" }} }}"""
    return bw.build_detector(parse_message(text, m.DetectionModel))


def swapped(codes: np.ndarray[Any, Any]) -> Tensor:
    """Bring codes x, y, w, h to ours: y, x, h, w."""
    return torch.from_numpy(codes[..., [1, 0, 3, 2]].copy())


def unit(recording: dict[str, Any]) -> float:
    return float(recording["input_size"])


def corners(centred: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.concatenate([centred[..., :2] - centred[..., 2:] / 2, centred[..., :2] + centred[..., 2:] / 2], -1)


# At 512 pixels there is one level more.
@pytest.mark.slow_except(*(path.stem for path in PATHS if "512" not in path.stem))
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
@torch.no_grad()
def test_network(path: Path) -> None:
    recording, arrays = json.loads(path.read_text()), np.load(path.with_suffix(".npz"))
    detector = detector_for(recording)
    weights = {our_name(name): recorded_weight(name, shape) for name, shape in recording["variables"]}
    assert sum(value.numel() for value in weights.values()) == recording["parameters"]
    detector.network.load_state_dict(weights)
    inputs, _ = detector.preprocess(torch.from_numpy(arrays["image"])[None])
    predictions = detector.predict(inputs)
    for name, found in {
        "arm_loc": predictions.refinement.box_codes[0][:, [1, 0, 3, 2]],
        "arm_conf": predictions.refinement.class_logits[0],
        "odm_loc": predictions.detection.box_codes[0][:, [1, 0, 3, 2]],
        "odm_conf": predictions.detection.class_logits[0],
    }.items():
        check(found.numpy(), arrays, name, 1e-4, 1e-3)
    side = unit(recording)
    check((predictions.refinement.anchors / side).numpy(), arrays, "anchors", 1e-6, 0)
    postprocessor = detector.postprocessor
    assert isinstance(postprocessor, CascadePostprocessor)
    check((predictions.detection.anchors[0] / side).numpy(), arrays, "refined_anchors", 1e-4, 1e-3)
    check((postprocessor.decode(predictions).boxes[0] / side).numpy(), arrays, "boxes", 1e-4, 1e-3)


def check(found: np.ndarray[Any, Any], arrays: Any, name: str, absolute: float, relative: float) -> None:
    wanted = arrays[name]
    assert found.shape == wanted.shape
    assert wanted.size
    assert_close(found, wanted, absolute, relative)


class RecordingMiner:
    """Notes what a miner chose."""

    def __init__(self, miner: Any) -> None:
        self.miner = miner
        self.negatives: list[int] = []

    def __call__(self, class_losses: Tensor, box_losses: Tensor, boxes: Tensor, match: Tensor) -> Tensor:
        chosen: Tensor = self.miner(class_losses, box_losses, boxes, match)
        self.negatives = (chosen & (match == UNMATCHED)).sum(1).tolist()
        return chosen


def loss_inputs(recording: dict[str, Any], arrays: Any) -> tuple[CascadePredictions, Targets]:
    side = unit(recording)
    images = len(arrays["loss_in/arm_loc"])
    most = max(len(arrays[f"loss_in/{i}/boxes"]) for i in range(images))
    boxes, labels = torch.zeros(images, most, 4), torch.zeros(images, most, dtype=torch.int64)
    valid = torch.zeros(images, most, dtype=torch.bool)
    for i in range(images):
        count = len(arrays[f"loss_in/{i}/boxes"])
        boxes[i, :count] = torch.from_numpy(arrays[f"loss_in/{i}/boxes"]) * side
        labels[i, :count] = torch.from_numpy(arrays[f"loss_in/{i}/labels"]) - 1
        valid[i, :count] = True
    predictions = refinedet_predictions(
        swapped(arrays["loss_in/odm_loc"]),
        torch.from_numpy(arrays["loss_in/odm_conf"]),
        torch.from_numpy(arrays["anchors"]) * side,
        input_size=(int(side), int(side)),
        refinement=(swapped(arrays["loss_in/arm_loc"]), torch.from_numpy(arrays["loss_in/arm_conf"])),
    )
    return predictions, Targets(boxes, labels, valid.float(), valid)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_losses_matches_and_mined_negatives(path: Path) -> None:
    recording, arrays = json.loads(path.read_text()), np.load(path.with_suffix(".npz"))
    judge = judge_of(detector_for(recording))
    miners = [RecordingMiner(step.criterion.miner) for step in judge.criterion.steps]
    steps = zip(judge.criterion.steps, miners, strict=True)
    watched = tuple(replace(step, criterion=replace(step.criterion, miner=miner)) for step, miner in steps)
    criterion = replace(judge, criterion=CascadeCriterion(watched))
    predictions, targets = loss_inputs(recording, arrays)
    losses = criterion(predictions, targets)
    positives = [float(losses[f"Loss/{name}localization_loss"].count) for name in ("refinement/", "")]  # type: ignore[arg-type]
    assert positives == [arrays["loss_out/num_arm_positives"], arrays["loss_out/num_odm_positives"]]
    assert len(losses) == 4
    for name, recorded in {
        "Loss/refinement/localization_loss": "arm_loc",
        "Loss/refinement/objectness_loss": "arm_conf",
        "Loss/localization_loss": "odm_loc",
        "Loss/classification_loss": "odm_conf",
    }.items():
        assert_close(losses[name].value.numpy(), arrays[f"loss_out/{recorded}"])
    first, _, _ = criterion.refinement.assign(
        predictions.refinement, replace(targets, labels=torch.zeros_like(targets.labels))
    )
    second, _, _ = criterion.detection.assign(replace(criterion.second_step(predictions), filtered=None), targets)
    checked = 0
    for image in range(len(targets.boxes)):
        assert np.array_equal(first.match[image], arrays[f"loss_out/{image}/arm_match"])
        assert np.array_equal(second.match[image], arrays[f"loss_out/{image}/odm_match"])
        for step, miner in zip(("arm", "odm"), miners, strict=True):
            name = f"loss_out/{image}/{step}_num_negatives"
            # None is recorded of an image without objects: no negatives are mined there.
            wanted = int(arrays[name]) if len(arrays[f"loss_in/{image}/boxes"]) else 0
            assert miner.negatives[image] == wanted
            checked += 1
    assert checked == 2 * len(arrays["loss_in/arm_loc"]) > 0
