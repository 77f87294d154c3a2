from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from boxwright.base.errors import ConfigError
from boxwright.config.load import parse_message
from boxwright.data.batch import to_input
from boxwright.exporters.resizing import resizing
from boxwright.families.shared.image_resizer import build_image_resizer
from boxwright.nn.preprocessing import (
    IMAGENET,
    MINUS_ONE_TO_ONE,
    VGG_MEAN,
    ConditionalShapeResizer,
    KeepAspectRatioResizer,
    PixelScaling,
    Preprocessor,
    to_grayscale,
)
from boxwright.pipeline import messages as m
from boxwright.types import Sample


@pytest.mark.parametrize(
    ("height", "width", "wanted"),
    [(300, 400, (600, 800)), (100, 1000, (102, 1024)), (1, 5000, (1, 1024)), (600, 600, (600, 600))],
)
def test_keep_aspect_ratio_sizes(height: int, width: int, wanted: tuple[int, int]) -> None:
    assert KeepAspectRatioResizer().new_size(height, width) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "ImageResizer: empty"),
        ("fixed_shape_resizer { height: 0 }", "height: should be greater than or equal to 1"),
        ("conditional_shape_resizer { condition: INVALID }", "GREATER or SMALLER"),
        ("pad_to_multiple_resizer { multiple: 0 }", "at least 1"),
        ("keep_aspect_ratio_resizer { per_channel_pad_value: 3 }", "expected three numbers"),
        ("keep_aspect_ratio_resizer { min_dimension: 9 max_dimension: 8 }", "is over max_dimension"),
        # It shrank every image to one pixel, without a message.
        ("keep_aspect_ratio_resizer { min_dimension: 0 }", "min_dimension: should be greater than or equal to 1"),
    ],
)
def test_bad_configurations(text: str, wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted):
        build_image_resizer(parse_message(text, m.ImageResizer))


def test_preprocessor_scales_to_minus_one_and_one() -> None:
    resizer = build_image_resizer(parse_message("fixed_shape_resizer { height: 4 width: 6 }", m.ImageResizer))
    images = torch.stack([torch.zeros(8, 8, 3), torch.full((8, 8, 3), 255.0)])
    inputs, sizes = Preprocessor(resizer)(images)
    assert inputs.shape == (2, 3, 4, 6)
    assert inputs[0].unique().tolist() == [-1]
    assert inputs[1].unique().tolist() == [1]
    assert sizes.tolist() == [[4, 6], [4, 6]]


def test_grayscale() -> None:
    text = "fixed_shape_resizer { height: 2 width: 2 convert_to_grayscale: true }"
    resized, _ = build_image_resizer(parse_message(text, m.ImageResizer))(torch.tensor([[[100.0, 0, 0]]]))
    assert resized.shape == (2, 2, 1)
    assert resized[0, 0, 0].item() == pytest.approx(29.89)


def test_padding_is_not_scaled() -> None:
    """TF scales pixels, then pads: the padding is 0 or its colour, whatever scaling makes of black."""
    for colour, wanted in (("", [0, 0, 0]), ("per_channel_pad_value: [5, 6, 7]", [5, 6, 7])):
        text = f"keep_aspect_ratio_resizer {{ min_dimension: 4 max_dimension: 4 pad_to_max_dimension: true {colour} }}"
        preprocessor = Preprocessor(build_image_resizer(parse_message(text, m.ImageResizer)))
        inputs, sizes = preprocessor(torch.zeros(1, 2, 4, 3))
        assert sizes.tolist() == [[2, 4]]
        assert inputs[0, :, :2].unique().tolist() == [-1]
        assert inputs[0, :, 3, 3].tolist() == wanted
        # The same from a batch whose images have their size already.
        again = preprocessor.normalize(torch.full((1, 3, 4, 4), 9, dtype=torch.uint8), sizes)
        assert again[0, :, 3, 3].tolist() == wanted
        assert again[0, 0, 0, 0].item() == pytest.approx(9 * 2 / 255 - 1)


def scaled(scaling: PixelScaling, pixels: torch.Tensor) -> torch.Tensor:
    scale, offset = scaling.constants(pixels.shape[1])
    return pixels * scale + offset


def test_scalings_by_hand() -> None:
    pixel = torch.tensor([[[[255.0]], [[0.0]], [[51.0]]]])
    assert scaled(MINUS_ONE_TO_ONE, pixel).flatten().tolist() == pytest.approx([1, -1, -0.6])
    assert scaled(VGG_MEAN, pixel).flatten().tolist() == pytest.approx([131.32, -116.779, -52.939], abs=1e-4)
    assert scaled(IMAGENET, pixel).flatten().tolist() == pytest.approx(
        [0.515 / 0.229, -0.456 / 0.224, -0.206 / 0.225], abs=1e-5
    )


def test_grey_is_made_of_what_scaling_gives() -> None:
    """Scaling, then making grey, is what TF does; one grey channel is scaled to the same."""
    image = torch.rand(1, 3, 5, 5) * 255
    grey = to_grayscale(image[0].permute(1, 2, 0)).permute(2, 0, 1)[None]
    for scaling in (MINUS_ONE_TO_ONE, VGG_MEAN):
        wanted = to_grayscale(scaled(scaling, image)[0].permute(1, 2, 0)).permute(2, 0, 1)[None]
        torch.testing.assert_close(scaled(scaling, grey), wanted, atol=1e-4, rtol=1e-5)


def test_conditional_sizes() -> None:
    """Sides are cut to whole pixels: 301 × 200 scaled by 100 / 301 is 100 × 66."""
    resized, size = ConditionalShapeResizer(100)(torch.zeros(301, 200, 3))
    assert size == (100, 66)
    assert resized.shape == (100, 66, 3)
    assert ConditionalShapeResizer(400)(torch.zeros(301, 200, 3))[1] == (301, 200)
    assert ConditionalShapeResizer(300, shrink=False)(torch.zeros(301, 200, 3))[1] == (451, 300)


@pytest.mark.parametrize(("height", "width"), [(24, 31), (90, 100), (7, 120)])
def test_antialiased_as_pillow_and_the_same_in_a_graph(height: int, width: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, (61, 80, 3), np.uint8)
    text = f"fixed_shape_resizer {{ height: {height} width: {width} resize_method: BILINEAR_ANTIALIASED }}"
    resizer = build_image_resizer(parse_message(text, m.ImageResizer))
    found, _ = resizer(torch.from_numpy(image))
    wanted = np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR), np.float32)
    # Pillow rounds to whole levels after each direction.
    assert np.abs(found.numpy() - wanted).max() <= 1.01
    stretched = resizing(resizer)(torch.from_numpy(image)[None])
    torch.testing.assert_close(stretched.pixels[0], found, atol=1e-3, rtol=0)


def test_a_graph_antialiases_what_keeps_its_proportions() -> None:
    image = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (50, 90, 3), np.uint8))
    text = """keep_aspect_ratio_resizer { min_dimension: 40 max_dimension: 40 pad_to_max_dimension: true
      resize_method: BILINEAR_ANTIALIASED }"""
    resizer = build_image_resizer(parse_message(text, m.ImageResizer))
    found, size = resizer(image)
    squared = resizing(resizer)(image[None])
    assert squared.true_sizes.tolist() == [list(size)] == [[22, 40]]
    torch.testing.assert_close(squared.pixels[0], found, atol=1e-3, rtol=0)


@pytest.mark.parametrize("color", [(), (124.0, 116.0, 104.0), (123.68, 116.779, 103.939)])
def test_padding_of_levels_has_the_nearest_color(color: tuple[float, ...]) -> None:
    """A sample is padded in levels where the color has no fractions; with fractions it is rounded after that."""
    resizer = KeepAspectRatioResizer(16, 32, pad_to_max_dimension=True, per_channel_pad_value=color)
    sample = Sample(np.full((10, 20, 3), 77, np.uint8), np.zeros((0, 4)), np.zeros(0, np.int64))
    image = to_input(sample, resizer).image
    assert (image.shape, image.dtype) == ((32, 32, 3), np.dtype(np.uint8))
    assert image[:16].tolist() == [[[77, 77, 77]] * 32] * 16
    nearest = [124, 117, 104] if color == (123.68, 116.779, 103.939) else [int(level) for level in color or (0, 0, 0)]
    assert image[16:].reshape(-1, 3).tolist() == [nearest] * 512
