"""All steps of TensorFlow's preprocessor, given the draws that it made, and the kernels of AutoAugment."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from boxwright.config.load import parse_message
from boxwright.data.augmentation import autoaugment
from boxwright.data.augmentation.functional import warp
from boxwright.pipeline import messages as m
from boxwright.pipeline.augmentation import build_steps
from boxwright.types import Sample
from tests.parity.recordings import FOLDER, FOLDERS
from tests.parity.replay import Replay


def entries_of(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return a folder's recordings of augmentation; scenes of one name differ between folders, so each has its arrays."""
    path = folder / "augment" / f"{name}.json"
    if not path.is_file():
        return []
    arrays, scenes = np.load(path.with_suffix(".npz")), np.load(path.with_name("exact.npz"))
    return [{**entry, "arrays": arrays, "scenes": scenes} for entry in json.loads(path.read_text())]


_ENTRIES = [entry for folder in FOLDERS for entry in entries_of(folder, "exact")]
CASES = [entry for entry in _ENTRIES if entry["kind"] == "augment"]
KERNELS = [entry for entry in _ENTRIES if entry["kind"] == "autoaugment_op"]

# What TF leaves as it was although the image moved, or gets wrong; ours moves with the image (docs/augmentation.md).
_LEFT_BEHIND = {
    "autoaugment_image": {"masks", "keypoints"},
    "random_crop_pad_image": {"masks", "keypoints"},
    "random_image_scale": {"masks"},
    "random_resize_method": {"masks"},
    "random_self_concat_image": {"masks", "keypoints"},
    "ssd_random_crop_pad": {"masks", "keypoints"},
    "random_square_crop_by_scale": {"class_scores"},
    "random_scale_crop_and_pad_to_square": {"class_scores"},
}
# Keypoints' visibilities are permuted by TF in horizontal flips alone, and are not dropped with their objects.
_PERMUTATIONS = {
    "random_horizontal_flip": "keypoint_flip_permutation",
    "random_vertical_flip": "keypoint_flip_permutation",
    "random_rotation90": "keypoint_rot_permutation",
}


@dataclass(frozen=True)
class Recorded:
    """One array of the original's; where it is large, a sample of its values."""

    shape: tuple[int, ...]
    index: NDArray[Any] | None
    values: NDArray[Any]

    def of(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return those places of an array that are recorded."""
        assert array.shape == self.shape
        return array if self.index is None else array.reshape(-1)[self.index]


def recorded(entry: dict[str, Any], field: str) -> Recorded:
    arrays, name = entry["arrays"], f"{entry['id']}/out/{field}"
    if name in arrays.files:
        return Recorded(arrays[name].shape, None, arrays[name])
    return Recorded(tuple(arrays[f"{name}@shape"]), arrays[f"{name}@index"], arrays[f"{name}@value"])


def scene_of(entry: dict[str, Any]) -> str:
    return str(entry["scene"] if "scene" in entry else entry["params"]["scene"])


def given(entry: dict[str, Any], field: str) -> NDArray[Any]:
    return np.asarray(entry["scenes"][f"scene/{scene_of(entry)}/in/{field}"])


def outcome(entry: dict[str, Any], field: str) -> Recorded:
    """Return a field after the step: the given one where the step left it."""
    if field in entry["outputs"]:
        return recorded(entry, field)
    values = given(entry, field)
    return Recorded(values.shape, None, values)


def draws_of(entry: dict[str, Any]) -> list[tuple[dict[str, Any], NDArray[Any]]]:
    found = []
    for number, drawn in enumerate(entry.get("draws") or []):
        value = drawn["value"] if "value" in drawn else entry["arrays"][f"{entry['id']}/draw/{number}"]
        found.append((drawn, np.asarray(value)))
    return found


def scene_sample(entry: dict[str, Any], fields: list[str]) -> Sample:
    """Return a recorded scene; `track_ids` are the numbers of its objects."""
    image = given(entry, "image")
    height, width = image.shape[:2]
    known: dict[str, Any] = {"track_ids": np.arange(len(given(entry, "groundtruth_classes")))}
    if "label_weights" in fields:
        known["weights"] = given(entry, "groundtruth_weights")
    if "label_confidences" in fields:
        known["confidences"] = given(entry, "groundtruth_confidences")[:, None]
    if "multiclass_scores" in fields:
        known["class_scores"] = given(entry, "multiclass_scores")
    if "instance_masks" in fields:
        known["masks"] = given(entry, "groundtruth_instance_masks").astype(np.uint8)
    if "keypoints" in fields:
        places = given(entry, "groundtruth_keypoints")
        seen = given(entry, "groundtruth_keypoint_visibilities") & ~np.isnan(places[..., 0])
        scaled = places[..., ::-1] * np.array([width, height], np.float32)
        known["keypoints"] = np.concatenate([scaled, seen[..., None]], -1)
    boxes = given(entry, "groundtruth_boxes") * np.array([height, width] * 2, np.float32)
    return Sample(image, boxes[:, [1, 0, 3, 2]], given(entry, "groundtruth_classes") - 1, **known)


def replayed(entry: dict[str, Any]) -> Replay:
    height, width = given(entry, "image").shape[:2]
    return Replay(draws_of(entry), (height, width))


def assert_image(expected: Recorded, image: NDArray[Any]) -> None:
    """Compare levels: to within one where ours are whole numbers, else to a thousandth. Alpha is dropped by readers."""
    tolerance = 1.0 if image.dtype == np.uint8 else 1e-3
    if expected.index is None:
        shown = np.broadcast_to(expected.values, image.shape)[..., :3]
        assert np.abs(image[..., :3].astype(np.float64) - shown).max(initial=0) <= tolerance
    else:
        assert np.abs(expected.of(image).astype(np.float64) - expected.values).max(initial=0) <= tolerance


def further_draws() -> list[str]:
    """Return the recordings, named STEP/SETTING/SCENE/NUMBER, of which there is one before with other draws."""
    seen, further = set(), []
    for entry in CASES:
        recording, _, number = str(entry["id"]).rpartition("/")
        if number.isdigit() and recording in seen:
            further.append(str(entry["id"]))
        seen.add(recording)
    return further


@pytest.mark.slow_cases(*further_draws())
@pytest.mark.parametrize("entry", CASES, ids=lambda entry: str(entry["id"]))
def test_step_with_the_draws_of_the_original(entry: dict[str, Any]) -> None:
    step = parse_message(entry["text"], m.PreprocessingStep)
    name = entry["text"].split("{")[0].strip()
    fields = list(entry["params"]["fields"])
    rng = replayed(entry)
    found = build_steps([step])(scene_sample(entry, fields), rng)  # type: ignore[arg-type]
    assert rng.left == [], "draws that were not asked for"
    assert_image(outcome(entry, "image"), found.image)
    height, width = found.image.shape[:2]
    # After this step alone TF's boxes are in pixels.
    unit = np.ones(2) if name == "scale_boxes_to_pixel_coordinates" else np.array([width, height])
    near = 1e-3 if name == "scale_boxes_to_pixel_coordinates" else 1e-5
    boxes = (found.boxes / np.tile(unit, 2))[:, [1, 0, 3, 2]]
    np.testing.assert_allclose(boxes, outcome(entry, "groundtruth_boxes").values.reshape(-1, 4), atol=near, rtol=1e-5)
    assert np.array_equal(found.labels + 1, outcome(entry, "groundtruth_classes").values)
    stale = _LEFT_BEHIND.get(name, set())
    _assert_rows(entry, found, fields, stale)
    if "instance_masks" in fields:
        masks = found.masks
        assert masks is not None
        assert masks.shape == (len(boxes), height, width)
        if "masks" not in stale:
            expected = outcome(entry, "groundtruth_instance_masks")
            assert np.array_equal(expected.of(masks) > 0, expected.values >= 0.5)
    if "keypoints" in fields and "keypoints" not in stale:
        _assert_keypoints(entry, found, unit, near)


def _assert_rows(entry: dict[str, Any], found: Sample, fields: list[str], stale: set[str]) -> None:
    """Compare what objects have beside their places."""
    confidences = None if found.confidences is None else found.confidences[:, 0]
    for field, known, name in (
        ("label_weights", found.weights, "groundtruth_weights"),
        ("label_confidences", confidences, "groundtruth_confidences"),
        ("multiclass_scores", found.class_scores, "multiclass_scores"),
    ):
        if field in fields and not (name == "multiclass_scores" and "class_scores" in stale):
            assert known is not None
            np.testing.assert_allclose(known, outcome(entry, name).values, atol=1e-5, rtol=1e-5)


def _assert_keypoints(entry: dict[str, Any], found: Sample, unit: NDArray[Any], near: float) -> None:
    name = entry["text"].split("{")[0].strip()
    places = outcome(entry, "groundtruth_keypoints").values
    assert found.keypoints is not None
    assert found.track_ids is not None
    visible = given(entry, "groundtruth_keypoint_visibilities")[found.track_ids]
    if name in _PERMUTATIONS and "image" in entry["outputs"]:
        step = parse_message(entry["text"], m.PreprocessingStep)
        order = list(getattr(getattr(step, name), _PERMUTATIONS[name]))
        visible = visible[:, order] if order else visible
    seen = visible & ~np.isnan(places[..., 0])
    assert np.array_equal(seen, found.keypoints[..., 2] > 0)
    ours = (found.keypoints[..., :2] / unit)[..., ::-1]
    np.testing.assert_allclose(ours[seen], places[seen], atol=near, rtol=1e-5)


def test_every_step_is_recorded() -> None:
    """Both the full recordings and the sample of them that is shipped have all 39."""
    entries = entries_of(FOLDER, "exact")
    if not entries:
        pytest.skip(f"no augment/ in {FOLDER}")
    cases = [entry for entry in entries if entry["kind"] == "augment"]
    assert len({"".join(case["text"].split("{")[0].split()) for case in cases}) == 39
    assert len({case["id"] for case in cases}) == len(cases) >= 80
    assert len(entries) - len(cases) >= 25


_Kernel = Callable[[Sample, list[Any], Replay], Sample]


def _of_pixels(change: Callable[..., NDArray[np.uint8]]) -> _Kernel:
    return lambda sample, arguments, _: replace(sample, image=change(sample.image, *arguments))


def _warped(where: Callable[[float], warp.Affine]) -> _Kernel:
    return lambda s, arguments, _: replace(s, image=warp.warp(s.image, where(arguments[0]), arguments[1][0]))


def _only_in_boxes(name: str) -> _Kernel:
    """Apply an operation to boxes; the original's first argument is the probability, of which a third counts."""
    patch = autoaugment.OPERATIONS[name].patch
    assert patch is not None

    def change(sample: Sample, arguments: list[Any], rng: Replay) -> Sample:
        strength = arguments[1] if len(arguments) > 1 else 0
        return autoaugment.in_boxes(sample, patch, strength, arguments[0] / 3, rng)  # type: ignore[arg-type]

    return change


def _box_cutout(sample: Sample, arguments: list[Any], rng: Replay) -> Sample:
    fill = autoaugment.mean_fill if arguments[1] else autoaugment.gray_fill
    return autoaugment.cutout_in_a_box(sample, arguments[0], rng, fill)  # type: ignore[arg-type]


_KERNELS: dict[str, _Kernel] = {
    "autocontrast": _of_pixels(autoaugment.autocontrast),
    "equalize": _of_pixels(autoaugment.equalize),
    "posterize": _of_pixels(autoaugment.posterize),
    "solarize": _of_pixels(autoaugment.solarize),
    "solarize_add": _of_pixels(autoaugment.solarize_add),
    "color": _of_pixels(autoaugment.blend_with_gray),
    "contrast": _of_pixels(autoaugment.blend_with_flat),
    "brightness": _of_pixels(autoaugment.blend_with_black),
    "sharpness": _of_pixels(autoaugment.blend_with_smooth),
    "rotate": lambda s, a, _: replace(s, image=warp.warp(s.image, warp.rotation(a[0], *s.image.shape[:2]), a[1][0])),
    "translate_x": _warped(lambda pixels: warp.translation(pixels, 0)),
    "translate_y": _warped(lambda pixels: warp.translation(0, pixels)),
    "shear_x": _warped(warp.shear_x),
    "shear_y": _warped(warp.shear_y),
    "rotate_with_bboxes": lambda s, a, _: warp.rotate(s, a[0]),
    "cutout": lambda s, a, rng: replace(s, image=autoaugment.cutout(s.image, a[0], rng)),  # type: ignore[arg-type]
    "bbox_cutout": _box_cutout,
} | {
    f"{kind}_only_bboxes": _only_in_boxes(name)
    for kind, name in {
        "flip": "Flip_Only_BBoxes",
        "equalize": "Equalize_Only_BBoxes",
        "solarize": "Solarize_Only_BBoxes",
        "cutout": "Cutout_Only_BBoxes",
        "rotate": "Rotate_Only_BBoxes",
        "shear_x": "ShearX_Only_BBoxes",
        "shear_y": "ShearY_Only_BBoxes",
        "translate_x": "TranslateX_Only_BBoxes",
        "translate_y": "TranslateY_Only_BBoxes",
    }.items()
}


def _kernel(entry: dict[str, Any]) -> _Kernel:
    name, options = entry["params"]["function"], entry["params"].get("kwargs", {})
    if name == "translate_bbox":
        return lambda sample, a, _: warp.shift(sample, a[0], 0 if options["shift_horizontal"] else 1)
    if name == "shear_with_bboxes":
        return lambda sample, a, _: warp.shear(sample, a[0], 0 if options["shear_horizontal"] else 1)
    return _KERNELS[name]


@pytest.mark.parametrize("entry", KERNELS, ids=lambda entry: str(entry["id"]))
def test_kernel_of_autoaugment(entry: dict[str, Any]) -> None:
    rng = replayed(entry)
    found = _kernel(entry)(scene_sample(entry, []), entry["params"]["args"], rng)
    assert rng.left == []
    assert_image(recorded(entry, "image"), found.image)
    if "groundtruth_boxes" in entry["outputs"]:
        height, width = found.image.shape[:2]
        boxes = (found.boxes / np.array([width, height] * 2))[:, [1, 0, 3, 2]]
        np.testing.assert_allclose(boxes, recorded(entry, "groundtruth_boxes").values, atol=1e-5)
