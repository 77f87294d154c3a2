"""What is white in the images of a data set, chosen by some of them."""

from __future__ import annotations

from boxwright.base.errors import BoxwrightError
from boxwright.data.dataset import Dataset, ScaledDataset
from boxwright.data.image_io import measure_depth
from boxwright.data.own_dataset import OwnDataset, spread_evenly
from boxwright.types.pixels import ValueRange, choose_white_level

# Files that are read; those of 8 bits are not decoded.
_FILES = 64
_TENSORFLOWS = 65535.0


def measure_white_level(dataset: Dataset) -> tuple[float, str]:
    """Return the value that is white in a data set's images that are not of 8 bits, and a line about it.

    TFRecords are read as TensorFlow reads them, by the upper 8 of 16 bits: of them only the line is returned, where
    their values have fewer.

    Returns:
        The level and the line; 0 and nothing if all images are of 8 bits.

    Raises:
        DataError: If the images follow no convention.
    """
    if isinstance(dataset, OwnDataset):
        return dataset.white_level, dataset.white_note
    ranges = [values for index in spread_evenly(len(dataset), _FILES) if (values := _measure(dataset, index))]
    level, line = choose_white_level(ranges, dataset.name)
    if isinstance(dataset, ScaledDataset):
        return level, line
    if level in (0.0, _TENSORFLOWS):
        return 0.0, ""
    dark = max(values.largest for values in ranges) / _TENSORFLOWS * 255
    return 0.0, (
        f"the records' images of more than 8 bits have values of at most {level:,.0f}; they are read as in TensorFlow, "
        f"by the upper 8 of 16 bits, and are nearly black (at most {dark:.0f} of 255): "
        f"train_input_reader.white_level: {level:g} reads them by their own range"
    )


def _measure(dataset: Dataset, index: int) -> ValueRange | None:
    try:
        data, name = dataset.encoded(index)
        return measure_depth(data, name)
    except BoxwrightError:  # it is raised where the sample is read
        return None
