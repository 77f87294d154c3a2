"""DeepMAC's mask networks: every kind learns, and each by its definition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from boxwright.base.errors import ConfigError, DataError
from boxwright.config.load import parse_message
from boxwright.config.support import refuse_unsupported
from boxwright.families.center_net.consistency_features import RandomView, View
from boxwright.families.center_net.deep_masks import (
    BoxCrops,
    ConditionalMask,
    DeepMasks,
    ProjectedMask,
    WholeMaps,
    instances_at,
)
from boxwright.families.center_net.network import CenterNet
from boxwright.families.center_net.predictions import EmbeddingMaps
from boxwright.nn.criteria.criterion import LossTerm
from boxwright.nn.detector import Detector
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.message import TrainEvalPipelineConfig as Pipeline
from boxwright.types import Targets
from boxwright.types.masks import InstanceMasks
from boxwright.weights.tensorflow.variables import from_tensorflow, to_tensorflow
from tests.center_nets import CENTER_NET, WEAK, deep_mask_variants, deep_masks

SMALL = 'dim: 8 pixel_embedding_dim: 6 mask_size: 16 network_type: "resnet4"'


def detector_of(text: str) -> Detector:
    torch.manual_seed(0)
    return build_detector(parse_message(text, m.DetectionModel))


def targets_of(objects: int) -> Targets:
    """Two images; the second has no object, and the first one that is a pixel large in the far corner."""
    torch.manual_seed(1)
    low = torch.rand(2, objects, 2) * torch.tensor([80.0, 50.0])
    boxes = torch.cat([low, low + torch.rand(2, objects, 2) * 12 + 1], -1)
    if objects:
        boxes[:, -1] = torch.tensor([95.0, 63.0, 96.0, 64.0])
    valid = torch.tensor([True, False])[:, None].expand(2, objects)
    points = torch.rand(2, objects, 3, 2) * torch.tensor([96.0, 64.0])
    points[:, ::2, 0] = torch.nan
    return Targets(
        boxes * valid[..., None],
        torch.arange(objects).expand(2, -1) % 4 * valid,
        valid.float(),
        valid,
        keypoints=points,
        masks=InstanceMasks.stack([np.ones((objects, 64, 96), np.uint8)] * 2, objects, (64, 96)),
        keypoint_depths=torch.rand(2, objects, 3) - 0.5,
    )


@pytest.mark.slow_cases("0", "1", "6", "7")
@pytest.mark.parametrize("number", range(9))
def test_learns_and_detects(number: int) -> None:
    """Every kind, with and without objects: finite losses, a gradient for each weight, and masks of detections."""
    texts = deep_mask_variants()
    assert len(texts) == 9
    detector = detector_of(texts[number])
    images = torch.randint(0, 255, (2, 50, 60, 3), dtype=torch.uint8)
    inputs, sizes = detector.preprocess(images)
    for objects in (0, 5):
        detector.train().zero_grad()
        detector.network.begin_step(6)
        terms = detector.criterion(detector.predict(inputs, sizes, targets_of(objects)), targets_of(objects))
        loss = LossTerm.sum(terms)
        assert loss.isfinite()
        loss.backward()
        learned = [one for one in detector.network.parameters() if one.requires_grad]
        assert all(one.grad is not None and one.grad.isfinite().all() for one in learned)
        detector.eval()
        with torch.no_grad():
            again = [
                LossTerm.values(
                    detector.criterion(detector.predict(inputs, sizes, targets_of(objects)), targets_of(objects))
                )
                for _ in range(2)
            ]
        assert again[0] == again[1]
    side = {"predict_full": 12, "mask_size: 10": 10, "network_type": 16}
    wanted = next(size for text, size in side.items() if text in texts[number])
    for found in detector.detect([image.numpy() for image in images]):
        assert found.masks is not None
        assert found.masks.shape == (len(found), wanted, wanted)
        assert ((found.masks >= 0) & (found.masks <= 1)).all()


@pytest.mark.parametrize("number", range(9))
def test_names_of_every_kind(number: int) -> None:
    """Written to TF's names and read again, every weight is the same."""
    network = detector_of(deep_mask_variants()[number]).network
    arrays, _ = to_tensorflow(network)
    found = from_tensorflow(network, arrays)
    state = {key: value for key, value in network.state_dict().items() if "num_batches" not in key}
    assert not found.unnamed
    assert set(found.values) == set(state)
    assert all(torch.equal(found.values[key], value) for key, value in state.items())


@pytest.mark.slow_except("10")
@pytest.mark.parametrize("layers", [10, 20, 32, 52, 100])
def test_hourglasses_have_the_layers_of_their_name(layers: int) -> None:
    """TF counts along the longest way: the stem's 3, at each size 2 per block down and up, the innermost's, the last."""
    text = deep_masks(f'dim: 4 pixel_embedding_dim: 2 network_type: "hourglass{layers}"')
    with torch.device("meta"):
        network = detector_of(text.replace("num_init_channels: 4", "num_init_channels: 2")).network
    arrays = {key for key in network.state_dict() if key.startswith("deep_masks") and key.endswith("0.weight")}
    beside = {key for key in arrays if ".beside." in key or ".skip." in key}
    convolutions = {key for key in arrays - beside if network.state_dict()[key].ndim == 4}
    assert len(convolutions) == layers


def test_conditional_convolutions_by_hand() -> None:
    """Of one pixel with the values 1 and 2: first to ReLU(1·1 + 2·-1 + 3) = 2 and ReLU(-9) = 0, then 2·5 + 0 + 7."""
    weights = torch.tensor([[1.0, 0.0, -1.0, 0.0, 3.0, -9.0, 5.0, 6.0, 7.0]])
    pixel = torch.tensor([1.0, 2.0]).view(1, 2, 1, 1)
    assert ConditionalMask(2, 2, 2)(pixel, weights).item() == 17
    # With a depth of 1, the instance's numbers are weights and a bias.
    assert ConditionalMask(2, 2, 1)(pixel, torch.tensor([[3.0, 4.0, 0.5]])).item() == 11.5


def test_projection_is_a_dot_product() -> None:
    pixels = torch.arange(12.0).view(1, 3, 2, 2)
    assert ProjectedMask()(pixels, torch.tensor([[1.0, 0.0, 2.0]])).tolist() == [[[16.0, 19.0], [22.0, 25.0]]]


class Keeps(torch.nn.Module):
    """Returns one channel of its pixels, or the sum of its instance."""

    def __init__(self, channel: int | None) -> None:
        super().__init__()
        self.channel = channel

    def forward(self, pixels: Tensor, instances: Tensor) -> Tensor:
        if self.channel is None:
            return instances.sum(1)[:, None, None].expand(-1, *pixels.shape[2:])
        return pixels[:, self.channel]


def test_what_the_network_is_told() -> None:
    """y, x of a crop go from -1 to 1; of the whole map they start at the box's center; pixels and instance follow."""
    maps = EmbeddingMaps(torch.arange(32.0).view(1, 1, 4, 8), torch.arange(32.0).view(1, 1, 4, 8) + 100)
    box = torch.tensor([[[0.25, 0.5, 0.75, 1.0]]])
    (crop,) = DeepMasks(Keeps(0), BoxCrops(3), use_xy=True)(maps, box)[0]
    assert crop.tolist() == [[-1] * 3, [0] * 3, [1] * 3]
    (whole,) = DeepMasks(Keeps(1), WholeMaps(3), use_xy=True)(maps, box)[0]
    torch.testing.assert_close(whole[0], torch.arange(8) / 7 - 0.5)
    (pixels,) = DeepMasks(Keeps(2), WholeMaps(3), use_xy=True)(maps, box)[0]
    assert torch.equal(pixels, maps.pixels[0, 0])
    # The center lies in row 3 and column 4.
    assert DeepMasks(Keeps(None), BoxCrops(2), use_xy=False)(maps, box).unique().item() == 3 * 8 + 4
    assert instances_at(maps.instances, torch.tensor([[[1.0, 1.0, 1.0, 1.0]]])).item() == 31


def test_a_view_moves_images_and_boxes_alike() -> None:
    """What lies under a box lies under it in the view; and back, where it is moved alone."""
    images = torch.zeros(2, 1, 41, 41)
    images[:, :, 10:21, 20:31] = 1
    box = torch.tensor([[[20, 10, 30, 20]]]).expand(2, -1, -1) / 40
    view = View(torch.tensor([[0.1, -0.05], [0.0, 0.0]]), torch.ones(2, 2), torch.tensor([False, True]))
    moved, boxes = view.of_images(images), view.of_boxes(box)
    torch.testing.assert_close(boxes[0] * 40, torch.tensor([[24.0, 8.0, 34.0, 18.0]]))
    torch.testing.assert_close(boxes[1] * 40, torch.tensor([[10.0, 10.0, 20.0, 20.0]]))
    for image, (left, top, right, bottom) in zip(moved, (boxes[:, 0] * 40).round().long().tolist(), strict=True):
        inside = image[0, top : bottom + 1, left : right + 1]
        torch.testing.assert_close(inside, torch.ones_like(inside))
        torch.testing.assert_close(image.sum(), inside.sum())
    torch.testing.assert_close(view.undone(moved), images)


def test_a_scale_above_one_shrinks_about_the_middle() -> None:
    view = View(torch.zeros(1, 2), torch.full((1, 2), 2.0), torch.zeros(1, dtype=torch.bool))
    torch.testing.assert_close(
        view.of_boxes(torch.tensor([[[0.0, 0.0, 1.0, 0.5]]])), torch.tensor([[[0.25, 0.25, 0.75, 0.5]]])
    )


def test_views_are_drawn_within_their_limits() -> None:
    view = RandomView(0.2, (0.8, 1.5), 0.25).draw(4000, torch.device("cpu"), torch.Generator().manual_seed(0))
    assert view.shift.abs().max() <= 0.2
    assert view.shift.min() < -0.19
    assert 0.8 <= view.scale.min() < 0.81 < 1.49 < view.scale.max() <= 1.5
    assert 0.22 < view.flipped.float().mean() < 0.28


@pytest.mark.slow
def test_a_stacked_hourglass_learns_masks_of_its_last_stage_alone() -> None:
    text = deep_masks(f"{SMALL} use_only_last_stage: ONLY").replace(
        '"mobilenet_v2_fpn" depth_multiplier: 0.1', '"hourglass_104"'
    )
    for only, count in (("true", 1), ("false", 2)):
        with torch.device("meta"):
            network = detector_of(text.replace("ONLY", only)).network
        assert isinstance(network, CenterNet)
        assert network.deep_masks is not None
        assert network.deep_masks.last_stages == count


def test_an_image_that_its_mask_network_cannot_halve_is_padded() -> None:
    """A grid of 16 by 24 cells becomes one of 32 by 32, for an hourglass that halves five times."""
    text = deep_masks('dim: 4 pixel_embedding_dim: 2 network_type: "hourglass52" predict_full_resolution_masks: true')
    network = detector_of(text).network
    assert isinstance(network, CenterNet)
    assert network.pad_to_multiple == 128


def test_records_without_masks() -> None:
    detector = detector_of(deep_masks(SMALL)).train()
    inputs, sizes = detector.preprocess(torch.zeros(2, 64, 96, 3, dtype=torch.uint8))
    targets = replace(targets_of(3), masks=None)
    with pytest.raises(DataError, match="task_loss_weight: 0"):
        detector.criterion(detector.predict(inputs, sizes, targets), targets)


def test_records_without_points() -> None:
    detector = detector_of(deep_masks(f"{SMALL} task_loss_weight: 0 {WEAK}")).train()
    inputs, sizes = detector.preprocess(torch.zeros(2, 64, 96, 3, dtype=torch.uint8))
    for missing in ("keypoints", "keypoint_depths"):
        targets = replace(targets_of(3), **{missing: None})
        with pytest.raises(DataError, match="learns points"):
            detector.criterion(detector.predict(inputs, sizes, targets), targets)


def test_losses_need_what_was_predicted_for_the_groundtruth() -> None:
    detector = detector_of(deep_masks(SMALL)).train()
    inputs, sizes = detector.preprocess(torch.zeros(2, 64, 96, 3, dtype=torch.uint8))
    with pytest.raises(ValueError, match="has not been given the groundtruth"):
        detector.criterion(detector.predict(inputs, sizes), targets_of(3))


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ('network_type: "hourglass11"', "'hourglass11' is not known"),
        ("task_loss_weight: 0", "no loss has a weight"),
        ("mask_num_subsamples: 4", "should be less than or equal to 0, found 4"),
        ("allowed_masked_classes_ids: [1, 1]", "expected each number once, found 1 twice"),
        ("allowed_masked_classes_ids: 5", "an id is over num_classes 4"),
        ("allowed_masked_classes_ids: 0", "should be greater than or equal to 1, found 0"),
        ('network_type: "embedding_projection"', "set use_instance_embedding: false, as TF demands"),
        ('network_type: "embedding_projection" use_instance_embedding: false', "set use_xy: false, as TF demands"),
        (
            'network_type: "embedding_projection" use_instance_embedding: false use_xy: false',
            "multiplies embeddings of one length",
        ),
        ('network_type: "cond_inst2" use_instance_embedding: false', "cond_inst2 reads 81 numbers, found 256"),
        ('network_type: "cond_inst1" use_instance_embedding: false', "set num_init_channels: 18, as TF demands"),
        ('network_type: "fully_connected" predict_full_resolution_masks: true', "is what fully_connected reads"),
        ("mask_size: 48", "hourglass52 halves it several times"),
        ("predict_full_resolution_masks: true max_roi_jitter_ratio: 0.1", "full resolution masks are not cropped"),
        (
            "augmented_self_supervision_loss_weight: 1 augmented_self_supervision_loss: LOSS_UNSET",
            "LOSS_UNSET is none, and TF raises",
        ),
        ("augmented_self_supervision_scale_min: 2", "2.0 is over augmented_self_supervision_scale_max 1.0"),
        ("pointly_supervised_keypoint_loss_weight: 1", "without which TF raises"),
        ("feature_consistency_dilation: 0", "should be greater than or equal to 1, found 0"),
    ],
)
def test_options_that_do_not_fit(more: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        detector_of(deep_masks(more))
    assert line in str(caught.value)
    assert all(one.startswith("<string>:6:") for one in str(caught.value).splitlines())


@pytest.mark.parametrize(
    ("loss", "line"),
    [("weighted_softmax { }", "is always 0"), ("weighted_dice_classification_loss { }", "which a dice loss is not")],
)
def test_losses_that_do_not_fit(loss: str, line: str) -> None:
    text = deep_masks(f"{SMALL} box_consistency_loss_normalize: NORMALIZE_BALANCED")
    with pytest.raises(ConfigError, match=line):
        detector_of(text.replace("weighted_sigmoid { }", loss))


@pytest.mark.parametrize(
    "other",
    [
        "use_depthwise: true",
        "mask_estimation_task { classification_loss { weighted_sigmoid { } } }",
        "temporal_offset_task { localization_loss { l1_localization_loss { } } }",
    ],
)
def test_what_tensorflow_ignores_beside_it(other: str) -> None:
    with pytest.raises(ConfigError, match="deepmac_mask_estimation: TF ignores .* beside it"):
        detector_of(deep_masks(SMALL).rstrip()[:-1] + other + "}")


def test_masks_need_boxes() -> None:
    start, stop = CENTER_NET.index("object_detection_task"), CENTER_NET.index("object_center_params")
    text = deep_masks(SMALL).replace(CENTER_NET[start:stop], "")
    with pytest.raises(ConfigError, match="neither boxes nor keypoints|masks are predicted for boxes"):
        detector_of(text)


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ("", "train_input_reader.load_instance_masks: the detector learns masks; set it to true"),
        (f"task_loss_weight: 0 {WEAK}", "train_input_reader.num_keypoints: the detector learns keypoints; set it"),
        ("task_loss_weight: 0 box_consistency_loss_weight: 1", ""),
    ],
)
def test_a_reader_that_leaves_out_what_is_learned(more: str, line: str) -> None:
    text = f"""model {{ {deep_masks(f"{SMALL} {more}")} }} train_config {{ batch_size: 2 }}
      train_input_reader {{ tf_record_input_reader {{ input_path: "none" }} }}"""
    config = parse_message(text, Pipeline)
    if not line:
        refuse_unsupported(config, "")
        return
    with pytest.raises(ConfigError) as caught:
        refuse_unsupported(config, "")
    assert line in str(caught.value)


def test_masks_of_whole_images_are_enlarged_as_in_tensorflow() -> None:
    """TF takes the number of boxes for the height: two boxes on 3 rows give 8 rows and 12 columns, then the crop."""
    torch.manual_seed(0)
    logits, boxes = torch.randn(1, 2, 3, 5), torch.tensor([[[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0]]])
    found = WholeMaps(4).of_boxes(logits, boxes)
    large = F.interpolate(logits, size=(8, 12), mode="bilinear", align_corners=False)
    assert torch.equal(found[0, :, 0, 0], large[0, :, 0, 0])
    assert torch.equal(found[0, :, -1, -1], large[0, :, -1, -1])
