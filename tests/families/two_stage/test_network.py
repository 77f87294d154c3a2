"""Two-stage detectors on whatever comes: nothing, tiny pictures, no objects, no proposals; and what they promise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import boxwright as bw
from boxwright.base.errors import ConfigError, DataError
from boxwright.config.load import parse_message
from boxwright.config.support import contradictions, report
from boxwright.families.two_stage.network import FasterRCNN, LevelProposals, RegionSampler, suppressed_by_level
from boxwright.families.two_stage.second_stage import BoxClassifier, RoiAlign
from boxwright.nn.criteria.criterion import LossTerm
from boxwright.nn.criteria.example_selection import MinibatchSampler
from boxwright.nn.criteria.target_assigner import (
    IGNORED,
    UNMATCHED,
    ArgmaxMatcher,
    ClassColumns,
    OwnLowQualityMatcher,
    TargetAssigner,
)
from boxwright.nn.detector import Detector
from boxwright.nn.multi_scale import MULTI_SCALE, MultiScaleDetector
from boxwright.nn.ops.boxes import FasterRcnnBoxCoder
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.types import AnchorPredictions, Proposals, Targets, TwoStagePredictions
from boxwright.types.masks import InstanceMasks
from tests.two_stage_models import EVERY, FASTER_RCNN, HYPERPARAMS, MASK_RCNN, ONE_MAP, OPTIONS, PROPOSALS_ONLY

IMAGE = np.random.default_rng(0).integers(0, 255, (60, 90, 3), dtype=np.uint8)


def build(text: str) -> Detector:
    torch.manual_seed(0)
    return build_detector(parse_message(text, m.DetectionModel))


@pytest.fixture(scope="module", params=EVERY)
def detector(request: pytest.FixtureRequest) -> Detector:
    return build(EVERY[request.param])


def targets(*counts: int, masks: bool = True) -> Targets:
    """Groundtruth of a batch of 64 by 96: so many boxes an image, one of them a pixel large."""
    count = max(*counts, 1)
    boxes, valid = torch.zeros(len(counts), count, 4), torch.zeros(len(counts), count, dtype=torch.bool)
    pictures = []
    for image, number in enumerate(counts):
        whole = np.zeros((number, 64, 96), np.uint8)
        for row in range(number):
            side = 1 if row == 1 else 20 + row
            boxes[image, row] = torch.tensor([4.0 + 12 * row, 5, 4 + 12 * row + side, 5 + side])
            whole[row, 5 : 5 + side, 4 + 12 * row : 4 + 12 * row + side] = 1
        valid[image, :number] = True
        pictures.append(whole)
    stored = InstanceMasks.stack(pictures, count, (64, 96)) if masks else None
    return Targets(boxes, torch.zeros(len(counts), count, dtype=torch.int64), valid.float(), valid, masks=stored)


@pytest.mark.slow_except("mask_rcnn", "rfcn")
def test_detects_in_every_picture(detector: Detector) -> None:
    for image in (IMAGE, IMAGE[:1], IMAGE[:, :1], IMAGE[:1, :1], np.zeros_like(IMAGE)):
        (found,) = detector.detect([image])
        assert torch.isfinite(found.boxes).all()
        assert found.image_size == image.shape[:2]
        assert ((found.scores >= 0) & (found.scores <= 1)).all()
        if detector.network.learns_masks and found.masks is not None:
            assert bw.instance_masks(found).shape == (len(found), *image.shape[:2])


@pytest.mark.slow_except("proposals-counts0", "proposals-counts1", "options-counts1")
@pytest.mark.parametrize("counts", [(2, 0), (0, 0), pytest.param((4, 1), marks=pytest.mark.slow)])
def test_learns_from_every_batch(detector: Detector, counts: tuple[int, ...]) -> None:
    detector.train()
    truth = targets(*counts)
    inputs, sizes = detector.preprocess(torch.from_numpy(np.stack([IMAGE, IMAGE[::-1].copy()])))
    predictions = detector.predict(inputs, sizes, truth)
    terms = LossTerm.values(detector.criterion(predictions, truth))
    assert all(torch.isfinite(value) for value in terms.values())
    detector.zero_grad()
    torch.autograd.backward(torch.stack(list(terms.values())).sum())
    gradients = [p.grad for p in detector.network.parameters() if p.grad is not None]
    assert gradients
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    if max(counts) == 0:
        assert float(terms["Loss/RPNLoss/localization_loss"].detach()) == 0
        assert float(terms.get("Loss/BoxClassifierLoss/mask_loss", torch.zeros(())).detach()) == 0
    described = detector.criterion.describe(predictions, truth)
    assert all(torch.isfinite(value) for value in described.scalars.values())
    detector.eval()


@pytest.mark.slow
def test_every_weight_gets_a_gradient() -> None:
    """What would never learn keeps several processes waiting for each other."""
    for name, text in EVERY.items():
        detector = build(text).train()
        truth = targets(3, 2)
        inputs, sizes = detector.preprocess(torch.from_numpy(np.stack([IMAGE, IMAGE])))
        terms = LossTerm.values(detector.criterion(detector.predict(inputs, sizes, truth), truth))
        torch.autograd.backward(torch.stack(list(terms.values())).sum())
        without = [n for n, p in detector.network.named_parameters() if p.requires_grad and p.grad is None]
        assert without == [], name


@pytest.mark.slow_except("text3")
@pytest.mark.parametrize("text", [FASTER_RCNN, MASK_RCNN, ONE_MAP, PROPOSALS_ONLY])
def test_no_proposals_are_no_error(text: str) -> None:
    none = text.replace("first_stage_max_proposals", "first_stage_nms_score_threshold: 1.0 first_stage_max_proposals")
    detector = build(none)
    (found,) = detector.detect([IMAGE])
    assert len(found) == 0
    truth = targets(2, 1)
    detector.train()
    inputs, sizes = detector.preprocess(torch.from_numpy(np.stack([IMAGE, IMAGE])))
    predictions = detector.predict(inputs, sizes, truth)
    terms = LossTerm.values(detector.criterion(predictions, truth))
    assert all(torch.isfinite(value) for value in terms.values())
    assert float(terms["Loss/RPNLoss/objectness_loss"].detach()) > 0
    if "Loss/BoxClassifierLoss/classification_loss" in terms:
        assert float(terms["Loss/BoxClassifierLoss/classification_loss"].detach()) == 0


def test_pictures_smaller_than_a_stride() -> None:
    text = FASTER_RCNN.replace("fixed_shape_resizer { height: 64 width: 96 }", "identity_resizer { }")
    detector = build(text)
    for size in ((1, 1), (3, 40), (33, 2)):
        (found,) = detector.detect([np.zeros((*size, 3), np.uint8)])
        assert torch.isfinite(found.boxes).all()


def test_batches_are_as_single_pictures() -> None:
    detector = build(MASK_RCNN)
    other = np.ascontiguousarray(IMAGE[::-1, ::-1])
    together, alone = detector.detect([IMAGE, other]), [detector.detect([image])[0] for image in (IMAGE, other)]
    for one, two in zip(together, alone, strict=True):
        assert len(one) == len(two) > 0
        torch.testing.assert_close(one.boxes, two.boxes, atol=1e-3, rtol=1e-4)
        assert one.masks is not None
        assert two.masks is not None
        torch.testing.assert_close(one.masks, two.masks, atol=1e-4, rtol=1e-3)


def test_what_is_padding_is_not_looked_at_and_changes_nothing() -> None:
    detector = build(ONE_MAP)
    network = detector.network
    assert isinstance(network, FasterRCNN)
    assert network.second is not None
    inputs, _ = detector.preprocess(torch.from_numpy(IMAGE)[None])
    maps = network.feature_maps(inputs)
    boxes = torch.tensor([[[5.0, 5, 40, 40], [10, 0, 60, 50], [0, 0, 0, 0]]])
    with torch.no_grad():
        some = network.second(maps, Proposals(boxes, boxes[..., 0], torch.tensor([[True, True, False]])), (64, 96))
        every = network.second(maps, Proposals(boxes, boxes[..., 0], torch.tensor([[True, True, True]])), (64, 96))
    torch.testing.assert_close(some.class_logits[:, :2], every.class_logits[:, :2], atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(some.box_codes[:, :2], every.box_codes[:, :2], atol=1e-3, rtol=1e-4)


def test_features_of_what_was_found() -> None:
    detector = build(OPTIONS)
    network = detector.network
    assert isinstance(network, FasterRCNN)
    assert isinstance(network.second, BoxClassifier)
    with torch.no_grad():  # fresh ones throw boxes out of every picture
        network.second.head.boxes[-2].weight.zero_()
    (found,) = detector.detect([IMAGE])
    assert len(found) > 0
    assert found.features is not None
    assert found.rpn_features is not None
    assert found.features.shape == (len(found), 2048, 4, 4)
    assert found.rpn_features.shape == (len(found), 1024, 7, 7)
    exported = found.to_tf()
    assert exported["detection_features"].shape == (len(found), 4, 4, 2048)
    assert exported["cropped_rpn_box_features"].shape == (len(found), 7, 7, 1024)


def test_objects_without_masks_are_an_error() -> None:
    detector = build(MASK_RCNN).train()
    truth = targets(2, 1, masks=False)
    inputs, sizes = detector.preprocess(torch.from_numpy(np.stack([IMAGE, IMAGE])))
    with pytest.raises(DataError, match="records have none; set load_instance_masks and mask_type"):
        detector.criterion(detector.predict(inputs, sizes, truth), truth)
    nothing = targets(0, 0, masks=False)
    assert "Loss/BoxClassifierLoss/mask_loss" in detector.criterion(detector.predict(inputs, sizes, nothing), nothing)


def test_masks_do_not_vote() -> None:
    with pytest.raises(ConfigError, match="not the masks that this detector predicts"):
        MultiScaleDetector(build(MASK_RCNN), MULTI_SCALE["refinedet320-voc"])
    many = MultiScaleDetector(
        build(FASTER_RCNN),
        replace(MULTI_SCALE["refinedet512-voc"], input_sizes=MULTI_SCALE["refinedet512-voc"].input_sizes[2:4]),
    )
    assert torch.isfinite(many.detect([IMAGE])[0].boxes).all()


@pytest.mark.slow
def test_proposals_are_learnt_from_by_chance_and_evaluated_without() -> None:
    detector = build(FASTER_RCNN)
    truth = targets(3)
    inputs, sizes = detector.preprocess(torch.from_numpy(IMAGE)[None])

    def proposals(seed: int) -> Tensor:
        torch.manual_seed(seed)
        predictions: TwoStagePredictions = detector.predict(inputs, sizes, truth)
        return predictions.proposals.boxes

    assert torch.equal(proposals(1), proposals(2)), "in evaluation nothing is drawn"
    detector.train()
    assert proposals(1).shape[1] == 16
    assert torch.equal(proposals(1), proposals(1))


@pytest.mark.parametrize("shared", [False, True])
def test_layers_whose_rows_are_classes(shared: bool) -> None:
    """The scores of 4 classes and the background, and 4 numbers of each class's box, unless all classes have one box."""
    text = MASK_RCNN.replace("mask_rcnn_box_predictor {", "mask_rcnn_box_predictor { share_box_across_classes: true")
    with torch.device("meta"):
        network = build_detector(parse_message(text if shared else MASK_RCNN, m.DetectionModel)).network
    assert isinstance(network, FasterRCNN)
    assert isinstance(network.second, BoxClassifier)
    layers = network.second.class_layers
    assert [(layer.columns, layer.numbers) for layer in layers] == ([(5, 1)] if shared else [(5, 1), (4, 4)])
    rows = [len(network.second.get_submodule(layer.name).weight) for layer in layers]
    assert rows == ([5] if shared else [5, 16])


def test_the_sampler_takes_a_share_of_positives() -> None:
    assigner = TargetAssigner(ClassColumns(2), ArgmaxMatcher(0.5, 0.5), FasterRcnnBoxCoder())
    truth = Targets(
        torch.tensor([[[0.0, 0, 10, 10], [50, 50, 60, 60]]]),
        torch.zeros(1, 2, dtype=torch.int64),
        torch.tensor([[1.0, 0]]),
        torch.ones(1, 2) > 0,
    )
    near = torch.tensor([[0.0, 0, 10, 10 - 0.1 * i] for i in range(10)])  # ten of the first object
    far = torch.tensor([[100.0 + i, 0, 110 + i, 10] for i in range(30)])  # thirty of none
    ignored = torch.tensor([[50.0, 50, 60, 60]] * 5)  # of an object that does not count
    boxes = torch.cat([near, far, ignored, torch.zeros(5, 4)])[None]
    scores = torch.linspace(1, 0, 50)[None]
    proposals = Proposals(boxes, scores, torch.arange(50)[None] < 45)
    torch.manual_seed(0)
    found = RegionSampler(assigner, MinibatchSampler(20, 0.25))(proposals, truth)
    assert found.positive is not None
    assert int(found.positive.sum()) == 5
    assert int(found.valid.sum()) == 20
    assert not (found.boxes[0][:, None] == ignored[0]).all(-1).any(), "weight 0 is never sampled"
    assert (found.scores[0].diff() <= 0).all(), "in the order of scores"
    with_truth = RegionSampler(assigner, MinibatchSampler(60, 1.0), add_groundtruth=True)(proposals, truth)
    assert int(with_truth.valid.sum()) == 10 + 30 + 1, "the object that counts is among them"


def test_low_quality_matches() -> None:
    """Two boxes, four anchors: the second box's best anchor is like the first box more."""
    alike = torch.tensor([[[0.8, 0.5, 0.2, 0.1], [0.0, 0.4, 0.1, 0.4]]])
    valid = torch.ones(1, 2) > 0
    forced = ArgmaxMatcher(0.7, 0.3, force_match_for_each_row=True)(alike, valid)
    assert forced.tolist() == [[0, 1, UNMATCHED, IGNORED]]
    own = OwnLowQualityMatcher(0.7, 0.3)(alike, valid)
    assert own.tolist() == [[0, 0, UNMATCHED, 1]], "its own best, and both that tie"
    padded = OwnLowQualityMatcher(0.7, 0.3)(
        torch.where(torch.tensor([[[True], [False]]]), alike, -torch.inf), valid & torch.tensor([[True, False]])
    )
    assert padded.tolist() == [[0, IGNORED, UNMATCHED, UNMATCHED]]
    assert OwnLowQualityMatcher()(alike[:, :0], valid[:, :0]).tolist() == [[UNMATCHED] * 4]


MULTISCALE = """multiscale_anchor_generator {
    min_level: 2 max_level: 5 anchor_scale: 4 aspect_ratios: [0.5, 1, 2] scales_per_octave: 1 normalize_coordinates: false }"""
GRID = "grid_anchor_generator { scales: [0.125, 0.25] aspect_ratios: [0.5, 1, 2] }"
FIVE_LEVELS = "multiscale_anchor_generator { min_level: 2 max_level: 6 aspect_ratios: 1 normalize_coordinates: false }"


@pytest.mark.parametrize("version", [1, 2])
def test_inplace_batchnorm_update_by_version(version: int) -> None:
    """TF1 only says with it when statistics are written, so it has no effect; TF2 refuses it."""
    text = ONE_MAP.replace("faster_rcnn {", "faster_rcnn { inplace_batchnorm_update: true", 1)
    if version == 1:
        text = text.replace("resnet50_keras", "resnet50")
    config = parse_message(text, m.DetectionModel)
    refused = ["model.faster_rcnn.inplace_batchnorm_update" in str(problem) for problem in contradictions(config)]
    assert refused == ([] if version == 1 else [True])
    notes = {one.path: one.status.note for one in report(config, "model")}
    assert "changes no number" in notes["model.faster_rcnn.inplace_batchnorm_update"]


ERRORS = [
    (MASK_RCNN, "number_of_stages: 3", "number_of_stages: 4", "number_of_stages"),
    (MASK_RCNN, "predict_instance_masks: true", "", "number_of_stages: 3 predicts masks"),
    (MASK_RCNN, "number_of_stages: 3", "number_of_stages: 2", "predict_instance_masks needs 3, found 2"),
    (ONE_MAP, "initial_crop_size: 14", "", "initial_crop_size: expected at least 1"),
    (ONE_MAP, "maxpool_kernel_size: 2", "", "maxpool_kernel_size: expected 1 to"),
    (ONE_MAP, "maxpool_kernel_size: 2", "maxpool_kernel_size: 15", "expected 1 to initial_crop_size"),
    (ONE_MAP, "maxpool_stride: 2", "maxpool_stride: 0", "maxpool_stride at least 1; found 2 and 0"),
    (ONE_MAP, 'keras"', 'keras" first_stage_features_stride: 8', "takes 16, found 8"),
    (ONE_MAP, 'resnet50_keras"', 'inception_v2" first_stage_features_stride: 4', "takes 8 or 16, found 4"),
    (ONE_MAP, 'keras"', 'keras" fpn { }', "feature_extractor.fpn: faster_rcnn_resnet50_keras has none"),
    (ONE_MAP, 'keras"', 'keras" conv_hyperparams { }', "takes none, as in TensorFlow"),
    (ONE_MAP, 'resnet50_keras"', 'nas" first_stage_features_stride: 8', "faster_rcnn_nas takes 16, found 8"),
    (ONE_MAP, "resnet50_keras", "resnet51", "is not known; did you mean faster_rcnn_resnet50"),
    (ONE_MAP, "faster_rcnn {", "faster_rcnn { inplace_batchnorm_update: true", "TensorFlow 2 refuses it, too"),
    (ONE_MAP, "faster_rcnn {", "faster_rcnn { first_stage_nms_iou_threshold: 1.5", "first_stage_nms_iou_threshold"),
    (ONE_MAP, "faster_rcnn {", "faster_rcnn { first_stage_minibatch_size: 0", "first_stage_minibatch_size"),
    (ONE_MAP, "faster_rcnn {", "faster_rcnn { second_stage_balance_fraction: 1.5", "second_stage_balance_fraction"),
    (ONE_MAP, "use_dropout: true", "use_dropout: true dropout_keep_probability: 0", "0 would drop everything"),
    (ONE_MAP, "use_dropout: true", "box_code_size: 5", "box_code_size"),
    (ONE_MAP, "use_dropout: true", "predict_keypoints: true", "TensorFlow has no such head, either; for keypoints use"),
    (ONE_MAP, "iou_threshold: 0.5", "use_combined_nms: true change_coordinate_frame: false", "refuses it for a second"),
    (ONE_MAP, "initial_crop_size: 14", "initial_crop_size: 14 roi_align { }", "remove both maxpool fields"),
    (
        MASK_RCNN,
        "normalize_coordinates: false",
        "",
        "normalize_coordinates: two-stage detectors have anchors in pixels",
    ),
    (MASK_RCNN, "max_level: 5 anchor_scale", "max_level: 6 anchor_scale", "5 levels, but the feature extractor has 4"),
    (
        MASK_RCNN,
        "mask_prediction_conv_depth: 16",
        "convolve_then_upsample_masks: true mask_crop_size: 14",
        "must be multiples of the features' side 14",
    ),
    (
        MASK_RCNN,
        "mask_prediction_conv_depth: 16",
        "deconvolve_masks: true mask_crop_size: 14",
        "masks are twice the crop of 14",
    ),
    (MASK_RCNN, "mask_prediction_conv_depth: 16", "mask_height: 0", "mask_height"),
    (
        MASK_RCNN,
        "mask_prediction_conv_depth: 16",
        "mask_prediction_num_conv_layers: 0",
        "mask_prediction_num_conv_layers",
    ),
    (MASK_RCNN, "num_classes: 4", "num_classes: 0", "num_classes: expected at least 1"),
    (MASK_RCNN, MULTISCALE, "grid_anchor_generator { }", "a pyramid has several levels; use multiscale"),
    (ONE_MAP, GRID, FIVE_LEVELS, "5 levels, but the feature extractor has 1"),
    (MASK_RCNN, f"conv_hyperparams {{ {HYPERPARAMS} activation: RELU }}", "", "conv_hyperparams: missing; a pyramid"),
]


@pytest.mark.parametrize(("text", "old", "new", "wanted"), ERRORS)
def test_what_cannot_be_is_said_in_a_line(text: str, old: str, new: str, wanted: str) -> None:
    changed = text.replace(old, new, 1)
    assert changed != text
    with pytest.raises(ConfigError, match=wanted):
        build_detector(parse_message(changed, m.DetectionModel))


def test_learning_from_more_proposals_than_there_are() -> None:
    from boxwright.pipeline.training import build_training

    text = f"""model {{ {FASTER_RCNN.replace("second_stage_batch_size: 16", "second_stage_batch_size: 64")} }}
      train_config {{ batch_size: 1 num_steps: 1
        optimizer {{ momentum_optimizer {{ learning_rate {{ constant_learning_rate {{ }} }} }} }} }}
      train_input_reader {{ tf_record_input_reader {{ input_path: "a" }} }}"""
    config = parse_message(text, m.TrainEvalPipelineConfig)
    with pytest.raises(ConfigError, match="64 proposals per image are to be sampled, but there are at most 32"):
        build_training(config)
    masks = parse_message(
        text.replace(FASTER_RCNN.replace("second_stage_batch_size: 16", "second_stage_batch_size: 64"), MASK_RCNN),
        m.TrainEvalPipelineConfig,
    )
    with pytest.raises(ConfigError, match="train_input_reader.load_instance_masks: the detector learns masks"):
        build_training(masks)


class Tensors(torch.nn.Module):
    """A network whose predictions are given out as plain tensors."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor, sizes: Tensor) -> tuple[Tensor, ...]:
        found: TwoStagePredictions = self.network(inputs, sizes)
        assert found.regions is not None
        return found.proposals.boxes, found.proposals.valid, found.regions.box_codes, found.regions.class_logits


@pytest.mark.slow  # tests/exporters export the same network as a part of a whole detector
@pytest.mark.parametrize(
    "text",
    [pytest.param(FASTER_RCNN, id="pyramid"), pytest.param(ONE_MAP, id="one map", marks=pytest.mark.slow)],
)
def test_is_one_graph(text: str) -> None:
    """Exported, a network has one shape: padding is looked at like everything else."""
    detector = build(text)
    inputs, sizes = detector.preprocess(torch.from_numpy(IMAGE)[None])
    program = torch.export.export(Tensors(detector.network), (inputs, sizes), strict=False)
    with torch.no_grad():
        wanted, found = Tensors(detector.network)(inputs, sizes), program.module()(inputs, sizes)
    valid = wanted[1]
    assert torch.equal(valid, found[1])
    for ours, graph in zip(wanted[2:], found[2:], strict=True):
        torch.testing.assert_close(graph[valid], ours[valid], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("finest", [2, 3])
def test_regions_are_cropped_where_they_are(finest: int) -> None:
    """Of maps that hold their own pixels' place, a crop holds the region's places, whatever the finest level."""
    count = 3
    maps = []
    for level in range(finest, finest + count):
        stride = 2**level
        rows, columns = torch.meshgrid(torch.arange(256 // stride), torch.arange(384 // stride), indexing="ij")
        maps.append((torch.stack([columns, rows]) * stride + stride / 2)[None].float())
    boxes = torch.tensor([[[40.0, 30, 120, 110], [100, 60, 330, 230]]])
    crops = RoiAlign(4, 2, levels=count, finest=finest)(maps, boxes, (256, 384))
    for crop, box in zip(crops, boxes[0], strict=True):
        torch.testing.assert_close(crop.mean((1, 2)), (box[:2] + box[2:]) / 2, atol=1e-2, rtol=1e-3)


LEVELS = (300, 80, 20, 3)
SIZES = torch.tensor([[100.0, 120.0], [64.0, 100.0]])


def predictions(seed: int) -> AnchorPredictions:
    generator = torch.Generator().manual_seed(seed)
    anchors = torch.rand(sum(LEVELS), 4, generator=generator) * 90
    anchors[:, 2:] = anchors[:, :2] + 5 + torch.rand(sum(LEVELS), 2, generator=generator) * 30
    codes, logits = (torch.randn(2, sum(LEVELS), last, generator=generator) for last in (4, 2))
    return AnchorPredictions(codes, logits, anchors, (), (100, 120), LEVELS)


@pytest.mark.parametrize(("per_level", "most"), [(50, 40), (50, 1000), (1000, 100), (5, 3)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_levels_apart_are_as_classes_of_an_image(seed: int, per_level: int, most: int) -> None:
    """What a GPU runs, on the CPU: levels as images of their own, against levels as classes of one image."""
    propose = LevelProposals(FasterRcnnBoxCoder(), 0.5, (per_level, per_level), (most, most))
    given = predictions(seed)
    expected = propose(given, SIZES, training=True)

    taken: list[torch.Tensor] = []
    chosen = []
    first = 0
    for size in LEVELS:
        margin = given.class_logits[:, first : first + size]
        rank = (margin[..., 1] - margin[..., 0]).topk(min(per_level, size), 1).indices + first
        chosen.append(rank)
        first += size
    rows = torch.cat(chosen, 1)
    boxes = FasterRcnnBoxCoder().decode(
        given.box_codes.gather(1, rows[..., None].expand(-1, -1, 4)), given.anchors[rows]
    )
    for number, (height, width) in enumerate(SIZES):
        taken.append(torch.minimum(boxes[number].clamp(min=0), torch.tensor([width, height, width, height])))
    scores = given.class_logits.softmax(-1)[..., 1].gather(1, rows)
    counts = [min(per_level, size) for size in LEVELS]
    found = suppressed_by_level(torch.stack(taken), scores, SIZES, counts, 0.5, most)

    assert expected.valid.sum() > 3
    assert found.valid.sum(1).tolist() == expected.valid.sum(1).tolist()
    torch.testing.assert_close(found.scores, expected.scores)
    torch.testing.assert_close(found.boxes, expected.boxes)
