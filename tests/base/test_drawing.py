"""Captions of drawn boxes: their contrast, their places and their size."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from boxwright.base.drawing import Color, draw_boxes, label_color, side_by_side, text_color

BACKGROUND = 128
FAR = 90  # a label whose color is far from gray


def wcag_contrast(first: Color, second: Color) -> float:
    """The contrast ratio of WCAG 2.1, from its definition."""
    lighter, darker = sorted((relative_luminance(first), relative_luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def relative_luminance(color: Color) -> float:
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in np.array(color) / 255]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def test_the_contrast_of_known_colors() -> None:
    assert wcag_contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    # From WebAIM's published examples: #777777 on white is 4.48:1.
    assert wcag_contrast((0x77, 0x77, 0x77), (255, 255, 255)) == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("label", range(91))
def test_the_text_of_each_class_can_be_read(label: int) -> None:
    color = label_color(label)
    assert text_color(color) in ((0, 0, 0), (255, 255, 255))
    assert wcag_contrast(color, text_color(color)) >= 4.5


def test_the_ink_is_what_is_drawn() -> None:
    """In a picture, too: the caption has pixels of both colors, and the darkest and lightest differ by 4.5:1."""
    for label in range(0, 91, 7):
        picture = draw_boxes(gray(200, 300), np.array([[40, 80, 250, 180]], np.float32), [label], ["platelet"])
        pixels = {tuple(pixel) for pixel in caption_area(picture, label).reshape(-1, 3).tolist()}
        assert label_color(label) in pixels
        assert text_color(label_color(label)) in pixels


def gray(height: int, width: int) -> NDArray[np.uint8]:
    return np.full((height, width, 3), BACKGROUND, np.uint8)


def caption_area(picture: NDArray[np.uint8], label: int) -> NDArray[np.uint8]:
    """The rows of a caption above its box: those in which the class's color reaches far, down to the box's top edge."""
    own = (picture == label_color(label)).all(2)
    rows = np.flatnonzero(own.any(1))
    columns = np.flatnonzero(own[rows[0]])
    return picture[rows[0] : rows[0] + 9, columns[0] : columns[-1] + 1]


def count_captions(picture: NDArray[np.uint8], labels: list[int], alone: list[NDArray[np.uint8]]) -> int:
    """How many captions, as they are drawn alone, stand somewhere in a picture without a pixel changed."""
    windows = np.lib.stride_tricks.sliding_window_view
    return sum(
        bool((windows(picture, text.shape)[:, :, 0] == text).all((2, 3, 4)).any())
        for text, _ in zip(alone, labels, strict=True)
    )


def caption_alone(text: str, label: int, size: tuple[int, int]) -> NDArray[np.uint8]:
    """The pixels of a caption in a picture of a size, from the difference with the same picture without it."""
    box = np.array([[size[1] // 3, size[0] // 2, size[1] // 3 + 2, size[0] // 2 + 2]], np.float32)
    with_text, without = (draw_boxes(gray(*size), box, [label], [caption]) for caption in (text, ""))
    rows, columns = np.nonzero((with_text != without).any(2))
    # The last row may lie on the box's own line.
    return with_text[rows.min() : rows.max(), columns.min() : columns.max() + 1]


def test_captions_of_boxes_at_one_place_do_not_cover_each_other() -> None:
    """Five boxes with the same corner, as found again and again: each text is whole somewhere in the picture."""
    size = (400, 400)
    boxes = np.array([[100, 100, 260 + 6 * n, 240 + 6 * n] for n in range(4)], np.float32)
    labels, texts = [0, 1, 2, 3], ["cell 0.91", "rod 0.85", "disc 0.71", "ring 0.64"]
    picture = draw_boxes(gray(*size), boxes, labels, texts)
    alone = [caption_alone(text, label, size) for text, label in zip(texts, labels, strict=True)]
    assert count_captions(picture, labels, alone) == 4


@pytest.mark.slow
def test_without_room_the_best_captions_stay_whole() -> None:
    """Of sixty equal boxes most captions have no place; those that are drawn are whole, the last box's among them."""
    size = (320, 320)
    boxes = np.repeat(np.array([[120, 120, 200, 200]], np.float32), 60, axis=0)
    texts = [f"cell {number:02d}" for number in range(60)]
    labels = list(range(60))
    picture = draw_boxes(gray(*size), boxes, labels, texts)
    alone = [caption_alone(text, label, size) for text, label in zip(texts, labels, strict=True)]
    whole = [count_captions(picture, [label], [text]) for label, text in zip(labels, alone, strict=True)]
    assert whole[-1] == 1
    drawn = [(picture == label_color(label)).all(2).sum() > alone[label].shape[1] for label in labels[:-1]]
    # A caption is drawn whole or not at all: whose color is there, its text is.
    assert [bool(one) for one in whole[:-1]] == drawn
    assert 3 <= sum(whole) <= 8


@pytest.mark.parametrize("box", [[-40, -40, 30, 30], [280, 300, 400, 400], [0, 0, 320, 320], [-9e9, -9e9, 9e9, 9e9]])
def test_captions_stay_within_the_picture(box: list[float]) -> None:
    size = (320, 320)
    picture = draw_boxes(gray(*size), np.array([box], np.float32), [5], ["a word"])
    assert count_captions(picture, [5], [caption_alone("a word", 5, size)]) == 1


def test_letters_and_lines_grow_with_the_picture() -> None:
    heights, widths = [], []
    for side in (320, 640, 1280):
        box = np.array([[side * 0.4, side * 0.4, side * 0.8, side * 0.8]], np.float32)
        with_text, without = (draw_boxes(gray(side, side), box, [FAR], [text]) for text in ("Mg", ""))
        rows = np.flatnonzero((with_text != without).any((1, 2)))
        heights.append(rows[-1] - rows[0] + 1)
        middle = without[round(side * 0.6)]
        widths.append(int((middle != BACKGROUND).any(1).sum()) // 2)
    assert heights[0] < heights[1] < heights[2]
    assert heights[2] / heights[1] == pytest.approx(2, abs=0.3)
    assert widths == [1, 3, 5]


def test_titles_grow_with_the_pictures() -> None:
    heights = []
    for side in (200, 640, 1280):
        sheet = side_by_side(gray(side, side), gray(side, side), ("Mg", "Mg"))
        assert sheet.shape[1] >= 2 * side
        rows = np.flatnonzero((sheet < 100).any((1, 2)))
        heights.append(rows[-1] - rows[0] + 1)
    assert 8 <= heights[0] < heights[1] < heights[2]
    assert heights[2] / heights[1] == pytest.approx(2, abs=0.3)


def test_a_picture_smaller_than_its_caption_is_drawn() -> None:
    picture = draw_boxes(gray(8, 4000), np.array([[10, 1, 30, 7]], np.float32), [1], ["a" * 200])
    assert (picture != BACKGROUND).any()
