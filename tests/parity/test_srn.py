"""SRN against its recordings: the released graph, its suppression, and its test at many scales."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import boxwright as bw
from boxwright.config.load import parse_message
from boxwright.families.srn.build import srn_anchors
from boxwright.families.srn.network import SRN, rounded_sides
from boxwright.nn.anchor_grids import AnchorGrid, FlexibleGridAnchorGenerator
from boxwright.nn.multi_scale import MultiScaleDetector, ScalePyramid
from boxwright.nn.network import Network
from boxwright.nn.ops.boxes import PixelCenterBoxCoder, clip_boxes, pairwise_iou
from boxwright.nn.postprocessing.anchor import CascadePostprocessor
from boxwright.nn.postprocessing.postprocessor import compute_detections
from boxwright.nn.suppression.image_by_image import suppress_classes, vote
from boxwright.pipeline import messages as m
from boxwright.types import AnchorPredictions, CascadePredictions, PaddedDetections, RawDetections
from tests.conftest import assert_close
from tests.golden.weights import uniform_stream
from tests.parity.recordings import FOLDER, Case, compare, components

WEIGHTS_ARE_LOADED = True

PATH = FOLDER / "srn" / "srn_resnet50"
CASES = components("srn")
ABSENT = "the folder has no recordings of SRN"
_FILE = PATH.with_suffix(".npz")
SIZES = (
    sorted(name.split("/")[0] for name in np.load(_FILE).files if name.endswith("/image")) if _FILE.is_file() else []
)
LEVELS = range(6)
# Theirs are dx, dy, dw, dh, ours ty, tx, th, tw.
SWAP = [1, 0, 3, 2]


def inclusive(boxes: Tensor) -> Tensor:
    """Bring boxes from ours, which end behind their last pixel, to theirs, which end on it."""
    return torch.cat([boxes[..., :2], boxes[..., 2:] - 1], -1)


def exclusive(boxes: NDArray[Any]) -> Tensor:
    """Bring their boxes to ours."""
    found = torch.from_numpy(np.ascontiguousarray(boxes)).float()
    return torch.cat([found[..., :2], found[..., 2:] + 1], -1)


def detector_of(align_corners: str = "true") -> bw.Detector:
    text = f"""srn {{ num_classes: 1 image_resizer {{ identity_resizer {{ }} }} align_corners: {align_corners}
      feature_extractor {{ type: "timm/resnet50" }} two_step_classification {{ }} two_step_regression {{ }} }}"""
    return bw.build_detector(parse_message(text, m.DetectionModel))


_PARTS = {
    "layer5": "coarser.extra.0",
    "layer6": "coarser.extra.1",
    **{f"c{level}_conv": f"first_maps.project.{level - 2}" for level in range(2, 8)},
    **{f"c{level}_lateral": f"pyramid.laterals.{level - 2}" for level in range(2, 6)},
    **{f"p{level}_conv": f"pyramid.smooth.{level - 2}" for level in range(2, 6)},
    "p6_conv": "pyramid.extra.0",
    "p7_conv": "pyramid.extra.1",
    "cls_subnet_pred": "head.classes.0",
    "box_subnet_pred": "head.boxes.0",
}


def our_name(name: str) -> str:
    """Return the tensor of ours that a name of theirs is."""
    part, _, rest = name.partition(".")
    if part in _PARTS:
        return f"{_PARTS[part]}.{rest}"
    if part not in ("cls_subnet", "box_subnet"):
        return f"backbone.body.{name}"
    tower = "head.class_tower" if part == "cls_subnet" else "head.box_tower"
    number, _, rest = rest.partition(".")
    if number != "2":
        return f"{tower}.{'0' if number == '0' else '2'}.0.{rest}"
    inner, place, kind = rest.split(".")
    if inner == "cated_conv":
        return f"{tower}.1.merge.0.{kind}"
    return f"{tower}.1.branches.{inner.removeprefix('branch')}.{int(place) // 2}.0.{kind}"


def weight_of(name: str, shape: list[int], description: dict[str, Any]) -> Tensor:
    """Return the recorded weight; a box predictor's rows in our order."""
    uniform = uniform_stream(name, int(np.prod(shape))).reshape(shape)
    spread = 2 * uniform - 1
    if name.endswith("running_var"):
        value = 0.75 + 0.5 * uniform
    elif name == "cls_subnet_pred.bias":
        value = description["cls_bias"] + 0.1 * spread
    elif len(shape) == 1:
        value = (1 if name.endswith(".weight") else 0) + (0.2 if name.endswith(".weight") else 0.1) * spread
    else:
        gain = next((gain for part, gain in description["gains"] if part in name), description["gain"])
        value = spread * np.sqrt(3 * gain / np.prod(shape[1:]))
    found = torch.from_numpy(value.astype(np.float32))
    return found[[4 * (row // 4) + SWAP[row % 4] for row in range(8)]] if name.startswith("box_subnet_pred") else found


@pytest.fixture(scope="module")
def description() -> dict[str, Any]:
    path = PATH.with_suffix(".json")
    if not path.is_file():
        pytest.skip(ABSENT)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.fixture(scope="module")
def arrays(description: dict[str, Any]) -> Any:
    return np.load(PATH.with_suffix(".npz"))


@pytest.fixture(scope="module")
def weights(description: dict[str, Any]) -> dict[str, Tensor]:
    return {our_name(name): weight_of(name, shape, description) for name, shape in description["variables"]}


@pytest.fixture(scope="module")
def detector(description: dict[str, Any], weights: dict[str, Tensor]) -> bw.Detector:
    return loaded(detector_of(), weights)


def loaded(detector: bw.Detector, weights: dict[str, Tensor]) -> bw.Detector:
    ours = {name for name in detector.network.state_dict() if not name.endswith("num_batches_tracked")}
    assert set(weights) == ours
    detector.network.load_state_dict(weights, strict=False)
    return detector


def test_parameters(description: dict[str, Any], detector: bw.Detector) -> None:
    """The stem is frozen: what learns is what `freeze_variables` in the recipe leaves."""
    numbers = {name: parameter.numel() for name, parameter in detector.network.named_parameters()}
    assert sum(numbers.values()) == description["parameters"] == 53_370_698
    stem = sum(
        count for name, count in numbers.items() if name.startswith(("backbone.body.conv1", "backbone.body.bn1"))
    )
    assert sum(numbers.values()) - stem == description["trainable_parameters"] == 53_361_162


@pytest.mark.slow  # test_parameters and test_network load the same names
def test_a_released_file_is_loaded_whole(description: dict[str, Any], detector: bw.Detector, tmp_path: Path) -> None:
    """As the authors saved it: below `state_dict`, with the prefix of several GPUs."""
    state = {f"module.{name}": torch.zeros(shape) for name, shape in description["variables"]}
    for name in state:
        plain = name.removeprefix("module.")
        stored = weight_of(plain, list(state[name].shape), description)
        # Back to their order of a box's four numbers.
        state[name] = (
            stored[[4 * (row // 4) + SWAP[row % 4] for row in range(8)]] if "box_subnet_pred" in name else stored
        )
    torch.save({"state_dict": state}, tmp_path / "SRN.pth")
    fresh = detector_of()
    loaded_report = bw.load_weights(fresh, tmp_path / "SRN.pth")
    assert loaded_report is not None
    wanted, found = detector.network.state_dict(), fresh.network.state_dict()
    assert all(torch.equal(found[name], value) for name, value in wanted.items() if "num_batches" not in name)


@torch.no_grad()
def predicted(detector: bw.Detector, arrays: Any, size: str) -> tuple[CascadePredictions, Tensor]:
    image = torch.from_numpy(arrays[f"{size}/image"][..., ::-1].copy())[None]
    inputs, sizes = detector.preprocess(image)
    compare(arrays, f"{size}/preprocessed", inputs)
    found: CascadePredictions = detector.predict(inputs, sizes)
    return found, sizes


def of_level(step: AnchorPredictions, values: Tensor, level: int) -> Tensor:
    return values[:, step.on_levels([level])]


def recorded_steps(arrays: Any, prefix: str, between: str) -> CascadePredictions:
    """Return both steps' raw predictions as they were recorded, where the second step starts by our rules."""
    grids = [arrays[f"{prefix}{level}{between}step1_cls"].shape[2:] for level in LEVELS]
    by_level = srn_anchors()(grids, (1, 1))
    numbers = tuple(len(rows) for rows in by_level)
    steps = []
    for step in (1, 2):
        rows = {}
        for what, count in (("box", 4), ("cls", 1)):
            names = [f"{prefix}{level}{between}step{step}_{what}" for level in LEVELS]
            parts = [torch.from_numpy(arrays[name]).permute(0, 2, 3, 1).reshape(1, -1, count) for name in names]
            rows[what] = torch.cat(parts, 1)
        maps = tuple(torch.zeros(1, 1, *grid) for grid in grids)
        steps.append(AnchorPredictions(rows["box"][..., SWAP], rows["cls"], torch.cat(by_level), maps, (1, 1), numbers))
    network = detector_of().network
    assert isinstance(network, SRN)
    start, filtered = network.second_step(steps[0])
    return CascadePredictions((steps[0], replace(steps[1], anchors=start, filtered=filtered)))


def as_theirs(rows: Tensor, grid: torch.Size) -> Tensor:
    """Bring rows [1, h × w × 2, n] to [1, 2 n, h, w]."""
    return rows.reshape(1, *grid, -1).permute(0, 3, 1, 2)


@pytest.mark.slow_except(*SIZES[:1])
@pytest.mark.parametrize("size", SIZES)
def test_network(detector: bw.Detector, arrays: Any, size: str) -> None:
    found, _ = predicted(detector, arrays, size)
    coder = PixelCenterBoxCoder()
    boxes = coder.decode(found.detection.box_codes, found.detection.anchors)
    for level in LEVELS:
        for number, step in enumerate(found.steps, start=1):
            grid = step.feature_maps[level].shape[-2:]
            compare(arrays, f"{size}/level{level}/feature{number}", step.feature_maps[level])
            codes, logits = of_level(step, step.box_codes, level), of_level(step, step.class_logits, level)
            compare(arrays, f"{size}/level{level}/step{number}_box", as_theirs(codes[..., SWAP], grid))
            compare(arrays, f"{size}/level{level}/step{number}_cls", as_theirs(logits, grid))
        first = found.refinement
        laid = inclusive(first.anchors[first.on_levels([level])])
        compare(arrays, f"{size}/level{level}/anchors", laid)
        assert_close(laid[:4], arrays[f"{size}/level{level}/anchors_first4"])
        compare(arrays, f"{size}/level{level}/boxes", inclusive(of_level(first, boxes, level))[0], 1e-2)
        started = inclusive(of_level(first, found.detection.anchors, level))[0]
        if level in (3, 4, 5):
            compare(arrays, f"{size}/level{level}/refined_anchors", started, 1e-2)
        else:
            assert torch.equal(started, laid)


def unclipped(detector: bw.Detector) -> CascadePostprocessor:
    """Theirs is clipped behind the vote alone."""
    post = detector.postprocessor
    assert isinstance(post, CascadePostprocessor)
    return replace(post, detection=replace(post.detection, nms=replace(post.detection.nms, outside="unclipped")))


@pytest.mark.slow_except(*SIZES[:1])
@pytest.mark.parametrize("size", SIZES)
def test_detections(detector: bw.Detector, arrays: Any, size: str) -> None:
    found = recorded_steps(arrays, f"{size}/level", "/")
    sizes = torch.tensor([[int(side) for side in size.split("x")]])
    (result,) = compute_detections(unclipped(detector), found, sizes)
    wanted = arrays[f"{size}/detections"]
    assert len(result) == len(wanted)
    assert_close(inclusive(result.boxes), wanted[:, 1:5], 1e-2)
    assert_close(result.scores, wanted[:, 5], 1e-5)
    clipped = detector.postprocess(found, sizes)[0].boxes
    assert 0 < len(clipped) <= len(wanted)
    assert float(clipped.min()) >= 0


@pytest.mark.slow_except(*(f"{level}-{size}" for level in (0, 3, 5) for size in SIZES[:1]))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("level", LEVELS)
def test_proposals_of_a_level(detector: bw.Detector, arrays: Any, size: str, level: int) -> None:
    """Which of a level take part, best first: those that the first step leaves on fine ones, all on tiny ones."""
    found = recorded_steps(arrays, f"{size}/level", "/")
    post = unclipped(detector).detection
    raw, step = post.decode(found.detection), found.detection
    assert step.filtered is not None
    assert post.candidates is not None
    grids = [(features.shape[-2], features.shape[-1]) for features in step.feature_maps]
    scores = post.candidates(raw.scores.masked_fill(step.filtered[..., None], -torch.inf), grids, step.level_sizes)
    here = of_level(step, scores, level)[0, :, 0]
    order = here.argsort(descending=True, stable=True)[: int((here > -torch.inf).sum())]
    assert len(order) == arrays[f"{size}/level{level}/proposals_count"]
    wanted = arrays[f"{size}/level{level}/proposals"]
    assert_close(here[order], wanted[:, 5], 1e-4)
    assert_close(inclusive(of_level(step, raw.boxes, level)[0, order]), wanted[:, 1:5], 1e-2)


@pytest.mark.slow_except(*SIZES[:1])
@pytest.mark.parametrize("size", SIZES)
def test_enlarging_as_later_versions_do(arrays: Any, weights: dict[str, Tensor], size: str) -> None:
    detector = loaded(detector_of("false"), weights)
    found, sizes = predicted(detector, arrays, size)
    step = found.detection
    for level in range(3):
        prefix, grid = f"{size}/align_corners_false/level{level}", step.feature_maps[level].shape[-2:]
        compare(arrays, f"{prefix}/feature2", step.feature_maps[level])
        compare(arrays, f"{prefix}/step2_box", as_theirs(of_level(step, step.box_codes, level)[..., SWAP], grid))
        compare(arrays, f"{prefix}/step2_cls", as_theirs(of_level(step, step.class_logits, level), grid))
    (result,) = compute_detections(unclipped(detector), found, sizes)
    # From our own raw predictions: two scores as good as equal may change places.
    wanted = arrays[f"{size}/align_corners_false/detections"]
    assert len(result) == len(wanted)
    assert_close(result.scores, wanted[:, 5], 1e-4)
    off = (inclusive(result.boxes)[:, None] - torch.from_numpy(wanted[:, 1:5])).abs().amax(2)
    assert (off.argmin(1) - torch.arange(len(wanted))).abs().max() <= 1
    assert off.amin(1).max() < 1e-2


def test_anchors_of_a_picture() -> None:
    """At 1024 × 1024 there are 174,720, of which 98.5 % on the three finest levels."""
    by_level = srn_anchors()([(1024 // stride, 1024 // stride) for stride in (4, 8, 16, 32, 64, 128)], (1024, 1024))
    counts = [len(level) for level in by_level]
    assert counts == [131072, 32768, 8192, 2048, 512, 128]
    assert sum(counts) == 174_720
    assert round(100 * sum(counts[:3]) / sum(counts), 1) == 98.5


def anchors(case: Case) -> None:
    params = case.params
    stride, scales, ratios = params["stride"], params["scales"], params["ratios"]
    sides = [rounded_sides(stride, ratio) for ratio in ratios]
    each = [(scale * (h * w) ** 0.5, w / h) for h, w in sides for scale in scales]
    grid = AnchorGrid(*zip(*each, strict=True), (stride, stride), (stride / 2, stride / 2))
    (found,) = FlexibleGridAnchorGenerator((grid,))([tuple(params["feature_map_shape"])], (1, 1))
    assert_close(inclusive(found), case.array("out/anchors"))
    if ratios == [1.25]:
        level = (4, 8, 16, 32, 64, 128).index(stride)
        assert_close(inclusive(srn_anchors()([(3, 4)] * 6, (1, 1))[level]), case.array("out/anchors"))


def decode(case: Case) -> None:
    codes = torch.from_numpy(case.array("in/deltas"))[:, SWAP]
    theirs = torch.from_numpy(case.array("in/boxes"))
    found = PixelCenterBoxCoder().decode(codes, torch.cat([theirs[:, :2], theirs[:, 2:] + 1], -1))
    assert_close(inclusive(found), case.array("out/decoded"))


def iou(case: Case) -> None:
    found = pairwise_iou(torch.from_numpy(case.array("in/a")), torch.from_numpy(case.array("in/b")))
    assert_close(found, case.array("out/iou"))


def clip(case: Case) -> None:
    height, width = case.params["size"]
    found, wanted = inclusive(clip_boxes(exclusive(case.array("in/boxes")), height, width)), case.array("out/clipped")
    # What lies outside is a row of pixels there, and nothing here.
    inside = (found[:, 2:] >= found[:, :2]).all(1)
    assert inside.any()
    assert_close(found[inside], wanted[inside.numpy()])


def nms(case: Case) -> None:
    rows = case.array("in/detections")
    boxes, scores = exclusive(rows[:, :4]), torch.from_numpy(rows[:, 4].copy())
    found = suppress_classes(boxes, scores, torch.zeros(len(rows), dtype=torch.int64), case.params["iou_threshold"])
    assert found.tolist() == case.array("out/keep").tolist()


def detections(case: Case) -> None:
    """From both steps' raw predictions."""
    params = case.params
    predictions = recorded_steps(case.arrays, f"{case.id}/in/level", "_")
    detector = detector_of()
    post = unclipped(detector)
    assert post.detection.candidates is not None
    candidates = replace(post.detection.candidates, count=params["top_n_per_level"])
    post = replace(post, detection=replace(post.detection, candidates=candidates))
    (found,) = compute_detections(post, predictions, torch.tensor([[1, 1]]))
    wanted = case.array("out/detections")
    assert len(found) == len(wanted)
    assert_close(inclusive(found.boxes), wanted[:, 1:5], 1e-2)
    assert_close(found.scores, wanted[:, 5], 1e-5)


def box_vote(case: Case) -> None:
    rows = case.array("in/detections")
    boxes, scores = exclusive(rows[:, 1:5]), torch.from_numpy(rows[:, 5]).float()
    found, best, _ = vote(boxes, scores, case.params["iou_threshold"], least_members=2)
    wanted = case.array("out/voted")
    assert len(found) == len(wanted) <= 750
    assert_close(inclusive(found), wanted[:, :4], 1e-2)
    assert_close(best, wanted[:, 4])


def bbox_flip(case: Case) -> None:
    image = torch.zeros(3, 8, case.params["width"])
    _, mirror = islice(ScalePyramid(10**4).views(image), 2)
    found = mirror.to_original(exclusive(case.array("in/detections")[:, 1:5]))
    assert_close(inclusive(found), case.array("out/flipped")[:, 1:5])


def bbox_resize(case: Case) -> None:
    """By the first view of that scale."""
    scale = case.params["scale"]
    views = ScalePyramid(10**4).views(torch.zeros(3, 64, 64))
    view = next(view for view in views if view.image.shape == (3, 64 * scale, 64 * scale))
    found = view.to_original(exclusive(case.array("in/detections")[:, 1:5]))
    assert_close(inclusive(found), case.array("out/resized")[:, 1:5], 1e-4)


class StandIn(Network):
    """Notes what it is shown, and says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[Tensor] = []

    def forward(self, inputs: Tensor, true_sizes: Tensor, targets: Any = None) -> int:
        del true_sizes, targets
        self.seen.append(inputs)
        return len(self.seen) - 1


def multiscale(case: Case) -> None:
    """What the network returned for each view is recorded."""
    network = StandIn()

    class Recorded:
        def decode(self, call: int) -> RawDetections:
            rows = case.array(f"in/call{call}")
            return RawDetections(exclusive(rows[:, 1:5])[None], torch.from_numpy(rows[None, :, 5].copy()), (1, 1))

        def select(self, call: int, raw: RawDetections, true_sizes: Tensor, suppress: object) -> PaddedDetections:
            del call, true_sizes, suppress
            labels = torch.zeros(raw.scores.shape, dtype=torch.int64)
            return PaddedDetections(raw.boxes, raw.scores, labels, labels, torch.ones_like(labels, dtype=torch.bool))

    plain = detector_of()
    detector = bw.Detector(plain.preprocessor, network, plain.criterion, Recorded(), num_classes=1)
    # Of an image kept in part alone the size is enough: boxes are recorded.
    image = case.array("in/image") if case.has("in/image") else np.zeros(case.array("in/image@shape"), np.uint8)
    pyramid = MultiScaleDetector(detector, ScalePyramid(case.params["max_size"]))
    (found,) = pyramid.detect([image[..., ::-1].copy()])
    shapes = [list(inputs.shape[2:]) for inputs in network.seen]
    assert shapes == case.array("out/image_shapes").tolist()
    if case.has("in/image"):
        assert_close(np.array([float(inputs.mean()) for inputs in network.seen]), case.array("out/preprocessed_mean"))
    wanted = case.array("out/result")
    assert len(found) == len(wanted) > 0
    assert_close(inclusive(found.boxes), wanted[:, :4], 1e-2)
    assert_close(found.scores, wanted[:, 4])


CHECKS: dict[str, Callable[[Case], None]] = {
    "anchors": anchors,
    "decode": decode,
    "iou": iou,
    "clip": clip,
    "nms": nms,
    "detections": detections,
    "box_vote": box_vote,
    "bbox_flip": bbox_flip,
    "bbox_resize": bbox_resize,
    "multiscale": multiscale,
}


def test_every_kind_of_recording_is_known() -> None:
    if not CASES:
        pytest.skip(ABSENT)
    assert {case.kind for case in CASES} <= set(CHECKS)
    assert len(CASES) >= 21


@pytest.mark.parametrize("case", [case for case in CASES if case.kind in CHECKS], ids=lambda case: str(case.id))
def test_component(case: Case) -> None:
    CHECKS[case.kind](case)
