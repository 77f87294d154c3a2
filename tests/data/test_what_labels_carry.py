"""What labels carry beyond boxes: weights of masks, tracks, confidences, classes of whole images."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import v2

from boxwright.base.drawing import draw_boxes, label_color, with_tracks
from boxwright.base.errors import DataError
from boxwright.config.load import parse_message
from boxwright.config.support import contradictions
from boxwright.data.augmentation.crop import crop
from boxwright.data.augmentation.functional import warp
from boxwright.data.augmentation.functional.compose import overlay
from boxwright.data.augmentation.functional.geometry import mirror, pad, quarter_turn, resize
from boxwright.data.augmentation.transform import Chain
from boxwright.data.augmentation.user_transforms import TorchvisionTransform, albumentations_transform
from boxwright.data.batch import collate, to_input
from boxwright.data.coco import CocoDataset
from boxwright.data.convert import encode_example
from boxwright.data.groundtruth import MergeLabels
from boxwright.data.image_io import encode_png
from boxwright.data.tf_example import RecordFields, decode_example, read_features
from boxwright.data.tfrecord import TFRecordFile
from boxwright.evaluation.pictures import draw_sample
from boxwright.nn.preprocessing import FixedShapeResizer, KeepAspectRatioResizer
from boxwright.pipeline import messages as m
from boxwright.pipeline.input_reader import build_dataset, build_groundtruth
from boxwright.types import Categories, Category, Sample
from tests.conftest import GOLDEN

RNG = np.random.default_rng(0)
CLASSES = Categories((Category(0, 1, "cat"), Category(1, 2, "dog"), Category(2, 5, "owl", display_name="Owl")))
KEY = "image/object/"


def record(**changes: Any) -> dict[str, Any]:
    """Return the features of a record of an image 10 wide and 6 high with a dog and a cat."""
    features: dict[str, Any] = {
        "image/encoded": [encode_png(np.zeros((6, 10, 3), np.uint8))],
        f"{KEY}bbox/xmin": [0.1, 0.8],
        f"{KEY}bbox/xmax": [0.7, 1.0],
        f"{KEY}bbox/ymin": [0.0, 0.5],
        f"{KEY}bbox/ymax": [0.5, 1.0],
        f"{KEY}class/label": [2, 1],
    }
    return features | {key.replace("__", "/"): values for key, values in changes.items()}


MASKS = RecordFields(masks="png")
TRACKS = RecordFields(track_ids=True)
CONFIDENCES = RecordFields(confidences=True)
PNGS = [encode_png(np.full((6, 10), 255, np.uint8))] * 2


def test_mask_weights_are_read_with_masks() -> None:
    weighted = record(image__object__mask=PNGS, image__object__mask__weight=[0.5, 0])
    found = decode_example(weighted, CLASSES, "r", MASKS).mask_weights
    assert found is not None
    assert found.tolist() == [0.5, 0]
    assert decode_example(weighted, CLASSES, "r").mask_weights is None
    assert decode_example(record(image__object__mask=PNGS), CLASSES, "r", MASKS).mask_weights is None


def test_mask_weights_of_the_recordings_are_one() -> None:
    decoded = np.load(GOLDEN / "records/shapes_decoded.npz")
    features = read_features(TFRecordFile(GOLDEN / "records/shapes.record")[0], "r")
    sample = decode_example(features, Categories((Category(0, 1, "circle"),)), "r", MASKS)
    assert decoded["0/groundtruth_instance_mask_weights"].tolist() == [1, 1, 1]
    assert sample.mask_weights is None, "which stands for 1"


def tracked(**changes: Any) -> dict[str, Any]:
    names = {"label": [7, 8], "offset__x": [0.2, -0.1], "offset__y": [0.5, 0], "match": [1, 0]} | changes
    return record(**{f"image__object__track__{name}": values for name, values in names.items()})


def test_tracks_are_read() -> None:
    """Offsets are in shares of the image in records, in pixels in samples, and y, x in shares in targets."""
    found = decode_example(tracked(), CLASSES, "r", TRACKS)
    assert found.track_ids is not None
    assert found.temporal_offsets is not None
    assert found.track_match_flags is not None
    assert found.track_ids.tolist() == [7, 8]
    assert found.temporal_offsets.tolist() == [[2, 3], [-1, 0]]
    assert found.track_match_flags.tolist() == [1, 0]
    targets = collate([to_input(found, FixedShapeResizer(60, 60))]).targets
    assert targets.temporal_offsets is not None
    np.testing.assert_allclose(targets.temporal_offsets[0, :2], [[0.5, 0.2], [0, -0.1]], atol=1e-6)
    # A share of the image, whatever is padded.
    fitted = collate([to_input(found, KeepAspectRatioResizer(60, 60, pad_to_max_dimension=True))]).targets
    assert fitted.temporal_offsets is not None
    np.testing.assert_allclose(fitted.temporal_offsets[0, :2], [[0.5, 0.2], [0, -0.1]], atol=1e-6)


def test_offsets_are_optional() -> None:
    found = decode_example(tracked(offset__x=[], offset__y=[], match=[]), CLASSES, "r", TRACKS)
    assert found.temporal_offsets is None
    assert found.track_match_flags is None
    flags = decode_example(tracked(match=[]), CLASSES, "r", TRACKS).track_match_flags
    assert flags is not None
    assert flags.tolist() == [1, 1], "objects with offsets were there"


def test_confidences_are_read() -> None:
    """An object may be known not to be of its class; the other classes are unknown."""
    confident = record(image__object__class__confidence=[0.75, -1])
    found = decode_example(confident, CLASSES, "r", CONFIDENCES).confidences
    assert found is not None
    assert found.tolist() == [[0, 0.75, 0], [-1, 0, 0]]
    assert decode_example(confident, CLASSES, "r").confidences is None
    sure = decode_example(record(), CLASSES, "r", CONFIDENCES).confidences
    assert sure is not None
    assert sure.tolist() == [[0, 1, 0], [1, 0, 0]]


def test_confidences_of_merged_boxes() -> None:
    boxes = np.array([[0, 0, 4, 4], [0, 0, 4, 4], [1, 1, 4, 4]], np.float32)
    confidences = np.array([[0.5, 0, 0], [0, 0, -1], [0, 1, 0]], np.float32)
    sample = Sample(np.zeros((6, 10, 3), np.uint8), boxes, np.array([0, 2, 1]), confidences=confidences)
    found = MergeLabels(3)(sample, RNG)
    assert found.confidences is not None
    assert found.confidences.tolist() == [[0.5, 0, -1], [0, 1, 0]]


@pytest.mark.parametrize(
    ("features", "verified"),
    [
        ({"image__class__label": [5, 2, 77]}, [2, 1]),
        ({"image__class__text": [b"Owl", b"cat", b"no"], "image__class__label": [2]}, [2, 0]),
        ({}, []),
    ],
)
def test_classes_of_whole_images(features: dict[str, Any], verified: list[int]) -> None:
    more = {"image__neg_category_ids": [5, 9], "image__not_exhaustive_category_ids": [1]}
    found = decode_example(record(**features, **more), CLASSES, "r")
    assert found.verified_labels.tolist() == verified
    assert found.negative_labels.tolist() == [2]
    assert found.not_exhaustive_labels.tolist() == [0]


def test_classes_of_the_images_of_a_batch() -> None:
    sample = decode_example(record(), CLASSES, "r")
    samples = [replace(sample, verified_labels=np.array(labels, np.int64)) for labels in ([2, 0], [], [1])]
    targets = collate([to_input(one, FixedShapeResizer(6, 10)) for one in samples]).targets
    assert targets.verified_labels is not None
    assert targets.verified_labels.tolist() == [[2, 0], [-1, -1], [1, -1]]
    assert targets.padded_to(16).verified_labels is targets.verified_labels
    part = targets.rows(1, 3).verified_labels
    assert part is not None
    assert part.tolist() == [[-1, -1], [1, -1]]
    assert collate([to_input(sample, FixedShapeResizer(6, 10))]).targets.verified_labels is None


@pytest.mark.parametrize("used", [True, False])
def test_classes_of_images_are_sent_to_losses_that_read_them(used: bool) -> None:
    """Those of the others do not pay for them."""
    text = f"""
        model {{ center_net {{ object_center_params {{ use_labeled_classes: {str(used).lower()} }} }} }}
        train_config {{ }} train_input_reader {{ }}
    """
    steps = build_groundtruth(parse_message(text, m.TrainEvalPipelineConfig), CLASSES, 3)
    sample = decode_example(record(image__class__label=[5, 2]), CLASSES, "r")
    assert Chain(steps)(sample, RNG).verified_labels.tolist() == ([2, 1] if used else [])
    assert sample.verified_labels.tolist() == [2, 1]


def test_classes_of_joined_images() -> None:
    one, two = (decode_example(record(), CLASSES, "r") for _ in range(2))
    one = replace(one, verified_labels=np.array([0, 1]), negative_labels=np.array([1]))
    two = replace(two, verified_labels=np.array([1, 2]), not_exhaustive_labels=np.array([2, 0]))
    joined = overlay(one.image, (one, two))
    assert joined.verified_labels.tolist() == [1]
    assert joined.negative_labels.tolist() == []
    assert joined.not_exhaustive_labels.tolist() == [0, 2]


def test_an_image_without_a_field_stands_beside_others() -> None:
    weighted = decode_example(
        record(image__object__mask=PNGS, image__object__mask__weight=[0.5, 0]), CLASSES, "r", MASKS
    )
    plain = decode_example(record(image__object__mask=PNGS), CLASSES, "r", MASKS)
    targets = collate([to_input(one, FixedShapeResizer(6, 10)) for one in (plain, weighted)]).targets
    assert targets.mask_weights is not None
    assert targets.mask_weights[:, :3].tolist() == [[1, 1, 0], [0.5, 0, 0]], "1, and 0 for padding"
    joined = overlay(plain.image, (weighted, plain)).mask_weights
    assert joined is not None
    assert joined.tolist() == [0.5, 0, 1, 1]
    first = decode_example(tracked(offset__x=[], offset__y=[], match=[]), CLASSES, "r", TRACKS)
    second = decode_example(tracked(), CLASSES, "r", TRACKS)
    targets = collate([to_input(one, FixedShapeResizer(6, 10)) for one in (first, second)]).targets
    assert targets.track_match_flags is not None
    assert targets.track_match_flags[:, :2].tolist() == [[0, 0], [1, 0]], "nothing is learned of the first frame"


MOVED = (2, 3)
WINDOW = (0, 0, 8, 5)


@pytest.mark.parametrize(
    ("change", "offset"),
    [
        (lambda s: mirror(s, 0), [-2, 3]),
        (lambda s: mirror(s, 1), [2, -3]),
        # A quarter to the left turns right into up, and down into right.
        (quarter_turn, [3, -2]),
        (lambda s: resize(s, 12, 30), [6, 6]),
        (lambda s: crop(s, WINDOW, np.ones(len(s.boxes), np.bool_), clip_boxes=True), [2, 3]),
        (lambda s: pad(s, np.zeros((9, 12, 3), np.uint8), (1, 2)), [2, 3]),
        (lambda s: warp.shift(s, 2.0, 0), [2, 3]),
        (lambda s: warp.shear(s, 0.5, 0), [2 - 0.5 * 3, 3]),
        (lambda s: TorchvisionTransform(v2.RandomHorizontalFlip(1.0))(s, RNG), [-2, 3]),
        (lambda s: TorchvisionTransform(v2.Resize([12, 30]))(s, RNG), [6, 6]),
    ],
    ids=["mirror", "upside down", "turn", "resize", "crop", "pad", "shift", "shear", "torchvision", "its resize"],
)
def test_offsets_move_with_the_image(change: Callable[[Sample], Sample], offset: list[float]) -> None:
    found = change(decode_example(tracked(), CLASSES, "r", TRACKS))
    assert found.temporal_offsets is not None
    np.testing.assert_allclose(found.temporal_offsets[0], offset, atol=1e-4)
    assert found.track_ids is not None
    assert found.track_ids[0] == 7


def test_offsets_move_with_albumentations() -> None:
    library = pytest.importorskip("albumentations")
    transform = albumentations_transform(library.HorizontalFlip(p=1.0))
    found = transform(decode_example(tracked(), CLASSES, "r", TRACKS), RNG).temporal_offsets
    assert found is not None
    np.testing.assert_allclose(found, [[-2, 3], [1, 0]], atol=1e-4)


def test_fields_of_objects_follow_them() -> None:
    found = decode_example(tracked(), CLASSES, "r", TRACKS).keep(np.array([1]))
    assert [getattr(found, name).tolist() for name in ("track_ids", "temporal_offsets", "track_match_flags")] == [
        [8],
        [[-1, 0]],
        [0],
    ]


def test_what_is_written_reads_the_same() -> None:
    everything = RecordFields(masks="png", track_ids=True)
    features = tracked() | record(image__object__mask=PNGS, image__object__mask__weight=[0.5, 0])
    sample = decode_example(features, CLASSES, "r", everything)
    again = decode_example(
        read_features(encode_example(sample, encode_png(sample.image), CLASSES), "r"), CLASSES, "r", everything
    )
    for name in ("mask_weights", "track_ids", "temporal_offsets", "track_match_flags"):
        np.testing.assert_allclose(getattr(again, name), getattr(sample, name), atol=1e-6)


@pytest.mark.parametrize(
    ("features", "wanted"),
    [
        (record(image__object__mask=PNGS, image__object__mask__weight=[1]), "mask/weight has 1 values for 2 boxes"),
        (record(image__object__mask=PNGS, image__object__mask__weight=[1, np.nan]), "mask/weight: a value is not fin"),
        (tracked(label=[1]), "track/label has 1 values for 2 boxes"),
        (tracked(offset__x=[1, 2, 3]), "track/offset/x has 3 values for 2 boxes"),
        (tracked(offset__y=[]), "track/offset has y or x alone"),
        (tracked(match=[1, np.inf]), "track/match: a value is not finite"),
        (record(image__object__class__confidence=[1]), "class/confidence has 1 values for 2 boxes"),
        (record(image__neg_category_ids=[b"cat"]), "image/neg_category_ids: expected numbers, found the text b'cat'"),
        (record(image__class__text=[3]), "image/class/text: expected bytes, found the number 3"),
    ],
)
def test_wrong_records(features: dict[str, Any], wanted: str) -> None:
    has_tracks, has_masks = f"{KEY}track/label" in features, f"{KEY}mask" in features
    fields = RecordFields(masks="png" if has_masks else "none", track_ids=has_tracks, confidences=True)
    with pytest.raises(DataError, match=wanted):
        decode_example(features, CLASSES, "r", fields)


def coco(folder: Path, **changes: Any) -> Path:
    Image.new("RGB", (10, 6)).save(folder / "a.png")
    row = {"id": 3, "image_id": 1, "category_id": 1, "bbox": [1, 0, 6, 4], "track_id": 12} | changes
    categories = [{"id": 1, "name": "cat"}]
    content = {"images": [{"id": 1, "file_name": "a.png"}], "annotations": [row], "categories": categories}
    (folder / "coco.json").write_text(json.dumps(content))
    return folder / "coco.json"


def test_tracks_of_coco(tmp_path: Path) -> None:
    text = f"load_track_id: true coco_input_reader {{ annotations: '{coco(tmp_path)}' }}"
    found = build_dataset(parse_message(text, m.InputReader), "train_input_reader")[0].track_ids
    assert found is not None
    assert found.tolist() == [12]
    assert CocoDataset(tmp_path / "coco.json")[0].track_ids is None
    for wrong, wanted in ((1.5, "expected a whole number, found 1.5"), (None, "expected a number, found None")):
        with pytest.raises(DataError, match=f"annotation 3: track_id: {wanted}"):
            _ = CocoDataset(coco(tmp_path, track_id=wrong), track_ids=True)[0]


CONFIG = """
    model { center_net { temporal_offset_task { localization_loss { l1_localization_loss {} } } } }
    train_config { }
    train_input_reader { label_map_path: 'map' %s }
"""


@pytest.mark.parametrize(
    ("reader", "wanted"),
    [
        ("tf_record_input_reader { input_path: 'a' }", "load_track_id: the detector learns temporal offsets"),
        ("load_track_id: true tf_record_input_reader { input_path: 'a' }", ""),
        ("load_track_id: true voc_input_reader { root: 'a' }", "load_track_id: tracks are read from tf_record"),
        ("load_confidences: true voc_input_reader { root: 'a' }", "load_confidences: they are read from tf_record"),
    ],
)
def test_configurations(reader: str, wanted: str) -> None:
    found = [str(error) for error in contradictions(parse_message(CONFIG % reader, m.TrainEvalPipelineConfig))]
    named = [one for one in found if "load_" in one]
    assert any(wanted in one for one in named) if wanted else not named


def test_tracks_are_drawn_with_their_number_and_color() -> None:
    """As those of detections are: an object keeps both from picture to picture."""
    sample = decode_example(tracked(), CLASSES, "r", TRACKS)
    by_hand = draw_boxes(sample.image, sample.boxes, [7, 8], ["#7 dog", "#8 cat"])
    assert np.array_equal(draw_sample(sample, CLASSES), by_hand)
    assert with_tracks([0, 1], ["a", ""], [-1, 5]) == ([-1, 5], ["a", "#5"])
    assert with_tracks([0, 1], ["a", "b"], None) == ([0, 1], ["a", "b"])


def test_edges_of_annotated_keypoints_are_drawn() -> None:
    sample = replace(decode_example(record(), CLASSES, "r"), boxes=np.zeros((2, 4), np.float32))
    sample.keypoints = np.array([[[1, 3, 1], [9, 3, 1]], [[1, 1, 0], [9, 1, 1]]], np.float32)
    apart, joined = (draw_sample(sample, CLASSES, edges=e) for e in ([], [(0, 1)]))
    middle = apart.shape[1] // 2
    row = 3 * apart.shape[0] // 6
    assert not apart[row, middle].any()
    assert joined[row, middle].tolist() == list(label_color(1))
    assert not joined[row // 3, middle].any(), "an invisible end"
