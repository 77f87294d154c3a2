"""Steps that mix samples, and the others that TensorFlow lacks: by hand, and on made-up pictures whose masks are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms.v2.functional import affine, clamp_bounding_boxes

from boxwright.base.errors import ConfigError
from boxwright.config.load import parse_message
from boxwright.data.augmentation.corruption import RandomErasing
from boxwright.data.augmentation.crop import RandomTile
from boxwright.data.augmentation.functional.compose import covered, mask_boxes, overlay, share_covered
from boxwright.data.augmentation.functional.warp import move_affine, scaled_rotation
from boxwright.data.augmentation.mosaic import AffineMosaic, BatchMixUp, CopyPaste, MixUp, Mosaic
from boxwright.data.augmentation.pad import LargeScaleJitter
from boxwright.data.augmentation.transform import Chain, Transform
from boxwright.data.batch import Batch
from boxwright.data.loader import TrainingExamples, training_batches
from boxwright.data.order import StreamSettings
from boxwright.data.shapes import ShapesDataset
from boxwright.nn.preprocessing import FixedShapeResizer
from boxwright.pipeline import messages as m
from boxwright.pipeline.augmentation import build_steps
from boxwright.types import Sample

SHAPES = ShapesDataset(20, seed=3, size=(48, 64))


def flat(level: int, height: int, width: int, *boxes: tuple[float, ...], masks: bool = False) -> Sample:
    """Return an image of one level with boxes, and their masks, labelled in order."""
    corners = np.array(boxes, np.float32).reshape(-1, 4)
    planes = np.zeros((len(corners), height, width), np.uint8)
    for plane, (x_min, y_min, x_max, y_max) in zip(planes, corners.astype(int), strict=True):
        plane[y_min:y_max, x_min:x_max] = 1
    image = np.full((height, width, 3), level, np.uint8)
    return Sample(image, corners, np.arange(len(corners)), masks=planes if masks else None)


def always(sample: Sample) -> object:
    return lambda rng: sample


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_mosaic_by_hand() -> None:
    """Four images of the result's size about its middle, unscaled: a quarter of each, the one that touches the point."""
    other = flat(200, 10, 10, (0, 0, 3, 3), (8, 8, 10, 10))
    mosaic = Mosaic(always(other), 1.0, (10, 10), (0.5, 0.5), (1.0, 1.0), 0.5)  # type: ignore[arg-type]
    found = mosaic(flat(100, 10, 10, (4, 4, 9, 9), (8, 8, 10, 10)), rng())
    assert found.image.shape == (10, 10, 3)
    assert (found.image[:5, :5] == 100).all(), "the image itself is upper left"
    assert (found.image[5:] == 200).all()
    assert (found.image[:5, 5:] == 200).all()
    # Upper left shows its lower right quarter: of the first box 4 by 4 of 5 by 5 (0.64), the second wholly. Upper right
    # shows its lower left quarter, lower left its upper right, with nothing; lower right its upper left.
    assert found.boxes.tolist() == [[0, 0, 4, 4], [3, 3, 5, 5], [5, 5, 8, 8]]
    assert found.labels.tolist() == [0, 1, 0]


def test_mosaic_of_any_sizes_fills_with_its_colour() -> None:
    small = flat(200, 2, 4, (0, 0, 4, 2))
    mosaic = Mosaic(always(small), 1.0, (20, 20), (0.5, 0.5), (0.5, 0.5), 0.5, (1.0, 2.0, 3.0))  # type: ignore[arg-type]
    found = mosaic(flat(100, 40, 8), rng())
    # 40 × 8 at 0.5 of 20/40 is 10 × 2, against the middle; 2 × 4 at 0.5 of 20/4 is 5 × 10.
    assert (found.image[:10, 8:10] == 100).all()
    assert (found.image[:10, :8] == [1, 2, 3]).all()
    assert found.boxes.tolist() == [[10, 5, 20, 10], [0, 10, 10, 15], [10, 10, 20, 15]]


def test_mosaic_is_as_often_as_it_says() -> None:
    one = flat(1, 4, 4)
    done = [Mosaic(always(one), 0.25)(one, rng(seed)) is not one for seed in range(400)]  # type: ignore[arg-type]
    assert 70 < sum(done) < 130


def test_affine_mosaic_by_hand() -> None:
    """Images lie in the upper left corners of quadrants as large as the widest of them; nothing is turned or moved."""
    other = flat(200, 8, 4, (0, 0, 2, 2))
    mosaic = AffineMosaic(always(other), 1.0, 4, 0.0, 0.0, (1.0, 1.0), (7.0,))  # type: ignore[arg-type]
    found = mosaic(flat(100, 2, 3, (1, 0, 3, 2)), rng())
    # 2 × 3 becomes 4 × 6, 8 × 4 stays; a quadrant is 8 × 6.
    assert found.image.shape == (16, 12, 3)
    assert (found.image[:4, :6] == 100).all()
    for top, left in ((0, 6), (8, 0), (8, 6)):
        assert (found.image[top : top + 8, left : left + 4] == 200).all()
    assert (found.image == 7).all(2).sum() == 16 * 12 - 24 - 3 * 32
    assert found.boxes.tolist() == [[2, 0, 6, 4], [6, 0, 8, 2], [0, 8, 2, 10], [6, 8, 8, 10]]
    assert found.is_mosaic
    assert not other.is_mosaic


def test_affine_mosaic_is_scaled_about_its_middle_and_clipped_to_it() -> None:
    """At twice the size the middle of 8 × 8, from 2 to 6, fills the canvas; a tenth of it is shifted by."""
    other = flat(200, 4, 4, (0, 0, 1, 1), (0, 0, 2.25, 4))
    mosaic = AffineMosaic(always(other), 1.0, 4, 0.0, 0.0, (2.0, 2.0))  # type: ignore[arg-type]
    found = mosaic(flat(100, 4, 4, (0, 0, 3, 3)), rng())
    # The second box of the upper right is 4 to 6.25 by 0 to 4, of which 4 to 6 by 2 to 4 is seen; of the lower left
    # 0.25 by 2 is, half a pixel when scaled, and the first boxes of others but the lower right are outside.
    assert found.boxes.tolist() == [[0, 0, 2, 2], [4, 0, 8, 4], [4, 4, 6, 6], [4, 4, 8, 8]]
    assert found.areas.tolist() == [4, 16, 4, 16]
    assert (found.image[:4, :4] == 100).all()
    assert (found.image[4:] == 200).all()


@pytest.mark.parametrize(("degrees", "scale", "shift"), [(10, 1.0, (0, 0)), (-7.5, 0.6, (9, -4)), (90, 1.4, (-3, 8))])
def test_a_canvas_is_moved_as_torchvision_moves_it(degrees: float, scale: float, shift: tuple[int, int]) -> None:
    image = np.random.default_rng(1).integers(0, 256, (40, 56, 3)).astype(np.uint8)
    sample = Sample(image, np.array([[5, 6, 30, 20], [0, 0, 56, 40], [40, 30, 50, 39]], np.float32), np.arange(3))
    found = move_affine(sample, scaled_rotation(degrees, scale, shift, 40, 56), (9.0,))
    boxes = tv_tensors.BoundingBoxes(torch.from_numpy(sample.boxes), format="XYXY", canvas_size=(40, 56))
    arguments = (degrees, list(shift), scale, [0.0, 0.0])
    wanted = affine(torch.from_numpy(image).permute(2, 0, 1), *arguments, fill=[9.0]).permute(1, 2, 0).numpy()
    assert (found.image == wanted).all(2).mean() > 0.98, "but where a pixel lies halfway between two"
    kept = clamp_bounding_boxes(affine(boxes, *arguments)).numpy()[found.labels]
    assert len(found.boxes) >= 2
    np.testing.assert_allclose(found.boxes, kept, atol=1e-3)


def test_what_skips_mosaics_changes_the_others() -> None:
    texts = (
        "random_affine_mosaic { probability: 0.5 }",
        "resize_image { new_height: 9 new_width: 7 } skip_mosaics: true",
    )
    step = build_steps([parse_message(text, m.PreprocessingStep) for text in texts], SHAPES)
    made = [step(SHAPES[0], rng(seed)) for seed in range(10)]
    assert {sample.is_mosaic for sample in made} == {True, False}
    for sample in made:
        assert (sample.image.shape[:2] == (9, 7)) != sample.is_mosaic


def test_a_batch_is_blended_by_hand() -> None:
    """0.45 of each image and 0.55 of the one before it; of the first, of the last."""
    batch = [flat(level, 4, 4, (level // 100, 0, 3, 3)) for level in (0, 100, 200)]
    found = BatchMixUp(0, 1.0, (0.45, 0.45), 5, 8)(batch, 5)
    assert [int(sample.image[0, 0, 0]) for sample in found] == [110, 45, 145]
    assert [sample.boxes[:, 0].tolist() for sample in found] == [[0, 2], [1, 0], [2, 1]]
    assert all(sample.weights.tolist() == [1, 1] for sample in found)
    for step in (4, 8):
        unchanged = BatchMixUp(0, 1.0, (0.45, 0.45), 5, 8)(batch, step)
        assert all(sample is before for sample, before in zip(unchanged, batch, strict=True))
    (alone,) = BatchMixUp(0, 1.0)(batch[:1], 0)
    assert alone is batch[0], "it is not blended with itself"


def test_half_of_the_batches_are_blended_by_shares_of_a_range() -> None:
    mixup = BatchMixUp(3)
    batch = [flat(0, 2, 2), flat(200, 2, 2)]
    levels = [int(mixup(batch, step)[1].image[0, 0, 0]) for step in range(400)]
    blended = [level for level in levels if level != 200]
    assert 160 < len(blended) < 240
    assert 90 <= min(blended) < 93
    assert 107 < max(blended) <= 110
    assert levels == [int(mixup(batch, step)[1].image[0, 0, 0]) for step in range(400)]


def test_the_loader_blends_batches_with_any_number_of_workers_and_from_any_step() -> None:
    settings = StreamSettings(batch_size=4, seed=2)
    mixup = BatchMixUp(2, 1.0, from_step=1)

    def images(workers: int, first: int, mixup: BatchMixUp | None = mixup) -> list[torch.Tensor]:
        examples = TrainingExamples(SHAPES, Chain(), FixedShapeResizer(32, 32), 2, mixup=mixup)
        stream = training_batches(examples, replace(settings, workers=workers), first * 4, first_step=first)
        found: list[torch.Tensor] = []
        for batch in stream:
            assert isinstance(batch, Batch)
            found.append(batch.images)
            if len(found) == 3 - first:
                break
        return found

    whole, plain = images(0, 0), images(0, 0, None)
    assert [torch.equal(*pair) for pair in zip(whole, plain, strict=True)] == [True, False, False]
    assert all(torch.equal(*pair) for pair in zip(whole, images(2, 0), strict=True))
    assert all(torch.equal(*pair) for pair in zip(whole[1:], images(0, 1), strict=True))


def test_mixup_by_hand() -> None:
    other = flat(200, 4, 8, (0, 0, 2, 2))
    found = MixUp(always(other), 1.0, 1.0)(flat(100, 6, 6, (1, 1, 5, 5)), rng(4))  # type: ignore[arg-type]
    share = rng(4)
    share.random()
    part = share.beta(1.0, 1.0)
    assert found.image.shape == (6, 8, 3)
    assert (found.image[:4, :6] == round(100 * part + 200 * (1 - part))).all()
    assert (found.image[:4, 6:] == round(200 * (1 - part))).all(), "nothing of the first is there"
    assert (found.image[4:, 6:] == 0).all()
    assert found.boxes.tolist() == [[1, 1, 5, 5], [0, 0, 2, 2]]
    assert found.weights.tolist() == pytest.approx([part, 1 - part])
    full = MixUp(always(other), 1.0, 1.0, 1.0)(flat(100, 6, 6, (1, 1, 5, 5)), rng(4))  # type: ignore[arg-type]
    assert full.weights.tolist() == [1, 1]
    assert np.array_equal(full.image, found.image)


def test_pasting_by_masks_by_hand() -> None:
    """The pasted square hides the right half of one object, and all of another."""
    here = flat(100, 10, 10, (2, 2, 6, 6), (4, 2, 6, 4), (8, 8, 10, 10), masks=True)
    other = flat(200, 10, 10, (4, 0, 8, 8), masks=True)
    found = CopyPaste(always(other), 1.0)(here, rng())  # type: ignore[arg-type]
    assert found.boxes.tolist() == [[2, 2, 4, 6], [8, 8, 10, 10], [4, 0, 8, 8]]
    assert found.areas.tolist() == [8, 4, 32]
    assert found.masks is not None
    assert found.masks.sum((1, 2)).tolist() == [8, 4, 32]
    assert (found.masks.sum(0) <= 1).all(), "nothing is in front of and behind the same thing"
    assert np.array_equal(found.image[..., 0] == 200, found.masks[2] > 0)


def test_pasting_by_boxes_by_hand() -> None:
    here = flat(100, 10, 10, (2, 2, 6, 6), (4, 2, 6, 4))
    found = CopyPaste(always(flat(200, 5, 20, (5, 0, 8, 5))), 1.0)(here, rng())  # type: ignore[arg-type]
    # Of the second box a half is left: more than 0.2. Boxes stay as they were.
    assert found.boxes.tolist() == [[2, 2, 6, 6], [4, 2, 6, 4], [5, 0, 8, 5]]
    assert (found.image[:5, 5:8] == 200).all()
    assert (found.image[5:] == 100).all()


def test_pasting_keeps_to_what_can_be_known() -> None:
    masked, boxed = flat(1, 8, 8, (0, 0, 4, 4), masks=True), flat(2, 8, 8, (0, 0, 4, 4))
    assert CopyPaste(always(boxed), 1.0)(masked, rng()) is masked, "no masks to paste by"  # type: ignore[arg-type]
    assert CopyPaste(always(flat(3, 8, 8)), 1.0)(masked, rng()) is masked, "nothing to paste"  # type: ignore[arg-type]
    crowd = flat(2, 8, 8, (0, 0, 4, 4), masks=True)
    crowd.is_crowd[:] = True
    assert CopyPaste(always(crowd), 1.0)(masked, rng()) is masked  # type: ignore[arg-type]
    most = CopyPaste(always(flat(2, 8, 8, *[(i, i, i + 1, i + 1) for i in range(8)])), 1.0, 3)  # type: ignore[arg-type]
    assert max(len(most(flat(1, 8, 8), rng(seed)).boxes) for seed in range(50)) == 3


def test_pasting_hides_keypoints() -> None:
    here = flat(1, 8, 8, (0, 0, 8, 8), masks=True)
    here.keypoints = np.array([[[1, 1, 1], [6, 6, 1], [np.nan, np.nan, 0]]], np.float32)
    other = flat(2, 8, 8, (4, 4, 8, 8), masks=True)
    other.keypoints = np.full((1, 3, 3), 5, np.float32)
    found = CopyPaste(always(other), 1.0)(here, rng())  # type: ignore[arg-type]
    assert found.keypoints is not None
    assert found.keypoints[0, :, 2].tolist() == [1, 0, 0]


def test_covered_pixels_by_hand() -> None:
    boxes = np.array([[0, 0, 2, 1], [1, 0, 3, 2], [-5, -5, 1, 1], [2, 2, 2, 3], [9, 9, 20, 20]])
    found = covered(boxes, 3, 4)
    assert found.astype(int).tolist() == [[1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
    assert share_covered(np.array([[0, 0, 4, 3], [1, 0, 3, 1], [3, 0, 4, 3], [2, 2, 2, 2]]), found).tolist() == [
        5 / 12,
        1,
        0,
        1,
    ]
    masks = np.zeros((2, 5, 6), np.uint8)
    masks[0, 1:3, 2:6] = 1
    assert mask_boxes(masks).tolist() == [[2, 1, 6, 3], [0, 0, 0, 0]]
    assert mask_boxes(np.zeros((0, 5, 6), np.uint8)).shape == (0, 4)


def test_covered_pixels_against_a_loop() -> None:
    random = rng(1)
    for _ in range(50):
        height, width = random.integers(1, 12, 2)
        boxes = random.integers(-4, 16, (int(random.integers(0, 5)), 4))
        boxes[:, 2:] = np.maximum(boxes[:, :2], boxes[:, 2:])
        wanted = np.zeros((height, width), bool)
        for x_min, y_min, x_max, y_max in boxes:
            wanted[max(y_min, 0) : max(y_max, 0), max(x_min, 0) : max(x_max, 0)] = True
        assert np.array_equal(covered(boxes, height, width), wanted)


def test_erasing_stays_in_its_objects_and_sizes() -> None:
    here = flat(0, 100, 100, (10, 10, 50, 50), (60, 60, 90, 80))
    shares = []
    for seed in range(60):
        found = RandomErasing(1.0, (0.1, 0.2), 0.5)(here, rng(seed))
        changed = (found.image != here.image).any(-1)
        assert not (changed & ~covered(here.boxes, 100, 100)).any()
        shares += share_covered(here.boxes, changed).tolist()
        assert np.array_equal(found.boxes, here.boxes)
    # Edges are rounded: at most half a pixel a side.
    assert 0.07 < min(shares) < 0.13
    assert 0.17 < max(shares) < 0.23
    assert np.array_equal(RandomErasing(0.0)(here, rng()).image, here.image)


def test_tiles_by_hand() -> None:
    here = flat(7, 20, 30, (0, 0, 4, 4), (26, 16, 30, 20))
    for seed in range(40):
        found = RandomTile((8, 9), 1.0, 0.01)(here, rng(seed))
        assert found.image.shape == (8, 9, 3)
        assert len(found.boxes) == 1, "one of the two, which are further apart than a tile"
        assert ((found.boxes >= 0) & (found.boxes <= [9, 8, 9, 8])).all()
    anywhere = [len(RandomTile((8, 9), 0.0, 0.01)(here, rng(seed)).boxes) for seed in range(200)]
    assert 0 < sum(anywhere) < 150, "most tiles have none"
    whole = RandomTile((50, 9), 1.0)(here, rng())
    assert whole.image.shape == (20, 9, 3), "a side that is smaller than the tile stays"


def test_tiles_keep_by_the_visible_share() -> None:
    here = flat(7, 10, 20, (0, 0, 20, 10))
    assert len(RandomTile((10, 8), 1.0, 0.4)(here, rng()).boxes) == 1
    assert len(RandomTile((10, 8), 1.0, 0.41)(here, rng()).boxes) == 0


def test_jitter_by_hand() -> None:
    here = flat(50, 10, 20, (0, 0, 20, 10))
    small = LargeScaleJitter((40, 40), (0.5, 0.5))(here, rng())
    assert small.image.shape == (40, 40, 3)
    assert small.boxes.tolist() == [[0, 0, 20, 10]], "0.5 of 40 wide: unscaled"
    assert (small.image[:10, :20] == 50).all()
    assert (small.image[10:] == 114).all()
    large = LargeScaleJitter((40, 40), (4.0, 4.0), 0.12)(here, rng())
    assert large.boxes.tolist() == [[0, 0, 40, 40]], "80 by 160, of which an eighth is seen"
    assert len(LargeScaleJitter((40, 40), (4.0, 4.0), 0.13)(here, rng()).boxes) == 0


TEXTS = [
    "random_mosaic { }",
    "random_mosaic { height: 33 width: 51 scale_min: 0.1 scale_max: 2.0 }",
    "random_affine_mosaic { shorter_side: 40 }",
    "random_mixup { probability: 1.0 }",
    "random_copy_paste { probability: 1.0 }",
    "large_scale_jitter { height: 40 width: 50 }",
    "random_erasing { probability: 1.0 }",
    "random_tile { height: 30 width: 20 }",
    "data_anchor_sampling { size: 50 }",
    "data_anchor_sampling { size: 30 scales: 8 }",
    "random_square_patch { size: 40 min_side: 0.2 }",
    "random_size_crop { probability: 1 shorter_sides: [60, 90] min_side: 30 max_side: 70 }",
]


@pytest.mark.slow_except(
    "large_scale_jitter { height: 40 width: 50 }",
    "random_erasing { probability: 1.0 }",
    "random_tile { height: 30 width: 20 }",
    "data_anchor_sampling { size: 50 }",
)
@pytest.mark.parametrize("text", TEXTS)
def test_masks_boxes_and_image_stay_together(text: str) -> None:
    step = chain(text)
    for index in range(20):
        found = step(SHAPES[index], rng(index))
        height, width = found.image.shape[:2]
        assert found.image.dtype == np.uint8
        assert found.masks is not None
        assert found.masks.shape == (len(found.boxes), height, width)
        assert set(np.unique(found.masks)) <= {0, 1}
        assert all(len(rows) == len(found.boxes) for rows in found.of_objects().values())
        assert (found.boxes >= 0).all()
        assert (found.boxes <= np.array([width, height] * 2) + 1e-4).all()
        # A mask lies in its box; resizing rounds both, and leaves nothing of the smallest masks.
        seen = found.keep(found.masks.any((1, 2)))
        assert seen.masks is not None
        tight, found = mask_boxes(seen.masks), seen
        assert (np.abs(np.clip(tight, found.boxes[:, [0, 1, 0, 1]], found.boxes[:, [2, 3, 2, 3]]) - tight) < 1.5).all()


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1), (5, 7)])
def test_images_without_objects_and_of_one_pixel(text: str, size: tuple[int, int]) -> None:
    step = chain(text)
    for seed in range(5):
        found = step(flat(9, *size), rng(seed))
        assert min(found.image.shape[:2]) >= 1
        assert found.labels.dtype == np.int64


@pytest.mark.parametrize("text", TEXTS)
def test_the_same_seed_gives_the_same_sample(text: str) -> None:
    step = chain(text)
    first, second = step(SHAPES[0], rng(5)), step(SHAPES[0], rng(5))
    assert np.array_equal(first.image, second.image)
    assert np.array_equal(first.boxes, second.boxes)


def test_what_stands_before_happens_to_all() -> None:
    """Each of the four is mirrored before; after, the whole picture is resized once."""
    texts = (
        "random_horizontal_flip { probability: 1.0 }",
        "random_mosaic { }",
        "resize_image { new_height: 9 new_width: 7 }",
    )
    found = chain(*texts)(SHAPES[0], rng())
    assert found.image.shape == (9, 7, 3)


def test_attributes_keep_their_names_when_images_are_joined() -> None:
    empty, named = flat(1, 4, 4), flat(2, 4, 4, (0, 0, 2, 2))
    named.attributes, named.attribute_names = np.array([[3]]), ("blur",)
    found = overlay(empty.image, [empty, named])
    assert found.attribute_names == ("blur",)
    other = flat(2, 4, 4, (0, 0, 2, 2))
    assert overlay(empty.image, [named, other]).attribute_names == ()
    assert overlay(empty.image, [empty, empty]).attribute_names == ()


def test_unannotated_images_leave_the_mixture_unannotated() -> None:
    unknown = flat(1, 4, 4)
    unknown.annotated, unknown.verified_labels = False, np.array([1, 2])
    known = flat(1, 4, 4)
    known.verified_labels = np.array([2, 3])
    found = MixUp(always(unknown), 1.0)(known, rng())  # type: ignore[arg-type]
    assert not found.annotated
    assert found.verified_labels.tolist() == [2]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("random_mosaic { height: 3 }", "height and width"),
        ("random_mosaic { min_centre: 0.7 max_centre: 0.6 }", "min_center: 0.7 is over"),
        ("random_mosaic { scale_min: 2.0 }", "scale_min: 2.0 is over"),
        ("random_mosaic { colour: 3 }", "three numbers"),
        ("random_affine_mosaic { scale_min: 1.6 }", "scale_min: 1.6 is over"),
        ("large_scale_jitter { scale_min: 3.0 }", "scale_min: 3.0 is over"),
        ("random_erasing { min_area: 0.3 }", "min_area: 0.3 is over"),
        ("random_square_patch { max_side: 0.3 }", "min_side: 0.5 is over"),
        ("random_size_crop { min_side: 601 }", "min_side: 601 is over"),
        ("random_size_crop { shorter_sides: [] }", "no length"),
        ("data_anchor_sampling { scales: [32, 16] }", "expected rising numbers"),
    ],
)
def test_contradictions(text: str, wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted):
        build_steps([parse_message(text, m.PreprocessingStep)])


@pytest.mark.parametrize(
    "text",
    [
        "random_mosaic { probability: 1.5 }",
        "random_mosaic { min_centre: 0.0 }",
        "random_mosaic { colour: 256 }",
        "random_affine_mosaic { shorter_side: 0 }",
        "random_affine_mosaic { degrees: 181 }",
        "random_mixup { alpha: 0 }",
        "random_mixup { alpha: nan }",
        "random_mixup { min_weight: 1.5 }",
        "random_copy_paste { max_objects: -1 }",
        "large_scale_jitter { height: 0 }",
        "large_scale_jitter { scale_max: inf }",
        "random_erasing { min_aspect_ratio: 0 }",
        "random_tile { height: 0 }",
        "data_anchor_sampling { size: 0 }",
        "data_anchor_sampling { scales: 0 }",
        "random_square_patch { max_side: 1.5 }",
        "random_size_crop { shorter_sides: 0 }",
        "random_size_crop { probability: 1.1 }",
    ],
)
def test_numbers_out_of_range(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_message(text, m.PreprocessingStep)


@pytest.mark.parametrize(
    "text", ["random_mosaic { }", "random_mixup { probability: 1 }", "random_copy_paste { probability: 1 }"]
)
def test_without_data_a_chain_is_only_checked(text: str) -> None:
    step = build_steps([parse_message(text, m.PreprocessingStep)])
    with pytest.raises(ConfigError, match="without the data"):
        step(SHAPES[0], rng())


def chain(*texts: str) -> Transform:
    return build_steps([parse_message(text, m.PreprocessingStep) for text in texts], SHAPES)


def test_objects_of_which_nothing_is_seen_are_not_pasted() -> None:
    """The mask lies beyond the target, though most of the box does not; of another a part is seen, and is its box."""
    other = flat(200, 80, 80, (0, 0, 60, 60), (30, 30, 60, 60), masks=True)
    assert other.masks is not None
    other.masks[0] = 0
    other.masks[0, 50:60, 50:60] = 1
    here = flat(100, 40, 50, masks=True)
    found = CopyPaste(always(other), 1.0, 0, 0.2)(here, rng())  # type: ignore[arg-type]
    assert found.boxes.tolist() == [[30, 30, 50, 40]]
    assert found.areas.tolist() == [200]
    assert found.masks is not None
    assert found.masks.sum() == 200
