"""Runs on fake CUDA tensors: small detectors of every family, their resizers and precisions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

import boxwright as bw
from boxwright.base.distributed import ALONE
from boxwright.config.load import parse_message
from boxwright.data.batch import Batch, collate, to_input
from boxwright.data.shapes import ShapesDataset
from boxwright.pipeline import messages as m
from boxwright.pipeline.training import TrainingPlan, build_training
from boxwright.training.state import new_state, placed
from boxwright.training.step import Learner, StepReport
from boxwright.types import Categories
from tests.center_nets import CENTER_NET, MASKS
from tests.conftest import FEWER_LAYERS
from tests.cuda.fake import fake_batch, fake_cuda, to_fake
from tests.cuda.ledger import OperationRecorder
from tests.d_fines import D_FINE
from tests.exporters.small_detectors import CATEGORIES, FAMILIES
from tests.rf_detrs import RF_DETR, RF_DETR_MASKS

# SSD's own mining (SSD, section 2.2), which no other small detector has.
_FAMILIES = FAMILIES | {
    "ssd, mined": FAMILIES["ssd, softmax"]
    .replace("weighted_sigmoid_focal { gamma: 2.0 alpha: 0.25 }", "weighted_softmax { }")
    .replace(
        "localization_loss { weighted_smooth_l1 { } }",
        """localization_loss { weighted_smooth_l1 { } }
        hard_example_miner { num_hard_examples: 3000 iou_threshold: 0.99 loss_type: CLASSIFICATION
          max_negatives_per_positive: 3 min_negatives_per_image: 3 }""",
    )
}
_FAMILIES |= {"center_net": CENTER_NET, "center_net, masks": CENTER_NET.rstrip()[:-1] + MASKS + "}"}
_FAMILIES |= {"d_fine": D_FINE, "rf_detr": RF_DETR, "rf_detr, masks": RF_DETR_MASKS}
ALL = tuple(_FAMILIES)
# Each operation of a fake tensor costs as much as one of a network of full size.
FEW_LAYERS = "ssd, few layers"
_FAMILIES[FEW_LAYERS] = FEWER_LAYERS[FEWER_LAYERS.index("ssd {") : FEWER_LAYERS.rindex("}")]
ONE_OF_EACH = (
    "ssd",
    "efficientdet",
    "refinedet",
    "srn",
    "align_det",
    "center_net",
    "d_fine",
    "rf_detr",
    "rf_detr, masks",
    "faster_rcnn",
    "mask_rcnn",
    "rfcn",
)
PRECISIONS = {"float32": "", "bfloat16": "use_bfloat16: true"}
RESIZERS = {
    "own": "",
    "fixed_shape": "fixed_shape_resizer { height: 64 width: 128 }",
    "keep_aspect_ratio": "keep_aspect_ratio_resizer { min_dimension: 64 max_dimension: 128 }",
    "keep_aspect_ratio, padded": "keep_aspect_ratio_resizer { min_dimension: 64 max_dimension: 128 "
    "pad_to_max_dimension: true per_channel_pad_value: [10, 20, 30] }",
    "identity": "identity_resizer { }",
    "conditional_shape": "conditional_shape_resizer { condition: GREATER size_threshold: 100 }",
    "pad_to_multiple": "pad_to_multiple_resizer { multiple: 64 }",
}
_TRAINING = """
train_config {
  batch_size: 2 num_steps: 6 gradient_clipping_by_norm: 1.0 bias_grad_multiplier: 2.0 PRECISION
  optimizer {
    momentum_optimizer { learning_rate { constant_learning_rate { learning_rate: 0.01 } } } use_moving_average: true
  }
}
train_input_reader { tf_record_input_reader { input_path: "none" } READS }
"""


def configuration(family: str, resizer: str, precision: str) -> m.TrainEvalPipelineConfig:
    """Return a whole configuration of a family, with a resizer."""
    model = _FAMILIES[family]
    if RESIZERS[resizer]:
        model, changed = re.subn(
            r"image_resizer \{ \w+ \{[^{}]*\} \}", f"image_resizer {{ {RESIZERS[resizer]} }}", model
        )
        assert changed == 1, family
    reads = "load_instance_masks: true" if "mask" in family else ""
    reads = "num_keypoints: 2" if "keypoints" in family else reads
    training = _TRAINING.replace("PRECISION", PRECISIONS.get(precision, precision)).replace("READS", reads)
    return parse_message(f"model {{ {model} }}{training}", m.TrainEvalPipelineConfig)


def learner_of(
    family: str, resizer: str = "own", precision: str = "float32", device: str = "cpu"
) -> tuple[Learner, Batch, TrainingPlan]:
    """Return a learner of a small detector on a device, and a batch of pictures of shapes on the CPU."""
    torch.manual_seed(0)
    config = configuration(family, resizer, precision)
    return learner_from(config, CATEGORIES, (96, 128), device)


def learner_from(
    config: m.TrainEvalPipelineConfig, categories: Categories, size: tuple[int, int], device: str = "cpu"
) -> tuple[Learner, Batch, TrainingPlan]:
    """Return a learner of a configuration on a device, and a batch of two pictures (height, width) on the CPU."""
    detector = placed(bw.build_detector(config, categories), torch.device(device)).train()
    plan = build_training(config, workers=0)
    dataset = ShapesDataset(2, seed=0, size=size)
    samples = [to_input(dataset[number], detector.preprocessor.resizer) for number in range(2)]
    return Learner(new_state(detector, plan), plan, ALONE), collate(samples), plan


@dataclass
class FakeRun:
    """A run on a fake GPU.

    Attributes:
        recorder: What the GPU is told.
        learner: Takes its steps.
        batch: There already.
        previous: What the step before reported.
    """

    recorder: OperationRecorder
    learner: Learner
    batch: Batch
    previous: StepReport | None = None

    def step(self, *, describe: bool = False) -> None:
        """Take a step that is not waited for."""
        self.previous = self.learner.step(self.batch, self.previous, describe=describe, wait=False)

    @property
    def detector(self) -> bw.Detector:
        """What is trained."""
        return self.learner.state.detector


@contextmanager
def fake_run(
    family: str, resizer: str = "own", precision: str = "float32", *, triton: bool = True
) -> Iterator[FakeRun]:
    """Put a run on a fake GPU, after a step: the optimizer has its slots, and there is a step to look back to."""
    with on_fake_gpu(*learner_of(family, resizer, precision), steps=1, triton=triton) as run:
        yield run


@contextmanager
def on_fake_gpu(
    whole: Learner, batch: Batch, plan: TrainingPlan, *, steps: int, triton: bool = True
) -> Iterator[FakeRun]:
    """Put a run on a fake GPU, after some steps, of which the recorder says nothing."""
    detector = whole.state.detector
    with fake_cuda(triton=triton) as recorder:
        to_fake(detector, recorder.mode)
        there = fake_batch(batch, recorder.mode)
        run = FakeRun(recorder, Learner(new_state(detector, plan), plan, ALONE), there)
        for _ in range(steps):
            run.step()
        recorder.clear()
        yield run
