"""The objects detected in one picture, with the picture.

Dimensions: D detections, P keypoints, h w mask.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError, OutputError
from boxwright.base.files import make_folder, write_whole
from boxwright.base.text import visible_line
from boxwright.data.image_io import encode_jpeg, encode_picture
from boxwright.evaluation.pictures import draw_detections
from boxwright.evaluation.results import detection_rows, large_values
from boxwright.nn.ops.pasted_masks import whole_masks
from boxwright.types.categories import Categories
from boxwright.types.detections import Array, Detections

if TYPE_CHECKING:
    from PIL.Image import Image as PilImage
    from torch import Tensor

# The confidence threshold of drawing by default, unless objects were selected.
DRAWN_FROM = 0.5
_MOST_BOXES = 100
_PICTURES = (".jpg", ".jpeg", ".png")
_ROWS_IN_HTML = 20


@dataclass(frozen=True, eq=False)
class FoundObject:
    """One object; `box, score, name = found_object` unpacks it.

    Attributes:
        box: float32 [4], xyxy in pixels of the picture.
        score: 0 to 1.
        name: Its class.
        label: The class's 0-based number.
        mask: uint8 [H, W] of 0 and 1, in the picture's size; None if the model predicts no masks.
        keypoints: float32 [P, 2], x and y in pixels; None if the model predicts none.
        keypoint_scores: float32 [P] in 0..1; None if the model predicts none.
        track: The object's number in a video; None without tracking.
        embedding: float32 [E] of length 1, nearer for the same individual in other pictures than for others; None if
            the model predicts none.
    """

    box: NDArray[np.float32]
    score: float
    name: str
    label: int
    mask: NDArray[np.uint8] | None = None
    keypoints: NDArray[np.float32] | None = None
    keypoint_scores: NDArray[np.float32] | None = None
    track: int | None = None
    embedding: NDArray[np.float32] | None = None

    def __iter__(self) -> Iterator[Any]:
        return iter((self.box, self.score, self.name))

    def __repr__(self) -> str:
        corners = ", ".join(f"{value:.1f}" for value in self.box.tolist())
        return f"<{self.name} {self.score:.2f} at {corners}>"


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """The objects detected in one picture, best first, with the picture.

    `len(result)` counts the objects; `result[0]` is one of them; `result[result.scores > 0.3]`, `result[:10]` and
    `result[[2, 5]]` are results with some of them; `for found_object in result` iterates over them.

    Examples:
        >>> result = boxwright.load("model")("photos/street.png")
        >>> best = result[0]
        >>> best.box.shape, 0 < best.score <= 1, best.name in ("circle", "square", "triangle", "star")
        ((4,), True, True)
        >>> len(result[result.scores >= best.score])
        1
        >>> result.save("street-detected.png")
        PosixPath('street-detected.png')

    Attributes:
        objects: The objects as arrays.
        image: uint8 [H, W, 3] in RGB; of more channels if the model takes them, of which the first three are drawn.
        source: The path or address of the picture; empty if it had none.
        drawn_from: The confidence threshold of `plot` and `save`; 0 once objects were selected.
        error: Why the picture could not be read, so that there are no objects; empty if it was. Only `Model.stream`
            yields such results.
    """

    objects: Detections[Array]
    image: NDArray[np.uint8]
    source: str = ""
    drawn_from: float = DRAWN_FROM
    error: str = ""

    @classmethod
    def without_objects(
        cls, image: NDArray[np.uint8], source: str, error: str, categories: Categories | None = None
    ) -> Result:
        """Return the result of a picture that could not be read."""
        boxes, scores, labels = np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64)
        height, width = image.shape[:2]
        return cls(Detections(boxes, scores, labels, (height, width), categories), image, source, error=error)

    @property
    def boxes(self) -> NDArray[np.float32]:
        """The boxes, float32 [D, 4], xyxy in pixels of the picture."""
        return self.objects.boxes

    @property
    def scores(self) -> NDArray[np.float32]:
        """The scores, float32 [D]."""
        return self.objects.scores

    @property
    def labels(self) -> NDArray[np.int64]:
        """The classes' 0-based numbers, int64 [D]."""
        return self.objects.labels

    @property
    def masks(self) -> NDArray[np.uint8] | None:
        """The masks, uint8 [D, H, W] of 0 and 1, in the picture's size; None if the model predicts none."""
        return None if self.objects.masks is None else whole_masks(self.objects)

    @property
    def keypoints(self) -> NDArray[np.float32] | None:
        """The keypoints, float32 [D, P, 2], x and y in pixels; None if the model predicts none."""
        return self.objects.keypoints

    @property
    def keypoint_scores(self) -> NDArray[np.float32] | None:
        """The keypoints' scores, float32 [D, P] in 0..1; None if the model predicts none."""
        return self.objects.keypoint_scores

    @property
    def embeddings(self) -> NDArray[np.float32] | None:
        """What tells individuals apart, float32 [D, E] of length 1; None if the model predicts none."""
        return self.objects.embeddings

    @property
    def image_size(self) -> tuple[int, int]:
        """The picture's (height, width)."""
        return self.objects.image_size

    def names(self) -> list[str]:
        """Return the objects' class names."""
        return self.objects.names()

    def above(self, score: float) -> Result:
        """Return the objects of at least a score."""
        return self._selected(self.scores >= score)

    def __len__(self) -> int:
        return len(self.objects)

    def __bool__(self) -> bool:
        return True  # even without objects

    @overload
    def __getitem__(self, rows: int) -> FoundObject: ...
    @overload
    def __getitem__(self, rows: Any) -> Result: ...
    def __getitem__(self, rows: Any) -> FoundObject | Result:
        # It usually comes from `result.names() == "cat"`, a list compared with a text, and would select object 0.
        if isinstance(rows, bool | np.bool_):
            raise TypeError("expected a number, a slice, or a mask with a value for each object, found one boolean")
        # An array or tensor without dimensions is a number, too.
        if isinstance(rows, int | np.integer) or getattr(rows, "ndim", 1) == 0:
            number = int(rows)
            if not -len(self) <= number < len(self):
                raise IndexError(f"object {number} of {len(self)}")
            return self._object(number % len(self))
        if not isinstance(rows, slice):
            rows = np.asarray(rows)
            # An empty list becomes an array of floats, which cannot select.
            rows = rows.astype(np.int64) if rows.size == 0 and rows.dtype != np.bool_ else rows
        return self._selected(rows)

    def __iter__(self) -> Iterator[FoundObject]:
        return (self._object(number) for number in range(len(self)))

    def __repr__(self) -> str:
        if self.error:
            return f"<Result: could not be read: {self.error}>"
        height, width = self.image_size
        counts = Counter(self.above(self.drawn_from).names())
        classes = ", ".join(f"{count} {visible_line(name)}" for name, count in counts.most_common(5)) or "nothing"
        more = f" and {len(counts) - 5} more classes" if len(counts) > 5 else ""
        of = f" (score {self.drawn_from:g} or more; {len(self)} objects in all)" if self.drawn_from else ""
        where = f" in {self.source}" if self.source else ""
        return f"<Result {width}×{height}{where}: {classes}{more}{of}>"

    def _repr_html_(self) -> str:
        """Return HTML of the picture with a table below it, for notebooks."""
        if self.error:
            return f"<p>{escape(repr(self)[1:-1])}</p>"
        # JPEG, as a notebook's file keeps every picture that was shown.
        data = base64.b64encode(encode_jpeg(self._drawn(None))).decode()
        shown = self.above(self.drawn_from)
        rows = "".join(
            f"<tr><td>{escape(item.name)}</td><td>{item.score:.2f}</td>"
            f"<td>{', '.join(f'{v:.0f}' for v in item.box)}</td></tr>"
            for item in shown[:_ROWS_IN_HTML]
        )
        more = f"<p>and {len(shown) - _ROWS_IN_HTML} more</p>" if len(shown) > _ROWS_IN_HTML else ""
        return (
            f'<p>{escape(repr(self)[1:-1])}</p><img style="max-width:100%" src="data:image/jpeg;base64,{data}">'
            f"<table><tr><th>class</th><th>score</th><th>x, y, x, y</th></tr>{rows}</table>{more}"
        )

    def show(self, min_score: float | None = None) -> None:
        """Open the picture with the objects drawn on it in the system's viewer; a notebook displays it.

        Args:
            min_score: As for `plot`.

        Raises:
            OutputError: If no viewer is installed, as on a server.
        """
        from rich.console import Console

        picture = self.plot(min_score)
        if Console().is_jupyter:
            import_module("IPython.display").display(picture)
            return
        from PIL import ImageShow

        if not ImageShow.show(picture):
            raise OutputError('no program that shows pictures is installed here; write a file: result.save("out.jpg")')

    def plot(self, min_score: float | None = None) -> PilImage:
        """Return the picture with the objects drawn on it.

        Args:
            min_score: The confidence threshold of drawing; by default 0.5, or 0 if objects were selected before.

        Returns:
            The picture, enlarged if it is small.

        Raises:
            DataError: If the picture could not be read.
        """
        from PIL import Image

        return Image.fromarray(self._drawn(min_score))

    def save(self, path: str | Path, min_score: float | None = None) -> Path:
        """Write the picture with the objects drawn on it.

        Args:
            path: The file, .jpg or .png.
            min_score: As for `plot`.

        Returns:
            The file.

        Raises:
            DataError: For another ending, or if the picture could not be read.
            OutputError: If the disk is full or the folder cannot be written.
        """
        path = Path(path)
        if path.suffix.lower() not in _PICTURES:
            raise DataError(f"{path}: expected a name that ends in {', '.join(_PICTURES)}")
        make_folder(path.parent)
        return write_whole(path, encode_picture(self._drawn(min_score), path.suffix))

    def numpy(self) -> Detections[Array]:
        """Return the objects as NumPy arrays, without the picture."""
        return self.objects

    def to(self, device: Any = "cpu") -> Detections[Tensor]:
        """Return the objects as tensors on a PyTorch device."""
        import torch

        values: dict[str, Any] = {
            name: torch.tensor(value, device=device) if isinstance(value, np.ndarray) else value
            for name, value in vars(self.objects).items()
        }
        return Detections(**values)

    def to_coco(self, image_id: int | str | None = None) -> list[dict[str, Any]]:
        """Return the objects as rows of COCO's results file: image_id, category_id, bbox, score, segmentation.

        What else the model predicts of each is there too, as in the command's detections.json.

        Args:
            image_id: The picture's id; by default its file's name without ending.

        Returns:
            One row per object.
        """
        identity = Path(self.source).stem if image_id is None else str(image_id)
        rows = detection_rows(self.objects, identity, self.objects.categories)
        return [row | large for row, large in zip(rows, large_values(self.objects), strict=True)]

    def to_pandas(self) -> Any:
        """Return the objects as a pandas DataFrame with x_min, y_min, x_max, y_max, score, label and name.

        Returns:
            The table, with one row per object.

        Raises:
            DataError: If pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError:
            raise DataError("to_pandas needs pandas: pip install pandas") from None
        columns: dict[str, Any] = dict(zip(("x_min", "y_min", "x_max", "y_max"), self.boxes.T, strict=True))
        return pd.DataFrame({**columns, "score": self.scores, "label": self.labels, "name": self.names()})

    def to_supervision(self) -> Any:
        """Return the objects as `supervision.Detections`, with the class names in its data.

        Returns:
            The detections.

        Raises:
            DataError: If supervision is not installed.
        """
        try:
            import supervision
        except ImportError:
            raise DataError("to_supervision needs supervision: pip install supervision") from None
        masks = self.masks
        return supervision.Detections(
            xyxy=self.boxes.astype(np.float32),
            confidence=self.scores.astype(np.float32),
            class_id=self.labels.astype(np.int64),
            mask=None if masks is None else masks.astype(np.bool_),
            tracker_id=self.objects.tracks,
            data={"class_name": np.array(self.names(), dtype=str)},
        )

    def _selected(self, rows: Any) -> Result:
        return replace(self, objects=self.objects.select(rows), drawn_from=0.0)

    def _object(self, number: int) -> FoundObject:
        detections = self.objects.select(slice(number, number + 1))
        return FoundObject(
            box=detections.boxes[0],
            score=float(detections.scores[0]),
            name=detections.names()[0],
            label=int(detections.labels[0]),
            mask=None if detections.masks is None else whole_masks(detections)[0],
            keypoints=None if detections.keypoints is None else detections.keypoints[0],
            keypoint_scores=None if detections.keypoint_scores is None else detections.keypoint_scores[0],
            track=None if detections.tracks is None else int(detections.tracks[0]),
            embedding=None if detections.embeddings is None else detections.embeddings[0],
        )

    def _drawn(self, min_score: float | None) -> NDArray[np.uint8]:
        if self.error:
            raise DataError(self.error)
        least = self.drawn_from if min_score is None else min_score
        return draw_detections(self.image, self.objects, least, _MOST_BOXES)
