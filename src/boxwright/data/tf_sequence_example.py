"""`tf.train.SequenceExample`: the frames of a sequence, each as the features of a `tf.train.Example`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.data.example_messages import Features, SequenceExample, features_of, set_context, values_of
from boxwright.data.reading import whole_number

_IMAGE = "image/encoded"
_ANNOTATED = "region/is_annotated"
_SIDES = tuple(f"region/bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax"))
_FLOATS = (*_SIDES, "region/label/confidence")
# A frame's list: the key of the same in a record of one image.
_LISTS = {
    _IMAGE: _IMAGE,
    "image/source_id": "image/source_id",
    **{side: side.replace("region/", "image/object/") for side in _SIDES},
    "region/label/string": "image/object/class/text",
    # TF's decoder takes the confidence of a label for the weight of its box.
    "region/label/confidence": "image/object/weight",
}


def read_sequence(record: bytes, where: str) -> Any:
    """Return a record's SequenceExample message.

    Raises:
        DataError: If the bytes are none, it has no frames, or its lists are not of the same number of frames.
    """
    sequence = SequenceExample()
    try:
        sequence.ParseFromString(record)
    except (DecodeError, RecursionError, MemoryError):
        raise DataError(f"{where}: not a tf.train.SequenceExample") from None
    lists = sequence.feature_lists.feature_list
    if _IMAGE not in lists or not lists[_IMAGE].feature:
        known = ", ".join(sorted(lists))[:400] or "none"
        raise DataError(f"{where}: no {_IMAGE} among the sequence's lists: {known}; is it a tf.train.Example?")
    count = count_frames(sequence)
    for key in (*_LISTS, _ANNOTATED):
        if key in lists and len(lists[key].feature) != count:
            raise DataError(f"{where}: {key} has {len(lists[key].feature)} frames, {_IMAGE} has {count}")
    return sequence


def count_frames(sequence: Any) -> int:
    """Return the number of frames of a SequenceExample."""
    return len(sequence.feature_lists.feature_list[_IMAGE].feature)


def frame_features(sequence: Any, frame: int) -> Features:
    """Return a frame's features under the keys of a tf.train.Example, with what the sequence's frames share."""
    lists = sequence.feature_lists.feature_list
    own = {key: values_of(lists[name].feature[frame]) for name, key in _LISTS.items() if name in lists}
    return features_of(sequence.context) | own


def is_annotated(sequence: Any, frame: int, where: str) -> bool:
    """Return whether a frame was annotated; if the sequence does not say, it was.

    Raises:
        DataError: If the frame's value is not one number.
    """
    lists = sequence.feature_lists.feature_list
    if _ANNOTATED not in lists:
        return True
    values = values_of(lists[_ANNOTATED].feature[frame])
    if len(values) != 1 or isinstance(values[0], bytes):
        raise DataError(f"{where}: {_ANNOTATED}: expected one number")
    return whole_number(values[0], f"{where}: {_ANNOTATED}") != 0


def encode_sequence(
    frames: Sequence[Features],
    size: tuple[int, int],
    context: NDArray[np.float32],
    image_ids: Sequence[str],
    where: str,
) -> bytes:
    """Return frames as a serialized tf.train.SequenceExample: images, boxes, class names and weights.

    Args:
        frames: Features of records of one image, all of one size.
        size: Their (height, width).
        context: float32 [M, F]; features of other images, shared by all frames.
        image_ids: M ids of the images that they are of.

    Raises:
        DataError: If a frame's objects have class ids, but no names, which sequences cannot hold.
    """
    sequence = SequenceExample()
    shared = sequence.context.feature
    encoded = frames[0][_IMAGE][0]
    shared["image/format"].bytes_list.value.append(b"png" if encoded[:4] == b"\x89PNG" else b"jpeg")
    shared["image/height"].int64_list.value.append(size[0])
    shared["image/width"].int64_list.value.append(size[1])
    set_context(shared, context, image_ids)
    lists = sequence.feature_lists.feature_list
    has_weights = any(len(frame.get("image/object/weight", ())) for frame in frames)
    for frame in frames:
        count = len(frame.get("image/object/bbox/xmin", ()))
        if len(frame.get("image/object/class/text", ())) != count:
            raise DataError(
                f"{where}: a record's objects have no image/object/class/text, which sequences need; "
                "write records of single images (tf_example)"
            )
        for name, key in _LISTS.items():
            values = frame.get(key, ())
            if name == "region/label/confidence":
                if not has_weights:
                    continue
                values = values or [1.0] * count
            feature = lists[name].feature.add()
            kind = feature.float_list if name in _FLOATS else feature.bytes_list
            kind.value.extend(values)
        lists[_ANNOTATED].feature.add().int64_list.value.append(1)
    return bytes(sequence.SerializeToString(deterministic=True))
