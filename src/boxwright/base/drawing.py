"""Pictures of boxes: on one image, ground truth beside detections, many images on a sheet.

The sides of a picture are at most `limits.PICTURE_SIDE`: larger images are scaled down, and drawings are clipped.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from boxwright.base.limits import PICTURE_SIDE

Color = tuple[int, int, int]
# The side of a contact sheet's square cells.
SHEET_CELL = 320
_LEAST_SIDE = 320
_MOST_CAPTION = 60
_LEAST_LETTERS = 12
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
    line = max(round(min(canvas.size) / 250), 1)
    letters = max(min(canvas.size) // 28, _LEAST_LETTERS if fit else 9)
    # A little beyond the picture, so that an edge outside it is not drawn on its border.
    least, most = -2.0 * line, np.array([*canvas.size, *canvas.size]) + 2.0 * line
    for box, label, caption in zip(np.asarray(boxes, np.float64).reshape(-1, 4), labels, captions, strict=True):
        if not np.isfinite(box).all() or (box[2:] < box[:2]).any():
            continue
        x_min, y_min, x_max, y_max = np.clip(box * zoom, least, most).tolist()
        color = label_color(int(label))
        draw.rectangle(
            # Pillow draws the last pixel too; a box ends before it.
            (x_min, y_min, x_max - 1 if x_max - 1 > x_min else x_max, y_max - 1 if y_max - 1 > y_min else y_max),
            outline=color,
            width=line,
        )
        if caption:
            _caption(canvas, (x_min, y_min), _short(caption), color, letters)
    for points in () if details.surface_points is None else details.surface_points:
        _surface(draw, np.asarray(points[:, :4], np.float64) * [zoom, zoom, 1, 1], line)
    for number, points in enumerate(() if details.keypoints is None else details.keypoints):
        scaled = np.asarray(points, np.float64) * [zoom, zoom, 1][: points.shape[1]]
        _points(draw, scaled, line, label_color(int(labels[number])), details.edges)
    return np.asarray(canvas)


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


def _caption(canvas: Image.Image, corner: tuple[float, float], text: str, color: Color, letters: int) -> None:
    """Paste a caption above a corner, or below it if there is no room above."""
    label = _label(text, color, letters)
    x = max(min(corner[0], canvas.width - label.width), 0)
    y = corner[1] - label.height + 1
    y = min(corner[1] + 1, float(canvas.height)) if y < 0 else y
    canvas.paste(label, (round(x), round(y)))


@lru_cache(maxsize=1024)
def _label(text: str, color: Color, letters: int) -> Image.Image:
    """Return a drawn caption, cached: letters take most of the drawing time, and captions recur."""
    font = ImageFont.load_default(size=letters)
    left, top, right, bottom = (round(side) for side in font.getbbox(text))
    label = Image.new("RGB", (right - left + 4, bottom - top + 4), color)
    ink = (0, 0, 0) if sum(color) > 380 else (255, 255, 255)
    ImageDraw.Draw(label).text((2 - left, 1 - top), text, fill=ink, font=font)
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
    gap, head = 6, 4 + 18 * max(title.count("\n") + 1 for title in titles)
    width = max(image.width for image in images) + gap
    height = max(image.height for image in images) + gap + head
    rows = -(-len(images) // columns)
    sheet = Image.new("RGB", (min(columns, len(images)) * width + gap, rows * height + gap), (255, 255, 255))
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=13)
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
