"""The keypoint label map: which keypoints a class has, and their places among those of all classes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from boxwright.base.errors import ConfigError
from boxwright.base.files import as_here, is_file
from boxwright.config import messages as m
from boxwright.config.load import load_message
from boxwright.config.preset import packaged
from boxwright.data.label_map import load_label_map
from boxwright.families.center_net.message import CenterNet, CenterNetKeypointEstimation
from boxwright.types import Categories


@dataclass(frozen=True)
class ClassKeypoints:
    """The keypoints of a class.

    Attributes:
        label: Of the class, 0-based.
        indices: The place of each keypoint among those of all classes.
        deviations: Standard deviations, relative to that of an object's center.
    """

    label: int
    indices: tuple[int, ...]
    deviations: tuple[float, ...]


def build_class_keypoints(config: CenterNet, categories: Categories | None) -> list[ClassKeypoints]:
    """Return the keypoints of each keypoint task's class."""
    if not config.keypoint_estimation_task:
        return []
    try:
        label_map = load_message(packaged(as_here(config.keypoint_label_map_path)), m.StringIntLabelMap)
    except ConfigError as error:
        raise config.refusal("keypoint_label_map_path", str(error)) from None
    items = {item.name: item for item in label_map.item if item.keypoints}
    all_keypoints = [_keypoints(task, items, config) for task in config.keypoint_estimation_task]
    for task, class_keypoints in zip(config.keypoint_estimation_task, all_keypoints, strict=True):
        _check_class(task, class_keypoints.label, config, categories)
    indices = Counter(index for class_keypoints in all_keypoints for index in class_keypoints.indices)
    index, count = indices.most_common(1)[0]
    if count > 1:
        raise config.refusal("keypoint_label_map_path", f"keypoint id {index} occurs {count} times; give each its own")
    return all_keypoints


def check_keypoints_of_data(config: CenterNet, reader: m.InputReader) -> None:
    """Check keypoint tasks against the training data's label map, if its file is there, and the number that is read.

    Raises:
        ConfigError: If a task's class has another id in the data, or records have fewer keypoints than the tasks learn.
    """
    if not config.keypoint_estimation_task:
        return
    path = packaged(as_here(reader.label_map_path))
    tasks = build_class_keypoints(config, load_label_map(path) if reader.label_map_path and is_file(path) else None)
    last = max(index for task in tasks for index in task.indices)
    if reader.num_keypoints <= last:
        raise reader.refusal(
            "num_keypoints",
            f"{reader.num_keypoints}, but the keypoint label map's ids go up to {last}; set it to how many the records "
            f"have of each object, {last + 1} or more",
        )


def _keypoints(
    task: CenterNetKeypointEstimation, items: dict[str, m.StringIntLabelMapItem], config: CenterNet
) -> ClassKeypoints:
    item, path = items.get(task.keypoint_class_name), config.keypoint_label_map_path
    if item is None:
        known = ", ".join(items) or "none"
        raise task.refusal(
            "keypoint_class_name",
            f"{task.keypoint_class_name!r} is no class with keypoints in {path}; those are: {known}",
        )
    labels = [point.label for point in item.keypoints]
    given = task.mapping("keypoint_label_to_std")
    missing = [label for label in labels if label not in given]
    problem = f"none for {', '.join(missing[:5])}; give each one, or none" if given and missing else ""
    if unknown := [label for label in given if label not in labels]:
        problem = f"{unknown[0]!r} is no keypoint of {item.name!r} in {path}"
    if problem:
        raise task.refusal("keypoint_label_to_std", problem)
    indices = tuple(point.id for point in item.keypoints)
    return ClassKeypoints(item.id - 1, indices, tuple(given.get(label, 1.0) for label in labels))


def _check_class(
    task: CenterNetKeypointEstimation, label: int, config: CenterNet, categories: Categories | None
) -> None:
    if not 0 <= label < config.num_classes:
        raise task.refusal(
            "keypoint_class_name", f"id {label + 1} in the keypoint label map, of {config.num_classes} classes"
        )
    if categories is None:
        return
    of_data = categories.by_any_name(task.keypoint_class_name)
    if of_data is None or of_data.label != label:
        actual = "no such class" if of_data is None else f"id {of_data.label + 1}"
        raise task.refusal(
            "keypoint_class_name",
            f"{task.keypoint_class_name!r} has id {label + 1} in the keypoint label map, but {actual} in the data's",
        )
