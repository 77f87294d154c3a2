"""Made-up figures: they follow from the seed, and their joints lie where they are drawn."""

from __future__ import annotations

from importlib import resources

import numpy as np

from boxwright.data.shapes import JOINTS, FiguresDataset
from boxwright.pipeline.load import load_config

# The index of each joint's mirror image, and what the lines of a drawing connect.
FLIPPED_JOINTS = (0, 1, 2, 4, 3, 6, 5)
BONES = ((0, 1), (1, 2), (1, 3), (1, 4), (2, 5), (2, 6))


def test_figures_follow_from_the_seed() -> None:
    first, again, other = (FiguresDataset(4, seed=seed)[2] for seed in (1, 1, 2))
    assert np.array_equal(first.image, again.image)
    assert first.boxes.tolist() == again.boxes.tolist()
    assert not np.array_equal(first.image, other.image)
    assert FiguresDataset(9, seed=1)[2].boxes.tolist() == first.boxes.tolist(), "whatever the number of images"


def test_visible_joints_have_the_color_of_their_figure() -> None:
    """Between two joints that a straight bone connects, pixels are as those at its ends, but for shade and grain."""
    dataset, compared = FiguresDataset(40, seed=3, max_objects=1), 0
    for index in range(len(dataset)):
        sample = dataset[index]
        assert sample.keypoints is not None
        for points in sample.keypoints:
            for start, end in BONES[:2]:  # the spine; limbs are bent
                if not (points[start, 2] and points[end, 2]):
                    continue
                x, y = ((points[start] + points[end]) / 2)[:2].astype(int)
                ends = [sample.image[int(points[i, 1]), int(points[i, 0])].astype(float) for i in (start, end)]
                middle = sample.image[y, x].astype(float)
                assert np.abs(middle - np.mean(ends, 0)).max() < 40
                compared += 1
    assert compared > 40


def test_boxes_hold_visible_joints_and_lefts_are_to_the_right() -> None:
    dataset = FiguresDataset(30, seed=5)
    mirrored = total = hidden = 0
    for index in range(len(dataset)):
        sample = dataset[index]
        assert sample.keypoints is not None
        for box, points in zip(sample.boxes, sample.keypoints, strict=True):
            seen = points[points[:, 2] > 0]
            assert (seen[:, :2] >= box[:2] - 2).all()
            assert (seen[:, :2] <= box[2:] + 2).all()
            hidden += int((points[:, 2] == 0).sum())
            mirrored += int(points[JOINTS.index("left_foot"), 0] < points[JOINTS.index("right_foot"), 0])
            total += 1
    assert total > 25
    assert hidden > 0
    assert mirrored < 0.1 * total


def test_the_configuration_knows_the_joints() -> None:
    config = load_config(str(resources.files("boxwright") / "assets" / "figures.config"))
    assert config.train_config is not None
    (step,) = config.train_config.data_augmentation_options
    assert step.random_horizontal_flip is not None
    assert tuple(step.random_horizontal_flip.keypoint_flip_permutation) == FLIPPED_JOINTS
    names = [JOINTS[index].replace("left", "right") for index in FLIPPED_JOINTS]
    assert names == [name.replace("left", "right") for name in JOINTS]
    assert config.eval_config is not None
    assert tuple((edge.start, edge.end) for edge in config.eval_config.keypoint_edge) == BONES
    metric = config.eval_config.parameterized_metric[0].coco_keypoint_metrics
    assert metric is not None
    assert [entry.key for entry in metric.keypoint_label_to_sigmas] == list(JOINTS)
