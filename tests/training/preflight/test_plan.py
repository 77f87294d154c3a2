"""What a run starts from and what it evaluates in the end."""

from __future__ import annotations

from pathlib import Path

import pytest

import boxwright as bw
from boxwright.pipeline.training import build_training
from boxwright.training.preflight.examine import examine, examine_quickly
from boxwright.training.preflight.plan import check_average, check_frozen, check_never, check_statistics
from boxwright.training.preflight.records import Finding
from tests.d_fines import D_FINE

FROZEN = "feature_extractor { freeze_batchnorm: true }"
STEM = r"train_config.freeze_variables=['^backbone\\.stem\\.', '^backbone\\..*\\.bn\\.']"


def d_fine(small_config: Path, extractor: str = "") -> Path:
    text = small_config.read_text()
    model = D_FINE.replace("encoder {", f"{extractor} encoder {{", 1)
    small_config.write_text(f"model {{ {model} }}\n{text[text.index('train_config {') :]}")
    return small_config


def frozen(path: Path, *overrides: str, checkpoint: str = "") -> list[Finding]:
    config = bw.load_config(path, list(overrides))
    return list(check_frozen(build_training(config), bw.build_detector(config), checkpoint))


def test_frozen_normalization_of_random_weights(small_config: Path) -> None:
    """As presets of large D-FINEs have it, for published weights."""
    path = d_fine(small_config, FROZEN)
    (found,) = frozen(path)
    assert (found.check, found.verdict) == ("frozen", "warning")
    assert "batch normalization of backbone keeps its first statistics" in found.found
    assert frozen(path, checkpoint="weights.pth") == []
    assert frozen(path, "train_config.fine_tune_checkpoint='weights.pth'") == []
    config = bw.load_config(path)
    detector = bw.build_detector(config)
    from boxwright.pipeline.input_reader import build_dataset

    dataset = build_dataset(config.train_input_reader, "train_input_reader")
    assert found in examine_quickly(config, build_training(config), dataset, detector)
    assert found in list(examine(config))


def test_frozen_random_weights(small_config: Path) -> None:
    (found,) = frozen(d_fine(small_config), STEM)
    assert "5 variables (backbone 5) stay so to its end" in found.found
    stage = "train_config.freeze_stage=[{until_step: 3, variables: ['^backbone']}]"
    assert frozen(small_config, stage) == [], "they learn later"
    assert frozen(small_config) == []


@pytest.mark.parametrize(
    ("steps", "decay", "ramp", "count"),
    # By hand: 1 / (1 - (1 + n) / (10 + n)) = (10 + n) / 9, and 1 / (1 - decay) where that is less; with a ramp as long
    # as the run 1 / (1 - decay (1 - 1 / e)).
    [(600, 0.9999, 0, 68), (90_000, 0.9999, 0, 10_000), (600, 0.9, 0, 10), (5, 0.9999, 0, 2), (600, 0.9999, 600, 3)],
)
def test_what_an_average_is_of(small_config: Path, steps: int, decay: float, ramp: int, count: int) -> None:
    average = f"train_config.optimizer={{momentum_optimizer: {{learning_rate: {{constant_learning_rate: {{}}}}}}, moving_average_decay: {decay}, moving_average_ramp_steps: {ramp}}}"
    plan = build_training(bw.load_config(small_config, [average, f"train_config.num_steps={steps}"]))
    (found,) = check_average(plan, evaluated=True)
    assert f"mostly of the last {count} of {steps} steps; batch" in found.found
    assert list(check_average(plan, evaluated=False)) == []


def test_statistics_that_cannot_follow(small_config: Path) -> None:
    """Decay 0.9 averages 10 updates: of 20 that is more than 0.4, of 40 not; a batch in parts updates more often."""

    def found(*overrides: str) -> list[Finding]:
        config = bw.load_config(small_config, list(overrides))
        return list(check_statistics(build_training(config), bw.build_detector(config)))

    (short,) = found("train_config.num_steps=20")
    assert (short.check, short.verdict) == ("statistics", "warning")
    assert "averages 10 updates (decay 0.9), and the run has 20" in short.found
    assert found("train_config.num_steps=40") == []
    assert found("train_config.num_steps=20", "train_config.gradient_accumulation_steps=2") == []
    assert found("train_config.num_steps=20", "model.ssd.freeze_batchnorm=true") == []


def test_what_a_run_does_not_reach(small_config: Path) -> None:
    config = bw.load_config(
        small_config,
        [
            "train_config { num_steps: 100 data_augmentation_options { random_vertical_flip { } from_step: 100 } }",
            "train_config { freeze_stage { variables: 'neck' until_step: 100 } multi_scale { until_step: 100 } }",
        ],
    )
    assert config.train_config is not None
    never, frozen_to_the_end = check_never(config.train_config, 100)
    assert never.found == "never happens in 100 steps: train_config.data_augmentation_options[1].from_step 100"
    assert frozen_to_the_end.found == "never learns in 100 steps: train_config.freeze_stage[0].until_step 100"
    assert list(check_never(config.train_config, 101)) == []
