"""`detect` of whatever people hand in: it works, or says in one line what was expected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import boxwright as bw
from boxwright.base.device import usable_device
from boxwright.config.load import parse_message
from boxwright.pipeline import messages as m
from tests.conftest import SMALL_MODEL

IMAGE = np.random.default_rng(0).integers(0, 255, (40, 50, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def detector() -> bw.Detector:
    torch.manual_seed(0)
    return bw.build_detector(parse_message(SMALL_MODEL, m.TrainEvalPipelineConfig))


def same(first: list[bw.Detections[Tensor]], second: list[bw.Detections[Tensor]]) -> bool:
    return all(
        torch.equal(a.boxes, b.boxes) and torch.equal(a.scores, b.scores) for a, b in zip(first, second, strict=True)
    )


def test_no_images(detector: bw.Detector) -> None:
    assert detector.detect([]) == []
    assert detector.detect(np.zeros((0, 8, 8, 3), np.uint8)) == []


def test_images_in_every_form(detector: bw.Detector) -> None:
    plain = detector.detect([IMAGE])
    reversed_twice = np.ascontiguousarray(IMAGE[..., ::-1])[..., ::-1]  # everybody's way from OpenCV's order
    assert reversed_twice.strides[-1] < 0
    locked = IMAGE.copy()
    locked.flags.writeable = False
    wide = np.zeros((40, 100, 3), np.uint8)
    wide[:, ::2] = IMAGE
    others: list[Any] = [
        reversed_twice,
        locked,
        wide[:, ::2],
        np.asfortranarray(IMAGE),
        Image.fromarray(IMAGE),
        torch.from_numpy(IMAGE).permute(2, 0, 1),
        IMAGE.astype(np.int64),
        IMAGE.astype(">f4"),
        np.concatenate([IMAGE, IMAGE[..., :1]], axis=2),
    ]
    for other in others:
        assert same(detector.detect([other]), plain), type(other)
    assert same(detector.detect(IMAGE[None]), plain)
    assert same(detector.detect((IMAGE,)), plain)
    grey = Image.fromarray(IMAGE).convert("L")
    assert same(detector.detect([grey]), detector.detect([np.asarray(grey)]))


@pytest.mark.parametrize("size", [(1, 1), (1, 50), (50, 1), (3000, 2)])
def test_images_of_one_pixel(detector: bw.Detector, size: tuple[int, int]) -> None:
    for image in (np.zeros((*size, 3), np.uint8), np.zeros((*size, 3), np.uint8)[::-1, ::-1]):
        (found,) = detector.detect([image])
        assert found.boxes.isfinite().all()


BAD: list[tuple[Any, str]] = [
    (5, "expected a list of images, found int"),
    ("picture.jpg", "expected a list of images, found str"),
    (IMAGE, r"found one of shape \(40, 50, 3\); write \[image\]"),
    (["picture.jpg"], "image 0: expected an array, a tensor or a PIL image, found str; .*read_image"),
    ([Path("picture.jpg")], "image 0: expected an array"),
    ([None], "image 0: expected an array"),
    ([IMAGE, np.zeros((0, 0, 3))], "image 1: expected a HWC array .* some pixels"),
    ([np.zeros((4, 4, 2))], "1, 3 or 4 channels"),
    ([torch.zeros(5, 4, 4)], "expected a CHW tensor"),
    ([np.zeros(())], "expected a HWC array"),
    ([np.array([["a"]])], "expected numbers in 0..255, found an array of <U1"),
    ([np.full((4, 4, 3), np.nan)], "some of its pixels are not finite"),
    ([np.zeros((4, 4, 3), complex)], "expected numbers in 0..255"),
    ([np.zeros((4, 4, 3), object)], "expected numbers in 0..255"),
]


@pytest.mark.parametrize(("images", "wanted"), BAD)
def test_what_is_no_list_of_images(detector: bw.Detector, images: Any, wanted: str) -> None:
    with pytest.raises(bw.DataError, match=wanted):
        detector.detect(images)


@pytest.mark.parametrize("name", ["meta", "warp", "", "cpu:x", "cuda:99", "a\0b", "mps", "xpu", "xpu:0"])
def test_devices_that_are_none(name: str) -> None:
    with pytest.raises(bw.ConfigError, match="cannot be used|is not supported: expected cpu, cuda"):
        usable_device(name)


def test_floats_of_torchvision_are_refused_or_scaled() -> None:
    """0..1 would look black to the network, which finds nothing and says nothing."""
    from tests.exporters.small_detectors import FAMILIES, build, pictures

    detector, picture = build(FAMILIES["ssd"]), pictures(1)[0]
    whole = torch.from_numpy(picture).permute(2, 0, 1)
    (expected,) = detector.detect([picture])
    assert len(expected) > 3
    with pytest.raises(bw.DataError, match=r"as if they were in 0\.\.1; expected uint8, or floats in 0\.\.255"):
        detector.detect([whole.float() / 255])
    with pytest.raises(bw.DataError, match=r'Say scale="unit"'):
        detector.detect([np.float32(picture) / 255, np.float32(picture) / 300])
    for image, scale in ((whole.float() / 255, "unit"), (whole.float(), "guess"), (whole, "unit"), (whole, "guess")):
        (found,) = detector.detect([image], scale)  # type: ignore[arg-type]
        torch.testing.assert_close(found.boxes, expected.boxes, rtol=1e-3, atol=1e-2)
        assert found.labels.tolist() == expected.labels.tolist()


def test_dark_floats_are_pixels_where_the_caller_says_so() -> None:
    from boxwright.nn.preprocessing import image_tensors

    dark = np.full((4, 4, 3), 0.5, np.float32)
    with pytest.raises(bw.DataError, match=r"floats of which none is above 0\.5"):
        image_tensors([dark])
    assert float(image_tensors([dark], "pixels")[0].amax()) == 0.5
    assert float(image_tensors([dark * 0])[0].amax()) == 0.0, "black is black on either scale"
    assert float(image_tensors([dark, dark * 200])[0].amax()) == 0.5, "of one call, one has the scale of all"
    with pytest.raises(bw.DataError, match=r"expected numbers in 0\.\.1, found 100 to 100"):
        image_tensors([dark * 200], "unit")
    with pytest.raises(bw.DataError, match="scale: expected guess or pixels or unit, found '255'"):
        image_tensors([dark], "255")  # type: ignore[arg-type]
