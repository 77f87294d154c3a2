"""Pictures of boxes: on one image, ground truth beside detections, many images on a sheet.

The sides of a picture are at most `limits.PICTURE_SIDE`: larger images are scaled down, and drawings are clipped.
Lines and letters grow with the picture, and no caption covers another.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from boxwright.base.limits import PICTURE_SIDE

Color = tuple[int, int, int]
# x_min, y_min, x_max and y_max, in pixels of the picture.
Corners = tuple[float, float, float, float]
# The side of a contact sheet's square cells.
SHEET_CELL = 320
_LEAST_SIDE = 320
_MOST_CAPTION = 60
_LEAST_LETTERS, _TITLE_LETTERS = 12, 13
# Pixels of a picture, by the geometric mean of its sides, for a pixel of a line's width and of a letter's height.
_LINE_SHARE, _LETTER_SHARE = 250, 32
_MASK_SHARE = 0.45
_FARTHEST = 1e6  # pixels: Pillow counts in 32 bits


@dataclass(frozen=True)
class Captions:
    """Whether captions have class names, and scores."""

    names: bool = True
    scores: bool = True

    def of(self, name: str, score: float) -> str:
        """Return the caption of a detection."""
        return " ".join([*([name] if self.names else []), *([f"{score:.2f}"] if self.scores else [])])


NAME_AND_SCORE = Captions()


@dataclass(frozen=True)
class Details:
    """What is drawn of objects besides their boxes.

    Attributes:
        masks: uint8 [N, H, W] of 0 and 1, or None.
        keypoints: float [N, P, 2] or [N, P, 3], x and y in pixels and visibility, or None; points that are invisible or
            not finite are not drawn.
        edges: Pairs of keypoint numbers that are joined by a line, if both are drawn.
        surface_points: float [N, D, 4 or more]; x and y in pixels, whether the point is known, and its part, in whose
            color it is drawn; or None.
    """

    masks: NDArray[np.uint8] | None = None
    keypoints: NDArray[np.float32] | None = None
    edges: Sequence[tuple[int, int]] = ()
    surface_points: NDArray[np.float32] | None = None


BOXES_ALONE = Details()


def label_color(label: int) -> Color:
    """Return the color of a label, which is far from those of adjacent labels."""
    # Steps of the golden ratio spread any number of hues over the circle.
    red, green, blue = colorsys.hsv_to_rgb((0.11 + label * 0.618034) % 1.0, 0.85, 1.0)
    return int(red * 255), int(green * 255), int(blue * 255)


def luminance(color: Color) -> float:
    """Return the relative luminance of a color in sRGB, 0 to 1, as WCAG 2 defines it."""
    shares = [value / 255 for value in color]
    red, green, blue = (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def text_color(background: Color) -> Color:
    """Return black or white, whichever has the higher contrast on a background: at least 4.5 to 1 on any."""
    # Contrast is (lighter + 0.05) / (darker + 0.05): black and white have the same where the square is 1.05 · 0.05.
    return (0, 0, 0) if (luminance(background) + 0.05) ** 2 > 1.05 * 0.05 else (255, 255, 255)


def with_tracks(
    labels: Sequence[int], captions: Sequence[str], tracks: Sequence[int] | None
) -> tuple[list[int], list[str]]:
    """Return the colors and captions of objects; those of tracks keep both from picture to picture.

    Args:
        tracks: The number of each object's track, below 0 without one; or None.
    """
    if tracks is None:
        return list(labels), list(captions)
    numbered = zip(tracks, captions, strict=True)
    return list(tracks), [f"#{track} {text}".rstrip() if track >= 0 else text for track, text in numbered]


def draw_boxes(
    image: NDArray[np.uint8],
    boxes: NDArray[np.float32],
    labels: Sequence[int],
    captions: Sequence[str],
    details: Details = BOXES_ALONE,
    *,
    fit: int = 0,
) -> NDArray[np.uint8]:
    """Return a picture of boxes with captions, over their masks and under their points.

    Args:
        image: uint8 [H, W, 3]; of more channels the first three are drawn.
        boxes: float [N, 4], xyxy in pixels; boxes that are inverted or not finite are not drawn.
        details: What else is drawn.
        fit: The longer side of the picture; 0 for the image's own size, if that is legible.

    Returns:
        uint8 [H', W', 3], a new picture; small images are enlarged for legible captions, large ones reduced.
    """
    image = np.ascontiguousarray(image[..., :3])
    canvas, zoom = _canvas(image if details.masks is None else _tinted(image, details.masks, labels), fit)
    draw = ImageDraw.Draw(canvas)
    line, letters = _stroke_sizes(canvas, fit)
    captions_to_place = []
    for box, label, caption in zip(np.asarray(boxes, np.float64).reshape(-1, 4), labels, captions, strict=True):
        if not np.isfinite(box).all() or (box[2:] < box[:2]).any():
            continue
        corners = _clip(box * zoom, canvas, line)
        _rectangle(draw, corners, label_color(int(label)), line)
        if caption:
            captions_to_place.append((corners, _label(_short(caption), label_color(int(label)), letters)))
    for points in () if details.surface_points is None else details.surface_points:
        _surface(draw, np.asarray(points[:, :4], np.float64) * [zoom, zoom, 1, 1], line)
    for number, points in enumerate(() if details.keypoints is None else details.keypoints):
        scaled = np.asarray(points, np.float64) * [zoom, zoom, 1][: points.shape[1]]
        _points(draw, scaled, line, label_color(int(labels[number])), details.edges)
    # After all else, so that no line crosses a text.
    _place_captions(canvas, captions_to_place)
    return np.asarray(canvas)


def _stroke_sizes(canvas: Image.Image, fit: int) -> tuple[int, int]:
    """Return the width of lines and the height of letters, in pixels of the picture."""
    size = math.sqrt(canvas.width * canvas.height)
    return max(round(size / _LINE_SHARE), 1), max(_letter_height(canvas), _LEAST_LETTERS if fit else 9)


def _letter_height(image: Image.Image) -> int:
    """Return the height of letters that fits a picture's size."""
    return round(math.sqrt(image.width * image.height) / _LETTER_SHARE)


def _clip(box: NDArray[np.float64], canvas: Image.Image, line: int) -> Corners:
    """Return a box within the picture and a little beyond, so that an edge outside is not drawn on its border."""
    most = np.array([*canvas.size, *canvas.size]) + 2.0 * line
    x_min, y_min, x_max, y_max = np.clip(box, -2.0 * line, most).tolist()
    return x_min, y_min, x_max, y_max


def _rectangle(draw: ImageDraw.ImageDraw, corners: Corners, color: Color, line: int) -> None:
    """Draw a box; Pillow draws the last pixel too, before which a box ends."""
    x_min, y_min, x_max, y_max = corners
    ends = (x_max - 1 if x_max - 1 > x_min else x_max, y_max - 1 if y_max - 1 > y_min else y_max)
    draw.rectangle((x_min, y_min, *ends), outline=color, width=line)


def _tinted(image: NDArray[np.uint8], masks: NDArray[np.uint8], labels: Sequence[int]) -> NDArray[np.uint8]:
    """Return an image with each object's pixels tinted in the color of its label."""
    tinted = image.copy()
    for mask, label in zip(masks, labels, strict=True):
        inside = mask > 0
        tinted[inside] = (tinted[inside] * (1 - _MASK_SHARE) + np.array(label_color(int(label))) * _MASK_SHARE).astype(
            np.uint8
        )
    return tinted


def _points(
    draw: ImageDraw.ImageDraw,
    points: NDArray[np.float64],
    line: int,
    color: Color,
    edges: Sequence[tuple[int, int]],
) -> None:
    """Draw an object's keypoints, in pixels of the picture, and lines between them."""
    seen = np.isfinite(points[:, :2]).all(1) & (np.abs(points[:, :2]) < _FARTHEST).all(1)
    if points.shape[1] > 2:
        seen &= points[:, 2] > 0
    visible = np.atleast_1d(seen)
    for start, end in edges:
        if max(start, end) < len(points) and min(start, end) >= 0 and visible[start] and visible[end]:
            draw.line((*points[start, :2].tolist(), *points[end, :2].tolist()), fill=color, width=line)
    radius = 2.0 * line
    for x, y in points[visible, :2].tolist():
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=color, outline=(0, 0, 0))


def _surface(draw: ImageDraw.ImageDraw, points: NDArray[np.float64], line: int) -> None:
    """Draw the points of a surface [D, 4], in pixels of the picture, in the colors of their parts."""
    near = np.isfinite(points).all(1) & (np.abs(points) < _FARTHEST).all(1)
    for x, y, known, part in points[near].tolist():
        if known > 0:
            draw.ellipse((x - line, y - line, x + line, y + line), fill=label_color(int(part)))


def _canvas(image: NDArray[np.uint8], fit: int) -> tuple[Image.Image, float]:
    """Return an image in its drawn size, and the scale factor."""
    height, width = image.shape[:2]
    if fit:
        zoom = fit / max(height, width)
    else:
        zoom = float(max(-(-_LEAST_SIDE // min(height, width)), 1))
        zoom = min(zoom, PICTURE_SIDE.value / max(height, width))
        # Whole factors, so that all pixels of an enlarged image have one size.
        zoom = float(int(zoom)) if zoom >= 1 else zoom
    canvas = Image.fromarray(image)
    if zoom == 1:
        return canvas, zoom
    canvas = canvas.resize((max(round(width * zoom), 1), max(round(height * zoom), 1)))
    if fit and min(canvas.size) < 4 * _LEAST_LETTERS:  # room for captions beside a narrow image
        image_alone = canvas
        canvas = Image.new("RGB", (max(canvas.width, 4 * _LEAST_LETTERS), max(canvas.height, 4 * _LEAST_LETTERS)))
        canvas.paste(image_alone, (0, 0))
    return canvas, zoom


def _short(caption: str) -> str:
    """Return a printable caption of limited length."""
    plain = "".join(c if c.isprintable() else "?" for c in caption)
    return plain if len(plain) <= _MOST_CAPTION else f"{plain[: _MOST_CAPTION - 1]}…"


def _place_captions(canvas: Image.Image, captions: Sequence[tuple[Corners, Image.Image]]) -> None:
    """Paste captions beside the corners of their boxes, the last first, where they cover none that is there.

    A caption for which no place is free is left out: two texts over each other could both not be read.

    Args:
        captions: Boxes in pixels of the picture, with their drawn captions.
    """
    taken = np.zeros((0, 4))
    for corners, label in reversed(captions):
        places = _caption_places(canvas, corners, label)
        apart = (places[:, None, :2] >= taken[None, :, 2:]) | (places[:, None, 2:] <= taken[None, :, :2])
        free = np.flatnonzero(np.all(np.any(apart, axis=2), axis=1))
        if len(free):
            place = places[free[0]]
            canvas.paste(label, (int(place[0]), int(place[1])))
            taken = np.concatenate([taken, place[None]])


def _caption_places(canvas: Image.Image, corners: Corners, label: Image.Image) -> NDArray[np.float64]:
    """Return where a caption may stand, float64 [P, 4], xyxy in whole pixels, the most usual place first.

    Above the box's top, below it within the box, below the box's bottom, above it within the box: from the left edge,
    then to the right one. Places that leave the picture are moved into it sideways, and dropped otherwise.
    """
    x_min, y_min, x_max, y_max = corners
    # One pixel of the caption lies on the line.
    tops = [y_min - label.height + 1, y_min + 1, y_max - 1, y_max - label.height - 1]
    lefts = [x_min, x_max - label.width]
    starts = np.array([(left, top) for left in lefts for top in tops])
    starts[:, 0] = np.clip(starts[:, 0], 0, max(canvas.width - label.width, 0))
    inside = (starts[:, 1] >= 0) & (starts[:, 1] + label.height <= canvas.height)
    # A picture may be lower than a caption, and a box may be outside.
    starts = starts[inside] if inside.any() else np.clip(starts[:1], 0, max(canvas.height - label.height, 0))
    starts = np.round(starts)
    return np.concatenate([starts, starts + np.array([label.width, label.height])], axis=1)


@lru_cache(maxsize=1024)
def _label(text: str, color: Color, letters: int) -> Image.Image:
    """Return a drawn caption, cached: letters take most of the drawing time, and captions recur."""
    font = ImageFont.load_default(size=letters)
    left, top, right, bottom = (round(side) for side in font.getbbox(text))
    label = Image.new("RGB", (right - left + 4, bottom - top + 4), color)
    ImageDraw.Draw(label).text((2 - left, 1 - top), text, fill=text_color(color), font=font)
    return label


def side_by_side(left: NDArray[np.uint8], right: NDArray[np.uint8], titles: tuple[str, str]) -> NDArray[np.uint8]:
    """Return two pictures of one size, uint8 [H, W, 3], side by side, each under its title."""
    return contact_sheet([left, right], list(titles), columns=2, cell=None)


def contact_sheet(
    pictures: Sequence[NDArray[np.uint8]], titles: Sequence[str], *, columns: int = 5, cell: int | None = 240
) -> NDArray[np.uint8]:
    """Return many pictures, uint8 [H, W, 3], on one sheet.

    Args:
        titles: One title per picture, of one or several lines.
        cell: The side of the square that each picture is scaled to fit; None to keep its size.
    """
    images = [Image.fromarray(picture) for picture in pictures]
    if cell is not None:
        scales = [cell / max(image.size) for image in images]
        images = [
            image.resize((max(round(image.width * scale), 1), max(round(image.height * scale), 1)))
            for image, scale in zip(images, scales, strict=True)
        ]
    letters = max(_TITLE_LETTERS, *map(_letter_height, images))
    gap, head = 6, 4 + round(1.4 * letters) * max(title.count("\n") + 1 for title in titles)
    width = max(image.width for image in images) + gap
    height = max(image.height for image in images) + gap + head
    rows = -(-len(images) // columns)
    sheet = Image.new("RGB", (min(columns, len(images)) * width + gap, rows * height + gap), (255, 255, 255))
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=letters)
    for number, (image, title) in enumerate(zip(images, titles, strict=True)):
        x, y = gap + number % columns * width, gap + number // columns * height
        draw.text((x, y), title, fill=(0, 0, 0), font=font)
        sheet.paste(image, (x, y + head))
    return np.asarray(sheet)


def draw_cumulative(values: NDArray[np.float32], size: tuple[int, int] = (480, 360)) -> NDArray[np.uint8]:
    """Return a plot, uint8 [H, W, 3], of the share of a sum that the smallest values make up (TF's loss CDF).

    Args:
        values: float [N], at least 0; N may be 0.
    """
    width, height = size
    left, top, right, bottom = 40, 10, width - 10, height - 30
    canvas = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(canvas)
    draw.rectangle((left, top, right, bottom), outline="gray")
    font = ImageFont.load_default(size=11)
    draw.text((left, bottom + 4), f"0   fraction of {len(values)} examples   1", fill="black", font=font)
    draw.text((4, top), "1", fill="black", font=font)
    total = float(np.sum(values, dtype=np.float64))
    if len(values) and total > 0:
        shares = np.concatenate([[0.0], np.sort(values).cumsum(dtype=np.float64) / total])
        across = np.linspace(left, right, 200)
        up = np.interp(np.linspace(0, 1, 200), np.linspace(0, 1, len(shares)), shares)
        points = [(x, bottom - share * (bottom - top)) for x, share in zip(across, up, strict=True)]
        draw.line(points, fill="blue", width=2)
    return np.asarray(canvas)
