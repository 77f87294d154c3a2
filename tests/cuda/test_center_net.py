"""CenterNet's keypoints on a fake GPU: targets, losses and decoding without a wait."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from boxwright.config.load import parse_message
from boxwright.data.batch import Batch
from boxwright.pipeline import messages as m
from boxwright.types.dense_pose import COLUMNS
from tests.center_nets import (
    KEYPOINT_LABEL_MAP,
    deep_mask_variants,
    of_one_class,
    variants,
    with_every_task,
    with_identities,
    with_surface,
)
from tests.cuda.families import learner_from, on_fake_gpu
from tests.cuda.waits import ALWAYS
from tests.exporters.small_detectors import CATEGORIES

TRAINING = """
train_config { batch_size: 2 num_steps: 6
  optimizer { momentum_optimizer { learning_rate { constant_learning_rate { learning_rate: 0.01 } } } } }
train_input_reader { load_instance_masks: true num_keypoints: 3 ALL_READ tf_record_input_reader { input_path: "none" } }
""".replace("ALL_READ", "load_dense_pose: true load_track_id: true load_keypoint_depth_features: true")


# Tasks → the text, and which field of a detection shows that they are decoded.
OTHER_TASKS = {
    "deep masks of crops": (deep_mask_variants()[0], "masks"),
    "deep masks of whole images, weakly": (deep_mask_variants()[1], "masks"),
    "conditional masks, of features": (deep_mask_variants()[8], "masks"),
    "surface": (with_surface(), "surface_coordinates"),
    "identities": (with_identities(), "embeddings"),
}


# All are built and train on the CPU in tests/models and tests/training.
@pytest.mark.slow
@pytest.mark.parametrize("name", OTHER_TASKS)
def test_nothing_waits_in_other_tasks(name: str) -> None:
    text, field = OTHER_TASKS[name]
    # Of few layers; MobileNet's steps are test_family[center_net]'s.
    text = text.replace('"mobilenet_v2_fpn" depth_multiplier: 0.1', '"timm/test_resnet.r160_in1k"')
    text = text.replace("hourglass20_uniform_size", "resnet4")
    assert "timm" in text
    config = parse_message(f"model {{ {text} }}{TRAINING}", m.TrainEvalPipelineConfig)
    learner, batch, plan = learner_from(config, CATEGORIES, (64, 96))
    # The first step, whose losses are those of each; test_family[center_net] takes one that looks back.
    with on_fake_gpu(learner, labeled(batch), plan, steps=0) as run:
        run.step()
        assert set(run.recorder.waits) <= ALWAYS
        run.recorder.clear()
        found = run.detector.detect([torch.zeros(3, 64, 96, dtype=torch.uint8)] * 2)
        assert getattr(found[0], field) is not None
        assert set(run.recorder.waits) == {("types/packing.py fetched", "copy to the CPU")}
    assert not run.recorder.mixed_lists


def labeled(batch: Batch) -> Batch:
    """Give objects of the first class what the tasks learn."""
    torch.manual_seed(0)
    shape = batch.targets.weights.shape
    targets = replace(
        batch.targets,
        labels=torch.zeros_like(batch.targets.labels),
        keypoints=torch.rand(*shape, 3, 2) * 60,
        keypoint_depths=torch.rand(*shape, 3),
        temporal_offsets=torch.rand(*shape, 2),
        track_match_flags=torch.ones(shape),
        dense_pose=torch.rand(*shape, 3, COLUMNS),
        track_ids=torch.zeros(shape, dtype=torch.int64),
    )
    return replace(batch, targets=targets)


@pytest.mark.slow  # test_family[center_net] of test_families.py takes the same step, without keypoints
@pytest.mark.parametrize("number", range(5))
def test_nothing_waits(number: int, tmp_path: Path) -> None:
    path = tmp_path / "keypoints.pbtxt"
    path.write_text(KEYPOINT_LABEL_MAP)
    texts = [with_every_task(path), *variants(path)[4:8]]
    config = parse_message(f"model {{ {texts[number]} }}{TRAINING}", m.TrainEvalPipelineConfig)
    categories = CATEGORIES if "num_classes: 4" in texts[number] else None
    learner, batch, plan = learner_from(config, categories, (64, 96))  # type: ignore[arg-type]
    with on_fake_gpu(learner, labeled(batch), plan, steps=1) as run:
        run.step()
        assert set(run.recorder.waits) <= ALWAYS
        run.recorder.clear()
        found = run.detector.detect([torch.zeros(3, 64, 96, dtype=torch.uint8)] * 2)
        assert len(found) == 2
        assert found[0].keypoint_scores is not None
        assert set(run.recorder.waits) == {("types/packing.py fetched", "copy to the CPU")}
    assert not run.recorder.mixed_lists


def test_the_texts_are_of_keypoints(tmp_path: Path) -> None:
    assert all("keypoint_estimation_task" in text for text in variants(tmp_path)[4:8])
    assert of_one_class(tmp_path, "").count("keypoint_estimation_task") == 1
