"""Every recorded component, by the builder of its message where it has one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from boxwright.base.errors import ConfigError
from boxwright.config.load import parse_message
from boxwright.families.shared.anchor_generator import build_anchor_generator
from boxwright.families.shared.criterion import (
    build_box_coder,
    build_classification_loss,
    build_hard_example_miner,
    build_localization_loss,
    build_matcher,
    build_similarity,
)
from boxwright.families.shared.image_resizer import build_image_resizer
from boxwright.families.shared.post_processing import build_nms, build_score_converter
from boxwright.families.two_stage.position_sensitive_head import position_sensitive_crop
from boxwright.families.two_stage.second_stage import by_relative_size
from boxwright.families.two_stage.third_stage import reframe_masks
from boxwright.nn.criteria.example_selection import BalancedSampler, MinibatchSampler
from boxwright.nn.criteria.losses import NO_COLUMN, Dice, as_rows
from boxwright.nn.criteria.target_assigner import ArgmaxMatcher, ClassColumns, ConfidenceTargets, TargetAssigner
from boxwright.nn.ops.boxes import FasterRcnnBoxCoder, KeypointBoxCoder
from boxwright.nn.ops.pasted_masks import whole_masks
from boxwright.nn.ops.roi import crop_and_resize, grid_align
from boxwright.nn.optimization.optimizers import Optimizer
from boxwright.pipeline import messages as m
from boxwright.pipeline.learning_rate import build_schedule
from boxwright.pipeline.optimizer import build_optimizer
from boxwright.types import Detections, Targets
from tests.conftest import GOLDEN, assert_close, xyxy, yxyx
from tests.parity.recordings import FOLDER, Case, components, unsupported

CASES = [*components(), *components("two_stage")]


def test_the_shipped_folder_is_whole() -> None:
    if FOLDER == GOLDEN:
        assert len(CASES) == 74 + 58


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_component(case: Case) -> None:
    if case.kind not in CHECKS:
        unsupported(case.id, f"no component of kind {case.kind}")
    try:
        CHECKS[case.kind](case)
    except ConfigError as error:
        unsupported(case.id, error)


def tensor(case: Case, name: str) -> Tensor:
    return torch.from_numpy(case.array(f"in/{name}").copy())


def box_coder(case: Case) -> None:
    coder = build_box_coder(parse_message(case.text, m.BoxCoder))
    boxes, anchors = xyxy(case.array("in/boxes")), xyxy(case.array("in/anchors"))
    expected = case.array("out/encoded")
    if isinstance(coder, KeypointBoxCoder):
        keypoints = tensor(case, "keypoints")[..., [1, 0]]
        codes = coder.encode(boxes, anchors, keypoints)
        decoded = coder.decode_keypoints(torch.from_numpy(expected), anchors)[..., [1, 0]]
        assert_close(decoded, case.array("out/decoded_keypoints"))
    else:
        codes = coder.encode(boxes, anchors)
    assert_close(codes, expected)
    assert_close(yxyx(coder.decode(torch.from_numpy(expected), anchors)), case.array("out/decoded"))


def similarity(case: Case) -> None:
    compare = build_similarity(parse_message(case.text, m.RegionSimilarityCalculator))
    assert_close(compare(xyxy(case.array("in/boxes1")), xyxy(case.array("in/boxes2"))), case.array("out/similarity"))


def matcher(case: Case) -> None:
    match = build_matcher(parse_message(case.text, m.Matcher))
    alike = tensor(case, "similarity")[None]
    assert match(alike, torch.ones(alike.shape[:2]) > 0)[0].tolist() == case.array("out/match").tolist()


def anchors(case: Case) -> None:
    generator = build_anchor_generator(parse_message(case.text, m.AnchorGenerator))
    size = tuple(case.params["image_height_width"])
    levels = generator([tuple(shape) for shape in case.params["feature_map_shapes"]], size)
    assert list(generator.anchors_per_location) == case.params["num_anchors_per_location"]
    assert len(levels) == len(case.outputs)
    for number, level in enumerate(levels):
        expected = case.array(f"out/level{number}")
        # Grid anchors, and multiscale ones on demand, are recorded in pixels, the others in units of the image.
        pixels = "grid_anchor_generator" in case.text.split("{")[0] and "scale" not in case.text.split("{")[0]
        pixels = pixels and not case.text.startswith("flexible")
        pixels |= "normalize_coordinates: false" in case.text
        unit = np.ones(4, np.float32) if pixels else np.array([*size, *size], np.float32)
        assert_close(yxyx(level) / unit, expected, absolute=1e-5 if not pixels else 1e-3)


def classification(case: Case) -> None:
    loss = build_classification_loss(parse_message(case.text, m.ClassificationLoss))
    logits, targets, weights = (tensor(case, name) for name in ("prediction", "target", "weights"))
    weights = weights.expand_as(logits)
    mask = tensor(case, "losses_mask").float()[:, None, None]
    for expected, seen in (("out/loss", torch.ones_like(mask)), ("out/loss_with_mask", mask)):
        recorded = case.array(expected)
        if recorded.ndim == 3 and not isinstance(loss, Dice):
            # Ours sums over columns: each column by itself shows that each is right.
            columns = torch.eye(logits.shape[-1])
            found = torch.stack([loss(logits * seen, targets * seen, weights * seen * one) for one in columns], dim=-1)
        else:
            found = loss(logits * seen, targets * seen, weights * seen)
        assert_close(found, recorded)


def localization(case: Case) -> None:
    loss = build_localization_loss(parse_message(case.text, m.LocalizationLoss))
    codes, targets, weights = (tensor(case, name) for name in ("prediction", "target", "weights"))
    expected = case.array("out/loss")
    if loss.of_boxes:
        codes, targets = codes[..., [1, 0, 3, 2]], targets[..., [1, 0, 3, 2]]
    found = loss(codes, targets, weights[..., 0] if weights.ndim == 3 else weights)
    expected = expected.sum(-1) if expected.ndim == 3 else expected
    assert_close(found.flatten(), expected.flatten())


def miner(case: Case) -> None:
    config = parse_message(case.text, m.HardExampleMiner)
    choose = build_hard_example_miner(config, case.params["cls_loss_weight"], case.params["loc_loss_weight"])
    class_losses, box_losses = tensor(case, "cls_losses"), tensor(case, "location_losses")
    boxes = xyxy(case.array("in/decoded_boxes"))
    chosen = choose(class_losses, box_losses, boxes, tensor(case, "match").long())
    assert_close((class_losses * chosen).sum(), case.array("out/mined_cls_loss"))
    assert_close((box_losses * chosen).sum(), case.array("out/mined_location_loss"))


def post_processing(case: Case) -> None:
    config = parse_message(case.text, m.PostProcessing)
    assert config.batch_non_max_suppression is not None
    scores = build_score_converter(config)(tensor(case, "logits"))
    assert_close(scores, case.array("out/scores_converted"))
    boxes = xyxy(case.array("in/boxes"))
    boxes = boxes[:, :, 0] if boxes.shape[2] == 1 else boxes
    windows = np.broadcast_to(case.array("in/clip_window"), (len(boxes), 4))
    # Ours begin at the image's corner.
    corner = torch.from_numpy(windows[:, [1, 0, 1, 0]].copy())[:, None]
    sides = torch.from_numpy(windows[:, 2:] - windows[:, :2])
    shifted = boxes - (corner[:, :, None] if boxes.ndim == 4 else corner)
    kept = build_nms(config.batch_non_max_suppression)(shifted, scores, sides)
    framed = config.batch_non_max_suppression.change_coordinate_frame and case.array("in/clip_window").ndim == 2
    for image in range(len(boxes)):
        found = kept.image(image)
        count = int(case.array("out/num_detections")[image])
        assert len(found.scores) == count
        assert_close(found.scores, case.array("out/nmsed_scores")[image, :count])
        assert found.labels.tolist() == case.array("out/nmsed_classes")[image, :count].tolist()
        # The recording has boxes in the frame of the window; ours stay where they are.
        expected = case.array("out/nmsed_boxes")[image, :count]
        height, width = sides[image].tolist()
        expected = expected * ([height, width] * 2) if framed else expected - windows[image, [0, 1, 0, 1]]
        assert_close(yxyx(found.boxes), expected)
        if case.has("out/nmsed_multiclass_scores"):
            assert_close(scores[image, found.anchors], case.array("out/nmsed_multiclass_scores")[image, :count])


def padded(case: Case, what: str) -> tuple[Targets, Tensor]:
    """Pad the recorded groundtruth; return also its class rows [B, G, C]."""
    images = range(len([name for name in case.inputs if name.startswith("groundtruth_boxes_")]))
    rows = [[case.array(f"in/groundtruth_{name}_{image}") for image in images] for name in ("boxes", what, "weights")]
    count, columns = max(map(len, rows[0])), rows[1][0].shape[1]
    boxes, classes = torch.zeros(len(images), count, 4), torch.zeros(len(images), count, columns)
    weights, valid = torch.zeros(len(images), count), torch.zeros(len(images), count) > 0
    for image in images:
        size = len(rows[0][image])
        boxes[image, :size] = xyxy(rows[0][image])
        classes[image, :size] = torch.from_numpy(rows[1][image])
        weights[image, :size] = torch.from_numpy(rows[2][image])
        valid[image, :size] = True
    return Targets(boxes, classes.argmax(-1) - 1, weights, valid), classes


def argmax(case: Case) -> ArgmaxMatcher:
    params = case.params
    return ArgmaxMatcher(
        params["matched_threshold"],
        params["unmatched_threshold"],
        force_match_for_each_row=params["force_match_for_each_row"],
    )


def target_assigner(case: Case) -> None:
    targets, _ = padded(case, "classes")
    unmatched = case.params["unmatched_class_label"]
    columns = ClassColumns(len(unmatched) - 1, 1, 0 if unmatched[0] else NO_COLUMN)
    coder = FasterRcnnBoxCoder(*case.params["scale_factors"])
    assigner = TargetAssigner(columns, argmax(case), coder, negative_class_weight=case.params["negative_class_weight"])
    found = assigner(xyxy(case.array("in/anchors")), targets)
    assert found.match.tolist() == case.array("out/match").tolist()
    assert_close(found.box_codes, case.array("out/reg_targets"))
    assert_close(found.box_weights, case.array("out/reg_weights"))
    classes = as_rows(found.classes, columns.count)
    assert_close(classes, case.array("out/cls_targets"))
    assert_close(found.class_weights.expand_as(classes), case.array("out/cls_weights"))


def confidences(case: Case) -> None:
    targets, rows = padded(case, "confidences")
    background = int(case.params["include_background_class"])
    stated = Targets(
        targets.boxes, targets.labels.clamp(min=0), targets.weights, targets.valid, None, rows[..., background:]
    )
    columns = ClassColumns(rows.shape[2] - background, background)
    adjust = ConfidenceTargets(case.params["implicit_class_weight"])
    assigner = TargetAssigner(columns, argmax(case), FasterRcnnBoxCoder(), adjust=adjust)
    found = assigner(xyxy(case.array("in/anchors")), stated)
    assert found.match.tolist() == case.array("out/match").tolist()
    assert_close(found.box_codes, case.array("out/reg_targets"))
    assert_close(found.box_weights, case.array("out/reg_weights"))
    assert_close(found.classes, case.array("out/cls_targets"))
    assert_close(found.class_weights, case.array("out/cls_weights"))


def learning_rate(case: Case) -> None:
    schedule = build_schedule(parse_message(case.text, m.LearningRate))
    rates = [schedule(int(step)) for step in case.array("in/step")]
    assert_close(rates, case.array("out/learning_rate"), absolute=1e-8)


def optimizer(case: Case) -> None:
    plan = build_optimizer(parse_message(case.text, m.Optimizer))
    weight = torch.nn.Parameter(tensor(case, "initial"))
    steps = Optimizer([weight], plan.rule)
    for step, (gradient, wanted) in enumerate(
        zip(tensor(case, "gradients"), case.array("out/trajectory"), strict=True)
    ):
        steps.param_groups[0]["lr"] = plan.schedule(step)
        weight.grad = gradient
        steps.step()
        assert_close(weight.detach(), wanted)


def resizer(case: Case) -> None:
    resize = build_image_resizer(parse_message(case.text, m.ImageResizer))
    resized, size = resize(tensor(case, "image"))
    assert_close(resized, case.array("out/resized"), absolute=1e-3)
    assert list(size) == case.array("out/true_image_shape")[:2].tolist()


def maps(case: Case) -> list[Tensor]:
    names = sorted(name for name in case.inputs if name.startswith("f"))
    return [tensor(case, name).permute(0, 3, 1, 2) for name in names]


def crops(case: Case) -> None:
    image, boxes = tensor(case, "image").permute(0, 3, 1, 2), xyxy(case.array("in/boxes"))
    if "box_indices" in case.inputs:  # one box an image
        image, boxes = image[tensor(case, "box_indices").long()], boxes[:, None]
    nearest, fade = case.params.get("method") == "nearest", case.kind.startswith("matmul")
    levels = torch.zeros(boxes.shape[:2], dtype=torch.int64)

    def crop(features: Tensor) -> Tensor:
        size = tuple(case.params["crop_size"])
        found = crop_and_resize([features], boxes, levels, size, fade=fade, nearest=nearest)
        return found.permute(0, 1, 3, 4, 2).reshape(case.array("out/crops").shape)

    # What lies outside is 0; TF's operator can write another value there.
    outside = 1 - crop(torch.ones_like(image))
    assert_close(crop(image) + outside * case.params.get("extrapolation_value", 0), case.array("out/crops"))


def multilevel_crops(case: Case) -> None:
    boxes = xyxy(case.array("in/boxes"))
    levels = torch.zeros(boxes.shape[:2], dtype=torch.int64)
    if name := next((name for name in case.inputs if name.endswith("levels")), None):
        levels = tensor(case, name).long()
    size, fade = tuple(case.params["crop_size"]), "matmul" in case.kind
    found = crop_and_resize(maps(case), boxes, levels, size, fade=fade)
    assert_close(found.permute(0, 1, 3, 4, 2), case.array("out/crops"))


def aligned(case: Case) -> None:
    name = next(name for name in case.inputs if name.endswith("levels"))
    samples = (case.params.get("num_samples_per_cell_y", 1), case.params.get("num_samples_per_cell_x", 1))
    found = grid_align(
        maps(case),
        xyxy(case.array("in/boxes")),
        tensor(case, name).long(),
        tuple(case.params.get("output_size") or case.params["crop_size"]),
        samples=samples,
        align_corners=case.params.get("align_corners", False),
    )
    assert_close(found.permute(0, 1, 3, 4, 2), case.array("out/crops"))


def pyramid_levels(case: Case) -> None:
    count, ratio = case.params["num_levels"], case.params["image_ratio"]
    assert case.params["unit_scale_index"] == count - 2
    side = ratio * 224
    found = by_relative_size(xyxy(case.array("in/boxes")), (side, side), count)
    assert found.tolist() == case.array("out/levels").tolist()


def position_sensitive(case: Case) -> None:
    batched = case.kind.startswith("batch")
    features = tensor(case, "images" if batched else "image").permute(0, 3, 1, 2) if batched else None
    boxes = xyxy(case.array("in/boxes"))
    if features is None:
        features, boxes = tensor(case, "image").permute(2, 0, 1)[None], boxes[None]
    size, bins = tuple(case.params["crop_size"]), tuple(case.params["num_spatial_bins"])
    found = position_sensitive_crop(features, boxes, size, bins).permute(0, 1, 3, 4, 2)
    if case.params["global_pool"]:
        found = found.mean((2, 3), keepdim=True)
    assert_close(found.reshape(case.array("out/crops").shape), case.array("out/crops"))


_DRAWS = 2000
# Of 560 comparisons one goes beyond by chance in 250 runs of the whole table.
_DEVIATIONS = 4.5


def drawn(case: Case, sample: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return what a sampler took in so many draws, bool [draws, N]."""
    candidates, labels = tensor(case, "indicator").bool(), tensor(case, "labels").bool()
    torch.manual_seed(15)
    return sample(labels.expand(_DRAWS, -1), candidates.expand(_DRAWS, -1))


def differs(taken: Tensor, case: Case) -> bool:
    """Tell whether some example is taken more, or less, often than TF's sampler took it."""
    theirs, ours = torch.from_numpy(case.array("out/times_taken")) / _DRAWS, taken.float().mean(0)
    share = (theirs + ours) / 2
    spread = torch.sqrt(2 * share * (1 - share) / _DRAWS)
    return bool(((theirs - ours).abs() > _DEVIATIONS * spread).any())


def balanced_sampler(case: Case) -> None:
    """The same numbers of positives and negatives, and every example as often; TF's fixed form, where it has enough."""
    size, share = case.params["batch_size"], case.params["positive_fraction"]
    sampler = MinibatchSampler(size, share) if size else BalancedSampler(share)
    taken = drawn(case, sampler)
    candidates, positive = tensor(case, "indicator").bool(), tensor(case, "labels").bool()
    assert not taken[:, ~candidates].any()
    counts = [taken[:, part].sum(1).unique().tolist() for part in (candidates & positive, candidates & ~positive)]
    if case.params["is_static"] and case.array("out/taken_without_indicator") > 0:
        # Where candidates of a kind are too few, TF's fixed form takes what is no candidate; ours takes fewer.
        enough = [min(int((candidates & kind).sum()), size) for kind in (positive, ~positive)]
        assert counts == [[min(enough[0], int(share * size))], [min(enough[1], size - counts[0][0])]]
        return
    for found, name in zip(counts, ("positives", "negatives"), strict=True):
        assert found == case.array(f"out/{name}_histogram").nonzero()[0].tolist()
    assert not differs(taken, case)
    if 0 < taken[0].sum() < candidates.sum():
        assert differs(drawn(case, lambda labels, among: among & (among.cumsum(1) <= taken[0].sum())), case)


def reframed(case: Case) -> None:
    size = (case.params["image_height"], case.params["image_width"])
    masks, boxes = tensor(case, "box_masks"), xyxy(case.array("in/boxes"))
    expected = case.array("out/image_masks")
    nearest = case.params.get("resize_method") == "nearest" or expected.dtype == np.uint8
    found = reframe_masks(masks.float(), boxes, size, nearest=nearest)
    assert_close(found, expected)
    if not nearest:
        pixels = boxes * torch.tensor([size[1], size[0]] * 2)
        ones = np.ones(len(pixels), np.float32)
        objects = Detections(pixels.numpy(), ones, ones.astype(np.int64), size, masks=masks.float().numpy())
        assert_close(whole_masks(objects), (found > 0.5).byte().numpy())


def reframed_corners(case: Case) -> None:
    """The image's corners in units of each box: what a mask of two by two pixels is sampled at."""
    boxes = xyxy(case.array("in/boxes"))
    ramp = torch.tensor([[[0.0, 0.0], [1.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]])
    expected = torch.from_numpy(case.array("out/reframed"))
    for mask, side in zip(ramp, (0, 1), strict=True):
        inside = reframe_masks(mask.expand(len(boxes), -1, -1), boxes, (101, 101))
        start, end = expected[:, side], expected[:, side + 2]
        steps = torch.linspace(0, 1, 101)
        line = start[:, None] + (end - start)[:, None] * steps
        sure = ((line > 1e-3) & (line < 1 - 1e-3)) | (line < -1e-3) | (line > 1 + 1e-3)
        within = torch.where((line >= 0) & (line <= 1), line, 0.0)
        assert_close(inside.amax(2 - side)[sure], within[sure], 1e-4)


CHECKS: dict[str, Callable[[Case], None]] = {
    "box_coder": box_coder,
    "region_similarity": similarity,
    "matcher": matcher,
    "anchor_generator": anchors,
    "classification_loss": classification,
    "localization_loss": localization,
    "hard_example_miner": miner,
    "post_processing": post_processing,
    "target_assigner": target_assigner,
    "target_assigner_confidences": confidences,
    "learning_rate": learning_rate,
    "optimizer": optimizer,
    "image_resizer": resizer,
    "crop_and_resize": crops,
    "native_crop_and_resize": crops,
    "matmul_crop_and_resize": crops,
    "multilevel_crop_and_resize": multilevel_crops,
    "multilevel_native_crop_and_resize": multilevel_crops,
    "multilevel_matmul_crop_and_resize": multilevel_crops,
    "multilevel_roi_align": aligned,
    "balanced_sampler": balanced_sampler,
    "reframe_box_masks_to_image_masks": reframed,
    "reframe_image_corners_relative_to_boxes": reframed_corners,
    "fpn_feature_levels": pyramid_levels,
    "position_sensitive_crop_regions": position_sensitive,
    "batch_position_sensitive_crop_regions": position_sensitive,
}
