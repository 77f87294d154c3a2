from __future__ import annotations

import pytest
import torch

from boxwright.builders.image_resizer import build_image_resizer
from boxwright.config import messages as m
from boxwright.config import parse_message
from boxwright.errors import ConfigError
from boxwright.preprocessing.image_resizer import KeepAspectRatioResizer
from boxwright.preprocessing.preprocessor import Preprocessor
from tests.conftest import Components, assert_close


def test_recorded_resizers(components: Components) -> None:
    checked = 0
    for case in components.of_kind("image_resizer"):
        if not case["text"].startswith(("fixed_shape", "keep_aspect_ratio")):
            continue  # refused: see the support table
        resizer = build_image_resizer(parse_message(case["text"], m.ImageResizer))
        image = torch.from_numpy(components.array(case["id"], "in/image"))
        resized, size = resizer(image)
        assert_close(resized, components.array(case["id"], "out/resized"), absolute=1e-3)
        assert list(size) == components.array(case["id"], "out/true_image_shape")[:2].tolist()
        checked += 1
    assert checked == 5


@pytest.mark.parametrize(
    ("height", "width", "wanted"),
    [(300, 400, (600, 800)), (100, 1000, (102, 1024)), (1, 5000, (1, 1024)), (600, 600, (600, 600))],
)
def test_keep_aspect_ratio_sizes(height: int, width: int, wanted: tuple[int, int]) -> None:
    assert KeepAspectRatioResizer().new_size(height, width) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "ImageResizer is empty"),
        ("fixed_shape_resizer { height: 0 }", "expected positive sides"),
        ("fixed_shape_resizer { resize_method: BICUBIC }", "BICUBIC is not supported"),
        ("keep_aspect_ratio_resizer { min_dimension: 9 max_dimension: 8 }", "is over max_dimension"),
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
