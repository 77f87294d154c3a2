"""Faster and Mask R-CNN against their recordings, stage by stage.

What a stage chooses is discrete: proposals that tie in float32 fall either way. So each stage is given what was
recorded of the one before, and what it chooses is compared beside that.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from boxwright.base.errors import ConfigError
from boxwright.config.load import parse_message
from boxwright.families.two_stage.network import FasterRCNN
from boxwright.families.two_stage.postprocessor import TwoStagePostprocessor
from boxwright.families.two_stage.second_stage import BoxClassifier
from boxwright.families.two_stage.third_stage import masks_of_classes
from boxwright.nn.criteria.criterion import LossTerm
from boxwright.nn.detector import Detector
from boxwright.nn.ops.boxes import pairwise_iou
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.types import PaddedDetections, Proposals, RegionPredictions, Targets, TwoStagePredictions
from boxwright.types.context_features import ContextFeatures
from boxwright.types.masks import InstanceMasks
from boxwright.weights.load_weights import LoadReport, load_weights
from tests.conftest import GOLDEN, assert_close, xyxy, yxyx
from tests.golden.weights import weight
from tests.parity.recordings import (
    FOLDER,
    OUTPUTS,
    compare,
    compare_outputs,
    detections_as_tied,
    two_stage_paths,
    unsupported,
)

WEIGHTS_ARE_LOADED = True

# How many values of masks are compared, where a recording holds some of them only.
_MASK_VALUES = 120


def test_the_shipped_folder_is_whole() -> None:
    if FOLDER == GOLDEN:
        shipped = ["faster_rcnn_hard_mining", "mask_rcnn_fpn", "rpn_only"]
        assert [path.name for path in two_stage_paths()] == shipped


@dataclass
class Recorded:
    """A recorded detector, rebuilt."""

    detector: Detector
    report: LoadReport
    names: set[str]
    arrays: Any
    inputs: Tensor
    sizes: Tensor
    evaluated: TwoStagePredictions
    seen: dict[str, RegionPredictions]

    @property
    def network(self) -> FasterRCNN:
        assert isinstance(self.detector.network, FasterRCNN)
        return self.detector.network

    @property
    def size(self) -> tuple[int, int]:
        return (self.inputs.shape[-2], self.inputs.shape[-1])

    @property
    def scale(self) -> Any:
        return np.array([*self.size, *self.size], np.float32)

    @property
    def modes(self) -> tuple[str, ...]:
        """Prefixes of what was recorded in inference, and in training where that was."""
        whole = "infer/predict/anchors" in self.arrays.files or "infer/predict/anchors@index" in self.arrays.files
        return ("infer/", "train/") if whole else ("",)

    def array(self, name: str) -> Any:
        return self.arrays[name]

    def has(self, name: str) -> bool:
        return name in self.arrays.files or f"{name}@value" in self.arrays.files

    def compare(self, name: str, actual: Any, absolute: float = 1e-4, relative: float = 1e-3) -> None:
        actual = actual.detach() if isinstance(actual, Tensor) else actual
        compare(self.arrays, name, actual, absolute, relative)

    def predict(self, mode: str) -> TwoStagePredictions:
        """Return what the network says in a mode; in training it samples against the groundtruth."""
        return self.trained if mode == "train/" else self.evaluated

    @cached_property
    def trained(self) -> TwoStagePredictions:
        self.detector.train()
        try:
            with torch.no_grad():
                predictions: TwoStagePredictions = self.detector.predict(
                    self.inputs, self.sizes, self.targets(), context_of(self.arrays)
                )
        finally:
            self.detector.eval()
        return predictions

    def targets(self) -> Targets:
        boxes = xyxy(self.array("groundtruth_boxes") * self.scale)[None]
        labels = torch.from_numpy(self.array("groundtruth_classes").argmax(-1))[None]
        weights = torch.ones(labels.shape)
        if self.has("groundtruth_weights"):
            weights = torch.from_numpy(self.array("groundtruth_weights"))[None]
        return Targets(boxes, labels, weights, torch.ones(labels.shape) > 0, masks=self.masks())

    def masks(self) -> InstanceMasks | None:
        """Return the groundtruth's masks in the frame of the input, to which TF resized them by the nearest pixel."""
        if not self.has("groundtruth_masks"):
            return None
        masks = torch.from_numpy(self.array("groundtruth_masks").astype(np.uint8))
        if tuple(masks.shape[1:]) != self.size:
            height, width = self.sizes[0].tolist()
            masks = F.interpolate(masks[:, None], (height, width), mode="nearest")[:, 0]
        return InstanceMasks.stack([masks.numpy()], len(masks), self.size)

    def proposals(self, mode: str) -> Proposals:
        """Return the proposals that TF's second stage looked at, its final anchors: those of R-FCN are in pixels."""
        unit = self.scale if isinstance(self.network.second, BoxClassifier) else 1
        boxes = xyxy(self.array(f"{mode}predict/final_anchors") * unit)
        valid = torch.arange(boxes.shape[1]) < int(self.array(f"{mode}predict/num_proposals")[0])
        return Proposals(boxes, torch.zeros(boxes.shape[:2]), valid[None])


def text_of(description: dict[str, Any]) -> str:
    """Return the model; of masks that do not divide, by the size that TF gave them."""
    text = str(description["model_text"])
    if "convolve_then_upsample_masks: true" in text:
        text = text.replace("mask_height: 15", "mask_height: 12").replace("mask_width: 13", "mask_width: 12")
    return text


def context_of(arrays: Any) -> ContextFeatures | None:
    """Return the side inputs of a Context R-CNN; None of another detector."""
    if "context_features" not in arrays.files:
        return None
    counts = torch.from_numpy(arrays["valid_context_size"]).long()
    return ContextFeatures(torch.from_numpy(arrays["context_features"]), counts)


# The largest takes half a minute; the others' stages are those of context_rcnn, mask_rcnn_fpn, rpn_only and rfcn, and
# NASNet's cells those of test_tf1.py's PNASNet.
SLOW = (
    "faster_rcnn_nas_coco",
    "mask_rcnn_inception_resnet_v2_1024x1024_coco17_gpu-8",
    "mask_rcnn_inception_v2_coco",
    "mask_rcnn_class_agnostic",
    "faster_rcnn_hard_mining",
    "faster_rcnn_resnet50_coco",
    "mask_rcnn_class_specific",
    "faster_rcnn_inception_v2_coco",
    "faster_rcnn_resnet50_v1_640x640_coco17_tpu-8",
)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(path, id=f"{path.parent.name}/{path.name}", marks=[pytest.mark.slow] * (path.name in SLOW))
        for path in two_stage_paths()
    ],
)
def recorded(request: pytest.FixtureRequest) -> Recorded:
    path = request.param
    description = json.loads(path.with_name(f"{path.name}.json").read_text())
    try:
        detector = build_detector(parse_message(text_of(description), m.DetectionModel))
    except ConfigError as error:
        unsupported(path.name, error)
    weights = {key: weight(key, tuple(shape), description["gain"]) for key, shape in description["variables"]}
    report = load_weights(detector, weights)
    arrays = np.load(path.with_name(f"{path.name}.npz"))
    inputs, sizes = detector.preprocess(torch.from_numpy(arrays["image"])[None])
    network = detector.network
    assert isinstance(network, FasterRCNN)
    with torch.no_grad():
        if "infer/predict/num_proposals" in arrays.files:
            evaluated = detector.predict(inputs, sizes, context=context_of(arrays))
        else:  # of a large one no more than is compared: its second stage sees what was recorded
            first = network.rpn(network.feature_maps(inputs), (inputs.shape[-2], inputs.shape[-1]))
            evaluated = TwoStagePredictions(first, network.rpn.propose(first, sizes, training=False))
    return Recorded(detector, report, set(weights), arrays, inputs, sizes, evaluated, {})


def test_every_variable_has_its_name(recorded: Recorded) -> None:
    assert set(recorded.report.restored.values()) == recorded.names - set(recorded.report.unused)
    # TF1's ResNet has its last block in the first half, too, where nothing reads it.
    beyond = re.compile(r"FirstStageFeatureExtractor/resnet_v1_\d+/block4/")
    assert all(beyond.match(name) for name in recorded.report.unused)
    assert not recorded.report.kept


def test_preprocess(recorded: Recorded) -> None:
    recorded.compare("preprocessed", recorded.inputs.permute(0, 2, 3, 1))
    assert recorded.sizes.tolist() == recorded.array("true_image_shapes")[:, :2].tolist()


def test_first_stage(recorded: Recorded) -> None:
    for mode in recorded.modes:
        first = recorded.predict(mode).first
        assert first.feature_maps
        for level, features in enumerate(first.feature_maps):
            if recorded.has(f"feature_maps/{level}"):
                # TF1's values spread by some 0.06 only.
                recorded.compare(f"feature_maps/{level}", features.permute(0, 2, 3, 1), 1e-5, 1e-4)
            elif recorded.has(f"{mode}predict/rpn_features_to_crop/{level}"):
                recorded.compare(f"{mode}predict/rpn_features_to_crop/{level}", features.permute(0, 2, 3, 1))
                seen = recorded.network.rpn.head.convolve(features)
                recorded.compare(f"{mode}predict/rpn_box_predictor_features/{level}", seen.permute(0, 2, 3, 1))
        recorded.compare(f"{mode}predict/rpn_box_encodings", first.box_codes)
        recorded.compare(f"{mode}predict/rpn_objectness_predictions_with_background", first.class_logits)
        recorded.compare(f"{mode}predict/anchors", yxyx(first.anchors), 1e-5, 1e-4)


def test_proposals(recorded: Recorded) -> None:
    """The same set, but that scores which tie fall either way: on padding, whose pixels are all alike, many do.

    A proposal that the other side lacks must be so tied, with other anchors to 1e-5 of its score; or overlap one that is.
    """
    for mode in recorded.modes if recorded.network.second is not None else ():
        predictions, wanted = recorded.predict(mode), recorded.proposals(mode)
        found = predictions.proposals
        final = replace(predictions, regions=second_stage(recorded, mode)).final_anchors
        ours, theirs = final[0][found.valid[0]], wanted.boxes[0][wanted.valid[0]]
        apart = (ours[:, None] - theirs).abs().amax(-1)
        alone = apart.amin(1) > 0.05
        if not alone.any():
            assert len(ours) == len(theirs)
            continue
        scores = predictions.first.class_logits[0].softmax(-1)[:, 1]
        tied = ((scores[:, None] - found.scores[0][found.valid[0]][alone]).abs() < 1e-5).sum(0) > 1
        # What one that was tied suppressed, or no longer does.
        follows = (pairwise_iou(ours[alone], theirs[apart.amin(0) > 0.05]) > 0.5).any(1)
        assert (tied | follows).all()


def second_stage(recorded: Recorded, mode: str) -> RegionPredictions:
    network = recorded.network
    assert network.second is not None
    if mode not in recorded.seen:
        maps = list(recorded.predict(mode).first.feature_maps)
        with torch.no_grad():
            context = context_of(recorded.arrays)
            extra = () if context is None else (context,)
            recorded.seen[mode] = network.second(maps, recorded.proposals(mode), recorded.size, *extra)
    return recorded.seen[mode]


def rows(recorded: Recorded, mode: str, name: str, actual: Tensor) -> None:
    """Compare rows of proposals, but for those that are padding, which were not looked at here."""
    name, boxes = f"{mode}{name}", recorded.array(f"{mode}predict/proposal_boxes")
    if len(actual) != boxes.shape[1]:  # the whole map, of R-FCN
        recorded.compare(name, actual)
        return
    count = int(recorded.array(f"{mode}predict/num_proposals")[0])
    if name in recorded.arrays.files:
        assert_close(actual[:count], recorded.arrays[name][:count], 1e-4, 1e-3)
        return
    shape, index = tuple(recorded.arrays[f"{name}@shape"]), recorded.arrays[f"{name}@index"]
    assert tuple(actual.shape) == shape
    of_proposals = index // int(np.prod(shape[1:])) < count
    picked = actual.reshape(-1)[torch.from_numpy(index[of_proposals])]
    assert_close(picked, recorded.arrays[f"{name}@value"][of_proposals], 1e-4, 1e-3)


def test_second_stage(recorded: Recorded) -> None:
    for mode in recorded.modes if recorded.network.second is not None else ():
        found = second_stage(recorded, mode)
        rows(recorded, mode, "predict/refined_box_encodings", found.box_codes[0])
        rows(recorded, mode, "predict/class_predictions_with_background", found.class_logits[0])
        rows(recorded, mode, "predict/box_classifier_features", found.features.permute(0, 2, 3, 1).contiguous())


def test_detections(recorded: Recorded) -> None:
    """From TF's proposals the same outputs; scores that tie to 2e-6 are let fall TF's way. Of TF1 no raw ones."""
    post, compared = recorded.detector.postprocessor, 0
    for mode in recorded.modes:
        kinds = [kind for kind in (f"{mode}detect/", f"{mode}predict/") if recorded.has(f"{kind}detection_scores")]
        if not isinstance(post, TwoStagePostprocessor):
            (found,) = recorded.detector.postprocess(recorded.predict(mode), recorded.sizes)
        elif kinds:
            predictions = replace(
                recorded.predict(mode),
                proposals=recorded.proposals(mode),
                regions=second_stage(recorded, mode),
                instances=None,
            )
            found = detections_as_tied(recorded.arrays, kinds[0], post, predictions, recorded.sizes)
        compared += sum(compare_outputs(recorded.arrays, kind, found) for kind in kinds)
    names = {name.split("@")[0] for name in recorded.arrays.files}
    assert compared == sum(name.split("/")[-1] in OUTPUTS for name in names)


def test_masks(recorded: Recorded) -> None:
    """Of TF's detections the same masks. On padded inputs TF crops the map at another place; so are we made to here."""
    network, mode = recorded.network, recorded.modes[0]
    if network.masks is None:
        return
    assert isinstance(network.second, BoxClassifier)
    kind = "predict/" if recorded.has(f"{mode}predict/detection_masks") else "detect/"
    boxes = xyxy(recorded.array(f"{mode}{kind}detection_boxes") * recorded.scale)
    masks = recorded.arrays[f"{mode}{kind}detection_masks"] if mode else None
    # Of a large recording the first detections, which as many of the sampled values belong to.
    name = f"{kind}detection_masks"
    count = boxes.shape[1]
    if masks is None:
        places = np.sort(recorded.arrays[f"{name}@index"])
        count = min(int(places[:_MASK_VALUES][-1]) // int(np.prod(recorded.arrays[f"{name}@shape"][2:])) + 1, count)
    boxes = boxes[:, :count]
    maps = list(recorded.evaluated.first.feature_maps)
    with torch.no_grad():
        features = network.second.compute_features(maps, boxes, torch.ones(boxes.shape[:2]) > 0, recorded.size)
        logits = network.masks.head(features)
    labels = torch.from_numpy(recorded.array(f"{mode}{kind}detection_classes").astype(np.int64))[:, :count]
    found = masks_of_classes(logits[None], labels).sigmoid()
    if masks is not None:
        recorded.compare(f"{mode}predict/mask_predictions", logits)
        assert_close(found, masks, 1e-4, 1e-3)
        return
    places = recorded.arrays[f"{name}@index"]
    of_first = places < found.numel()
    assert of_first.sum() >= min(_MASK_VALUES, len(places))
    assert_close(found.flatten()[places[of_first]], recorded.arrays[f"{name}@value"][of_first], 1e-4, 1e-3)


def test_training_masks(recorded: Recorded) -> None:
    """Masks of positives alone are predicted in training; they are those that TF predicted among all."""
    if recorded.network.masks is None or recorded.modes == ("",):
        return
    predictions = recorded.predict("train/")
    instances, proposals = predictions.instances, predictions.proposals
    assert instances is not None
    assert proposals.positive is not None
    count = int(proposals.positive.sum())
    assert int(instances.valid.sum()) == count
    index = proposals.positive[0].nonzero().squeeze(1)
    everything = torch.zeros(len(proposals.positive[0]), *instances.logits.shape[2:])
    everything[index] = instances.logits[0, :count]
    name = "train/predict/mask_predictions"
    if name in recorded.arrays.files:
        assert_close(everything[index], recorded.arrays[name][index.numpy()], 1e-4, 1e-3)
        return
    places = torch.from_numpy(recorded.arrays[f"{name}@index"])
    of_positives = proposals.positive[0][places // everything[0].numel()]
    picked = everything.reshape(-1)[places[of_positives]]
    assert_close(picked, recorded.arrays[f"{name}@value"][of_positives.numpy()], 1e-4, 1e-3)


def test_losses(recorded: Recorded) -> None:
    """In training, and as TF evaluates: with the recorded settings every candidate is sampled.

    The second stage is judged on TF's proposals: scores that tie fall either way, by the machine's last bit.
    """
    for mode in recorded.modes:
        names = [name for name in recorded.arrays.files if name.startswith(f"{mode}loss/RPN") or "Classifier" in name]
        wanted = {name for name in names if name.startswith(f"{mode}loss/")}
        if not wanted:
            continue
        predictions = recorded.predict(mode)
        if any("BoxClassifierLoss" in name for name in wanted):
            predictions = replace(predictions, proposals=recorded.proposals(mode), regions=second_stage(recorded, mode))
        if mode == "infer/":
            predictions = replace(predictions, instances=evaluated_masks(recorded))
        losses = LossTerm.values(recorded.detector.criterion(predictions, recorded.targets()))
        assert {name.replace("Loss/", f"{mode}loss/", 1) for name in losses} == wanted
        for name, value in losses.items():
            assert_close(value.detach(), recorded.array(name.replace("Loss/", f"{mode}loss/", 1)), 1e-4, 1e-4)


def evaluated_masks(recorded: Recorded) -> Any:
    """Return masks as TF evaluates them: of its own detections, cropped as it crops padded maps."""
    instances = recorded.evaluated.instances
    if instances is None:
        return None
    true_height, true_width = recorded.sizes[0].tolist()
    boxes = recorded.array("infer/predict/detection_boxes")
    logits = recorded.arrays["infer/predict/mask_predictions"][None]
    frame = np.array([true_height, true_width] * 2, np.float32)
    detections = instances.detections
    assert isinstance(detections, PaddedDetections)
    del frame
    return replace(instances, boxes=xyxy(boxes * recorded.scale), logits=torch.from_numpy(logits))


def test_regularization(recorded: Recorded) -> None:
    for mode in recorded.modes:
        if recorded.has(f"{mode}loss/regularization"):
            found = recorded.detector.regularization().detach()
            assert_close(found, recorded.array(f"{mode}loss/regularization"))
