"""CenterNet's keypoints on a fake GPU: targets, losses and decoding without a wait."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from boxwright.config import messages as m
from boxwright.config import parse_message
from boxwright.data.batch import Batch
from tests.center_nets import KEYPOINT_LABEL_MAP, of_one_class, variants, with_every_task
from tests.cuda.families import learner_from, on_fake_gpu
from tests.cuda.waits import ALWAYS
from tests.exporters.small_detectors import CATEGORIES

_TRAINING = """
train_config { batch_size: 2 num_steps: 6
  optimizer { momentum_optimizer { learning_rate { constant_learning_rate { learning_rate: 0.01 } } } } }
train_input_reader { load_instance_masks: true num_keypoints: 3 tf_record_input_reader { input_path: "none" } }
"""


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
    )
    return replace(batch, targets=targets)


@pytest.mark.slow  # test_family[center_net] of test_families.py takes the same step, without keypoints
@pytest.mark.parametrize("number", range(5))
def test_nothing_waits(number: int, tmp_path: Path) -> None:
    path = tmp_path / "keypoints.pbtxt"
    path.write_text(KEYPOINT_LABEL_MAP)
    texts = [with_every_task(path), *variants(path)[4:8]]
    config = parse_message(f"model {{ {texts[number]} }}{_TRAINING}", m.TrainEvalPipelineConfig)
    categories = CATEGORIES if "num_classes: 4" in texts[number] else None
    learner, batch, plan = learner_from(config, categories, (64, 96))  # type: ignore[arg-type]
    with on_fake_gpu(learner, labeled(batch), plan, steps=1) as run:
        run.step()
        assert set(run.ledger.waits) <= ALWAYS
        run.ledger.clear()
        found = run.detector.detect([torch.zeros(3, 64, 96, dtype=torch.uint8)] * 2)
        assert len(found) == 2
        assert found[0].keypoint_scores is not None
        assert set(run.ledger.waits) == {("types/packing.py fetched", "copy to the CPU")}
    assert not run.ledger.mixed_lists


def test_the_texts_are_of_keypoints(tmp_path: Path) -> None:
    assert all("keypoint_estimation_task" in text for text in variants(tmp_path)[4:8])
    assert of_one_class(tmp_path, "").count("keypoint_estimation_task") == 1
