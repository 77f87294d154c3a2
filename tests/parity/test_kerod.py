"""kerod's Faster R-CNN against its recordings: the detector of `preset:kerod_resnet50_fpn_coco`, and its parts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxwright.families.two_stage.criterion import TwoStageCriterion, accuracies
from boxwright.families.two_stage.network import FasterRCNN
from boxwright.families.two_stage.postprocessor import TwoStagePostprocessor
from boxwright.families.two_stage.second_stage import by_size
from boxwright.nn.anchor_grids import AnchorGrid, FlexibleGridAnchorGenerator
from boxwright.nn.criteria.criterion import LossTerm
from boxwright.nn.criteria.example_selection import MinibatchSampler
from boxwright.nn.criteria.losses import AbsoluteError
from boxwright.nn.criteria.target_assigner import AnchorTargets, ArgmaxMatcher, OwnLowQualityMatcher
from boxwright.nn.detector import Detector
from boxwright.nn.ops.boxes import FasterRcnnBoxCoder, clip_boxes, pairwise_iou
from boxwright.nn.ops.resize import resize_half_pixel
from boxwright.nn.ops.roi import roi_align
from boxwright.nn.optimization.schedules import ManualSteps
from boxwright.nn.postprocessing.anchor import ScoreConverter, identity
from boxwright.nn.postprocessing.nms import Nms, PerClass
from boxwright.nn.postprocessing.postprocessor import compute_detections
from boxwright.nn.preprocessing import KeepAspectRatioResizer
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.load import load_config
from boxwright.types import AnchorPredictions, Proposals, RegionPredictions, Targets, TwoStagePredictions
from tests.conftest import assert_close, xyxy, yxyx
from tests.golden.weights import weight
from tests.parity.recordings import FOLDER, Case, compare, components

WEIGHTS_ARE_LOADED = True

ROOT = Path(__file__).parents[2]
PATH = FOLDER / "kerod" / "faster_rcnn_resnet50_pytorch"
CASES = components("kerod")
ABSENT = "the folder has no recordings of kerod"


def conv(array: NDArray[Any]) -> Tensor:
    """Bring a kernel [h, w, in, out] to ours; a dense one of crops of 7 by 7 was flattened row by row."""
    if array.ndim == 2:
        side = 7 if array.shape[0] % 49 == 0 else 1
        array = array.reshape(side, side, -1, array.shape[1])
    return torch.from_numpy(array.transpose(3, 2, 0, 1).copy()) if array.ndim == 4 else torch.from_numpy(array)


_NORM = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}
_PARTS = {
    "fpn/lateral_connection_2345/": "neck.laterals.",
    "fpn/anti_aliasing_conv/": "neck.smooth.",
    "rpn/rpn_conv2d": "rpn.head.convolve.0",
    "rpn/classification_head": "rpn.head.predict.classes.0",
    "rpn/box_prediction_head": "rpn.head.predict.boxes.0",
    "fast_rcnn/denses/0": "second.features.0",
    "fast_rcnn/denses/1": "second.features.3",
    "fast_rcnn/classification_head": "second.head.classes.0",
    "fast_rcnn/box_prediction_head": "second.head.boxes.0",
}


def our_name(name: str) -> str:
    """Return the tensor of ours that a readable name of kerod's is: its backbone is timm's resnet50."""
    *path, last = name.split("/")
    if path[0] != "backbone":
        joined = next(
            "/".join(path).replace(theirs, ours)
            for theirs, ours in _PARTS.items()
            if "/".join(path).startswith(theirs.rstrip("/"))
        )
        return f"{joined.replace('/', '.')}.{'weight' if last == 'kernel' else 'bias'}"
    if path[1].startswith("conv1"):
        return "backbone.body.conv1.weight" if last == "kernel" else f"backbone.body.bn1.{_NORM[last]}"
    stage, block = int(path[2].removeprefix("group")) + 1, int(path[3].removeprefix("block"))
    base, norm = f"backbone.body.layer{stage}.{block}", path[-1] == "bn"
    if path[4] == "convshortcut":
        layer = f"downsample.{1 if norm else 0}"
    else:
        layer = ("bn" if norm else "conv") + path[4].removeprefix("conv")
    return f"{base}.{layer}.{_NORM[last] if norm else 'weight'}"


@pytest.fixture(scope="module")
def description() -> dict[str, Any]:
    if not PATH.with_name(f"{PATH.name}.json").is_file():
        pytest.skip(ABSENT)
    found: dict[str, Any] = json.loads(PATH.with_name(f"{PATH.name}.json").read_text())
    return found


@pytest.fixture(scope="module")
def arrays(description: dict[str, Any]) -> Any:
    return np.load(PATH.with_name(f"{PATH.name}.npz"))


@pytest.fixture(scope="module")
def detector(description: dict[str, Any]) -> Detector:
    config = load_config("preset:kerod_resnet50_fpn_coco", [f"num_classes={description['num_classes']}"])
    assert config.model is not None
    detector = build_detector(config.model)
    state: dict[str, Tensor] = {}
    for key, shape, name, _ in description["variables"]:
        gain = next((gain for part, gain in description["gains"] if part in key), description["gain"])
        value = conv(weight(key, tuple(shape), gain))
        # It takes blue first.
        state[our_name(name)] = value.flip(1) if name == "backbone/conv1_conv/kernel" else value
    ours = {name for name in detector.network.state_dict() if not name.endswith("num_batches_tracked")}
    assert set(state) == ours
    detector.network.load_state_dict(state, strict=False)
    for name, module in detector.network.named_modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            # Keras's default, which kerod left in the blocks; the weights that it takes want 1e-5.
            module.eps = 1.001e-5 if name.endswith("body.bn1") else 1e-3
    return detector


@pytest.fixture(scope="module")
def network(detector: Detector) -> FasterRCNN:
    assert isinstance(detector.network, FasterRCNN)
    return detector.network


@pytest.fixture(scope="module")
def inputs(detector: Detector, arrays: Any) -> tuple[Tensor, Tensor]:
    images = torch.from_numpy(arrays["images"][..., ::-1].copy()).permute(0, 3, 1, 2)
    sizes = torch.from_numpy(arrays["images_information"]).long()
    return detector.preprocessor.normalize(images, sizes), sizes


@pytest.fixture(scope="module")
def evaluated(detector: Detector, inputs: tuple[Tensor, Tensor]) -> TwoStagePredictions:
    with torch.no_grad():
        found: TwoStagePredictions = detector.eval().predict(*inputs)
    return found


def groundtruth(arrays: Any, prefix: str = "") -> Targets:
    boxes = xyxy(arrays[f"{prefix}groundtruth_boxes"])
    count = torch.from_numpy(arrays[f"{prefix}groundtruth_num_boxes"].astype(np.int64)).reshape(-1, 1)
    valid = torch.arange(boxes.shape[1]) < count
    labels = torch.from_numpy(arrays[f"{prefix}groundtruth_labels"].astype(np.int64))
    weights = torch.from_numpy(arrays[f"{prefix}groundtruth_weights"])
    return Targets(boxes, labels.clamp(min=0) * valid, weights * valid, valid)


def test_features(arrays: Any, network: FasterRCNN, inputs: tuple[Tensor, Tensor]) -> None:
    padded = torch.nn.functional.pad(inputs[0], (0, -inputs[0].shape[3] % 32, 0, -inputs[0].shape[2] % 32))
    with torch.no_grad():
        stages = network.backbone(padded)
        pyramid = network.feature_maps(inputs[0])
    for level, features in enumerate(stages, start=2):
        compare(arrays, f"backbone/c{level}", features.permute(0, 2, 3, 1))
    for level, features in enumerate(pyramid, start=2):
        compare(arrays, f"pyramid/p{level}", features.permute(0, 2, 3, 1))


def test_first_stage(arrays: Any, evaluated: TwoStagePredictions) -> None:
    codes = np.concatenate([arrays[f"rpn/localization/{level}"] for level in range(5)], 1)
    logits = np.concatenate([arrays[f"rpn/classification/{level}"] for level in range(5)], 1)
    assert_close(evaluated.first.box_codes, codes, 1e-4, 1e-3)
    assert_close(evaluated.first.class_logits, logits, 1e-4, 1e-3)


def recorded_first(arrays: Any, evaluated: TwoStagePredictions) -> Any:
    codes = np.concatenate([arrays[f"rpn/localization/{level}"] for level in range(5)], 1)
    logits = np.concatenate([arrays[f"rpn/classification/{level}"] for level in range(5)], 1)
    return replace(evaluated.first, box_codes=torch.from_numpy(codes), class_logits=torch.from_numpy(logits))


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_proposals(
    arrays: Any, network: FasterRCNN, evaluated: TwoStagePredictions, inputs: tuple[Tensor, Tensor], mode: str
) -> None:
    found = network.rpn.propose(recorded_first(arrays, evaluated), inputs[1], training=mode == "training")
    assert_close(yxyx(found.boxes), arrays[f"proposals_{mode}"], 1e-2)


def test_second_stage(
    arrays: Any, network: FasterRCNN, detector: Detector, evaluated: TwoStagePredictions, inputs: tuple[Tensor, Tensor]
) -> None:
    boxes = xyxy(arrays["proposals_inference"])
    valid = (boxes != 0).any(-1)
    proposals = Proposals(boxes, valid.float(), valid)
    assert network.second is not None
    with torch.no_grad():
        found = network.second(list(evaluated.first.feature_maps), proposals, evaluated.first.input_size)
    rows = valid.numpy()
    assert_close(found.class_logits.softmax(-1)[valid], arrays["predict/classification"][rows], 1e-4, 1e-3)
    assert_close(found.box_codes.flatten(2)[valid], arrays["predict/localization"][rows], 1e-4, 1e-3)
    codes = torch.from_numpy(arrays["predict/localization"]).unflatten(-1, (-1, 4))
    logits = torch.from_numpy(arrays["predict/classification"]).log()
    # kerod detects in rows of padding, too, which have no area.
    everything = replace(proposals, valid=torch.ones_like(valid))
    recorded = replace(evaluated, proposals=everything, regions=RegionPredictions(codes, logits, found.features))
    results = detector.postprocess(recorded, inputs[1])
    for number, result in enumerate(results):
        count = int(arrays["detect/num"][number])
        assert len(result) == count
        exported = result.to_tf()
        assert_close(exported["detection_boxes"], arrays["detect/boxes"][number][:count], 1e-4)
        assert_close(exported["detection_scores"], arrays["detect/scores"][number][:count], 1e-4)
        assert exported["detection_classes"].tolist() == (arrays["detect/classes"][number][:count] + 1).tolist()


class Given:
    """Stands where a sampler does, and takes what was recorded."""

    def __init__(self, chosen: NDArray[Any]) -> None:
        self.chosen = torch.from_numpy(chosen) > 0
        self.size = int(self.chosen.sum(1).max())

    def __call__(self, positive: Tensor, candidates: Tensor) -> Tensor:
        del positive
        assert not (self.chosen & ~candidates).any(), "what was sampled are candidates"
        return self.chosen


@pytest.mark.slow  # test_two_stage.py has the losses of the same criterion, and of the same layers
def test_training(arrays: Any, description: dict[str, Any], detector: Detector, inputs: tuple[Tensor, Tensor]) -> None:
    """With the recorded samples: targets, losses, metrics, and the gradient of every variable."""
    network, criterion = detector.network, detector.criterion
    assert isinstance(network, FasterRCNN)
    assert isinstance(criterion, TwoStageCriterion)
    assert criterion.second is not None
    targets = groundtruth(arrays)
    boxes = xyxy(arrays["train/rois"])
    sampled = torch.from_numpy(arrays["train/fast_rcnn/weights/label"]) > 0
    maps = network.feature_maps(inputs[0])
    size = (inputs[0].shape[2], inputs[0].shape[3])
    first = network.rpn(maps, size)
    proposals = Proposals(boxes, sampled.float(), sampled)
    assert network.second is not None
    predictions = TwoStagePredictions(first, proposals, network.second(maps, proposals, size))
    recorded = replace(
        criterion,
        first=replace(criterion.first, sampler=Given(arrays["train/rpn/weights/label"])),  # type: ignore[arg-type]
    )
    terms = LossTerm.values(recorded(predictions, targets))
    names = {
        "Loss/RPNLoss/objectness_loss": "rpn_classification",
        "Loss/RPNLoss/localization_loss": "rpn_localization",
        "Loss/BoxClassifierLoss/classification_loss": "fast_rcnn_classification",
        "Loss/BoxClassifierLoss/localization_loss": "fast_rcnn_localization",
    }
    assert set(terms) == set(names)
    for ours, theirs in names.items():
        assert_close(terms[ours].detach(), arrays[f"train/loss/{theirs}"], 1e-4, 1e-4)
    described = criterion.describe(predictions, targets).scalars
    for name in ("accuracy", "fg_accuracy", "false_negative"):
        assert_close(described[f"BoxClassifier/{name}"], arrays[f"train/metrics/{name}"], 1e-6)
    assert_close(described["RPN/anchor_recall"], arrays["train/metrics/rpn_recall"], 1e-6)

    trainable = {name for _, _, name, learns in description["variables"] if learns}
    for name, parameter in network.named_parameters():
        frozen = name.startswith(("backbone.body.conv1", "backbone.body.bn1", "backbone.body.layer1")) or (
            name.startswith("backbone") and parameter.ndim == 1
        )
        parameter.requires_grad_(not frozen)
        parameter.grad = None
    penalty = detector.regularization()
    frozen_part = sum(
        0.5 * 2e-4 * float(p.detach().square().sum())
        for n, p in network.named_parameters()
        if not p.requires_grad and p.ndim == 4
    )
    assert_close(penalty.detach() - frozen_part, arrays["train/loss/regularization"], 1e-4, 1e-3)
    torch.autograd.backward(torch.stack(list(terms.values())).sum() + penalty)
    gradients = dict(network.named_parameters())
    assert {our_name(name) for name in description["gradient_order"]} == {our_name(name) for name in trainable}
    for name, norm in zip(description["gradient_order"], arrays["train/gradient/norm"], strict=True):
        gradient = gradients[our_name(name)].grad
        assert gradient is not None, name
        assert float(gradient.norm()) == pytest.approx(float(norm), rel=2e-3, abs=1e-5), name


def tensor(case: Case, name: str) -> Tensor:
    return torch.from_numpy(case.array(f"in/{name}").copy())


def matcher(case: Case) -> None:
    low, high = (*case.params["thresholds"], case.params["thresholds"][-1])[:2]
    kind = OwnLowQualityMatcher if case.params["allow_low_quality_matches"] else ArgmaxMatcher
    alike = tensor(case, "similarity")
    count = tensor(case, "num_boxes").long().reshape(-1, 1)
    valid = torch.arange(alike.shape[1]) < count
    alike = torch.where(valid[..., None], alike, -torch.inf)
    match = kind(matched_threshold=high, unmatched_threshold=low)(alike, valid)
    labels = {-1: 0, -2: -1}
    found = [[labels.get(one, 1) for one in row] for row in match.tolist()]
    # kerod ignores what is most like padding; boxes of padding have no area, so that nothing is.
    like_objects = (tensor(case, "similarity").argmax(1) < count).numpy()
    assert like_objects.any()
    assert np.array(found)[like_objects].tolist() == case.array("out/match_labels")[like_objects].tolist()
    positive = (match >= 0) & torch.from_numpy(like_objects)
    assert match[positive].tolist() == torch.from_numpy(case.array("out/matches").astype(np.int64))[positive].tolist()


def levels(case: Case) -> None:
    boxes = xyxy(case.array("in/boxes"))
    assert by_size(boxes, case.params["num_level"]).tolist() == case.array("out/level").tolist()


def aligned(case: Case) -> None:
    names = sorted(name for name in case.inputs if name.startswith(("level", "feature")))
    maps = [tensor(case, name).permute(0, 3, 1, 2) for name in names]
    boxes, size = xyxy(case.array("in/boxes")), tuple(case.params["image_shape"])
    if "box_indices" in case.inputs:
        maps = [maps[0][tensor(case, "box_indices").long()]]
        boxes = boxes[:, None]
    level = by_size(boxes, len(maps))
    crop = case.params["crop_size"]
    found = roi_align(maps, boxes, level, (crop, crop), input_size=size, samples=2, aligned=True)
    assert_close(found.flatten(0, 1).permute(0, 2, 3, 1), case.array("out/features"), 1e-5, 1e-4)


def sampling(case: Case) -> None:
    """As many of each kind as kerod takes; which, chance decides."""
    indicator, labels = tensor(case, "indicator") > 0, tensor(case, "labels") > 0
    torch.manual_seed(3)
    taken = MinibatchSampler(case.params["sample_size"], case.params["positive_fraction"])(labels, indicator)
    wanted = torch.from_numpy(case.array("out/sampled").copy()) > 0
    assert not (taken & ~indicator).any()
    for kind in (labels, ~labels):
        assert (taken & kind).sum(-1).tolist() == (wanted & kind).sum(-1).tolist()


def resize(case: Case) -> None:
    resizer = KeepAspectRatioResizer(
        int(case.params["short_edge"]), int(case.params["max_dimension"]), resize_half_pixel, to_whole=np.trunc
    )
    image = tensor(case, "image")
    found, _ = resizer(image[0] if image.ndim == 4 else image)
    assert_close(found, case.array("out/resized").reshape(found.shape), 1e-3, 1e-4)


def resize_sizes(case: Case) -> None:
    resizer = KeepAspectRatioResizer(800, 1333, resize_half_pixel, to_whole=np.trunc)
    sizes = case.array("in/sizes").reshape(-1, 2)
    assert [list(resizer.new_size(int(h), int(w))) for h, w in sizes] == case.array("out/out").reshape(-1, 2).tolist()


def anchors(case: Case) -> None:
    shapes, strides, sizes = (case.params[name] for name in ("feature_map_shapes", "strides", "sizes"))
    ratios = case.params["ratios"]  # of height to width, where ours are of width to height
    grids = [
        AnchorGrid((float(size),) * len(ratios), tuple(1 / ratio for ratio in ratios), (stride, stride))
        for size, stride in zip(sizes, strides, strict=True)
    ]
    found = FlexibleGridAnchorGenerator(tuple(grids))([tuple(shape) for shape in shapes], (1, 1))
    for level, level_anchors in enumerate(found):
        assert_close(yxyx(level_anchors), case.array(f"out/level{level}").reshape(-1, 4), 1e-4)


def box_coder(case: Case) -> None:
    coder = FasterRcnnBoxCoder(*(case.params["scale_factors"] or (1.0, 1.0, 1.0, 1.0)))
    laid = xyxy(case.array("in/anchors"))
    assert_close(coder.encode(xyxy(case.array("in/boxes")), laid), case.array("out/encoded"), 1e-4, 1e-4)
    assert_close(yxyx(coder.decode(tensor(case, "codes"), laid)), case.array("out/decoded"), 1e-4, 1e-4)


def clipped(case: Case) -> None:
    sizes = tensor(case, "images_information")
    found = clip_boxes(xyxy(case.array("in/boxes")), sizes[:, :1], sizes[:, 1:])
    assert_close(yxyx(found), case.array("out/clipped"))


def iou(case: Case) -> None:
    found = pairwise_iou(xyxy(case.array("in/groundtruth")), xyxy(case.array("in/anchors")))
    assert_close(found, case.array("out/iou"))


def absolute_error(case: Case) -> None:
    target, prediction = tensor(case, "target"), tensor(case, "prediction")
    found = AbsoluteError()(prediction, target, torch.ones(target.shape[:-1]))
    assert_close(found, case.array("out/loss"))


def detections(case: Case) -> None:
    if not case.has("in/localization"):  # what the recorded head said, which the whole detector is checked for
        return
    codes = tensor(case, "localization")
    params, boxes = case.params, xyxy(case.array("in/boxes"))
    valid = torch.ones(boxes.shape[:2]) > 0
    per_class = params.get("max_output_size_per_class", 100)
    suppression = PerClass(params.get("iou_threshold", 0.5), per_class)
    total = params.get("max_total_size", 100)
    nms = Nms(suppression, params.get("score_threshold", 0.05), total, outside="keep")
    post = TwoStagePostprocessor(FasterRcnnBoxCoder(), ScoreConverter(identity), nms, clip_first=True)
    scores = tensor(case, "class_probabilities")
    if scores.shape[-1] == params["num_classes"]:
        scores = torch.nn.functional.pad(scores, (1, 0))
    regions = RegionPredictions(codes.reshape(*boxes.shape[:2], -1, 4), scores, codes)
    first = AnchorPredictions(codes, codes, boxes[0])
    found = compute_detections(
        post,
        TwoStagePredictions(first, Proposals(boxes, valid.float(), valid), regions),
        tensor(case, "images_information").long(),
    )
    for number, result in enumerate(found):
        count = int(case.array("out/num")[number])
        assert len(result) == count
        assert_close(result.to_tf()["detection_boxes"], case.array("out/boxes")[number][:count], 1e-4)
        assert_close(result.scores, case.array("out/scores")[number][:count])


def metrics(case: Case) -> None:
    """How many proposals have their class: the unit vectors of kerod's documentation among them."""
    labels, logits = tensor(case, "labels").long(), tensor(case, "logits")
    counted = torch.ones(labels.shape) > 0
    classes = torch.nn.functional.one_hot(labels, logits.shape[-1]).float()
    nothing = torch.zeros(labels.shape)
    assigned = AnchorTargets(labels, nothing, nothing, classes, counted.float()[..., None])
    found = accuracies(logits, assigned, counted)
    for name in ("accuracy", "fg_accuracy", "false_negative"):
        assert_close(found[f"BoxClassifier/{name}"], case.array(f"out/{name}"), 1e-6)


def stepping(case: Case) -> None:
    rate = ManualSteps(case.params["boundaries"], case.params["rates"], case.params["warmup"])
    assert_close(np.array([rate(int(step)) for step in case.array("in/steps")]), case.array("out/lr"))


CHECKS: dict[str, Callable[[Case], None]] = {
    "matcher": matcher,
    "pyramid_level": levels,
    "multilevel_roi_align": aligned,
    "roi_align": aligned,
    "sampling": sampling,
    "resize": resize,
    "resize_sizes": resize_sizes,
    "anchors": anchors,
    "box_coder": box_coder,
    "clip_boxes": clipped,
    "iou": iou,
    "l1": absolute_error,
    "detections": detections,
    "fast_rcnn_metrics": metrics,
    "manual_stepping": stepping,
}
# What the whole detector above is checked for, in inference and training; and what is of kerod's program alone.
OF_THE_WHOLE = {"target_assigner", "roi_sampling", "rpn", "rpn_loss", "rpn_recall", "proposals", "fast_rcnn"}
OF_THE_WHOLE |= {"fast_rcnn_loss", "backbone_input"}
ITS_OWN = {"preprocess", "learning_rate", "mask_stub"}


def test_every_kind_of_recording_is_known() -> None:
    if not CASES:
        pytest.skip(ABSENT)
    assert {case.kind for case in CASES} <= set(CHECKS) | OF_THE_WHOLE | ITS_OWN
    assert sum(case.kind in CHECKS for case in CASES) >= 37


@pytest.mark.parametrize("case", [case for case in CASES if case.kind in CHECKS], ids=lambda case: str(case.id))
def test_component(case: Case) -> None:
    CHECKS[case.kind](case)
