"""`tf.train.SequenceExample`: the frames of a sequence, each as the features of a `tf.train.Example`."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from boxwright.base.errors import DataError
from boxwright.data.example_messages import Features, SequenceExample, features_of, values_of
from boxwright.data.reading import whole_number

_IMAGE = "image/encoded"
_ANNOTATED = "region/is_annotated"
# A frame's list: the key of the same in a record of one image.
_LISTS = {
    _IMAGE: _IMAGE,
    "image/source_id": "image/source_id",
    **{f"region/bbox/{side}": f"image/object/bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax")},
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
