"""`ModelMetadata` for TensorFlow Lite's libraries (MediaPipe, the Task Library).

It describes how pixels are scaled, what the outputs are and where the labels are. The schema is metadata_schema.fbs 1.1
(identifier M001); a table is written field by field, in the schema's numbering. A union is two fields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

_IDENTIFIER = b"M001"
_FEATURE, _IMAGE, _BOX = 1, 2, 3  # ContentProperties
_NORMALIZATION = 1  # ProcessUnitOptions
_RGB, _BOUNDARIES, _RATIO, _VALUE_LABELS = 1, 1, 0, 3
_ORDER = (1, 0, 3, 2)  # indices of x_min, y_min, x_max, y_max in (ymin, xmin, ymax, xmax)
# Names and descriptions of the outputs of keypoints, which have no properties of their own.
KEYPOINTS = (("keypoints", "y, x in 0..1."), ("keypoint scores", "In 0..1."))
Field = Callable[[int], Any]


def model_metadata(
    size: tuple[int, int],
    scale: Sequence[float],
    offset: Sequence[float],
    labels: str,
    more: Sequence[tuple[str, str]] = (),
) -> bytes:
    """Return the flatbuffer.

    Args:
        scale: Per channel, of pixel values in 0..255.
        labels: The name of the packed file with the class names; empty for none.
        more: Names and descriptions of outputs after the operator's four.
    """
    writer = _Writer()
    # The libraries compute (pixel - mean) / deviation.
    mean, deviation = [-b / a for a, b in zip(scale, offset, strict=True)], [1 / a for a in scale]
    most, least = ([a * value + b for a, b in zip(scale, offset, strict=True)] for value in (255.0, 0.0))
    image = writer.table(writer.byte(_RGB), writer.table_field(writer.whole(size[1]), writer.whole(size[0])))
    scaled = writer.table(writer.floats(mean), writer.floats(deviation))
    unit = writer.table(writer.byte(_NORMALIZATION), writer.reference(scaled))
    given = writer.tensor(
        "image",
        "The picture, resized and scaled.",
        writer.content(_IMAGE, image),
        writer.tables(unit),
        writer.table_field(writer.floats(most), writer.floats(least)),
    )
    order = writer.table(writer.wholes(_ORDER), writer.byte(_BOUNDARIES), writer.byte(_RATIO))
    file = writer.tables(
        writer.table(writer.text(labels), writer.text("Names of the classes."), writer.byte(_VALUE_LABELS))
    ) if labels else None  # fmt: skip
    output_tables = writer.tables(
        writer.tensor("location", "ymin, xmin, ymax, xmax in 0..1.", writer.content(_BOX, order, (2, 2))),
        writer.tensor("category", "From 0.", writer.content(_FEATURE, writer.table(), (1, 1)), None, None, file),
        writer.tensor("score", "Best first.", writer.content(_FEATURE, writer.table(), (1, 1))),
        writer.tensor("number of detections", "How many rows count.", writer.content(_FEATURE, writer.table())),
        *(writer.tensor(name, told, writer.content(_FEATURE, writer.table())) for name, told in more),
    )
    graph = writer.table(None, None, writer.tables(given), output_tables)
    name, version = writer.text("Boxwright detector"), writer.text("1.0.0")
    return writer.finished(writer.table(name, None, None, writer.tables(graph), None, None, None, version))


class _Writer:
    """Writes tables, innermost first, as flatbuffers require."""

    def __init__(self) -> None:
        import flatbuffers

        self._builder = flatbuffers.Builder(1024)

    def table(self, *fields: Field | None) -> int:
        self._builder.StartObject(len(fields))
        for number, write in enumerate(fields):
            if write is not None:
                write(number)
        return int(self._builder.EndObject())

    def finished(self, root: int) -> bytes:
        self._builder.Finish(root, _IDENTIFIER)
        return bytes(self._builder.Output())

    def reference(self, place: int) -> Field:
        return lambda number: self._builder.PrependUOffsetTRelativeSlot(number, place, 0)

    def table_field(self, *fields: Field | None) -> Field:
        return self.reference(self.table(*fields))

    def text(self, value: str) -> Field:
        return self.reference(self._builder.CreateString(value))

    def byte(self, value: int) -> Field:
        return lambda number: self._builder.PrependInt8Slot(number, value, 0)

    def whole(self, value: int) -> Field:
        return lambda number: self._builder.PrependUint32Slot(number, value, 0)

    def floats(self, values: Sequence[float]) -> Field:
        return self._vector(values, self._builder.PrependFloat32)

    def wholes(self, values: Sequence[int]) -> Field:
        return self._vector(values, self._builder.PrependUint32)

    def tables(self, *places: int) -> Field:
        return self._vector(places, self._builder.PrependUOffsetTRelative)

    def content(self, kind: int, properties: int, of: tuple[int, int] | None = None) -> Field:
        range_of = None if of is None else self.table_field(self.whole(of[0]), self.whole(of[1]))
        return self.table_field(self.byte(kind), self.reference(properties), range_of)

    def tensor(
        self,
        name: str,
        description: str,
        content: Field,
        units: Field | None = None,
        span: Field | None = None,
        files: Field | None = None,
    ) -> int:
        return self.table(self.text(name), self.text(description), None, content, units, span, files)

    def _vector(self, values: Sequence[Any], prepend: Callable[[Any], None]) -> Field:
        self._builder.StartVector(4, len(values), 4)
        # Flatbuffers are written from their end.
        for value in reversed(values):
            prepend(value)
        return self.reference(self._builder.EndVector())
